//! What the origin changes by itself when it applies a group: rows that cascades and triggers reach.
//!
//! A client's write that may set something off waits for the origin's word, and what it reaches is dropped from the cache
//! with the answer. What an earlier run left and what was parked have no client that waits: for them the same is done once
//! the origin has applied them. A row with undecided changes cannot be dropped; it is fetched again with these overlaid.

use super::{Engine, overlay};
use crate::change::{Change, Op};
use crate::schema::TableId;
use destage_core::{Input, Lsn, UnitId};
use std::collections::HashSet;

/// What groups may change at the origin beyond what they say.
#[derive(Debug, Default)]
pub(super) struct Cascade {
    /// Tables of which any row may change.
    tables: Vec<TableId>,
    /// Rows of the groups' own that triggers may change further.
    units: Vec<UnitId>,
}

impl Cascade {
    pub(super) fn of(tables: Vec<TableId>, units: Vec<UnitId>) -> Self {
        Self { tables, units }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.tables.is_empty() && self.units.is_empty()
    }

    /// The tables of which any row may change.
    #[cfg(test)]
    pub(super) fn tables(&self) -> &[TableId] {
        &self.tables
    }

    /// Adds what another group may change.
    pub(super) fn add(&mut self, mut other: Self) {
        self.tables.append(&mut other.tables);
        self.units.append(&mut other.units);
    }

    /// Adds tables of which any row may change.
    pub(super) fn add_tables(&mut self, tables: &[TableId]) {
        self.tables.extend(tables);
    }

    /// Each table once, in order.
    pub(super) fn sort(&mut self) {
        self.tables.sort_unstable();
        self.tables.dedup();
    }
}

impl Engine {
    /// The tables in which the origin changes rows by itself when it applies changes. Of each it is given the table, the
    /// operation, and whether it sets a structural column.
    pub(super) fn reached_by(
        &self,
        changes: impl Iterator<Item = (TableId, Op, bool)>,
    ) -> Vec<TableId> {
        let mut tables = Vec::new();
        for (table, op, is_structural) in changes {
            for name in self.config.tables[usize::from(table.0)].triggers.iter().flatten() {
                tables.extend(self.schema.find(name.as_bytes()).map(|table| table.id));
            }
            if op == Op::Delete || is_structural {
                self.add_cascades(table, &mut tables);
            }
        }
        let collections =
            tables.iter().flat_map(|table| self.schema.table(*table).collections.iter());
        let parts: Vec<TableId> =
            collections.flat_map(|id| self.schema.collection(*id).parts).collect();
        tables.extend(parts);
        tables
    }

    pub(super) fn add_cascades(&self, table: TableId, tables: &mut Vec<TableId>) {
        for &child in &self.schema.table(table).class.cascades_to {
            if !tables.contains(&child) {
                tables.push(child);
                self.add_cascades(child, tables);
            }
        }
    }

    /// The same for a group.
    pub(super) fn reached_by_group(&self, bytes: &[u8]) -> Vec<TableId> {
        let is_structural = |change: &Change<'_>| {
            let columns = &self.schema.table(change.table).columns;
            change.sets().any(|(column, _)| columns[column].structural)
        };
        let changes = overlay::changes(&self.schema, bytes);
        self.reached_by(changes.map(|change| (change.table, change.op, is_structural(&change))))
    }

    /// Whether triggers may change a row of this table further when it is written.
    fn is_changed_further(&self, table: TableId) -> bool {
        let triggers = &self.config.tables[usize::from(table.0)].triggers;
        self.schema.table(table).class.opaque.is_some()
            && triggers.as_ref().is_none_or(|tables| !tables.is_empty())
    }

    /// Remembers what a group may set off that an earlier run left.
    pub(super) fn note_cascade(&mut self, lsn: Lsn, bytes: &[u8]) {
        let tables = self.reached_by_group(bytes);
        let changes = overlay::changes(&self.schema, bytes);
        let units: Vec<UnitId> = changes
            .filter(|change| self.is_changed_further(change.table))
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
