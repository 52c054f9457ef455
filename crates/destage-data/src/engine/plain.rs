//! Plain cache keys: strings and hashes under keys that name no row, where the settings allow them.
//!
//! A plain key is a unit like a row, of a table of the cache's own, so that it is counted, used, locked and evicted like any
//! cached row. But nothing stands behind it: what is not in memory does not exist. A transaction stages its changes of plain
//! keys beside those of rows; they take effect when its write group does, and are no part of it, so neither the journal nor
//! the origin ever hears of them.

use super::Engine;
use super::command::{Spec, Verb};
use super::fields::Fields;
use super::numbers::{NOT_FLOAT, NOT_INTEGER, OVERFLOW, decimal, exact, integer, without_zeros};
use super::perform::Context;
use super::prepared::{Prepared, Trouble};
use super::rows::{Kind, RowRef, dedup};
use super::txn::{Beside, Txn, Update};
use crate::resp::{Code, Reply, ReplyError};
use crate::schema::{PLAIN_HASH, PLAIN_STRING, Schema, Table, TableId};
use destage_core::{Access, Input, UnitId};
use std::collections::HashSet;

/// What Redis says of a command that does not fit what its key holds.
const WRONG_KIND: ReplyError =
    ReplyError::fixed(Code::WrongType, "Operation against a key holding the wrong kind of value");

impl Verb {
    /// Whether the command works on hashes alone.
    pub(super) fn is_of_hashes(self) -> bool {
        matches!(
            self,
            Self::HGetAll
                | Self::HGet
                | Self::HSet
                | Self::HMGet
                | Self::HMSet
                | Self::HSetNx
                | Self::HKeys
                | Self::HVals
                | Self::HLen
                | Self::HExists
                | Self::HStrLen
                | Self::HScan
                | Self::HDel
                | Self::HIncrBy
                | Self::HIncrByFloat
        )
    }
}

impl Prepared {
    /// Checks the arguments of a command on a plain hash.
    ///
    /// # Errors
    /// A message for the client.
    pub(super) fn read_fields(&mut self, spec: &Spec, args: &[&[u8]]) -> Result<(), ReplyError> {
        let fields = match spec.verb {
            Verb::HSet | Verb::HMSet if !args.len().is_multiple_of(2) => {
                return Err(ReplyError::err(format!(
                    "wrong number of arguments for '{}' command",
                    spec.name
                )));
            }
            Verb::HIncrBy => {
                integer(args[1]).map_err(|_| NOT_INTEGER)?;
                &args[..1]
            }
            Verb::HIncrByFloat => {
                decimal(args[1]).ok_or(NOT_FLOAT)?;
                &args[..1]
            }
            _ => args,
        };
        if fields.len() < args.len() {
            self.amount.extend_from_slice(args[1]);
        }
        for field in fields {
            let start = self.values.len();
            self.values.extend_from_slice(field);
            self.fields.push(start..self.values.len());
        }
        Ok(())
    }

    /// The fields given, and what stands between them.
    fn words(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        self.fields.iter().map(|range| &self.values[range.clone()])
    }

    /// Whether it changes rows: its write group must be admitted.
    pub(super) fn changes_rows(&self, schema: &Schema) -> bool {
        if matches!(self.verb, Verb::Expire | Verb::Persist | Verb::GetEx) {
            // A deadline is of the copy, but the end of a row is a part of it.
            return schema.rows_end && schema.table(self.key_list[0].0).ttl.is_some();
        }
        let is_of_row = |&(table, _): &(TableId, _)| Some(table) != schema.plain;
        schema.plain.is_none() || self.key_list.iter().any(is_of_row)
    }
}

