//! EXPIRE and its kin: keys that leave the cache at a time that a client has chosen.
//!
//! A plain cache key is gone then, as in Redis. Of a row at the origin only the cached copy expires, where its table's
//! settings allow that at all: the row is fetched again when it is asked for, and a change that the origin lacks keeps its
//! copy until it is destaged. Deadlines are kept by [`destage_core::expiry`]; what is due is dropped before it is used
//! ([`Engine::expire_due`]) and some at every tick.

use super::Engine;
use super::command::{Spec, Verb};
use super::deadline::{Change, Conditions, milliseconds, refuse_expiry, time_of, ttl_reply};
use super::ended::LOOK_AGAIN_AFTER;
use super::perform::Context;
use super::prepared::{Prepared, Trouble};
use super::rows::Kind;
use crate::resp::{Reply, ReplyError};
use crate::schema::{Schema, TableId};
use destage_core::{Time, UnitId};

impl Verb {
    /// Whether the command is about its key's deadline alone.
    pub(super) fn is_of_expiry(self) -> bool {
        matches!(
            self,
            Self::Expire
                | Self::Persist
                | Self::Ttl
                | Self::PTtl
                | Self::ExpireTime
                | Self::PExpireTime
        )
    }
}

impl Prepared {
    /// Checks the arguments of a command on a key's deadline.
    ///
    /// # Errors
    /// A message for the client.
    pub(super) fn read_expiry(
        &mut self,
        schema: &Schema,
        spec: &Spec,
        args: &[&[u8]],
    ) -> Result<(), ReplyError> {
        let (table, shape) = self.push_key(schema, args[1])?;
        if spec.verb != Verb::Expire {
            return Ok(());
        }
        self.expire.conditions = Conditions::read(&args[3..])?;
        let is_seconds = !spec.name.starts_with('p');
        self.expire.change = Change::of(args[2], is_seconds, spec.name.ends_with("at"), spec.name)?;
        refuse_expiry(shape, table)
    }
}

impl Context<'_> {
    /// When a key expires, as this transaction sees it.
    pub(super) fn deadline(&self, unit: UnitId) -> Option<Time> {
        let staged = self.txn.deadlines.iter().rev().find(|(staged, _)| *staged == unit);
        staged.map_or_else(|| self.expiries.get(unit), |&(_, deadline)| deadline)
    }

    /// Performs one command on a key's deadline; its reply is appended.
    pub(super) fn perform_expiry(
        &mut self,
        prepared: &Prepared,
        units: &[UnitId],
        reply: &mut Reply<'_>,
    ) -> Result<(), Trouble> {
        let unit = units[0];
        let schema = self.schema;
        let table = schema.table(prepared.key_list[0].0);
        if let Some(ttl) = &table.ttl {
            return self.perform_end(table, ttl, unit, prepared, reply);
        }
        let is_there = self.is_there(unit, units)?;
        let old = self.deadline(unit);
        match prepared.verb {
            Verb::Expire => {
                let new = prepared.expire.change.deadline(self.now);
                let conditions = prepared.expire.conditions;
                let is_done = is_there && new.is_some_and(|new| conditions.allow(old, new));
                if is_done {
                    self.change_deadline(table.id, unit, prepared.expire.change);
                }
                reply.integer(i64::from(is_done));
            }
            Verb::Persist => {
                let is_done = is_there && old.is_some();
                if is_done {
                    self.txn.deadlines.push((unit, None));
                }
                reply.integer(i64::from(is_done));
            }
            verb => reply.integer(match (is_there, old) {
                (false, _) => -2,
                (true, None) => -1,
                (true, Some(at)) => ttl_reply(verb, at, self.now),
            }),
        }
        Ok(())
    }

    /// Gives a key that is there another deadline. A plain one whose deadline has passed is gone at once.
    pub(super) fn change_deadline(&mut self, table: TableId, unit: UnitId, change: Change) {
        match change.deadline(self.now) {
            Some(at) if at <= self.now && self.is_plain(unit) => self.remove(table, unit),
            Some(at) => self.txn.deadlines.push((unit, Some(at))),
            None if change == Change::Keep => {}
            None => self.forget_deadline(unit),
        }
    }

    /// The key does not expire any more, or is gone.
    pub(super) fn forget_deadline(&mut self, unit: UnitId) {
        if self.expiries.is_empty() && self.txn.deadlines.is_empty() {
            return;
        }
        if self.deadline(unit).is_some() {
            self.txn.deadlines.push((unit, None));
        }
    }
}

