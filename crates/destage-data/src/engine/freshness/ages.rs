//! Tables whose cached rows have a greatest age.

use crate::schema::TableId;
use destage_core::{Span, Time, UnitId};
use std::collections::VecDeque;

/// Rows of the tables whose cached rows have a greatest age.
#[derive(Debug, Default)]
pub(super) struct Ages {
    tables: Vec<Aging>,
}

#[derive(Debug)]
struct Aging {
    table: TableId,
    age_max: Span,
    /// When rows were fetched, oldest first.
    fetched: VecDeque<(Time, UnitId)>,
}

/// Rows are dropped together that were fetched within this part (1/64) of the greatest age; none of them too late.
const GRAIN_DIVISOR: u64 = 64;

impl Ages {
    /// Nothing is fetched yet.
    pub(super) fn new(ages: impl Iterator<Item = (TableId, Span)>) -> Self {
        let aging = |(table, age_max)| Aging { table, age_max, fetched: VecDeque::new() };
        Self { tables: ages.map(aging).collect() }
    }

    /// A row, or a set over rows, was fetched.
    pub(super) fn note(&mut self, now: Time, table: TableId, unit: UnitId) {
        let Some(aging) = self.tables.iter_mut().find(|aging| aging.table == table) else { return };
        let grain = (aging.age_max.0 / GRAIN_DIVISOR).max(1);
        aging.fetched.push_back((Time(now.0 / grain * grain), unit));
    }

    /// When the next row is too old.
    pub(super) fn next_timeout(&self) -> Option<Time> {
        let next = |aging: &Aging| aging.fetched.front().map(|&(at, _)| at + aging.age_max);
        self.tables.iter().filter_map(next).min()
    }

    /// The rows that are too old now.
    pub(super) fn take_old(&mut self, now: Time) -> Vec<(TableId, UnitId)> {
        let mut old = Vec::new();
        for aging in &mut self.tables {
            while let Some((_, unit)) =
                aging.fetched.pop_front_if(|(at, _)| *at + aging.age_max <= now)
            {
                old.push((aging.table, unit));
            }
        }
        old
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_old_no_later_than_their_tables_age_says() {
        let (aging, other) = (TableId(1), TableId(2));
        let mut ages = Ages::new([(aging, Span(640))].into_iter());
        for (at, unit) in [(1_000, 1), (1_009, 2), (1_011, 3)] {
            ages.note(Time(at), aging, UnitId(unit));
            ages.note(Time(at), other, UnitId(unit));
        }
        assert_eq!(ages.next_timeout(), Some(Time(1_640)));
        assert_eq!(ages.take_old(Time(1_640)), [(aging, UnitId(1)), (aging, UnitId(2))]);
        assert_eq!(ages.take_old(Time(1_649)), []);
        assert_eq!(ages.take_old(Time(1_651)), [(aging, UnitId(3))]);
        assert_eq!(ages.next_timeout(), None);
    }
}