impl Context<'_> {
    /// Whether a unit is a plain key.
    #[inline]
    pub(super) fn is_plain(&self, unit: UnitId) -> bool {
        self.schema.plain.is_some_and(|plain| self.rows.get(unit).table == plain)
    }

    /// Changes columns of a row or a plain key.
    ///
    /// # Errors
    /// The row has ended, and may not be replaced.
    pub(super) fn write(
        &mut self,
        table: &Table,
        unit: UnitId,
        sets: Vec<(usize, Update)>,
    ) -> Result<(), Trouble> {
        if self.schema.plain == Some(table.id) {
            self.txn.set_beside(self.rows, table, unit, &sets);
            return Ok(());
        }
        self.put(table, unit, sets)
    }

    /// Deletes a row or a plain key that exists.
    pub(super) fn remove(&mut self, table: TableId, unit: UnitId) {
        if self.schema.plain == Some(table) {
            self.txn.delete_beside(unit)
        } else {
            self.txn.delete(table, unit)
        }
        // The end of a row is a part of it: the commit sets that, also of a row that is made anew behind this.
        if self.schema.table(table).ttl.is_none() {
            self.forget_deadline(unit);
        }
    }

    /// What TYPE says of a plain key that is there.
    pub(super) fn plain_type(&self, unit: UnitId) -> &'static str {
        match self.cell(unit, PLAIN_HASH) {
            Ok(Some(_)) => "hash",
            _ => "string",
        }
    }

    /// Refuses a command on strings where a plain key is a hash.
    ///
    /// # Errors
    /// It is one.
    pub(super) fn refuse_hash(&self, unit: UnitId) -> Result<(), Trouble> {
        if self.is_plain(unit) && self.cell(unit, PLAIN_HASH)?.is_some() {
            Err(Trouble::Error(WRONG_KIND))
        } else {
            Ok(())
        }
    }

    /// Performs one command on a plain hash; its reply is appended.
    pub(super) fn perform_fields(
        &mut self,
        table: &Table,
        unit: UnitId,
        prepared: &Prepared,
        reply: &mut Reply<'_>,
    ) -> Result<(), Trouble> {
        if self.cell(unit, PLAIN_STRING)?.is_some() {
            return Err(Trouble::Error(WRONG_KIND));
        }
        let computed;
        let run = self.cell(unit, PLAIN_HASH)?.unwrap_or_default();
        let mut fields = Fields::read(run, prepared.fields.len());
        let mut words = prepared.words();
        let mut first = || words.next().expect("the count of arguments was checked");
        let is_changed = match prepared.verb {
            Verb::HGetAll | Verb::HKeys | Verb::HVals => {
                fields.tell(prepared.verb, reply);
                false
            }
            Verb::HGet => {
                reply.bulk_or_null(fields.get(first()));
                false
            }
            Verb::HMGet => {
                reply.array(words.len());
                words.for_each(|field| reply.bulk_or_null(fields.get(field)));
                false
            }
            Verb::HLen => {
                reply.integer(fields.len() as i64);
                false
            }
            Verb::HExists => {
                reply.integer(i64::from(fields.get(first()).is_some()));
                false
            }
            Verb::HStrLen => {
                reply.integer(fields.get(first()).map_or(0, |value| value.len() as i64));
                false
            }
            Verb::HScan => {
                prepared.hash_scan.tell(fields.present(), reply);
                false
            }
            Verb::HSet | Verb::HMSet => {
                let mut added = 0;
                while let (Some(field), Some(value)) = (words.next(), words.next()) {
                    added += i64::from(fields.put(field, value));
                }
                if prepared.verb == Verb::HSet {
                    reply.integer(added)
                } else {
                    reply.ok()
                }
                true
            }
            Verb::HSetNx => {
                let field = first();
                let is_new = fields.get(field).is_none();
                if is_new {
                    fields.put(field, first());
                }
                reply.integer(i64::from(is_new));
                is_new
            }
            Verb::HDel => {
                let removed = words.filter(|field| fields.remove(field)).count();
                reply.integer(removed as i64);
                removed > 0
            }
            Verb::HIncrBy | Verb::HIncrByFloat => {
                let field = first();
                let is_whole = prepared.verb == Verb::HIncrBy;
                computed = sum(is_whole, fields.get(field), &prepared.amount)?;
                if is_whole {
                    reply.integer(integer(&computed)?)
                } else {
                    reply.bulk(&computed)
                }
                fields.put(field, &computed);
                true
            }
            _ => unreachable!("not a command on hashes"),
        };
        if !is_changed {
            return Ok(());
        }
        let is_empty = fields.len() == 0;
        let run = fields.encode();
        drop(fields);
        if prepared.verb != Verb::HDel {
            self.check_bytes("a hash", run.len())?;
        }
        if is_empty {
            self.remove(table.id, unit);
            return Ok(());
        }
        self.write(table, unit, vec![(PLAIN_HASH, Update::To(run))])
    }
}

/// What a field holds after an increment.
fn sum(is_whole: bool, old: Option<&[u8]>, amount: &[u8]) -> Result<Vec<u8>, Trouble> {
    let old = old.unwrap_or(b"0");
    if is_whole {
        let old = integer(old)
            .map_err(|_| ReplyError::fixed(Code::Err, "hash value is not an integer"))?;
        let sum = old.checked_add(integer(amount)?).ok_or(OVERFLOW)?;
        return Ok(itoa::Buffer::new().format(sum).as_bytes().to_vec());
    }
    let old =
        decimal(old).ok_or_else(|| ReplyError::fixed(Code::Err, "hash value is not a float"))?;
    let sum = decimal(amount).and_then(|amount| exact().add(&old, &amount).ok());
    sum.map(|sum| without_zeros(&sum).to_vec()).ok_or(Trouble::Error(NOT_FLOAT))
}

