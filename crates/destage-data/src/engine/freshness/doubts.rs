//! Rows that may have changed at the origin while undecided changes of ours pin them: they wait for the next pass that has
//! such rows fetched again. Passes are kept apart, so that they cost little however much is undecided and however often
//! others write.

use crate::schema::TableId;
use destage_core::{Span, Time, UnitId};
use std::collections::BTreeMap;

/// Least time between two passes, and what is added to it for each undecided group: some ten times what it takes.
const PASS_EVERY: Span = Span::from_millis(50);
const PASS_NS_PER_GROUP: u64 = 2_000;

/// Why a row is fetched again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::engine) enum Doubt {
    /// It is old.
    Age,
    /// Someone says that it has changed at the origin.
    Reported,
}

/// Rows in doubt.
pub(in crate::engine) type Doubtful = BTreeMap<(TableId, UnitId), Doubt>;

/// Rows that wait for the next pass.
#[derive(Debug, Default)]
pub(super) struct Doubts {
    units: Doubtful,
    /// Not before this.
    due: Time,
}

impl Doubts {
    /// When the next pass is due.
    pub(super) fn next_timeout(&self) -> Option<Time> {
        (!self.units.is_empty()).then_some(self.due)
    }

    pub(super) fn add(&mut self, table: TableId, unit: UnitId, doubt: Doubt) {
        let known = self.units.entry((table, unit)).or_insert(doubt);
        *known = doubt.max(*known);
    }

    /// The rows of a pass, if one is due.
    pub(super) fn take(&mut self, now: Time, undecided: u64) -> Option<Doubtful> {
        if self.next_timeout()? > now {
            return None;
        }
        self.due = now + PASS_EVERY + Span(undecided * PASS_NS_PER_GROUP);
        Some(std::mem::take(&mut self.units))
    }

    /// These wait for the next one.
    pub(super) fn put_back(&mut self, doubtful: Doubtful) {
        self.units.extend(doubtful);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passes_keep_their_distance_and_the_stronger_doubt_counts() {
        let (mut doubts, table, unit) = (Doubts::default(), TableId(1), UnitId(1));
        assert!(doubts.take(Time(0), 0).is_none());
        for doubt in [Doubt::Age, Doubt::Reported, Doubt::Age] {
            doubts.add(table, unit, doubt);
        }
        let taken = doubts.take(Time(0), 1_000).unwrap();
        assert_eq!(taken, BTreeMap::from([((table, unit), Doubt::Reported)]));
        assert_eq!(doubts.next_timeout(), None);
        doubts.put_back(taken);
        let due = Time(0) + PASS_EVERY + Span::from_millis(2);
        assert_eq!(doubts.next_timeout(), Some(due));
        assert!(doubts.take(Time(due.0 - 1), 0).is_none() && doubts.take(due, 0).is_some());
    }
}
