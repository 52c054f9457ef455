//! Looking at the servers, and following whoever owns the log, until nobody does.

use super::peer::{Peer, Sent};
use super::{Owner, Refusal, Stage};
use crate::log::Run;
use crate::{Address, Config, Entry, Epoch, Member, MemberList, Position, Request, View};
use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use destage_core::Time;

impl Owner {
    pub(super) fn saw(&mut self, address: &Address, view: View) {
        let now = self.now;
        if let Some(peer) = self.peers.get_mut(address) {
            peer.saw(now, view);
        }
    }

    /// Looks, follows, and begins to take over once nobody owns the log.
    pub(super) fn look(&mut self) {
        self.config = self.newest_config();
        if let Some(config) = self.config.clone() {
            if config.subject != self.settings.subject {
                self.stage = Stage::Refused(Refusal::Subject(config.subject.clone()));
                return;
            }
            for address in config.addresses() {
                self.peers.entry(address.clone()).or_default();
            }
        }
        self.look_around();
        self.follow();
        if self.is_ready() {
            self.begin_promising();
        }
    }

    /// Asks each server how it stands, from time to time.
    pub(super) fn look_around(&mut self) {
        let (now, every) = (self.now, self.settings.renew_every);
        let is_due = |peer: &Peer| {
            peer.is_idle()
                && peer.asked_at.is_none_or(|at| peer.view.is_none() || at + every <= now)
        };
        let due: Vec<Address> = self.addresses_where(is_due);
        for address in due {
            self.send(&address, Request::Look, Sent::Look);
        }
    }

    pub(super) fn addresses_where(&self, is_it: impl Fn(&Peer) -> bool) -> Vec<Address> {
        self.peers.iter().filter(|(_, peer)| is_it(peer)).map(|(at, _)| at.clone()).collect()
    }

    /// Whether nobody has shown itself at a server for long enough.
    pub(super) fn is_quiet(&self, peer: &Peer) -> bool {
        let Some((beat, since)) = peer.quiet_since else { return false };
        let promise = beat.promise;
        if self.was_open {
            // Those before it are deposed; those behind it are not to be deposed by it.
            return peer.view.is_some() && (promise <= self.previous || promise == self.epoch);
        }
        peer.view.is_some()
            && (self.is_at_once
                || promise == Epoch::NONE
                || promise.is_given_up()
                || promise == self.epoch
                || promise == self.previous
                || since + self.settings.quiet <= self.now)
    }

    /// Whether enough of these servers are so and have kept their memory.
    pub(super) fn has_promises(&self, list: &MemberList, is_it: impl Fn(&Peer) -> bool) -> bool {
        let controls = self.settings.controls;
        let is_one =
            |peer: &Peer, is_kept: bool| (is_kept || controls.memoryless_counts) && is_it(peer);
        let found = list.members.iter().filter(|member| {
            self.peers.get(&member.address).is_some_and(|peer| is_one(peer, peer.is_kept(member)))
        });
        found.count() + usize::from(controls.short_quorum) >= list.promises()
    }

    /// Whether so many servers of each list are so that a change may be written to them, with their memory or without.
    pub(super) fn has_writes(&self, config: &Config, is_it: impl Fn(&Peer) -> bool) -> bool {
        config.lists().all(|list| {
            let is_one = |member: &&Member| self.peers.get(&member.address).is_some_and(&is_it);
            list.members.iter().filter(is_one).count() >= list.writes()
        })
    }

    /// Whether a take-over may begin.
    fn is_ready(&mut self) -> bool {
        let of_config = self.config.clone().is_some_and(|config| {
            config.lists().all(|list| self.has_promises(list, |peer| self.is_quiet(peer)))
        });
        self.is_founding = self.may_found && !of_config && self.could_found();
        of_config || self.is_founding
    }

    fn could_found(&self) -> bool {
        let is_possible = self.settings.copies <= self.settings.servers.len();
        is_possible && self.is_new(|peer| self.is_quiet(peer))
    }

    /// Whether no server holds anything, and nobody has shown itself for long enough: either there is no log, or all servers
    /// have forgotten it. What the log is for knows which.
    pub fn is_blank(&self) -> bool {
        self.stage == Stage::Looking && self.could_found()
    }

    /// Begins a log, since what it is for knows of none: now, if all servers are still so, or not at all.
    pub fn found(&mut self, now: Time) {
        self.now = self.now.max(now);
        if self.stage != Stage::Looking {
            return;
        }
        self.may_found = true;
        self.advance();
        self.may_found = self.settings.founds;
    }

    /// A server has lost its memory, or may have, while a log is begun: all may have, after somebody else had begun one.
    pub(super) fn found_anew(&mut self) {
        if self.is_founding && !matches!(self.stage, Stage::Fenced { .. } | Stage::GivenUp) {
            self.look_again();
        }
    }

