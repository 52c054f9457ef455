//! What really happened: every group in the order of its number, and each row's value after each of them.

use super::shop;
use destage_core::Time;
use destage_testkit::origin::{self, Change, Place, Row};
use std::collections::{BTreeMap, BTreeSet};

/// One group.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) stamp: Time,
    pub(super) bytes: Vec<u8>,
    pub(super) changes: Vec<Change>,
    /// Waits for the origin's word: nobody may see it.
    pub(super) hidden: bool,
    /// Was written so that its client is told the origin's word.
    pub(super) through: bool,
    /// Rejected, and its client was told.
    pub(super) dropped: bool,
    /// When its client was told that it is done.
    pub(super) acked: Option<Time>,
    /// The command that wrote it, once that is known.
    pub(super) command: Option<u64>,
}

/// All groups, and the rows before them.
#[derive(Debug)]
pub(super) struct History {
    pub(super) tables: Vec<origin::Table>,
    initial: BTreeMap<Place, Row>,
    entries: Vec<Entry>,
    touching: BTreeMap<Place, Vec<u64>>,
    hidden: BTreeSet<u64>,
}

impl History {
    pub(super) fn new() -> Self {
        Self {
            tables: shop::model(),
            initial: shop::initial().into_iter().collect(),
            entries: Vec::new(),
            touching: BTreeMap::new(),
            hidden: BTreeSet::new(),
        }
    }

    pub(super) fn last(&self) -> u64 {
        self.entries.len() as u64
    }

    pub(super) fn entry(&self, lsn: u64) -> &Entry {
        &self.entries[lsn as usize - 1]
    }

    pub(super) fn entry_mut(&mut self, lsn: u64) -> &mut Entry {
        &mut self.entries[lsn as usize - 1]
    }

    pub(super) fn push(&mut self, entry: Entry) {
        let hidden = entry.hidden;
        self.entries.push(entry);
        let lsn = self.last();
        if hidden {
            self.hidden.insert(lsn);
        }
        for change in &self.entries[lsn as usize - 1].changes {
            let places = self.touching.entry(change.place).or_default();
            if places.last() != Some(&lsn) {
                places.push(lsn);
            }
        }
    }

    /// Forgets what a crash lost; it is returned.
    pub(super) fn truncate(&mut self, last: u64) -> Vec<Entry> {
        for lsns in self.touching.values_mut() {
            lsns.retain(|&lsn| lsn <= last);
        }
        self.hidden.retain(|&lsn| lsn <= last);
        self.entries.split_off(last as usize)
    }

    pub(super) fn hidden(&self) -> Vec<u64> {
        self.hidden.iter().copied().collect()
    }

    /// The origin has said its word.
    pub(super) fn show(&mut self, lsn: u64, dropped: bool) {
        self.hidden.remove(&lsn);
        let entry = self.entry_mut(lsn);
        (entry.hidden, entry.dropped) = (false, dropped);
    }

    /// The groups that changed one of the rows after `low`.
    pub(super) fn changes_after(&self, places: &[Place], low: u64) -> Vec<u64> {
        let lsns = places.iter().filter_map(|place| self.touching.get(place)).flatten();
        let mut lsns: Vec<u64> = lsns.copied().filter(|&lsn| lsn > low).collect();
        lsns.sort_unstable();
        lsns.dedup();
        lsns
    }

    /// The newest group up to `upto` that readers of these rows saw.
    pub(super) fn revealed(&self, places: &[Place], upto: u64) -> u64 {
        let lsns = places.iter().filter_map(|place| self.touching.get(place)).flatten();
        let seen = |&lsn: &u64| lsn <= upto && !self.entry(lsn).hidden && !self.entry(lsn).dropped;
        lsns.copied().filter(seen).max().unwrap_or(0)
    }

    /// A row as readers saw it once everything up to `upto` had happened, as far as that was for them to see.
    pub(super) fn row(&self, place: Place, upto: u64) -> Option<Row> {
        self.fold(place, upto, |_, entry| !entry.hidden && !entry.dropped)
    }

    /// A row after the groups for which `counts`.
    pub(super) fn fold(
        &self,
        place: Place,
        upto: u64,
        counts: impl Fn(u64, &Entry) -> bool,
    ) -> Option<Row> {
        let mut row = self.initial.get(&place).cloned();
        for &lsn in self.touching.get(&place).into_iter().flatten().filter(|&&lsn| lsn <= upto) {
            let entry = self.entry(lsn);
            if counts(lsn, entry) {
                for change in entry.changes.iter().filter(|change| change.place == place) {
                    row = origin::apply(&self.tables[place.0], row.as_ref(), change);
                }
            }
        }
        row
    }

    /// All that happened to a row, for messages.
    pub(super) fn story(&self, place: Place) -> String {
        let lsns = self.touching.get(&place).into_iter().flatten();
        let lines = lsns.map(|&lsn| {
            let entry = self.entry(lsn);
            let changes = entry.changes.iter().filter(|change| change.place == place);
            let changes: Vec<_> = changes.map(|change| (change.op, &change.sets)).collect();
            let fate = (entry.through, entry.hidden, entry.dropped);
            format!("\n  {lsn} (through, hidden, dropped: {fate:?}): {changes:?}")
        });
        lines.collect()
    }
}
