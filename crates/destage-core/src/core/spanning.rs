//! Groups of several ordering domains: each waits until it is at the head of all of them, and leaves all of them at once.

use super::Core;
use super::destage::Destager;
use crate::id::{DomainId, Lsn, RequestId};
use crate::io::{Access, Effect, Outcome};
use crate::status::DomainStatus;
use crate::time::{Span, Time};
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use hashbrown::HashMap;
use serde::{Deserialize, Serialize};

/// What spans domains.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(super) struct Spanning {
    /// The domains of each undecided group of several, ascending.
    domains: HashMap<Lsn, Arc<[DomainId]>>,
    /// Who waits until everything up to a group is decided.
    waits: BTreeMap<Lsn, Vec<RequestId>>,
}

impl Spanning {
    pub(super) fn decided(&mut self, lsn: Lsn) {
        self.domains.remove(&lsn);
    }

    pub(super) fn cancel(&mut self, request: RequestId) {
        for requests in self.waits.values_mut() {
            requests.retain(|&waiting| waiting != request);
        }
    }
}

impl Destager {
    /// The domains of a group of several.
    pub(super) fn spanned(&self, lsn: Lsn) -> Option<&[DomainId]> {
        self.spanning.domains.get(&lsn).map(|domains| &**domains)
    }

    /// The domains of whatever begins with this group: its own, or `alone`.
    pub(super) fn domains_of(&self, lsn: Lsn, alone: DomainId) -> Arc<[DomainId]> {
        match self.spanning.domains.get(&lsn) {
            Some(domains) => domains.clone(),
            None => Arc::new([alone]),
        }
    }

    pub(super) fn hurry_spanned(&mut self, lsn: Lsn) {
        for id in self.spanning.domains.get(&lsn).cloned().iter().flat_map(|all| all.iter()) {
            self.hurry(*id, lsn);
        }
    }

    /// Takes the group at the head of a domain out of all its queues.
    pub(super) fn take_head(&mut self, index: usize, head: Lsn) {
        for id in self.domains_of(head, DomainId(index as u16)).iter().copied() {
            let taken = self.domain(id).queue.pop_front();
            assert!(taken == Some(head), "a group leaves when it is at the head of its domains");
        }
    }

    /// Something that begins with this group is under way, led by one of its domains: the others stand still meanwhile.
    pub(super) fn hold_others(&mut self, lsn: Lsn, lead: DomainId) {
        for id in self.others(lsn, lead) {
            self.domain(id).in_flight += 1;
        }
    }

    /// It has ended.
    pub(super) fn release_others(&mut self, lsn: Lsn, lead: DomainId) {
        for id in self.others(lsn, lead) {
            self.domain(id).in_flight -= 1;
        }
    }

    fn others(&self, lsn: Lsn, lead: DomainId) -> Vec<DomainId> {
        let domains = self.spanned(lsn).unwrap_or_default();
        domains.iter().copied().filter(|&id| id != lead).collect()
    }
}

impl Core {
    /// The newest group belongs to all these domains.
    pub(super) fn spread(&mut self, lsn: Lsn, domains: &[DomainId]) {
        assert!(lsn == self.groups.last(), "a group's domains are told before the next is written");
        assert!(domains.is_sorted_by(|a, b| a < b), "domains are ascending, each once");
        let group = self.groups.get_mut(lsn).expect("the newest group is undecided");
        assert!(domains.contains(&group.domain), "a group's own domain is among its domains");
        if domains.len() < 2 {
            return;
        }
        group.is_spanning = true;
        let (own, access) = (group.domain, group.access);
        for &id in domains.iter().filter(|&&id| id != own) {
            self.destager.queue(id, lsn);
            if access != Access::Back {
                self.destager.hurry(id, lsn);
            }
        }
        self.destager.spanning.domains.insert(lsn, domains.into());
    }

    /// The newest undecided group of a domain that is not newer than `upto`. Not under [`crate::Order::Unit`].
    pub fn last_undecided(&self, id: DomainId, upto: Lsn) -> Option<Lsn> {
        let domain = self.destager.domains.get(usize::from(id.0))?;
        let queued = domain.newest_upto(upto);
        if queued > Lsn::ZERO {
            return Some(queued);
        }
        // What has left the queue is older than what is in it.
        let away = self.destager.away();
        away.filter(|&lsn| lsn <= upto && self.is_in(lsn, id)).max()
    }

