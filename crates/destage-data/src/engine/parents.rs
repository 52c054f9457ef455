//! Foreign keys that are judged before a write is acknowledged: the rows that they refer to are looked for (`fk = "ask"`).
//!
//! Such a row, a parent, is a row like any other. One that the transaction makes, that is undecided or that is cached is
//! known. For the others the command is performed once more with them among its units: they are fetched as every row is,
//! and nothing changes them in between. That a parent is missing is never told by an old copy: what was cached of that is
//! dropped before it is asked for. What the origin finds later may differ, where others write there, too.

use super::Engine;
use super::builds_on::parent_key;
use super::ended::has_ended;
use super::key::key_shown;
use super::prepared::Trouble;
use super::rows::{Kind, RowKey, dedup};
use super::session::Session;
use super::txn::{Txn, Update};

use crate::change::Op;
use crate::resp::ReplyError;
use crate::schema::{ForeignKey, Table, TableId};
use destage_core::UnitId;
use std::borrow::Cow;
use std::collections::BTreeSet;

impl Engine {
    /// Judges what a transaction's rows refer to anew, as they will be.
    ///
    /// # Errors
    /// A row refers to one that is not there; or it is not known of some whether they are there.
    pub(super) fn check_parents(&self, session: &Session, txn: &Txn) -> Result<(), Trouble> {
        let mut unknown = BTreeSet::new();
        // What raw SQL makes of the rows in between is not known here.
        let changes = txn.row_changes().filter(|_| !txn.has_dml());
        for (unit, table, op, sets) in changes {
            if self.schema.table(table).asks_foreign_keys && !op.removes() {
                self.check_row(session, txn, (unit, table, op, sets), &mut unknown)?;
            }
        }
        if unknown.is_empty() { Ok(()) } else { Err(Trouble::Parents(unknown)) }
    }

    fn check_row(
        &self,
        session: &Session,
        txn: &Txn,
        (unit, table, op, sets): (UnitId, TableId, Op, &[(usize, Update)]),
        unknown: &mut BTreeSet<RowKey>,
    ) -> Result<(), Trouble> {
        let Some((cells, before)) = txn.around(&self.rows, unit, op) else { return Ok(()) };
        let table = self.schema.table(table);
        for key in self.schema.foreign_keys_asked(table) {
            let is_set = op == Op::Insert || sets.iter().any(|(set, _)| key.columns.contains(set));
            let is_as_before = before.as_ref().is_some_and(|before| {
                key.columns.iter().all(|&column| before.get(column) == cells.get(column))
            });
            let parent = self.schema.table(key.parent);
            let named = parent_key(parent, key, &cells).filter(|_| is_set && !is_as_before);
            let Some(named) = named.map(|named| (parent.id, named.into())) else { continue };
            match self.is_parent_there(session, txn, &named) {
                Some(true) => {}
                Some(false) => return Err(self.missing_parent(unit, table, key, &named).into()),
                None => drop(unknown.insert(named)),
            }
        }
        Ok(())
    }

    /// Whether a row is there that others refer to; `None` if it has to be asked for.
    fn is_parent_there(&self, session: &Session, txn: &Txn, named: &RowKey) -> Option<bool> {
        let (unit, is_sure) = self.known_row(session, txn, named)?;
        let ended =
            |row: &&[u8]| self.schema.rows_end && has_ended(&self.schema, named.0, row, self.now);
        let is_there = txn.row(&self.rows, unit).filter(|row| !ended(row)).is_some();
        (is_there || is_sure).then_some(is_there)
    }

    /// A row that is here as it is now, and whether it was asked for, or is changed by the transaction itself; `None` if it has to
    /// be fetched.
    pub(super) fn known_row(
        &self,
        session: &Session,
        txn: &Txn,
        named: &RowKey,
    ) -> Option<(UnitId, bool)> {
        let unit = self.rows.find(named.0, &named.1)?;
        let is_sure = txn.changes_row(unit) || session.parents.contains(named);
        (is_sure || self.core.is_ready(unit)).then_some((unit, is_sure))
    }

    fn missing_parent(
        &self,
        unit: UnitId,
        table: &Table,
        key: &ForeignKey,
        (_, named): &RowKey,
    ) -> ReplyError {
        let parent = self.schema.table(key.parent);
        let (row, missing) = (key_shown(table, self.rows.key(unit)), key_shown(parent, named));
        let columns: Vec<&str> =
            key.columns.iter().map(|&column| table.columns[column].name.as_str()).collect();
        ReplyError::err(format!(
            "{row} would violate {}: there is no {missing}, so nothing was written; make {missing} first, or give {} another value",
            key.shown(table, parent),
            columns.join(", ")
        ))
    }

    /// Has the next attempt at a command look for these rows.
    pub(super) fn ask_for_parents(&mut self, session: &mut Session, parents: BTreeSet<RowKey>) {
        for (table, key) in &parents {
            let unit = self.rows.find(*table, key);
            if let Some(unit) = unit.filter(|&unit| self.rows.get(unit).kind == Kind::Absent) {
                self.invalidate(unit);
            }
        }
        session.parents.extend(parents);
    }

    /// A command's units, with those of the rows that had to be asked for.
    pub(super) fn with_parents<'u>(
        &mut self,
        session: &Session,
        units: &'u [UnitId],
    ) -> Cow<'u, [UnitId]> {
        if session.parents.is_empty() {
            return Cow::Borrowed(units);
        }
        let parents = session.parents.iter();
        let parents = parents.map(|(table, key)| self.rows.find_or_insert(*table, key));
        let all: Vec<UnitId> = units.iter().copied().chain(parents).collect();
        Cow::Owned(dedup(&all))
    }
}
