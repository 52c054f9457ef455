//! Taking over: promises, and the log that they show.

use super::look::extend;
use super::peer::{Peer, Sent};
use super::{Owner, Stage};
use crate::log::Run;
use crate::{Address, Entry, Epoch, Position, Request, View};
use alloc::vec::Vec;

impl Owner {
    /// Asks those for a promise that have not been asked, and goes on once enough have promised.
    pub(super) fn ask_promises(&mut self) {
        self.look_around_unpromised();
        self.ask_each();
        let is_enough = if self.was_open && self.settings.controls.no_old_promises {
            true
        } else if self.is_founding {
            self.is_new(|peer| peer.has_promised)
        } else {
            self.config.clone().is_some_and(|config| {
                let is_change = self.was_open || !config.before.is_empty();
                config.lists().all(|list| self.has_promises(list, |peer| peer.has_promised))
                    && (!is_change || self.has_writes(&config, |peer| peer.has_promised))
            })
        };
        if !is_enough {
            return;
        }
        let waited_since = *self.enough_since.get_or_insert(self.now);
        // Servers that have lost their memory are admitted anew on the way, if they answer soon; those that are to be added,
        // too. Neither may keep a log closed that is complete without them.
        let is_early = |wait| self.now < waited_since + wait;
        if self.is_lost_one_asked() && is_early(self.settings.renew_every) {
            return;
        }
        if self.is_wanted_one_asked() && is_early(self.settings.quiet) {
            return;
        }
        self.enough_since = None;
        self.choose();
    }

    /// Whether a server that is to be added is connected, and has not promised yet.
    fn is_wanted_one_asked(&self) -> bool {
        self.wanted.iter().flatten().any(|address| {
            let peer = self.peers.get(address);
            peer.is_some_and(|peer| peer.connection.is_some() && !peer.has_promised)
        })
    }

    fn is_lost_one_asked(&self) -> bool {
        let Some(config) = self.config.as_deref() else { return false };
        config.now.members.iter().any(|member| {
            self.peers.get(&member.address).is_some_and(|peer| {
                let is_asked = peer.sent.iter().any(|sent| matches!(sent, Sent::Promise { .. }));
                is_asked && peer.view.is_some() && !peer.has_promised && !peer.is_kept(member)
            })
        })
    }

    /// Those who have not shown themselves on their connection, and all of those of an owner that may be deposed: while it has the
    /// servers changed it sends nothing else by which it would hear of that.
    fn look_around_unpromised(&mut self) {
        let (now, every) = (self.now, self.settings.renew_every);
        let due = self.addresses_where(|peer| {
            let is_late = peer.asked_at.is_none_or(|at| peer.view.is_none() || at + every <= now);
            let is_asked = if peer.has_promised { self.was_open } else { !self.is_quiet(peer) };
            peer.is_idle() && is_asked && is_late
        });
        for address in due {
            self.send(&address, Request::Look, Sent::Look);
        }
    }

    /// Asks servers that have not promised.
    pub(super) fn ask_each(&mut self) {
        // Before the promises are enough, an owner that still shows itself is left alone; afterwards it is deposed.
        // Where a log is begun, too: one that shows itself has another.
        let is_at_once = self.is_at_once && !self.was_open && !self.is_founding;
        let is_careful = self.stage == Stage::Promising && !is_at_once;
        let (epoch, place) = (self.epoch, self.settings.place.clone());
        let due = self.addresses_where(|peer| {
            let is_asked = peer
                .sent
                .iter()
                .any(|sent| matches!(sent, Sent::Promise { epoch: e } if *e == epoch));
            let may = !is_careful || self.is_quiet(peer);
            peer.connection.is_some()
                && !peer.has_promised
                && !is_asked
                && may
                && peer.full_at.is_none()
        });
        for address in due {
            let beat = self.peers.get(&address).and_then(|peer| peer.quiet_since);
            let unless_since = beat.map(|(beat, _)| beat).filter(|_| is_careful);
            let request = Request::Promise { epoch, unless_since, place: place.clone() };
            self.send(&address, request, Sent::Promise { epoch });
        }
    }

    /// A server has promised.
    pub(super) fn promised(&mut self, address: &Address, view: View) {
        let epoch = self.epoch;
        let is_ours = view.beat.promise == epoch;
        let found = view.config.clone();
        self.saw(address, view);
        let is_taking =
            !matches!(self.stage, Stage::Looking | Stage::Fenced { .. } | Stage::Refused(_));
        if !is_ours || !is_taking {
            return;
        }
        let next = self.next_of(address);
        if let Some(peer) = self.peers.get_mut(address) {
            peer.has_promised = true;
            peer.next = next;
            peer.step = 1;
        }
        // Once this owner has written its own, what that one was made from counts: the own one is the latest by its number.
        let is_own = !matches!(self.stage, Stage::Promising | Stage::Reading);
        let known = if is_own { &self.old } else { &self.config };
        let is_later = |found: &crate::Config| {
            found.epoch != epoch && known.as_ref().is_none_or(|known| known.is_older_than(found))
        };
        // Whoever wrote it may have acknowledged something on its servers.
        let is_surprise = found.is_some_and(|found| is_later(&found));
        if is_surprise && self.stage == Stage::Promising && !self.is_founding {
            self.config = self.newest_config();
            let found: Vec<Address> =
                self.config.iter().flat_map(|config| config.addresses().cloned()).collect();
            found.into_iter().for_each(|address| {
                self.peers.entry(address).or_default();
            });
        } else if is_surprise && !self.was_open {
            self.look_again();
        }
    }

