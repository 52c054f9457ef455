//! What a batch takes.
//!
//! A batch is what the origin applies in one step. It comes from the head of one domain's queue, which holds the undecided
//! groups in the order of the journal:
//!
//! ```text
//!   queue   7 ── 8   9   10   11   12
//!           joined   │    │    └ not due, or not durable
//!                    │    └ builds on a parked group
//!                    └ the last one of this batch
//! ```
//!
//! The batch ends in front of the first group
//!
//! - that is not due, or that the journal does not hold durably: the origin must not be ahead of the journal, since a crash
//!   would leave it with a write that nobody knows of (only the rest of a request that is larger than the journal goes earlier,
//!   and what the driver says survives with fewer copies than were asked for);
//! - that would take the batch beyond the limits of the policy;
//! - that spans other domains, or builds on a parked group: such a group is a step of its own;
//! - of a later level, where the policy has levels.
//!
//! It never ends inside a request, whose parts are joined: the first request goes as a whole, however large it is.

use super::Core;
use super::queue::Domain;
use crate::id::{Lsn, UnitId};
use crate::policy::Order;
use alloc::vec::Vec;
use hashbrown::HashSet;

/// How far a batch is searched for groups that may overtake (order per unit), in groups per batch size.
const SEARCH_FACTOR: usize = 4;

impl Core {
    /// Whether a group would overtake one that is under way, where that is possible at all.
    pub(super) fn overtakes(&self, lsn: Lsn) -> bool {
        let in_flight = &self.destager.units_in_flight;
        matches!(self.policy.order, Order::Unit { .. })
            && self.groups.get(lsn).is_some_and(|group| {
                group.units.as_slice().iter().any(|unit| in_flight.contains(unit))
            })
    }

    /// The parked group that this one must join, because it changes a unit of it or builds on it otherwise.
    pub(super) fn depends_on(&self, lsn: Lsn) -> Option<Lsn> {
        let group = self.groups.get(lsn)?;
        let by_unit = group.units.as_slice().iter().find_map(|&unit| self.units.parked(unit));
        if by_unit.is_some() || !group.builds_on {
            return by_unit;
        }
        let on = self.destager.builds_on.get(&lsn)?;
        on.iter().copied().find(|lsn| self.destager.parked.contains(lsn))
    }

    pub(super) fn batch_limit(&self, domain: &Domain) -> usize {
        let most = self.policy.limits.batch_groups_max as usize;
        domain.isolate.map_or(most, |isolate| isolate.size.min(most))
    }

    /// The head of the queue, in order, as far as a batch reaches: see the head of this file.
    pub(super) fn pick_prefix(&mut self, index: usize, due: Lsn) -> Vec<Lsn> {
        let domain = &self.destager.domains[index];
        let limit = self.batch_limit(domain);
        let level_of = |lsn| self.groups.get(lsn).map(|group| group.level);
        let level = domain.head().filter(|_| self.policy.order.has_levels()).and_then(level_of);
        let (mut bytes, mut seen) = (0, 0);
        // Groups up to the last one that is not joined to the next: where a batch may end.
        let mut whole = 0;
        for &lsn in &domain.queue {
            let group = self.groups.get(lsn).expect("queued groups are undecided");
            bytes += u64::from(group.bytes);
            let is_over = seen >= limit || bytes > self.policy.limits.batch_bytes_max;
            let is_later = level.is_some_and(|level| group.level > level);
            let is_between = seen == whole;
            let ends = is_between && (lsn > due || is_later);
            // A request that the journal holds in part waits for its rest, unless it is the first one: then the journal may
            // have no room for the rest before this part is gone.
            let is_over = is_over || lsn > self.gate.secured();
            let is_over = is_over || group.is_spanning;
            if ends || (whole > 0 && (is_over || self.depends_on(lsn).is_some())) {
                break;
            }
            seen += 1;
            if !group.is_joined {
                whole = seen;
            }
        }
        // A crash may have cut a request short: then its parts end with the journal.
        let count = if whole == 0 { seen } else { whole };
        self.destager.domains[index].queue.drain(..count).collect()
    }

    /// Groups that share no unit with an older queued group nor with a batch under way. A group that is passed over holds back
    /// what shares a unit with it, so that the writes of each unit keep their order although groups overtake one another.
    pub(super) fn pick_free(&mut self, index: usize, due: Lsn) -> Vec<Lsn> {
        let domain = &self.destager.domains[index];
        let limit = self.batch_limit(domain);
        let mut bytes = 0;
        let mut picked = Vec::new();
        let mut left = Vec::new();
        let mut skipped: HashSet<UnitId> = HashSet::new();
        for &lsn in domain.queue.iter().take(limit.saturating_mul(SEARCH_FACTOR)) {
            if lsn > due || picked.len() == limit || bytes > self.policy.limits.batch_bytes_max {
                break;
            }
            let group = self.groups.get(lsn).expect("queued groups are undecided");
            let units = group.units.as_slice();
            let is_blocked = units
                .iter()
                .any(|unit| skipped.contains(unit) || self.destager.units_in_flight.contains(unit));
            if is_blocked || self.depends_on(lsn).is_some() {
                skipped.extend(units);
                left.push(lsn);
                continue;
            }
            bytes += u64::from(group.bytes);
            picked.push(lsn);
        }
        let queue = &mut self.destager.domains[index].queue;
        queue.drain(..picked.len() + left.len());
        left.into_iter().rev().for_each(|lsn| queue.push_front(lsn));
        picked
    }
}
