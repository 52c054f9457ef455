//! Domains that stand still until someone has looked: at a write that the origin rejected, or because it rejects too many.
//!
//! What a domain halts at is undecided and at its head, so nothing of the domain overtakes it, and the staleness bound goes
//! on to hold. A start forgets a halt: the origin is asked once more.

use super::Core;
use super::destage::Destager;
use super::queue::{Domain, Isolate, Lately};
use crate::groups::State;
use crate::id::{DomainId, Lsn};
use crate::io::{Effect, Halt};
use crate::policy::{OnReject, Policy};
use alloc::vec::Vec;

impl Domain {
    /// Someone has looked.
    pub(super) fn go_on(&mut self) {
        self.halt = None;
        self.parked_lately = Lately::default();
    }

    fn stops(&self, policy: &Policy) -> bool {
        self.on_reject.unwrap_or(policy.on_reject) == OnReject::Stop
    }
}

impl Destager {
    /// See [`crate::Input::ResumeParking`].
    pub(super) fn resume_parking(&mut self) {
        for domain in &mut self.domains {
            if let Some(Halt::Rejected(lsn)) = domain.halt {
                domain.may_park = domain.may_park.max(lsn);
            }
        }
        self.resume();
    }

    /// Another policy: what it would park, no domain stands still for.
    pub(super) fn stop_less(&mut self, policy: &Policy) {
        let stops = |id: &DomainId| self.domains[usize::from(id.0)].stops(policy);
        let would_park = |domain: &&Domain| match domain.halt {
            Some(Halt::Rejected(lsn)) => !self.domains_of(lsn, domain.id).iter().any(stops),
            _ => false,
        };
        let over: Vec<DomainId> = self.domains.iter().filter(would_park).map(|it| it.id).collect();
        for id in over {
            self.domain(id).go_on();
        }
    }
}

impl Core {
    /// The domains that stand still until someone has looked, and why.
    pub fn halts(&self) -> impl Iterator<Item = (DomainId, Halt)> {
        self.destager.domains.iter().filter_map(|domain| Some((domain.id, domain.halt?)))
    }

    /// Whether the journal holds everything, nothing is under way, and all that is undecided waits for someone to look at a
    /// domain that halted.
    pub fn is_halted(&self) -> bool {
        let domains = &self.destager.domains;
        let is_moving = |domain: &Domain| domain.in_flight > 0;
        if self.gate.committed != self.groups.last() || domains.iter().any(is_moving) {
            return false;
        }
        let mut standing: Vec<bool> = domains.iter().map(|domain| domain.halt.is_some()).collect();
        let is_halted = standing.contains(&true);
        // Those behind them, and those behind those.
        while let Some(next) = (0..domains.len()).find(|&at| self.is_behind(at, &standing)) {
            standing[next] = true;
        }
        let is_idle = |domain: &Domain| domain.queue.is_empty() && domain.repeats.is_empty();
        is_halted && domains.iter().zip(standing).all(|(domain, stands)| stands || is_idle(domain))
    }

    /// Whether the origin may have decided more than [`Core::decided`] says: something is under way or to be repeated, or a batch
    /// was rejected of which some groups may have landed. A write that is rejected alone, where its domain halts, did not.
    pub fn is_in_doubt(&self) -> bool {
        let is_open = |domain: &Domain| {
            domain.isolate.is_some() && !matches!(domain.halt, Some(Halt::Rejected(_)))
        };
        self.destager.away().next().is_some() || self.destager.domains.iter().any(is_open)
    }

    /// Whether a domain that is not among those that stand waits for one of them, since the group at its head is of both.
    fn is_behind(&self, at: usize, standing: &[bool]) -> bool {
        let domain = &self.destager.domains[at];
        let waits = |head| {
            let all = self.destager.domains_of(head, domain.id);
            all.iter().any(|id| standing[usize::from(id.0)])
        };
        !standing[at] && domain.repeats.is_empty() && domain.head().is_some_and(waits)
    }

    /// Whether a rejected group of this domain, or of several and led by it, halts it.
    pub(super) fn stops_at(&self, lsn: Lsn, lead: DomainId) -> bool {
        let stops = |id: &DomainId| {
            let domain = &self.destager.domains[usize::from(id.0)];
            lsn > domain.may_park && domain.stops(&self.policy)
        };
        self.destager.domains_of(lsn, lead).iter().any(stops)
    }

    /// Puts a rejected group back to the head of its domains, which halt.
    pub(super) fn halt_at(&mut self, lsn: Lsn, lead: DomainId) {
        let group = self.groups.get_mut(lsn).expect("groups in flight are undecided");
        group.state = State::Queued;
        self.free_units(&[lsn]);
        for id in self.destager.domains_of(lsn, lead).iter().copied() {
            let domain = self.destager.domain(id);
            domain.put_back(&[lsn]);
            let until = domain.isolate.map_or(Lsn::ZERO, |isolate| isolate.until);
            domain.isolate = Some(Isolate { size: 1, until: until.max(lsn) });
            let newest = match domain.halt {
                // Groups that may overtake one another are rejected in any order.
                Some(Halt::Rejected(before)) => before.max(lsn),
                _ => lsn,
            };
            self.halt(id, Halt::Rejected(newest));
        }
    }

    /// Has the domains of a group that was just parked halt if that happens too often.
    pub(super) fn halt_if_parked_fast(&mut self, lsn: Lsn, lead: DomainId) {
        let (now, most) = (self.now, self.policy.limits.parked_per_minute_max);
        for id in self.destager.domains_of(lsn, lead).iter().copied() {
            let domain = self.destager.domain(id);
            if domain.parked_lately.count(now) > most && domain.halt.is_none() {
                self.halt(id, Halt::ParkedTooFast);
            }
        }
    }

    fn halt(&mut self, id: DomainId, halt: Halt) {
        self.destager.domain(id).halt = Some(halt);
        self.effects.push_back(Effect::Halted { domain: id, halt });
    }

    /// Lets later groups pass that share units with these.
    pub(super) fn free_units(&mut self, lsns: &[Lsn]) {
        for &lsn in lsns {
            let group = self.groups.get(lsn).expect("groups in flight are undecided");
            self.destager.free(group.units.as_slice());
        }
    }
}