impl Engine {
    /// The core wants a plain key that is not in memory: there is nothing else that could hold it.
    pub(super) fn fetch_plain(&mut self, unit: UnitId) {
        if self.rows.get(unit).kind == Kind::NotLoaded {
            self.rows.set(unit, None);
            self.freshness.note_absent_plain(unit);
        }
        let row = self.rows.get(unit);
        let identity = self.rows.identity(row.table, self.rows.key(unit));
        let result = Ok(self.plain_bytes(unit));
        self.core.handle(self.now, Input::Fetched { unit, result, identity });
    }

    /// Drops what was asked for and still does not exist: it would take the room of something that does.
    pub(super) fn drop_absent_plain(&mut self) {
        let Some(plain) = self.schema.plain else { return };
        for unit in self.freshness.take_absent_plain() {
            // The number may stand for something else by now.
            if self.rows.is_of(unit, plain) && self.rows.get(unit).kind == Kind::Absent {
                self.invalidate(unit);
            }
        }
    }

    /// Bytes that a plain key takes, its deadline included.
    fn plain_bytes(&self, unit: UnitId) -> u32 {
        self.rows.bytes(unit).saturating_add(self.freshness.deadline_bytes(unit))
    }

    /// Takes out of a transaction what is no part of its write group.
    pub(super) fn take_beside(&self, txn: &mut Txn) -> Beside {
        let deadlines = std::mem::take(&mut txn.deadlines);
        let keys = match self.schema.plain {
            None => Vec::new(),
            Some(plain) => txn.take_of(|unit| self.rows.get(unit).table == plain),
        };
        Beside { keys, deadlines, locked: Vec::new() }
    }

    /// Keys that a transaction changes keep their deadlines: the engine forgets one that is reached before the origin has
    /// decided.
    pub(super) fn note_old_deadlines(&self, beside: &mut Beside) {
        if !self.freshness.has_expiries() {
            return;
        }
        let timed: HashSet<UnitId> = beside.deadlines.iter().map(|(unit, _)| *unit).collect();
        for staged in beside.keys.iter().filter(|staged| staged.row.is_some()) {
            let at = self.freshness.expiries().get(staged.unit);
            if at.is_some() && !timed.contains(&staged.unit) {
                beside.deadlines.push((staged.unit, at));
            }
        }
    }

    /// Lets what a transaction did beside its write group take effect, and frees what it locked for that.
    pub(super) fn keep_beside(&mut self, beside: Beside) {
        let Beside { keys, deadlines, locked } = beside;
        if keys.is_empty() && deadlines.is_empty() {
            return;
        }
        for staged in &keys {
            if staged.row.is_some() {
                self.rows.set(staged.unit, staged.row.as_deref());
                continue;
            }
            self.plain_changed(staged.unit);
            self.freshness.set_deadline(staged.unit, None);
            self.invalidate(staged.unit);
        }
        let plain = self.schema.plain;
        let is_there = |row: RowRef<'_>| row.kind == Kind::Row && Some(row.table) == plain;
        let timed = deadlines.iter().map(|&(unit, _)| unit);
        let units: Vec<UnitId> = keys.iter().map(|staged| staged.unit).chain(timed).collect();
        for &(unit, at) in &deadlines {
            if is_there(self.rows.get(unit)) {
                self.freshness.set_deadline(unit, at);
            }
        }
        let ours: HashSet<UnitId> = locked.iter().copied().collect();
        for unit in dedup(&units) {
            if is_there(self.rows.get(unit)) {
                self.plain_changed(unit);
                let units = [(unit, self.plain_bytes(unit))];
                // What changes at once has locked nothing: whoever waits for the origin may have.
                let access = if ours.contains(&unit) { Access::Through } else { Access::Back };
                let input = Input::Through { units: &units, access, result: Ok(()) };
                self.core.handle(self.now, input);
            }
        }
        let is_freed = |unit: &UnitId| !is_there(self.rows.get(*unit));
        let others: Vec<UnitId> = locked.into_iter().filter(is_freed).collect();
        if !others.is_empty() {
            self.core.handle(self.now, Input::Release { units: &others });
        }
        self.set_deadlines(&deadlines);
    }

    /// Gives up what a transaction would have done beside its write group, which the origin has rejected.
    pub(super) fn drop_beside(&mut self, beside: &Beside) {
        if !beside.locked.is_empty() {
            self.core.handle(self.now, Input::Release { units: &beside.locked });
        }
    }
}
