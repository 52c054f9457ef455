//! WATCH: what a client has looked at is unchanged when its transaction takes effect, or the transaction is not done.
//!
//! The leases that this is made of are kept by [`super::watchers`].

use super::Engine;
use super::key::resolve;
use super::rows::RowKey;
use super::session::{Multi, Session};
use crate::resp::{Code, Reply, ReplyError};
use destage_core::{Span, UnitId};

/// Most keys that one connection watches, or has leases on.
pub(super) const KEYS_MAX: usize = 10_000;

/// Lifetimes, in milliseconds.
const LIFETIME_MS_DEFAULT: u64 = 1_000;
const LIFETIME_MS_MIN: u64 = 10;
const LIFETIME_MS_MAX: u64 = 60_000;

impl Engine {
    /// WATCH key [key ...]
    pub(super) fn watch(&mut self, session: &mut Session, keys: &[&[u8]]) {
        if session.multi.is_some() {
            return self.complain(
                session,
                ReplyError::fixed(Code::Err, "WATCH inside MULTI is not allowed"),
            );
        }
        let mut rows = Vec::with_capacity(keys.len());
        for key in keys {
            if let Some(tables) = self.watched_tables(key) {
                match tables {
                    // Any write to a table that the result depends on.
                    Ok(tables) => {
                        rows.extend(tables.into_iter().map(|table| (table, Box::default())))
                    }
                    Err(message) => return self.fail(session, message),
                }
                continue;
            }
            let mut cells = Vec::new();
            match resolve(&self.schema, key, &mut cells) {
                Ok((table, _)) => rows.push((table.id, cells.into())),
                Err(message) => return self.fail(session, message),
            }
        }
        let watching = session.watch.map_or(0, |token| self.watchers.keys(token).len());
        if watching + rows.len() > KEYS_MAX {
            let message = ReplyError::err(format!(
                "a connection watches at most {KEYS_MAX} keys; UNWATCH first"
            ));
            return self.fail(session, message);
        }
        let (watchers, now) = (&mut self.watchers, self.now);
        let token = *session.watch.get_or_insert_with(|| watchers.begin(now, Span::MAX));
        for row in &rows {
            // Once a key has changed, further ones make no difference. One that another session may write is as good as
            // changed.
            if watchers.share(now, token, row).is_err() {
                watchers.abort(token);
            }
        }
        self.note_ends(&rows);
        Reply::new(&mut session.out, session.protocol).ok();
    }

    /// Watches nothing any more.
    pub(super) fn unwatch(&mut self, session: &mut Session) {
        session.moment = None;
        session.numbers.clear();
        let absent = std::mem::take(&mut session.absent);
        let Some(token) = session.watch.take() else { return };
        if self.watchers.abort(token) {
            self.wake_lease_waiters();
        }
        self.withdraw_absent(token, absent);
    }

    /// Ends a transaction, if there is one, and with it the watching for it.
    pub(super) fn end_multi(&mut self, session: &mut Session) {
        if session.multi.take().is_some() {
            self.unwatch(session);
        }
    }

    /// Notes when rows end that are leased from now on. Of those that are not cached that is noted once they are.
    pub(super) fn note_ends(&mut self, keys: &[RowKey]) {
        if !self.schema.rows_end {
            return;
        }
        for key in keys {
            if let Some(unit) = self.rows.find(key.0, &key.1) {
                self.note_end(unit);
            }
        }
    }

    /// Whether nothing has changed that the client watches.
    pub(super) fn is_unchanged(&mut self, session: &Session) -> bool {
        if let Some(token) = session.watch {
            self.watchers.tell_ends(self.now, token);
        }
        let is_ignored = self.config.unsafe_flags.in_force().no_leases;
        is_ignored || session.watch.is_none_or(|token| self.watchers.check(self.now, token).is_ok())
    }

    /// Says that the transaction was not done, since something changed that the client watched.
    pub(super) fn not_done(&mut self, session: &mut Session) {
        self.end_multi(session);
        self.unwatch(session);
        // That a key changed is told like a value: once a crash cannot undo it.
        session.lsn = session.lsn.max(self.core.last());
        session.answer_not_done();
    }

    /// Tells those who watch them that rows change.
    pub(super) fn note_changes(&mut self, changed: &[(UnitId, u32)]) {
        if self.watchers.is_empty() {
            return;
        }
        for &(unit, _) in changed {
            let key: RowKey = (self.rows.get(unit).table, self.rows.key(unit).into());
            self.watchers.change(&key);
            self.note_table_watched(key.0);
        }
    }

    /// DESTAGE BEGIN [ms]
    pub(super) fn begin_leased(&mut self, session: &mut Session, args: &[&[u8]]) {
        let lifetime = match args {
            [] => Some(LIFETIME_MS_DEFAULT),
            [ms] => std::str::from_utf8(ms).ok().and_then(|ms| ms.parse().ok()),
            _ => None,
        };
        let range = LIFETIME_MS_MIN..=LIFETIME_MS_MAX;
        let Some(lifetime) = lifetime.filter(|lifetime| range.contains(lifetime)) else {
            let message = ReplyError::err(format!(
                "DESTAGE BEGIN [ms]: the leases last {LIFETIME_MS_MIN} to {LIFETIME_MS_MAX} ms, \
                 {LIFETIME_MS_DEFAULT} unless given"
            ));
            return self.fail(session, message);
        };
        if session.watch.is_some() {
            return self.fail(
                session,
                ReplyError::fixed(Code::Err, "DESTAGE BEGIN leases what is read; UNWATCH first"),
            );
        }
        session.watch = Some(self.watchers.begin(self.now, Span::from_millis(lifetime)));
        session.moment = Some(self.freshness.fresh_mut().moment(self.now));
        session.multi = Some(Multi { leased: true, begun: true, ..Multi::default() });
        Reply::new(&mut session.out, session.protocol).ok();
    }

    /// MULTI in a session under leases: the commands that follow are kept for EXEC, which takes X leases on what they write
    /// in the step in which it performs them.
    pub(super) fn defer(&mut self, session: &mut Session) {
        if let Some(multi) = &mut session.multi {
            (multi.leased, multi.ahead) = (false, None);
        }
        Reply::new(&mut session.out, session.protocol).ok();
    }
}
