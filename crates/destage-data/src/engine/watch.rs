//! WATCH: what a client has looked at is unchanged when its transaction takes effect, or the transaction is not done.
//!
//! A watched key is an S lease without an end, and every write an X lease that is granted and committed at once, so a write
//! voids the sessions of those who watch what it changes ([`destage_core::lease`]). The leases are on keys, not on what is
//! cached: a row may be evicted and fetched again meanwhile. A write that waits for the origin counts from the moment at
//! which it takes its place in the order of all writes.

use super::Engine;
use super::key::parse_key;
use super::session::Session;
use crate::resp::Reply;
use crate::schema::TableId;
use destage_core::lease::{Leases, Token};
use destage_core::{Span, Time, UnitId};

/// A row by its table and its encoded key.
type RowKey = (TableId, Box<[u8]>);

/// The keys that connections watch.
#[derive(Debug, Default)]
pub(super) struct Watched(Leases<RowKey>);

/// Most keys that one connection watches.
const KEYS_MAX: usize = 10_000;

impl Watched {
    /// The row has changed, or may have.
    pub(super) fn change(&mut self, key: &RowKey) {
        self.0.write(key).expect("watching takes S leases alone, and none of them is validated");
    }

    /// As if each row of these tables had changed.
    pub(super) fn change_tables(&mut self, tables: &[TableId]) {
        let is_of = |key: &&RowKey| tables.contains(&key.0);
        let keys: Vec<RowKey> = self.0.held().filter(is_of).cloned().collect();
        keys.iter().for_each(|key| self.change(key));
    }

    /// Whether nobody watches anything.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_free()
    }

    fn is_unchanged(&self, token: Token) -> bool {
        self.0.check(Time::ZERO, token).is_ok()
    }
}

impl Engine {
    /// WATCH key [key ...]
    pub(super) fn watch(&mut self, session: &mut Session, keys: &[&[u8]]) {
        if session.multi.is_some() {
            return self.complain(session, "ERR WATCH inside MULTI is not allowed");
        }
        let mut rows = Vec::with_capacity(keys.len());
        for key in keys {
            let mut cells = Vec::new();
            match parse_key(&self.schema, key, &mut cells) {
                Ok(table) => rows.push((table.id, cells.into())),
                Err(message) => return self.fail(session, &message),
            }
        }
        let watching = session.watch.map_or(0, |token| self.watched.0.keys(token).len());
        if watching + rows.len() > KEYS_MAX {
            let message =
                format!("ERR a connection watches at most {KEYS_MAX} keys; UNWATCH first");
            return self.fail(session, &message);
        }
        let leases = &mut self.watched.0;
        let token = *session.watch.get_or_insert_with(|| leases.begin(Time::ZERO, Span::MAX));
        // Once a key has changed, further ones make no difference.
        let _ = rows.iter().try_for_each(|row| leases.share(Time::ZERO, token, row));
        Reply::new(&mut session.out, session.protocol).ok();
    }

    /// Watches nothing any more.
    pub(super) fn unwatch(&mut self, session: &mut Session) {
        if let Some(token) = session.watch.take() {
            self.watched.0.abort(token);
        }
    }

    /// Ends a transaction, if there is one, and with it the watching for it.
    pub(super) fn end_multi(&mut self, session: &mut Session) {
        if session.multi.take().is_some() {
            self.unwatch(session);
        }
    }

    /// Whether nothing has changed that the client watches.
    pub(super) fn is_unchanged(&self, session: &Session) -> bool {
        session.watch.is_none_or(|token| self.watched.is_unchanged(token))
    }

    /// Says that the transaction was not done, since something changed that the client watched.
    pub(super) fn not_done(&mut self, session: &mut Session) {
        self.end_multi(session);
        self.unwatch(session);
        // That a key changed is told like a value: once a crash cannot undo it.
        session.lsn = session.lsn.max(self.last());
        Reply::new(&mut session.out, session.protocol).null_array();
    }

    /// Tells those who watch them that rows change.
    pub(super) fn note_changes(&mut self, changed: &[(UnitId, u32)]) {
        if self.watched.is_empty() {
            return;
        }
        for &(unit, _) in changed {
            let key = (self.rows.get(unit).table, self.rows.key(unit).into());
            self.watched.change(&key);
        }
    }
}