    /// What is to be seen of each domain, up to the last one that was ever written to. Looks at every undecided group.
    pub fn domain_statuses(&self) -> Vec<DomainStatus> {
        let blank = |domain: &super::queue::Domain| DomainStatus {
            dirty_groups: 0,
            staleness: Span::ZERO,
            failing: domain.failing,
            halt: domain.halt,
        };
        let mut all: Vec<DomainStatus> = self.destager.domains.iter().map(blank).collect();
        for (lsn, group) in self.groups.undecided() {
            let own = [group.domain];
            for id in self.destager.spanned(lsn).unwrap_or(&own) {
                if let Some(status) = all.get_mut(usize::from(id.0)) {
                    status.dirty_groups += 1;
                    status.staleness = status.staleness.max(self.now.since(group.stamp));
                }
            }
        }
        all
    }

    /// Whether a group at the head of one of its domains is at the head of all of them, and they stand still. Else the others
    /// are asked to come up to it.
    pub(super) fn heads_meet(&mut self, head: Lsn) -> bool {
        let Some(domains) = self.destager.spanning.domains.get(&head).cloned() else { return true };
        let now = self.now;
        let meets = |id: &DomainId| {
            let domain = &self.destager.domains[usize::from(id.0)];
            let is_still =
                domain.in_flight == 0 && domain.repeats.is_empty() && domain.halt.is_none();
            is_still && now >= domain.retry_at.max(Time::ZERO) && domain.head() == Some(head)
        };
        if domains.iter().all(meets) {
            return true;
        }
        self.destager.hurry_spanned(head);
        false
    }

    pub(super) fn is_in(&self, lsn: Lsn, id: DomainId) -> bool {
        match self.destager.spanned(lsn) {
            Some(domains) => domains.contains(&id),
            None => self.groups.get(lsn).is_some_and(|group| group.domain == id),
        }
    }

    /// The groups from the head of several domains on, in order, as far as none belongs to further domains.
    pub(super) fn pick_spanning(&mut self, head: Lsn, due: Lsn) -> Vec<Lsn> {
        let domains = self.destager.domains_of(head, DomainId(0));
        let queues: Vec<_> =
            domains.iter().map(|id| &self.destager.domains[usize::from(id.0)]).collect();
        let limit = queues.iter().map(|domain| self.batch_limit(domain)).min().unwrap_or(1);
        // What is due in one of them takes along what is older in the others.
        let due = queues.iter().filter_map(|domain| self.due(domain)).fold(due, Lsn::max);
        let mut places: Vec<usize> = queues.iter().map(|_| 0).collect();
        let mut picked: Vec<Lsn> = Vec::new();
        let mut bytes = 0;
        loop {
            let heads = queues.iter().zip(&places).filter_map(|(domain, &at)| domain.queue.get(at));
            let Some(&lsn) = heads.min() else { break };
            let group = self.groups.get(lsn).expect("queued groups are undecided");
            bytes += u64::from(group.bytes);
            let is_over = picked.len() >= limit || bytes > self.policy.limits.batch_bytes_max;
            let is_early = lsn > due || lsn > self.gate.secured();
            if !picked.is_empty() && (is_over || is_early || self.reaches_beyond(lsn, &domains)) {
                break;
            }
            picked.push(lsn);
            for (domain, at) in queues.iter().zip(&mut places) {
                *at += usize::from(domain.queue.get(*at) == Some(&lsn));
            }
        }
        for (id, count) in domains.iter().zip(places) {
            self.destager.domain(*id).queue.drain(..count);
        }
        picked
    }

    /// Whether a group cannot go with those of these domains: it belongs to another one as well, or is to be parked.
    fn reaches_beyond(&self, lsn: Lsn, domains: &[DomainId]) -> bool {
        let own = self.destager.spanned(lsn).unwrap_or_default();
        own.iter().any(|id| !domains.contains(id)) || self.depends_on(lsn).is_some()
    }

    pub(super) fn wait_all_decided(&mut self, request: RequestId, lsn: Lsn) {
        if self.groups.decided() >= lsn {
            return self.effects.push_back(Effect::Waited { request, outcome: Outcome::Done });
        }
        self.destager.spanning.waits.entry(lsn).or_default().push(request);
        self.hurry_all(lsn);
    }

    /// Answers those who wait for everything up to a group.
    pub(super) fn answer_all_decided(&mut self, decided: Lsn) {
        if self.destager.spanning.waits.is_empty() {
            return;
        }
        let later = self.destager.spanning.waits.split_off(&decided.next());
        let waits = core::mem::replace(&mut self.destager.spanning.waits, later);
        for request in waits.into_values().flatten() {
            self.effects.push_back(Effect::Waited { request, outcome: Outcome::Done });
        }
    }

    /// Tells how far groups are forgotten: decided, and needed by no fetch.
    pub(super) fn forget(&mut self) {
        self.groups.forget_done();
        let decided = self.groups.decided();
        let upto = self.units.oldest_pin().map_or(decided, |pin| pin.min(decided));
        if upto > self.forgotten {
            self.forgotten = upto;
            self.effects.push_back(Effect::Forget { upto });
        }
        self.answer_all_decided(decided);
    }
}
