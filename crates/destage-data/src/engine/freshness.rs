//! For how long what is cached may be used: the greatest ages of tables, the deadlines of keys, rows that may have changed
//! at the origin, and whether the origin tells what others change.

mod ages;
mod doubts;
mod listening;

use super::ended::Sweep;
use super::fresh::Fresh;
use crate::schema::TableId;
use ages::Ages;
use destage_core::expiry::{DEADLINE_BYTES, Expiries};
use destage_core::{Span, Time, UnitId};
use doubts::Doubts;
use listening::Listening;

pub(super) use doubts::{Doubt, Doubtful};

/// Most keys that one tick has expire.
const EXPIRED_MAX: usize = 1_000;

/// What is known of the freshness of all that is cached.
#[derive(Debug)]
pub(super) struct Freshness {
    /// When cached rows of some tables are fetched again.
    ages: Ages,
    /// When plain cache keys and cached copies expire.
    expiries: Expiries,
    /// Plain cache keys that were asked for and did not exist.
    absent_plain: Vec<UnitId>,
    /// Cached rows that may have changed at the origin under undecided changes.
    doubts: Doubts,
    /// Whether the origin tells what others change.
    listening: Listening,
    /// Rows that have ended.
    sweep: Sweep,
    /// What new rows are given in the place of their defaults.
    fresh: Fresh,
}

impl Freshness {
    /// Nothing is cached. Copies of these tables' rows are used for so long at most.
    pub(super) fn new(
        ages: impl Iterator<Item = (TableId, Span)>,
        sweep: Sweep,
        fresh: Fresh,
    ) -> Self {
        Self {
            ages: Ages::new(ages),
            expiries: Expiries::default(),
            absent_plain: Vec::new(),
            doubts: Doubts::default(),
            listening: Listening::default(),
            sweep,
            fresh,
        }
    }

    /// What new rows are given.
    pub(super) fn fresh(&self) -> &Fresh {
        &self.fresh
    }

    /// The same, for another transaction.
    pub(super) fn fresh_mut(&mut self) -> &mut Fresh {
        &mut self.fresh
    }

    /// The search for rows that have ended.
    pub(super) fn sweep(&self) -> &Sweep {
        &self.sweep
    }

    /// The same, to go on with it.
    pub(super) fn sweep_mut(&mut self) -> &mut Sweep {
        &mut self.sweep
    }

    /// When something is to be looked at next.
    pub(super) fn next_timeout(&self) -> Option<Time> {
        let times = [
            self.ages.next_timeout(),
            self.expiries.next_timeout(),
            self.doubts.next_timeout(),
            self.sweep.next_timeout(),
            self.fresh.numbers().next_timeout(),
        ];
        times.into_iter().flatten().min()
    }

    /// A row, or a set over rows, was fetched.
    pub(super) fn fetched(&mut self, now: Time, table: TableId, unit: UnitId) {
        self.ages.note(now, table, unit);
    }

    /// Copies of this table's rows alone are used for so long at most, from now on.
    #[cfg(test)]
    pub(super) fn bound_age(&mut self, table: TableId, age_max: Span) {
        self.ages = Ages::new([(table, age_max)].into_iter());
    }

    /// How many fetches are kept for that.
    #[cfg(test)]
    pub(super) fn aging(&self) -> usize {
        self.ages.len()
    }

    /// It leaves the cache.
    pub(super) fn left(&mut self, table: TableId, unit: UnitId) {
        self.ages.leave(table, unit);
        self.unset_deadline(unit);
    }

    /// The rows that have reached their table's greatest age.
    pub(super) fn take_old(&mut self, now: Time) -> Vec<(TableId, UnitId)> {
        if self.ages.next_timeout().is_none_or(|at| at > now) {
            return Vec::new();
        }
        self.ages.take_old(now)
    }
}

/// Deadlines of keys.
impl Freshness {
    /// The deadlines.
    #[inline]
    pub(super) fn expiries(&self) -> &Expiries {
        &self.expiries
    }

    /// Whether any key has one.
    #[inline]
    pub(super) fn has_expiries(&self) -> bool {
        !self.expiries.is_empty()
    }

    /// Gives a key a deadline, or takes it away.
    pub(super) fn set_deadline(&mut self, unit: UnitId, at: Option<Time>) {
        self.expiries.set(unit, at);
    }

    /// A copy leaves, and takes its deadline with it.
    pub(super) fn unset_deadline(&mut self, unit: UnitId) {
        if self.has_expiries() {
            self.expiries.set(unit, None);
        }
    }

    /// A key whose deadline is reached has to stay for a while.
    pub(super) fn postpone(&mut self, unit: UnitId, now: Time) {
        self.expiries.postpone(unit, now);
    }

    /// Some of what nobody has asked for since it expired.
    pub(super) fn take_expired(&self, now: Time) -> Vec<UnitId> {
        if self.expiries.next_timeout().is_none_or(|at| at > now) {
            return Vec::new();
        }
        self.expiries.take_due(now, EXPIRED_MAX)
    }

    /// Bytes that a key's deadline takes.
    pub(super) fn deadline_bytes(&self, unit: UnitId) -> u32 {
        self.expiries.get(unit).map_or(0, |_| DEADLINE_BYTES)
    }
}

/// Plain keys that do not exist, and doubts.
impl Freshness {
    /// A plain key was asked for and does not exist.
    pub(super) fn note_absent_plain(&mut self, unit: UnitId) {
        self.absent_plain.push(unit);
    }

    /// Those that may take the room of something that does.
    pub(super) fn take_absent_plain(&mut self) -> Vec<UnitId> {
        std::mem::take(&mut self.absent_plain)
    }

    /// A row may have changed at the origin while undecided changes pin it.
    pub(super) fn doubt(&mut self, table: TableId, unit: UnitId, doubt: Doubt) {
        self.doubts.add(table, unit, doubt);
    }

    /// The rows in doubt, if it is time to look at them; with so many undecided groups it is time again after a while.
    pub(super) fn take_doubtful(&mut self, now: Time, undecided: u64) -> Option<Doubtful> {
        self.doubts.take(now, undecided)
    }

    /// Some of them can only be looked at later.
    pub(super) fn doubt_still(&mut self, doubtful: Doubtful) {
        self.doubts.put_back(doubtful);
    }

    /// What the origin tells.
    pub(super) fn listening(&self) -> &Listening {
        &self.listening
    }

    /// The same, to be changed.
    pub(super) fn listening_mut(&mut self) -> &mut Listening {
        &mut self.listening
    }
}