impl Engine {
    /// Drops those of the units whose deadline is reached, before they are used.
    pub(super) fn expire_due(&mut self, units: &[UnitId]) {
        for &unit in units {
            if self.freshness.expiries().is_due(unit, self.now) {
                self.expire(unit);
            }
        }
    }

    /// Drops some of what nobody has asked for since it expired.
    pub(super) fn expire_some(&mut self) {
        for unit in self.freshness.take_expired(self.now) {
            self.expire(unit);
        }
    }

    /// Drops a unit whose deadline is reached. A copy with changes that the origin lacks stays until it has them.
    fn expire(&mut self, unit: UnitId) {
        // It is another from now on, also where its copy stays.
        self.rows.touch(unit);
        if self.outlives_deadline(unit) {
            return self.freshness.postpone(unit, self.now);
        }
        self.invalidate(unit);
        if self.core.is_present(unit) {
            return self.freshness.postpone(unit, self.now);
        }
        self.freshness.set_deadline(unit, None);
        if self.schema.plain == Some(self.rows.get(unit).table) {
            self.plain_changed(unit);
        }
    }

    /// Has the copy of a row dropped when its end comes.
    pub(super) fn drop_at_end(&mut self, unit: UnitId) {
        if !self.schema.rows_end {
            return;
        }
        let Some(end) = self.end_of(unit) else { return };
        let now = self.now;
        let at = end.map(|end| if end > now { end } else { now + LOOK_AGAIN_AFTER });
        self.freshness.set_deadline(unit, at);
        self.note_end(unit);
    }

    /// When a row ends, or that it never does; `None` of what is in no table whose rows end.
    fn end_of(&self, unit: UnitId) -> Option<Option<Time>> {
        let row = self.rows.get(unit);
        let table = self.schema.tables.get(usize::from(row.table.0));
        let ttl = table.and_then(|table| table.ttl.as_ref())?;
        let end = if row.kind == Kind::Row { ttl.end_of_row(row.cells) } else { None };
        Some(end.map(|end| if end > milliseconds(self.now) { time_of(end) } else { self.now }))
    }

    /// Those who have leases on a row are to be told when it ends, also where its copy is dropped before that.
    pub(super) fn note_end(&mut self, unit: UnitId) {
        if self.watchers.is_empty() {
            return;
        }
        if let Some(end) = self.end_of(unit) {
            // That it has ended is what those know who look at it now.
            let end = end.filter(|&end| end > self.now);
            let key = (self.rows.get(unit).table, self.rows.key(unit).into());
            self.watchers.note_end(self.now, key, end);
        }
    }

    /// Whether a copy at its deadline is used on: a row that ends, while the origin cannot tell of it anew. Its readers would
    /// have to wait for the origin.
    pub(super) fn outlives_deadline(&self, unit: UnitId) -> bool {
        let table = self.schema.tables.get(usize::from(self.rows.get(unit).table.0));
        table.is_some_and(|table| table.ttl.is_some()) && self.measured.is_failing()
    }

    /// Sets deadlines as a transaction has them.
    pub(super) fn set_deadlines(&mut self, deadlines: &[(UnitId, Option<Time>)]) {
        for &(unit, deadline) in deadlines {
            // What is not cached has nothing that could expire.
            let deadline = deadline.filter(|_| self.core.is_present(unit));
            self.freshness.set_deadline(unit, deadline);
            self.rows.touch(unit);
        }
        for &(unit, _) in deadlines {
            self.expire_due(&[unit]);
        }
    }
}
