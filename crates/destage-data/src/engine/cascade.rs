//! What the origin changes by itself when it applies a group: rows that cascades and triggers reach.
//!
//! A client's write that may set something off waits for the origin's word, and what it reaches is dropped from the cache
//! with the answer. What an earlier run left and what was parked have no client that waits: for them the same is done once
//! the origin has applied them. A row with undecided changes cannot be dropped; it is fetched again with these overlaid.

use super::undecided::Cascade;
use super::{Engine, overlay};
use crate::schema::TableId;
use destage_core::{Input, Lsn, UnitId};
use std::collections::HashSet;

impl Engine {
    /// Remembers what a group may set off that an earlier run left.
    pub(super) fn note_cascade(&mut self, lsn: Lsn, bytes: &[u8]) {
        let tables = self.rules().reached_by_group(bytes);
        let changes = overlay::changes(&self.schema, bytes);
        let units: Vec<UnitId> = changes
            .filter(|change| self.rules().is_changed_further(change.table))
            .filter_map(|change| self.rows.find(change.table, change.key))
            .collect();
        self.undecided.note_cascade(lsn, Cascade::of(tables, units));
    }

    /// The origin has applied what sets this off. Before anything else is executed.
    pub(super) fn cascaded(&mut self, cascade: &Cascade) {
        let Cascade { tables, units } = cascade;
        self.invalidate_tables(tables);
        let mut unsure = Vec::with_capacity(units.len());
        for &unit in units {
            let table = self.rows.get(unit).table;
            self.watchers.change(&(table, self.rows.key(unit).into()));
            self.note_derived_foreign(table);
            unsure.push(table);
        }
        if !units.is_empty() {
            self.watchers.tell_unsure(&unsure);
            self.wake_lease_waiters();
            self.drop_doubtful(units);
        }
    }

    /// Drops every cached row of the tables that the origin has changed by itself, those among them that a write had told it
    /// of: what the write set off may have come after it.
    fn invalidate_tables(&mut self, tables: &[TableId]) {
        if tables.is_empty() {
            return;
        }
        self.watchers.change_tables(tables);
        self.watchers.tell_unsure(tables);
        self.wake_lease_waiters();
        let units = self.rows.units_of_tables(tables);
        self.drop_doubtful(&units);
    }

    /// The origin has changed rows of these tables when it applied what was parked.
    pub(super) fn set_off(&mut self, tables: &[TableId]) {
        self.invalidate_tables(tables);
        tables.iter().for_each(|&table| self.note_derived_foreign(table));
    }

    /// Rows or collections may have changed at the origin by themselves.
    fn drop_doubtful(&mut self, units: &[UnitId]) {
        let mut kept = HashSet::new();
        for &unit in units {
            self.invalidate(unit);
            if self.schema.table(self.rows.get(unit).table).part.is_some() {
                if self.core.is_present(unit) {
                    self.doubt(unit);
                }
                // Changes of its own keep what is being fetched from being outdated otherwise.
                if self.core.has_undecided(unit) && self.core.is_fetching(unit) {
                    self.decisions.fetch_again(unit);
                }
            } else if self.core.is_present(unit) || self.overlay.is_chained(unit) {
                kept.insert(unit);
            }
        }
        self.renew(&kept);
    }

    /// Has rows fetched again before they are used, whose undecided changes keep them where they are.
    fn renew(&mut self, units: &HashSet<UnitId>) {
        if units.is_empty() {
            return;
        }
        self.chain_again(units);
        let mut sorted: Vec<UnitId> = units.iter().copied().collect();
        sorted.sort_unstable();
        for unit in sorted {
            self.core.handle(self.now, Input::Reload { unit });
            self.unload_twice(unit);
        }
    }

    /// These rows are to be fetched again: the undecided changes are overlaid then, also those of writes that wait for the
    /// origin, whose rows were made from what is given up now.
    pub(super) fn chain_again(&mut self, units: &HashSet<UnitId>) {
        let (schema, rows) = (&self.schema, &self.rows);
        self.overlay.chain_again(units, |bytes| {
            let changes = overlay::changes(schema, bytes);
            changes.filter_map(|change| rows.find(change.table, change.key)).collect()
        });
        self.undecided.unstage(units);
    }

    /// Forgets a row, and what a fetch under way will bring of it.
    pub(super) fn unload_twice(&mut self, unit: UnitId) {
        if self.core.is_fetching(unit) {
            self.decisions.fetch_again(unit);
        }
        self.rows.unload(unit);
    }
}
