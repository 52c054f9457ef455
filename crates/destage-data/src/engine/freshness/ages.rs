//! Tables whose cached rows have a greatest age.

use crate::schema::TableId;
use destage_core::{Span, Time, UnitId};
use std::collections::{HashMap, VecDeque};

/// Rows of the tables whose cached rows have a greatest age.
#[derive(Debug, Default)]
pub(super) struct Ages {
    tables: Vec<Aging>,
}

#[derive(Debug)]
struct Aging {
    table: TableId,
    age_max: Span,
    /// When rows were fetched, oldest first. Some have been fetched again since, or have left.
    fetched: VecDeque<(Time, UnitId)>,
    /// The place of the first of these, counted from the first that ever was.
    first: u64,
    /// The place of the newest fetch of each row that is cached.
    places: HashMap<UnitId, u64>,
}

/// Rows are dropped together that were fetched within this part (1/64) of the greatest age; none of them too late.
const GRAIN_DIVISOR: u64 = 64;
/// So many fetches of rows that are cached no more, or were fetched again, are kept beside as many as there are rows.
const STALE_MAX: usize = 64;

impl Aging {
    /// Forgets fetches that are not the newest of a cached row, once they are many.
    fn compact(&mut self) {
        if self.fetched.len() <= 2 * self.places.len() + STALE_MAX {
            return;
        }
        let (places, mut place, mut kept) = (&mut self.places, self.first, self.first);
        self.fetched.retain(|(_, unit)| {
            let newest = places.get_mut(unit).filter(|newest| **newest == place);
            place += 1;
            let Some(newest) = newest else { return false };
            *newest = kept;
            kept += 1;
            true
        });
    }

    /// The oldest fetch, if it is too old; its row, if that was not fetched again since.
    fn take_old(&mut self, now: Time) -> Option<Option<UnitId>> {
        let (_, unit) = self.fetched.pop_front_if(|(at, _)| *at + self.age_max <= now)?;
        let is_newest = self.places.get(&unit) == Some(&self.first);
        self.first += 1;
        if is_newest {
            self.places.remove(&unit);
        }
        Some(is_newest.then_some(unit))
    }
}

impl Ages {
    /// Nothing is fetched yet.
    pub(super) fn new(ages: impl Iterator<Item = (TableId, Span)>) -> Self {
        let aging = |(table, age_max)| {
            let (fetched, places) = (VecDeque::new(), HashMap::new());
            Aging { table, age_max, fetched, first: 0, places }
        };
        Self { tables: ages.map(aging).collect() }
    }

    fn of(&mut self, table: TableId) -> Option<&mut Aging> {
        self.tables.iter_mut().find(|aging| aging.table == table)
    }

    /// A row, or a set over rows, was fetched.
    pub(super) fn note(&mut self, now: Time, table: TableId, unit: UnitId) {
        let Some(aging) = self.of(table) else { return };
        let grain = (aging.age_max.0 / GRAIN_DIVISOR).max(1);
        let place = aging.first + aging.fetched.len() as u64;
        aging.places.insert(unit, place);
        aging.fetched.push_back((Time(now.0 / grain * grain), unit));
        aging.compact();
    }

    /// It leaves the cache; its number may stand for another one from now on.
    pub(super) fn leave(&mut self, table: TableId, unit: UnitId) {
        if let Some(aging) = self.of(table) {
            aging.places.remove(&unit);
            aging.compact();
        }
    }

    /// How many fetches are kept.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.tables.iter().map(|aging| aging.fetched.len()).sum()
    }

    /// When the next row is too old, or is found to be younger.
    pub(super) fn next_timeout(&self) -> Option<Time> {
        let next = |aging: &Aging| aging.fetched.front().map(|&(at, _)| at + aging.age_max);
        self.tables.iter().filter_map(next).min()
    }

    /// The rows that are too old now.
    pub(super) fn take_old(&mut self, now: Time) -> Vec<(TableId, UnitId)> {
        let mut old = Vec::new();
        for aging in &mut self.tables {
            while let Some(unit) = aging.take_old(now) {
                old.extend(unit.map(|unit| (aging.table, unit)));
            }
        }
        old
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AGING: TableId = TableId(1);

    fn ages() -> Ages {
        Ages::new([(AGING, Span(640))].into_iter())
    }

    #[test]
    fn rows_are_old_no_later_than_their_tables_age_says() {
        let (other, mut ages) = (TableId(2), ages());
        for (at, unit) in [(1_000, 1), (1_009, 2), (1_011, 3)] {
            ages.note(Time(at), AGING, UnitId(unit));
            ages.note(Time(at), other, UnitId(unit));
        }
        assert_eq!(ages.next_timeout(), Some(Time(1_640)));
        assert_eq!(ages.take_old(Time(1_640)), [(AGING, UnitId(1)), (AGING, UnitId(2))]);
        assert_eq!(ages.take_old(Time(1_649)), []);
        assert_eq!(ages.take_old(Time(1_651)), [(AGING, UnitId(3))]);
        assert_eq!(ages.next_timeout(), None);
    }

    #[test]
    fn what_was_fetched_again_or_took_the_number_of_another_one_is_as_young_as_it_is() {
        let mut ages = ages();
        (1..4).for_each(|unit| ages.note(Time(1_000), AGING, UnitId(unit)));
        ages.note(Time(1_100), AGING, UnitId(1));
        ages.leave(AGING, UnitId(2));
        ages.note(Time(1_200), AGING, UnitId(2));
        assert_eq!(ages.take_old(Time(1_640)), [(AGING, UnitId(3))]);
        assert_eq!(ages.take_old(Time(1_740)), [(AGING, UnitId(1))]);
        assert_eq!(ages.take_old(Time(1_839)), []);
        assert_eq!(ages.take_old(Time(1_840)), [(AGING, UnitId(2))]);
    }

    #[test]
    fn no_more_is_kept_than_twice_what_is_cached() {
        let mut ages = ages();
        for at in 0..100_000 {
            // The same few come and go, and one is fetched again all the time; the hundred before them stay.
            let unit = if at < 100 { at } else { 100 + at % 10 };
            ages.note(Time(at), AGING, UnitId(unit as u32));
            if unit > 100 {
                ages.leave(AGING, UnitId(unit as u32));
            }
            if at == 500 {
                assert!(ages.tables[0].fetched.len() <= 2 * 101 + STALE_MAX);
                assert_eq!(ages.tables[0].places.len(), 101);
                let old = ages.take_old(Time(740));
                assert_eq!(old, (0..100).map(|unit| (AGING, UnitId(unit))).collect::<Vec<_>>());
            }
            assert!(at <= 500 || ages.tables[0].fetched.len() <= 2 + STALE_MAX);
        }
    }
}
