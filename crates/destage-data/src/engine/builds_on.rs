//! On what a transaction builds besides the earlier changes of its own rows: what it has read, as far as its commit was
//! conditional on that, and the new rows to which its rows refer by foreign keys.
//!
//! Only groups count that are undecided or parked when it commits. If one of them is parked by the time at which the
//! transaction would reach the origin, the transaction is parked behind it. The numbers are part of the group, so that a
//! restart knows them.

use super::Engine;
use super::txn::{Txn, Update};
use crate::cells::{Cell, Reader, push_cell};
use crate::change::{self, Op};
use crate::schema::{ForeignKey, Table};
use destage_core::lease::Token;
use destage_core::{Lsn, UnitId};
use std::collections::HashSet;

/// Up to so many are named as they are.
const NAMED_MAX: usize = 16;

impl Engine {
    /// What a transaction that is conditional on what was watched builds on, ascending, each once. Nearly always nothing.
    pub(super) fn builds_on(&self, watch: Option<Token>, txn: &Txn) -> Vec<Lsn> {
        let mut on = Vec::new();
        if self.config.unsafe_flags.in_force().no_builds_on {
            return on;
        }
        if let Some(token) = watch {
            let keys = self.watchers.keys(token);
            let units = keys.filter_map(|(table, key)| self.rows.find(*table, key));
            // What it changes itself is known by that.
            units
                .filter(|&unit| !txn.changes_row(unit))
                .for_each(|unit| self.add_writers(unit, &mut on));
        }
        if !self.undecided.structural().is_empty() {
            self.add_parents(txn, &mut on);
        }
        if !on.is_empty() {
            on.retain(|&lsn| self.core.is_open(lsn));
            on.sort_unstable();
            on.dedup();
            self.leave_out_indirect(&mut on);
        }
        on
    }

    /// Takes out of many what others of them build on: where that is parked, those are parked behind it. So transactions that
    /// watch the same large set do not each name all of its changes. Not where they may be of several domains, which wait for
    /// nobody.
    fn leave_out_indirect(&self, on: &mut Vec<Lsn>) {
        if on.len() <= NAMED_MAX || !self.domains.partition().is_one() {
            return;
        }
        let mut indirect: HashSet<Lsn> = HashSet::new();
        for &lsn in on.iter() {
            match self.overlay.get(lsn) {
                Some(group) => indirect.extend(change::builds_on(&group.bytes)),
                None => indirect.extend(self.decisions.known().builds_on(lsn)),
            }
        }
        on.retain(|lsn| !indirect.contains(lsn));
    }

    /// The groups whose changes a reader of this unit sees and the origin may not have.
    fn add_writers(&self, unit: UnitId, on: &mut Vec<Lsn>) {
        on.extend(self.overlay.parked_in(unit));
        if self.is_set(unit) {
            // Its writers change members of it, and need not build on one another.
            on.extend(self.overlay.chained_in(unit))
        } else {
            on.extend(Some(self.core.last_write(unit)).filter(|&lsn| lsn > Lsn::ZERO))
        }
    }

    /// The groups that insert rows to which changed rows refer.
    fn add_parents(&self, txn: &Txn, on: &mut Vec<Lsn>) {
        for (unit, table, op, sets) in txn.row_changes() {
            let table = self.schema.table(table);
            let is_set = |key: &&ForeignKey| {
                op == Op::Insert || sets.iter().any(|(column, _)| key.columns.contains(column))
            };
            let mut set = table.foreign_keys.iter().filter(is_set).peekable();
            if op == Op::Delete || set.peek().is_none() {
                continue;
            }
            let cells = match txn.row(&self.rows, unit) {
                Some(row) => Reader::new(row).collect(),
                None => known_cells(table, self.rows.key(unit), sets),
            };
            for key in set {
                let parent = self.schema.table(key.parent);
                if let Some(cells) = parent_key(parent, key, &cells) {
                    let is_open = |lsn| self.core.is_open(lsn);
                    on.extend(self.undecided.structural().inserted_by(parent, &cells, is_open));
                }
            }
        }
    }

    /// Whether one of these columns may refer to a row that the origin does not have yet.
    pub(super) fn may_refer_to_new(
        &self,
        table: &Table,
        mut columns: impl Iterator<Item = usize>,
    ) -> bool {
        !table.foreign_keys.is_empty()
            && !self.undecided.structural().is_empty()
            && columns
                .any(|column| table.foreign_keys.iter().any(|key| key.columns.contains(&column)))
    }
}

/// The cells of a row of which only the key and these changes are known.
fn known_cells<'a>(table: &Table, key: &'a [u8], sets: &'a [(usize, Update)]) -> Vec<Cell<'a>> {
    let mut cells: Vec<Cell<'_>> = Reader::new(key).collect();
    cells.resize(table.columns.len(), Cell::Unknown);
    for (column, update) in sets {
        if let (Some(cell), Update::To(value)) = (cells.get_mut(*column), update) {
            *cell = Cell::Value(value);
        }
    }
    cells
}

/// The key of the row that a foreign key names; `None` if it names none, or by other columns than the key's.
pub(super) fn parent_key(parent: &Table, key: &ForeignKey, cells: &[Cell<'_>]) -> Option<Vec<u8>> {
    if key.parent_columns.len() != parent.key_len {
        return None;
    }
    let mut out = Vec::new();
    for column in 0..parent.key_len {
        let place = key.parent_columns.iter().position(|&other| other == column)?;
        let value = cells.get(key.columns[place])?.value()?;
        push_cell(&mut out, Cell::Value(value));
    }
    Some(out)
}
