//! Keys that the origin handed out through this server and that nobody has written yet: a number of a sequence is nobody
//! else's, also where other programs write to the table. So they are known with or without the sets of keys. (Of other keys
//! above the greatest one nothing is known without those: any program may choose one.)
//!
//! A key is believed if the table had none so great when it was handed out, and nothing made here could get in between: what
//! was undecided when the table's keys were first asked for is decided, and what was made since is smaller. Where one of
//! these is not sure, and where there are too many, keys are forgotten: then the origin is asked as ever. All of it ends
//! with the process.

use crate::cells::{Cell, Reader};
use crate::schema::TableId;
use destage_core::Lsn;
use std::collections::{BTreeMap, HashMap};

/// Most ranges of keys of one table. The smallest go first.
const RANGES_MAX: usize = if cfg!(test) { 8 } else { 1_000 };

/// The keys, by table.
#[derive(Debug, Default)]
pub(super) struct Handed {
    /// The tables of which some may be known; by number.
    may_be: Vec<bool>,
    tables: HashMap<TableId, OfTable>,
}

#[derive(Debug)]
struct OfTable {
    /// The first and the last key of each range that nobody has written. No two touch.
    ranges: BTreeMap<i64, i64>,
    /// The greatest key written since the table's keys were first asked for.
    made: Option<i64>,
    /// Nothing is believed that was asked for before the origin had decided everything up to here.
    not_before: Lsn,
}

impl Handed {
    /// Nothing yet, of the tables for which that is true.
    pub(super) fn new(may_be: Vec<bool>) -> Self {
        Self { may_be, tables: HashMap::new() }
    }

    /// Whether no table's keys were asked for.
    #[inline]
    pub(super) fn is_off(&self) -> bool {
        self.tables.is_empty()
    }

    /// How many keys are known.
    pub(super) fn len(&self) -> u64 {
        let ranges = self.tables.values().flat_map(|table| &table.ranges);
        ranges.map(|(first, last)| last.abs_diff(*first) + 1).sum()
    }

    /// Keys of a table are asked for, and `newest` is the newest write.
    pub(super) fn expect(&mut self, table: TableId, newest: Lsn) {
        if self.may_be.get(usize::from(table.0)) == Some(&true) {
            let new = || OfTable { ranges: BTreeMap::new(), made: None, not_before: newest };
            self.tables.entry(table).or_insert_with(new);
        }
    }

    /// These keys were handed out, which no row had. When they were asked for, the origin had decided everything up to
    /// `decided`.
    pub(super) fn hand_out(&mut self, table: TableId, keys: &[i64], decided: Lsn) {
        let Some(table) = self.tables.get_mut(&table) else { return };
        if table.not_before > decided {
            return;
        }
        let made = table.made;
        for &key in keys.iter().filter(|&&key| made.is_none_or(|made| key > made)) {
            table.insert(key);
        }
        table.bound();
    }

    /// A row is made, or may be.
    pub(super) fn note(&mut self, table: TableId, key: &[u8]) {
        let Some(table) = self.tables.get_mut(&table) else { return };
        let Some(key) = number(key) else { return };
        table.made = table.made.max(Some(key));
        let Some((first, last)) = table.range(key) else { return };
        table.ranges.remove(&first);
        if first < key {
            table.ranges.insert(first, key - 1);
        }
        if key < last {
            table.ranges.insert(key + 1, last);
        }
        table.bound();
    }

    /// Any row of the table may be made until the origin has decided everything up to `not_before`.
    pub(super) fn forget(&mut self, table: TableId, not_before: Lsn) {
        if let Some(table) = self.tables.get_mut(&table) {
            table.ranges.clear();
            table.not_before = table.not_before.max(not_before);
        }
    }

    /// Whether a key was handed out and not written.
    #[inline]
    pub(super) fn is_unused(&self, table: TableId, key: &[u8]) -> bool {
        let table = self.tables.get(&table).filter(|table| !table.ranges.is_empty());
        table.is_some_and(|table| number(key).is_some_and(|key| table.range(key).is_some()))
    }
}

impl OfTable {
    /// The range that holds a key.
    fn range(&self, key: i64) -> Option<(i64, i64)> {
        let (&first, &last) = self.ranges.range(..=key).next_back()?;
        (key <= last).then_some((first, last))
    }

