//! What really happened: every group in the order of its number, and each row's value after each of them.

use super::shop;
use destage_core::Time;
use destage_testkit::origin::{self, Change, Op, Place, Row};
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
    /// When it was given up, which had been parked.
    pub(super) skipped: Option<Time>,
    /// What the origin changed besides when it applied it.
    pub(super) implied: Vec<Change>,
    /// When everybody saw that; before, whoever asked the origin may have.
    pub(super) implied_at: Option<Time>,
    /// When its client was told that it is done.
    pub(super) acked: Option<Time>,
    /// The command that wrote it, once that is known.
    pub(super) command: Option<u64>,
}

/// Who looks at rows: someone before that time, to whom what was given up at it or later was there, and nothing else but
/// groups had come. Whoever asks the origin may find more.
#[derive(Clone, Copy, Debug)]
pub(super) struct Look {
    pub(super) before: Time,
    pub(super) asks_origin: bool,
}

impl Look {
    pub(super) const NOW: Self = Self { before: Time(u64::MAX), asks_origin: false };
}

/// All groups, and the rows before them.
#[derive(Debug)]
pub(super) struct History {
    pub(super) tables: Vec<origin::Table>,
    initial: BTreeMap<Place, Row>,
    entries: Vec<Entry>,
    touching: BTreeMap<Place, Vec<u64>>,
    /// The groups with which a row went at the origin, in the order in which they were applied there.
    went_with: BTreeMap<Place, Vec<u64>>,
    /// How many of them came before a group that changed the row; all of them, where the origin has not applied it yet.
    eras: BTreeMap<(Place, u64), usize>,
    hidden: BTreeSet<u64>,
    /// Groups that change nothing as long as the origin has not applied them.
    pub(super) unseen: BTreeSet<u64>,
}

impl History {
    pub(super) fn new() -> Self {
        Self {
            tables: shop::model(),
            initial: shop::initial().into_iter().collect(),
            entries: Vec::new(),
            touching: BTreeMap::new(),
            went_with: BTreeMap::new(),
            eras: BTreeMap::new(),
            hidden: BTreeSet::new(),
            unseen: BTreeSet::new(),
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

    /// Whether a group changes one of the rows.
    pub(super) fn touches(&self, lsn: u64, places: &[Place]) -> bool {
        self.entry(lsn).changes.iter().any(|change| places.contains(&change.place))
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

    /// A row as readers see it once everything up to `upto` has happened, as far as that is for them to see.
    pub(super) fn row(&self, place: Place, upto: u64) -> Option<Row> {
        self.row_as(place, upto, Look::NOW)
    }

    /// The same for those who looked then.
    pub(super) fn row_as(&self, place: Place, upto: u64, look: Look) -> Option<Row> {
        let is_there = |entry: &Entry| entry.skipped.is_none_or(|skipped| skipped >= look.before);
        let counts = |lsn, entry: &Entry| {
            !entry.hidden && !entry.dropped && !self.unseen.contains(&lsn) && is_there(entry)
        };
        self.fold(place, (upto, look), counts)
    }

    /// When rows changed for everybody otherwise than by a group, from a time on.
    pub(super) fn turns_from(&self, places: &[Place], from: Time) -> Vec<Time> {
        let lsns = places.iter().filter_map(|place| self.touching.get(place)).flatten();
        let entries = lsns.map(|&lsn| self.entry(lsn));
        let turns = entries.flat_map(|entry| {
            // Of what went along with a group, others than these may be all.
            let implies = entry.implied.iter().any(|change| places.contains(&change.place));
            entry.skipped.into_iter().chain(entry.implied_at.filter(|_| implies))
        });
        turns.filter(|&turn| turn >= from).collect()
    }

    /// Whether a row has gone with another one, which not everybody knows yet.
    pub(super) fn is_implied(&self, place: Place) -> bool {
        let lsns = self.touching.get(&place).into_iter().flatten();
        lsns.map(|&lsn| self.entry(lsn)).any(|entry| {
            entry.implied_at.is_none() && entry.implied.iter().any(|c| c.place == place)
        })
    }

    /// Whether a parent was deleted, which is told from then on: of its children, none is known to be what it was.
    pub(super) fn may_have_gone(&self, places: &[Place], from: Time) -> bool {
        let reaches = |entry: &Entry| {
            let is_parent =
                |change: &Change| change.place.0 == shop::PARENT && change.op == Op::Delete;
            entry.implied_at.is_none_or(|at| at >= from) && entry.changes.iter().any(is_parent)
        };
        places.iter().any(|place| place.0 == shop::CHILD) && self.entries.iter().any(reaches)
    }

    /// The origin has changed rows besides when it applied a group, behind those groups for which `is_before`. What is parked is
    /// not among these, however old: it is seen on top of what the origin has, and applied behind it.
    pub(super) fn imply(&mut self, lsn: u64, changes: &[Change], is_before: impl Fn(u64) -> bool) {
        for change in changes {
            let place = change.place;
            let touching = self.touching.entry(place).or_default();
            let went_with = self.went_with.entry(place).or_default();
            for &before in touching.iter().filter(|&&other| is_before(other)) {
                self.eras.entry((place, before)).or_insert(went_with.len());
            }
            went_with.push(lsn);
            if let Err(index) = touching.binary_search(&lsn) {
                touching.insert(index, lsn);
            }
        }
        self.entry_mut(lsn).implied = changes.to_vec();
    }

    /// A row after the groups for which `counts`, for those who looked then.
    pub(super) fn fold(
        &self,
        place: Place,
        (upto, look): (u64, Look),
        counts: impl Fn(u64, &Entry) -> bool,
    ) -> Option<Row> {
        let touching = self.touching.get(&place).into_iter().flatten();
        let own = touching.filter(|&&lsn| lsn <= upto && counts(lsn, self.entry(lsn)));
        let went_with = self.went_with.get(&place).map(Vec::as_slice).unwrap_or_default();
        let era = |lsn: u64| self.eras.get(&(place, lsn)).copied().unwrap_or(went_with.len());
        // A group's own changes come before what it implies.
        let own = own.map(|&lsn| ((era(lsn), false, lsn), &self.entry(lsn).changes));
        let is_seen = |&(_, lsn): &(usize, u64)| {
            let is_told = self.entry(lsn).implied_at.is_some_and(|at| at < look.before);
            lsn <= upto && (is_told || look.asks_origin)
        };
        let implied = went_with.iter().copied().enumerate().filter(is_seen);
        let implied = implied.map(|(era, lsn)| ((era, true, lsn), &self.entry(lsn).implied));
        let mut steps: Vec<_> = own.chain(implied).collect();
        if !went_with.is_empty() {
            steps.sort_unstable_by_key(|(at, _)| *at);
        }
        let mut row = self.initial.get(&place).cloned();
        let changes = steps.into_iter().flat_map(|(_, changes)| changes);
        for change in changes.filter(|change| change.place == place) {
            row = origin::apply(&self.tables[place.0], row.as_ref(), change);
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
            let besides = (entry.skipped, &entry.implied, entry.implied_at);
            format!(
                "\n  {lsn} at {:?} (through, hidden, dropped: {fate:?}): {changes:?}; skipped, implied: {besides:?}",
                entry.stamp
            )
        });
        lines.collect()
    }
}
