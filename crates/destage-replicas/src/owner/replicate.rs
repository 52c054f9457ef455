//! Appending: what each server is sent, and what k of them hold.

use super::adopt::addresses;
use super::peer::{Peer, Sent};
use super::{Owner, Stage};
use crate::{Address, Beat, Config, Entry, Payload, Position, Request};
use alloc::vec::Vec;
use destage_core::Time;

impl Owner {
    /// Appends an entry; its position.
    ///
    /// # Panics
    /// If the log is not open.
    pub fn append(&mut self, now: Time, payload: Payload) -> Position {
        assert!(self.stage == Stage::Open, "the log takes entries while it is open");
        self.now = self.now.max(now);
        self.log.push(Entry { epoch: self.epoch, payload });
        self.advance();
        self.log.last()
    }

    /// Lets go of the entries before this one, which are decided at the origin. As far as they are secured.
    pub fn reclaim(&mut self, base: Position) {
        let base = base.min(self.secured.next());
        if self.stage == Stage::Open && base > self.log.base() {
            self.log.trim(base);
        }
    }

    /// k servers hold everything up to here.
    pub fn committed(&self) -> Position {
        self.committed
    }

    /// So many servers hold everything up to here that whoever takes over finds it: as many as the lease is on, which is k or
    /// fewer. The origin may have it then. Nobody is told of it before: with fewer than k copies it may be lost where k - 1
    /// servers lose their memory.
    pub fn secured(&self) -> Position {
        self.secured
    }

    /// Nothing is answered earlier than this.
    pub fn answers_from(&self) -> Time {
        self.answers_from
    }

    /// Until when something may be answered, if anything may.
    pub fn answers_until(&self) -> Option<Time> {
        if self.stage != Stage::Open {
            return None;
        }
        if self.settings.controls.ignores_lease {
            return Some(Time(u64::MAX));
        }
        let config = self.config.as_deref()?;
        let mut leased: Vec<Time> = self.holders(config, |peer| peer.leased_at);
        leased.sort_unstable_by(|a, b| b.cmp(a));
        let enough = config.now.leases() - usize::from(self.settings.controls.short_lease);
        Some(*leased.get(enough.checked_sub(1)?)? + self.settings.lease)
    }

    /// Whether anything may be answered now.
    pub fn may_answer(&self, now: Time) -> bool {
        now >= self.answers_from && self.answers_until().is_some_and(|until| now < until)
    }

    pub(super) fn replicate(&mut self) {
        self.ask_each();
        self.configure_each();
        let Some(config) = self.config.clone() else { return };
        for address in addresses(&config.now) {
            let member = config.now.get(&address);
            let is_ready = |peer: &Peer| {
                let counts = member.is_some_and(|member| peer.is_kept(member))
                    || self.settings.controls.memoryless_counts;
                counts && peer.configured.is_some()
            };
            if self.peers.get(&address).is_some_and(is_ready) {
                self.feed(&address);
            }
        }
        self.count(&config);
        self.change_if_due();
    }

    /// Sends a server what it lacks, or a renewal.
    fn feed(&mut self, address: &Address) {
        let (now, every) = (self.now, self.settings.renew_every);
        loop {
            let Some(peer) = self.peers.get_mut(address) else { return };
            let under_way = peer.sent.iter().filter(|sent| matches!(sent, Sent::Append { .. }));
            let under_way = under_way.count();
            let is_full = peer.full_at.is_some();
            let is_known = peer.matched.is_some() && !is_full;
            let window = if is_known { self.settings.window } else { 1 };
            if under_way >= window || !peer.is_willing(now, every) {
                return;
            }
            let next = peer.next.max(self.log.base());
            let is_renewal_due = peer.appended_at.is_none_or(|at| at + every <= now);
            let is_due = next <= self.log.last() || peer.matched.is_none() || is_renewal_due;
            if !is_due {
                return;
            }
            let after = next.before();
            let Some(after_epoch) = self.log.epoch_at(after) else { return };
            // What is full is relieved first: an entry that it refuses would bring neither that nor a renewal.
            let is_relief = is_full && !peer.is_relieved && !self.settings.controls.insists;
            let bytes_max = self.settings.bytes_max;
            let entries = if is_relief { Vec::new() } else { self.log.take(next, bytes_max) };
            let upto = after.plus(entries.len());
            peer.next = upto.next();
            peer.appended_at = Some(now);
            let admitted = peer.view.as_ref().map_or(crate::Epoch::NONE, |view| view.admitted);
            let (epoch, base) = (self.epoch, self.log.base());
            let request = Request::Append {
                epoch,
                admitted,
                after,
                after_epoch,
                entries,
                base,
                begins: after == base.before(),
                beat: now.0 / 1_000,
            };
            self.send(address, request, Sent::Append { epoch, after, upto, at: now });
        }
    }

