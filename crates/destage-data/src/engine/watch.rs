//! WATCH: what a client has looked at is unchanged when its transaction takes effect, or the transaction is not done.
//!
//! A watched key is an S lease without an end, and every write an X lease that is granted and committed at once, so a write
//! voids the sessions of those who watch what it changes ([`destage_core::lease`]). The leases are on keys, not on what is
//! cached: a row may be evicted and fetched again meanwhile. A write that waits for the origin counts from the moment at
//! which it takes its place in the order of all writes.

use super::Engine;
use super::key::resolve;
use super::session::Session;
use crate::resp::Reply;
use crate::schema::TableId;
use destage_core::lease::Leases;
use destage_core::{ClientId, Span, Time, UnitId};

/// A row by its table and its encoded key.
pub(crate) type RowKey = (TableId, Box<[u8]>);

/// The keys that connections watch.
#[derive(Debug, Default)]
pub(super) struct Watched {
    pub(super) leases: Leases<RowKey>,
    /// Who waits for an X lease to end.
    pub(super) waiters: Vec<ClientId>,
}

/// Most keys that one connection watches.
const KEYS_MAX: usize = 10_000;

impl Watched {
    /// The row has changed, or may have. Clients' writes wait for X leases; what the origin changed by itself ends them.
    pub(super) fn change(&mut self, key: &RowKey) {
        while self.leases.write(key).is_err() {
            // No S lease is golden here, since sessions are validated in the step in which they end.
            let holder = self.leases.exclusive(key).expect("only an X lease keeps a write off");
            self.leases.abort(holder);
        }
    }

    /// When the next lease ends.
    pub(super) fn next_timeout(&self) -> Option<Time> {
        self.leases.next_timeout()
    }

    /// As if each row of these tables had changed.
    pub(super) fn change_tables(&mut self, tables: &[TableId]) {
        let is_of = |key: &&RowKey| tables.contains(&key.0);
        let keys: Vec<RowKey> = self.leases.held().filter(is_of).cloned().collect();
        keys.iter().for_each(|key| self.change(key));
    }

    /// Whether nobody watches anything.
    pub(super) fn is_empty(&self) -> bool {
        self.leases.is_free()
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
            if let Some(tables) = self.watched_tables(key) {
                match tables {
                    // Any write to a table that the result depends on.
                    Ok(tables) => {
                        rows.extend(tables.into_iter().map(|table| (table, Box::default())))
                    }
                    Err(message) => return self.fail(session, &message),
                }
                continue;
            }
            let mut cells = Vec::new();
            match resolve(&self.schema, key, &mut cells) {
                Ok((table, _)) => rows.push((table.id, cells.into())),
                Err(message) => return self.fail(session, &message),
            }
        }
        let watching = session.watch.map_or(0, |token| self.watched.leases.keys(token).len());
        if watching + rows.len() > KEYS_MAX {
            let message =
                format!("ERR a connection watches at most {KEYS_MAX} keys; UNWATCH first");
            return self.fail(session, &message);
        }
        let (leases, now) = (&mut self.watched.leases, self.now);
        let token = *session.watch.get_or_insert_with(|| leases.begin(now, Span::MAX));
        for row in &rows {
            match leases.share(now, token, row) {
                Ok(()) => {}
                // Once a key has changed, further ones make no difference. One that another session may write is as good as
                // changed.
                Err(_) => drop(leases.abort(token)),
            }
        }
        Reply::new(&mut session.out, session.protocol).ok();
    }

    /// Watches nothing any more.
    pub(super) fn unwatch(&mut self, session: &mut Session) {
        for key in session.absent.drain(..) {
            self.absent.remove(&key);
        }
        if let Some(token) = session.watch.take() {
            let written = self.watched.leases.abort(token);
            if !written.is_empty() {
                self.wake_lease_waiters();
            }
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
        let is_ignored = self.config.unsafe_flags.in_force().no_leases;
        is_ignored
            || session.watch.is_none_or(|token| self.watched.leases.check(self.now, token).is_ok())
    }

    /// Says that the transaction was not done, since something changed that the client watched.
    pub(super) fn not_done(&mut self, session: &mut Session) {
        self.end_multi(session);
        self.unwatch(session);
        // That a key changed is told like a value: once a crash cannot undo it.
        session.lsn = session.lsn.max(self.core.last());
        Reply::new(&mut session.out, session.protocol).null_array();
    }

    /// Tells those who watch them that rows change.
    pub(super) fn note_changes(&mut self, changed: &[(UnitId, u32)]) {
        if self.watched.is_empty() {
            return;
        }
        for &(unit, _) in changed {
            let key: RowKey = (self.rows.get(unit).table, self.rows.key(unit).into());
            self.watched.change(&key);
            self.note_table_watched(key.0);
        }
    }
}
