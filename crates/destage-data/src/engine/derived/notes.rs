//! What results of queries are told of writes, and of what changed at the origin.

use super::super::Engine;
use super::super::rows::Kind;
use super::super::txn::Txn;
use crate::schema::TableId;
use destage_core::Lsn;

impl Engine {
    /// Notes what a transaction changes, before it does.
    pub(in crate::engine) fn note_derived(&mut self, txn: &Txn) {
        if !self.derived.is_on() || self.config.unsafe_flags.in_force().no_query_invalidation {
            return;
        }
        let lsn = self.core.next_lsn();
        let cascades = self.rules().reached_by_txn(txn);
        let versions = self.derived.versions_mut();
        for staged in &txn.staged {
            let row = self.rows.get(staged.unit);
            let before = (row.kind == Kind::Row).then_some(row.cells);
            versions.row(row.table, before, staged.row.as_deref(), lsn);
        }
        for unit in txn.blind_units() {
            versions.table(self.rows.get(unit).table, lsn);
        }
        cascades.iter().for_each(|&table| versions.table(table, lsn));
        let written = txn.touched().map(|(table, ..)| table);
        let tables: Vec<TableId> = written.chain(cascades).collect();
        tables.iter().for_each(|&table| self.results_changed(Some(table)));
        if tables.iter().any(|&table| self.rules().is_unforeseeable(table)) {
            self.derived.versions_mut().everything(lsn);
            self.results_changed(None);
        }
    }

    /// A group that an earlier run left may have changed anything.
    pub(in crate::engine) fn note_derived_group(&mut self, lsn: Lsn) {
        if self.derived.is_on() {
            self.derived.versions_mut().everything(lsn);
            self.results_changed(None);
        }
    }

    /// Tells whoever holds results of queries about a table, or with `None` of all.
    fn results_changed(&mut self, table: Option<TableId>) {
        self.rows.tracking_mut().results_changed(table);
    }

    /// Notes a change of one row that is patched where it lies.
    pub(in crate::engine) fn note_derived_row(
        &mut self,
        table: TableId,
        before: &[u8],
        after: &[u8],
    ) {
        if !self.config.unsafe_flags.in_force().no_query_invalidation {
            let lsn = self.core.next_lsn();
            self.derived.versions_mut().row(table, Some(before), Some(after), lsn);
            self.results_changed(Some(table));
        }
    }

    /// Notes that a group changes rows of tables, of which nobody tells which ones; or with `everything`, whatever there is.
    pub(in crate::engine) fn note_derived_tables(
        &mut self,
        tables: impl Iterator<Item = TableId>,
        lsn: Lsn,
        everything: bool,
    ) {
        let (versions, tracking) = (self.derived.versions_mut(), self.rows.tracking_mut());
        tables.for_each(|table| {
            versions.table(table, lsn);
            tracking.results_changed(Some(table));
        });
        if everything {
            versions.everything(lsn);
            tracking.results_changed(None);
        }
    }

    /// Whether changes are noted for derived keys.
    pub(in crate::engine) fn has_derived(&self) -> bool {
        self.derived.is_on() && !self.config.unsafe_flags.in_force().no_query_invalidation
    }

    /// A row of a table has changed at the origin: what is derived from the table may be old.
    pub(in crate::engine) fn note_derived_foreign(&mut self, table: TableId) {
        if self.derived.is_on() {
            self.derived.versions_mut().table(table, Lsn::ZERO);
            self.results_changed(Some(table));
        }
        self.note_table_watched(table);
    }

    /// Tells those who watch a key derived from a table that it changes.
    pub(in crate::engine) fn note_table_watched(&mut self, table: TableId) {
        if self.derived.is_on() && !self.watchers.is_empty() {
            self.watchers.change(&(table, Box::default()));
        }
    }
}
