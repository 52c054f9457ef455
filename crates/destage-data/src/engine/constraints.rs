//! CHECK constraints, judged before a write is acknowledged, as far as they are understood.

use super::key::key_shown;
use super::rows::{Kind, Rows};
use super::txn::Txn;
use crate::cells::{Cell, Reader};
use crate::checks::Check;
use crate::schema::{Schema, Table};

impl Txn {
    /// Judges the rows that it changes, as they will be.
    ///
    /// # Errors
    /// A message that names the constraint which a row would violate.
    pub(super) fn check_constraints(&self, schema: &Schema, rows: &Rows) -> Result<(), String> {
        if self.has_dml() {
            // What raw SQL makes of the rows in between is not known here.
            return Ok(());
        }
        for staged in self.staged.iter().filter(|staged| self.changes_row(staged.unit)) {
            let before = rows.get(staged.unit);
            let table = schema.table(before.table);
            let Some(row) = staged.row.as_deref().filter(|_| !table.checks.is_empty()) else {
                continue;
            };
            let before = (before.kind == Kind::Row).then_some(before.cells);
            if let Some(check) = violated(table, before, row) {
                let (key, check) = (key_shown(table, rows.key(staged.unit)), check.shown());
                return Err(format!(
                    "{key} would violate {check}: nothing was written; give values that fit"
                ));
            }
        }
        Ok(())
    }
}

/// The first constraint that a row violates for certain. Those of which it changes nothing are left to the origin: not all
/// databases look at these again, and a row may have been there before its constraint.
fn violated<'a>(table: &'a Table, before: Option<&[u8]>, row: &[u8]) -> Option<&'a Check> {
    let cells = |row| Reader::new(row).collect::<Vec<Cell<'_>>>();
    let (before, cells) = (before.map(cells), cells(row));
    let is_changed = |column: &usize| match &before {
        Some(before) => before.get(*column) != cells.get(*column),
        None => true,
    };
    let mut checks = table.checks_here();
    checks
        .find(|(_, condition)| {
            let is_touched = before.is_none() || condition.columns().iter().any(is_changed);
            is_touched && condition.outcomes(&cells).is_violated()
        })
        .map(|(check, _)| check)
}