    fn insert(&mut self, key: i64) {
        if self.range(key).is_some() {
            return;
        }
        let (mut first, mut last) = (key, key);
        if let Some(before) = key.checked_sub(1).and_then(|before| self.range(before)) {
            first = before.0;
        }
        if let Some(after) = key.checked_add(1).and_then(|after| self.ranges.remove(&after)) {
            last = after;
        }
        self.ranges.insert(first, last);
    }

    fn bound(&mut self) {
        while self.ranges.len() > RANGES_MAX {
            self.ranges.pop_first();
        }
    }
}

/// A key of one column that is a whole number.
fn number(key: &[u8]) -> Option<i64> {
    match Reader::new(key).next()? {
        Cell::Value(text) => std::str::from_utf8(text).ok()?.parse().ok(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cells::push_cell;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    const TABLE: TableId = TableId(1);

    fn cells(key: i64) -> Vec<u8> {
        let mut cells = Vec::new();
        push_cell(&mut cells, Cell::Value(key.to_string().as_bytes()));
        cells
    }

    fn handed() -> Handed {
        let mut handed = Handed::new(vec![false, true]);
        handed.expect(TABLE, Lsn(5));
        handed
    }

    #[test]
    fn a_key_is_believed_where_nothing_could_get_in_between() {
        let mut handed = handed();
        let is_unused = |handed: &Handed, key| handed.is_unused(TABLE, &cells(key));
        handed.hand_out(TABLE, &[10], Lsn(4));
        assert!(!is_unused(&handed, 10), "a write was undecided when keys were first asked for");
        handed.hand_out(TABLE, &[11, 12], Lsn(5));
        assert!(is_unused(&handed, 11) && is_unused(&handed, 12) && !is_unused(&handed, 13));
        handed.note(TABLE, &cells(12));
        handed.note(TABLE, &cells(20));
        assert!(is_unused(&handed, 11) && !is_unused(&handed, 12));
        handed.hand_out(TABLE, &[20, 21], Lsn(9));
        assert!(!is_unused(&handed, 20) && is_unused(&handed, 21), "one was made before");
        handed.forget(TABLE, Lsn(30));
        handed.hand_out(TABLE, &[22], Lsn(29));
        assert_eq!(handed.len(), 0, "raw SQL may have made it");
        handed.hand_out(TABLE, &[i64::MAX, i64::MAX - 1], Lsn(30));
        assert!(is_unused(&handed, i64::MAX) && handed.len() == 2);
        handed.expect(TableId(0), Lsn(0));
        handed.hand_out(TableId(0), &[1], Lsn(9));
        assert!(!handed.is_unused(TableId(0), &cells(1)), "its rows are not only those made here");
    }

    #[test]
    fn of_too_many_ranges_the_smallest_are_forgotten() {
        let mut handed = handed();
        let keys: Vec<i64> = (0..100).map(|key| key * 2).collect();
        handed.hand_out(TABLE, &keys, Lsn(5));
        assert_eq!(handed.len(), RANGES_MAX as u64);
        assert!(handed.is_unused(TABLE, &cells(198)) && !handed.is_unused(TABLE, &cells(0)));
    }

    proptest! {
        /// Against a model: no key is believed that was written, and all are that were not while they are few.
        #[test]
        fn what_is_believed_was_handed_out_and_not_written(
            steps in prop::collection::vec((any::<bool>(), 0_i64..40, 1_i64..6), 1..60),
        ) {
            let (mut handed, mut model, mut written) = (handed(), BTreeSet::new(), BTreeSet::new());
            let mut next = 0;
            for (is_handed, key, count) in steps {
                if is_handed {
                    let keys: Vec<i64> = (next..next + count).collect();
                    handed.hand_out(TABLE, &keys, Lsn(5));
                    let made = written.last().copied().unwrap_or(-1);
                    model.extend(keys.into_iter().filter(|key| *key > made));
                    next += count;
                } else {
                    handed.note(TABLE, &cells(key));
                    written.insert(key);
                    model.remove(&key);
                }
                let believed: BTreeSet<i64> =
                    (-1..400).filter(|&key| handed.is_unused(TABLE, &cells(key))).collect();
                prop_assert!(believed.is_subset(&model) && believed.is_disjoint(&written));
                prop_assert_eq!(believed.len() as u64, handed.len());
                let forgotten = model.difference(&believed).next();
                prop_assert!(forgotten.is_none() || handed.tables[&TABLE].ranges.len() >= RANGES_MAX - 1);
                model = believed;
            }
        }
    }
}