    /// Whether all servers are so and none holds anything, so that nothing was ever acknowledged.
    pub(super) fn is_new(&self, is_it: impl Fn(&Peer) -> bool) -> bool {
        let configured = self.config.iter().flat_map(|config| config.addresses());
        let mut all = self.settings.servers.iter().chain(configured);
        all.all(|address| {
            self.peers.get(address).is_some_and(|peer| {
                let is_empty = |view: &View| view.last == Position::NONE;
                is_it(peer) && peer.view.as_ref().is_some_and(is_empty)
            })
        })
    }

    fn begin_promising(&mut self) {
        self.epoch = self.next_epoch();
        self.stage = Stage::Promising;
        for peer in self.peers.values_mut() {
            peer.begin_epoch();
        }
    }

    /// Later than everything that any server has shown.
    pub(super) fn next_epoch(&self) -> Epoch {
        let of_view = |view: &View| {
            let config = view.config.as_ref().map_or(0, |config| config.epoch.number);
            view.beat.promise.number.max(config).max(view.last_epoch.number)
        };
        let seen = self.peers.values().filter_map(|peer| peer.view.as_ref()).map(of_view).max();
        let number = seen.unwrap_or(0).max(self.epoch.number) + 1;
        let identity =
            if self.settings.controls.shared_epochs { 1 } else { self.settings.identity };
        Epoch { number, identity }
    }

    /// Copies the log while somebody else owns it, so that a take-over has little to read.
    fn follow(&mut self) {
        let Some(config) = self.config.clone() else { return };
        let Some((address, view)) = self.best_source(&config) else { return };
        if (view.last_epoch, view.last) <= (self.log.last_epoch(), self.log.last()) {
            if view.base > self.log.base() && view.base <= self.log.last().next() {
                self.log.trim(view.base);
            }
            return;
        }
        if self.peers.get(&address).is_some_and(Peer::is_idle) {
            let (from, bytes_max) = (self.log.last(), self.settings.bytes_max);
            let request = Request::Read { epoch: None, from, bytes_max };
            self.send(&address, request, Sent::Read { epoch: None });
        }
    }

    /// The server whose log is the log, as far as is known.
    pub(super) fn best_source(&self, config: &Config) -> Option<(Address, View)> {
        let members = config.lists().flat_map(|list| &list.members);
        let controls = self.settings.controls;
        let kept = members.filter_map(|member| {
            let peer = self.peers.get(&member.address)?;
            let is_kept = peer.is_kept(member) || controls.memoryless_counts;
            let is_asked = self.stage == Stage::Looking || peer.has_promised;
            Some((member.address.clone(), peer.view.clone().filter(|_| is_kept && is_asked)?))
        });
        kept.max_by_key(|(_, view)| (view.last_epoch, view.last))
    }

    pub(super) fn read(
        &mut self,
        address: &Address,
        sent: &Sent,
        from: Position,
        entries: Vec<Entry>,
        view: View,
    ) {
        let Sent::Read { epoch } = sent else { return };
        if epoch.is_some() {
            return self.read_of(address, *epoch, from, entries, view);
        }
        // What was followed is also good for a take-over that began meanwhile, but that one has its own reads.
        if self.stage == Stage::Looking {
            extend(&mut self.log, from, entries, &view);
        }
        self.saw(address, view);
    }

    /// Since when anybody has shown itself last, for those who wait.
    pub fn quiet_since(&self) -> Option<Time> {
        self.peers.values().filter_map(|peer| peer.quiet_since.map(|(_, since)| since)).max()
    }

    /// How many servers there are.
    pub fn addresses_len(&self) -> usize {
        self.peers.len()
    }

    /// All servers that there are.
    pub fn addresses(&self) -> BTreeSet<Address> {
        self.peers.keys().cloned().collect()
    }
}

/// Puts what was read behind what is there, or in its place if it is of another log.
pub(super) fn extend(log: &mut Run, from: Position, entries: Vec<Entry>, view: &View) {
    let first = entries.first().map(|entry| entry.epoch);
    let is_same = first.is_some() && log.epoch_at(from) == first && from >= log.base();
    let is_next =
        from == log.last().next() && from == view.base && log.last_epoch() == view.base_epoch;
    if is_same {
        log.cut(from.next());
        entries.into_iter().skip(1).for_each(|entry| log.push(entry));
    } else if is_next {
        entries.into_iter().for_each(|entry| log.push(entry));
    } else {
        *log = Run::at(view.base, view.base_epoch);
        if from == view.base {
            entries.into_iter().for_each(|entry| log.push(entry));
        }
    }
}