    /// What a server is to be sent first, by what it shows.
    fn next_of(&self, address: &Address) -> Position {
        let view = self.peers.get(address).and_then(|peer| peer.view.as_ref());
        let Some(view) = view else { return self.log.base() };
        let is_same = self.log.epoch_at(view.last) == Some(view.last_epoch);
        let next = if is_same { view.last } else { view.last.min(self.log.last()).before() };
        next.next().max(self.log.base())
    }

    /// Chooses the log: the one with the highest last epoch, or the longest of those.
    fn choose(&mut self) {
        self.answers_from = if self.is_at_once && !self.was_open {
            self.now + self.settings.quiet
        } else {
            self.answers_from
        };
        self.stage = Stage::Reading;
        self.sources.clear();
        if self.is_founding {
            self.log = Run::default();
            return;
        }
        let Some(config) = self.config.clone() else { return };
        if self.settings.controls.entry_by_entry {
            let promised = self.promised_peers().cloned().collect::<Vec<_>>();
            self.sources = promised.into_iter().map(|at| (at, Run::default())).collect();
            return;
        }
        let Some((address, view)) = self.best_source(&config) else { return };
        // The log of an owner that takes over from itself. What another one has followed may be of a log that all servers have
        // forgotten: it only spares reading.
        let is_own = self.was_open || self.settings.controls.trusts_followed;
        if is_own && (view.last_epoch, view.last) <= (self.log.last_epoch(), self.log.last()) {
            return;
        }
        let mut log = core::mem::take(&mut self.log);
        if log.epoch_at(view.last) == Some(view.last_epoch) {
            log.cut(view.last.next());
        }
        self.sources.push((address, log));
    }

    /// Reads on, and goes on once all is read.
    pub(super) fn read_on(&mut self) {
        let (epoch, bytes_max) = (self.epoch, self.settings.bytes_max);
        let mut due = Vec::new();
        for (address, run) in &self.sources {
            let Some(peer) = self.peers.get(address) else { continue };
            let Some(view) = &peer.view else { continue };
            let is_read = (run.last(), run.last_epoch()) == (view.last, view.last_epoch);
            if !is_read && peer.is_idle() {
                due.push((address.clone(), run.last()));
            }
        }
        for (address, from) in due {
            let request = Request::Read { epoch: Some(epoch), from, bytes_max };
            self.send(&address, request, Sent::Read { epoch: Some(epoch) });
        }
        let is_read = |(address, run): &(Address, Run)| {
            let view = self.peers.get(address).and_then(|peer| peer.view.as_ref());
            view.is_some_and(|view| (run.last(), run.last_epoch()) == (view.last, view.last_epoch))
        };
        if self.sources.iter().all(is_read) {
            let runs: Vec<Run> = self.sources.drain(..).map(|(_, run)| run).collect();
            if self.settings.controls.entry_by_entry {
                self.log = merged(&runs);
            } else if let Some(run) = runs.into_iter().next() {
                self.log = run;
            }
            self.begin_configuring();
        }
    }

    pub(super) fn read_of(
        &mut self,
        address: &Address,
        epoch: Option<Epoch>,
        from: Position,
        entries: Vec<Entry>,
        view: View,
    ) {
        if self.stage != Stage::Reading || epoch != Some(self.epoch) {
            return;
        }
        if let Some((_, run)) = self.sources.iter_mut().find(|(at, _)| at == address) {
            extend(run, from, entries, &view);
        }
        self.saw(address, view);
    }

    /// A server has lost its memory on a connection that goes on.
    pub(super) fn forgotten(&mut self, address: &Address, sent: &Sent) {
        let is_ours = match sent {
            Sent::Append { epoch, .. } | Sent::Promise { epoch } => *epoch == self.epoch,
            Sent::Configure { epoch, .. } => *epoch == self.epoch,
            Sent::Read { epoch } => *epoch == Some(self.epoch),
            Sent::Look | Sent::GiveUp => false,
        };
        if !is_ours {
            return;
        }
        if let Some(peer) = self.peers.get_mut(address) {
            peer.view = None;
            peer.begin_epoch();
        }
        self.found_anew();
        if self.stage == Stage::Reading && self.sources.iter().any(|(at, _)| at == address) {
            self.look_again();
        }
    }

    pub(super) fn full(&mut self, address: &Address, sent: &Sent) {
        let now = self.now;
        let Some(peer) = self.peers.get_mut(address) else { return };
        peer.full_at = Some(now);
        peer.is_relieved = false;
        if let Sent::Append { epoch, after, .. } = *sent
            && epoch == self.epoch
        {
            peer.next = peer.next.min(after.next());
        }
    }
}

/// Of each position the entry with the highest epoch: wrong, and only for the tests.
fn merged(runs: &[Run]) -> Run {
    let Some(first) = runs.iter().max_by_key(|run| run.base()) else { return Run::default() };
    let mut log = Run::at(first.base(), first.base_epoch());
    loop {
        let at = log.last().next();
        let best = runs.iter().filter_map(|run| run.get(at)).max_by_key(|entry| entry.epoch);
        let Some(entry) = best else { return log };
        log.push(entry.clone());
    }
}

impl Peer {
    /// Whether something that it could not hold may be tried again.
    pub(super) fn is_willing(&self, now: destage_core::Time, every: destage_core::Span) -> bool {
        self.is_relieved || self.full_at.is_none_or(|at| at + every <= now)
    }
}