    pub(super) fn appended(&mut self, address: &Address, sent: &Sent) {
        let Sent::Append { epoch, after, upto, at } = *sent else { return };
        if epoch != self.epoch {
            return;
        }
        let now = self.now;
        let Some(peer) = self.peers.get_mut(address).filter(|peer| peer.has_promised) else {
            return;
        };
        peer.matched = peer.matched.max(Some(upto));
        peer.leased_at = peer.leased_at.max(Some(at));
        peer.quiet_since = Some((Beat { promise: epoch, count: at.0 / 1_000 }, now));
        peer.step = 1;
        peer.is_relieved = peer.full_at.is_some() && after == upto && upto < self.log.last();
        if !peer.is_relieved {
            peer.full_at = None;
        }
    }

    /// A server has something else, or less: further back is tried, each time twice as far.
    pub(super) fn gap(&mut self, address: &Address, sent: &Sent, last: Position) {
        let Sent::Append { epoch, after, .. } = *sent else { return };
        if epoch != self.epoch {
            return;
        }
        let base = self.log.base();
        let Some(peer) = self.peers.get_mut(address) else { return };
        let back = Position(after.0.saturating_sub(peer.step)).min(last);
        peer.matched = None;
        peer.next = peer.next.min(back.next()).max(base);
        peer.step = peer.step.saturating_mul(2);
    }

    /// What k servers hold is committed, from this owner's first entry on, and what as many hold as the lease is on is secured.
    fn count(&mut self, config: &Config) {
        let mut held: Vec<Position> = self.holders(config, |peer| peer.matched);
        held.sort_unstable_by(|a, b| b.cmp(a));
        let by = |count: usize| {
            let reached = count.checked_sub(1).and_then(|index| held.get(index).copied());
            reached.filter(|&reached| reached >= self.opening)
        };
        let is_early = self.settings.controls.answers_early && self.stage == Stage::Opening;
        let by_k = if is_early { Some(self.opening) } else { by(config.now.copies) };
        let short = usize::from(self.settings.controls.short_secured);
        let by_lease = by(config.now.leases() - short).max(by_k);
        self.committed = self.committed.max(by_k.unwrap_or_default());
        self.secured = self.secured.max(by_lease.unwrap_or_default());
        let opens = by_k.is_some() || by_lease.is_some() && self.opens_short();
        if self.stage == Stage::Opening && opens {
            self.stage = Stage::Open;
            self.was_open = true;
            self.is_founding = false;
            self.previous = self.epoch;
        }
        if self.stage == Stage::Open && by_k.is_some() {
            self.conclude_change();
        }
    }

    /// Whether it need not wait for k servers, since there are fewer.
    fn opens_short(&self) -> bool {
        let (holders, copies) = self.holders_now();
        self.settings.opens_short && holders < copies
    }

    /// What is known of those servers of the configuration that count.
    pub(super) fn holders<T>(&self, config: &Config, of: impl Fn(&Peer) -> Option<T>) -> Vec<T> {
        let controls = self.settings.controls;
        let known = config.now.members.iter().filter_map(|member| {
            let peer = self.peers.get(&member.address)?;
            (peer.is_kept(member) || controls.memoryless_counts).then(|| of(peer))?
        });
        known.collect()
    }
}
