//! Rows that may have changed at the origin while undecided changes of ours pin them: fetched again, with these overlaid.
//!
//! What such a row holds is made of what was fetched and what was written here since, so it cannot simply be dropped. The
//! groups that changed it are looked up among all undecided ones, in one pass for many rows, and then it is as after a
//! restart: dirty and not loaded. Passes are kept apart, so that they cost little however much is undecided and however often
//! others write.

use super::Engine;
use crate::schema::TableId;
use destage_core::{Input, Span, Time, UnitId};
use std::collections::{BTreeMap, BTreeSet, HashSet};

/// Least time between two passes, and what is added to it for each undecided group: some ten times what it takes.
const PASS_EVERY: Span = Span::from_millis(50);
const PASS_NS_PER_GROUP: u64 = 2_000;

/// Why a row is fetched again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Doubt {
    /// It is old.
    Age,
    /// Someone says that it has changed at the origin.
    Told,
}

/// Rows that wait for the next pass.
#[derive(Debug, Default)]
pub(super) struct Doubts {
    units: BTreeMap<(TableId, UnitId), Doubt>,
    /// Not before this.
    due: Time,
}

impl Doubts {
    /// When the next pass is due.
    pub(super) fn next_timeout(&self) -> Option<Time> {
        (!self.units.is_empty()).then_some(self.due)
    }

    fn add(&mut self, table: TableId, unit: UnitId, doubt: Doubt) {
        let known = self.units.entry((table, unit)).or_insert(doubt);
        *known = doubt.max(*known);
    }
}

impl Engine {
    /// A row or a set may have changed at the origin: it is fetched again before it is used, at once if nothing undecided pins
    /// it, soon if something does.
    pub(super) fn distrust(&mut self, unit: UnitId, doubt: Doubt) {
        self.invalidate(unit);
        if !self.core.has_undecided(unit) {
            return self.unset_deadline(unit);
        }
        self.doubts.add(self.rows.get(unit).table, unit, doubt);
        if self.core.is_fetching(unit) {
            self.decisions.fetch_again(unit);
        }
    }

    /// Has the rows in doubt fetched again if a pass is due.
    pub(super) fn reload_doubtful(&mut self) {
        if self.doubts.next_timeout().is_none_or(|due| due > self.now) {
            return;
        }
        self.doubts.due = self.now + PASS_EVERY + Span(self.core.undecided() * PASS_NS_PER_GROUP);
        let mut doubts = std::mem::take(&mut self.doubts.units);
        // The number may stand for another row by now.
        doubts.retain(|&(table, unit), _| self.rows.is_of(unit, table));
        self.keep_through(&mut doubts);
        // Those that were decided meanwhile need no looking up.
        let (pinned, free): (Vec<UnitId>, Vec<UnitId>) =
            doubts.keys().map(|&(_, unit)| unit).partition(|&unit| self.core.has_undecided(unit));
        let loaded = pinned.into_iter().filter(|&unit| self.core.is_present(unit)).collect();
        self.reload(loaded);
        for unit in free {
            self.invalidate(unit);
            self.unset_deadline(unit);
        }
        self.tell_reloaded(&doubts);
    }

    /// Has dirty units fetched again that are loaded.
    fn reload(&mut self, units: Vec<UnitId>) {
        // What changed a set is kept for it in any case.
        let is_row = |unit: &UnitId| self.schema.table(self.rows.get(*unit).table).part.is_none();
        let rows_in_doubt: HashSet<UnitId> = units.iter().copied().filter(is_row).collect();
        if !rows_in_doubt.is_empty() {
            self.chain_again(&rows_in_doubt);
        }
        for unit in units {
            self.core.handle(self.now, Input::Reload { unit });
            self.rows.unload(unit);
            self.unset_deadline(unit);
        }
    }

    /// Leaves those for the next pass that a write changes which waits for the origin: until it is decided nobody uses them,
    /// and then they hold what was made of the old row.
    fn keep_through(&mut self, doubts: &mut BTreeMap<(TableId, UnitId), Doubt>) {
        let through: HashSet<UnitId> =
            self.through.values().flat_map(|through| &through.units).copied().collect();
        let left = doubts.extract_if(.., |&(_, unit), _| through.contains(&unit));
        self.doubts.units.extend(left);
    }

    /// Tells those of rows whose change was told of who have looked at them since, and saw the old copies.
    fn tell_reloaded(&mut self, doubts: &BTreeMap<(TableId, UnitId), Doubt>) {
        let mut tables = BTreeSet::new();
        for (&(table, unit), _) in doubts.iter().filter(|(_, doubt)| **doubt == Doubt::Told) {
            self.watched.change(&(table, self.rows.key(unit).into()));
            tables.insert(table);
        }
        if !tables.is_empty() {
            self.tell_unsure(&tables.into_iter().collect::<Vec<_>>());
            self.wake_lease_waiters();
        }
    }
}
