//! Those whom a change concerns: connections that watch rows or hold leases on them, those that wait for a lease, and the
//! observers, who are told of everything.
//!
//! A watched key is an S lease without an end, and every write an X lease that is granted and committed at once, so a write
//! voids the sessions of those who watch what it changes ([`destage_core::lease`]). The leases are on keys, not on what is
//! cached: a row may be evicted and fetched again meanwhile. A write that waits for the origin counts from the moment at
//! which it takes its place in the order of all writes.

use super::assumed::Assumed;
use super::observer::{ENTRIES, Observer, entry_key};
use super::overlay::changes;
use super::rows::RowKey;
use crate::change::Change;
use crate::schema::{Schema, TableId};
use destage_core::lease::{Denied, Leases, Token};
use destage_core::{ClientId, DomainId, Lsn, Span, Time};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Who watches, who waits, and who is told.
#[derive(Debug, Default)]
pub(super) struct Watchers {
    leases: Leases<RowKey>,
    /// When the rows end that someone has a lease on, as far as that is known.
    ends: BTreeMap<RowKey, Time>,
    /// A change has ended an X lease, and who waits for that has not been told.
    has_freed: bool,
    /// Who waits for an X lease to end, or for room in the journal.
    waiters: Vec<ClientId>,
    /// Rows of which sessions say that the origin does not have them.
    assumed: Assumed,
    observers: Vec<Arc<dyn Observer>>,
}

/// Leases.
impl Watchers {
    /// Someone watches from now on, or leases for so long.
    pub(super) fn begin(&mut self, now: Time, lifetime: Span) -> Token {
        self.leases.begin(now, lifetime)
    }

    /// An S lease.
    pub(super) fn share(&mut self, now: Time, token: Token, key: &RowKey) -> Result<(), Denied> {
        // An end that has come concerns those who were there before.
        self.tell_end(now, key);
        self.leases.share(now, token, key)
    }

    /// An X lease.
    pub(super) fn exclude(&mut self, now: Time, token: Token, key: &RowKey) -> Result<(), Denied> {
        self.tell_end(now, key);
        self.leases.exclude(now, token, key)
    }

    /// Nobody leases by this token any more; whether that ends X leases, for which others may wait.
    pub(super) fn abort(&mut self, token: Token) -> bool {
        let keys: Vec<RowKey> = if self.ends.is_empty() {
            Vec::new()
        } else {
            self.leases.keys(token).cloned().collect()
        };
        let frees = !self.leases.abort(token).is_empty();
        for key in &keys {
            if !self.is_held(key) {
                self.ends.remove(key);
            }
        }
        frees
    }

    /// A row ends then, as its copy tells, or never. What has ended has, whatever a later copy tells.
    pub(super) fn note_end(&mut self, now: Time, key: RowKey, end: Option<Time>) {
        let has_ended = self.ends.get(&key).is_some_and(|&end| end <= now);
        if has_ended || !self.is_held(&key) {
            return;
        }
        match end {
            Some(end) => drop(self.ends.insert(key, end)),
            None => drop(self.ends.remove(&key)),
        }
    }

    /// What is leased by this token changes where a row of it has ended.
    pub(super) fn tell_ends(&mut self, now: Time, token: Token) {
        if self.ends.is_empty() {
            return;
        }
        let keys: Vec<RowKey> = self.leases.keys(token).cloned().collect();
        keys.iter().for_each(|key| self.tell_end(now, key));
    }

    fn tell_end(&mut self, now: Time, key: &RowKey) {
        if self.ends.get(key).is_some_and(|&end| end <= now) {
            self.change(key);
        }
    }

    /// Whether anyone has a lease on a row.
    fn is_held(&self, key: &RowKey) -> bool {
        self.leases.exclusive(key).is_some() || self.leases.shared(key).next().is_some()
    }

    /// Whether what was leased by this token is as it was.
    pub(super) fn check(&self, now: Time, token: Token) -> Result<(), Denied> {
        self.leases.check(now, token)
    }

    /// What is leased by this token.
    pub(super) fn keys(&self, token: Token) -> impl ExactSizeIterator<Item = &RowKey> {
        self.leases.keys(token)
    }

    /// When the leases of this token end.
    pub(super) fn deadline(&self, token: Token) -> Option<Time> {
        self.leases.deadline(token)
    }

    /// Whether someone else has an X lease on a row.
    pub(super) fn is_leased_away(&self, key: &RowKey, own: Option<Token>) -> bool {
        self.leases.exclusive(key).is_some_and(|holder| Some(holder) != own)
    }

    /// Whether someone else has one on any row of a table.
    pub(super) fn is_table_leased_away(&self, table: TableId, own: Option<Token>) -> bool {
        let mut held = self.leases.held().filter(|key| key.0 == table);
        held.any(|key| self.is_leased_away(key, own))
    }

    /// Ends the sessions whose time is up; whether there are any.
    pub(super) fn expire(&mut self, now: Time) -> bool {
        if self.next_timeout().is_none_or(|at| at > now) {
            return false;
        }
        let written = self.leases.expire(now);
        let mut ends = std::mem::take(&mut self.ends);
        ends.retain(|key, _| self.is_held(key));
        self.ends = ends;
        tracing::debug!(rows = written.len(), "a session's leases have expired");
        true
    }

    /// When the next lease ends.
    pub(super) fn next_timeout(&self) -> Option<Time> {
        self.leases.next_timeout()
    }

    /// Whether a change concerns nobody but observers.
    pub(super) fn is_empty(&self) -> bool {
        self.leases.is_free() && self.assumed.is_empty()
    }

    /// The row has changed, or may have. Clients' writes wait for X leases; what the origin changed by itself ends them.
    pub(super) fn change(&mut self, key: &RowKey) {
        self.assumed.forget(key);
        self.ends.remove(key);
        while self.leases.write(key).is_err() {
            // No S lease is golden here, since sessions are validated in the step in which they end.
            let holder = self.leases.exclusive(key).expect("only an X lease keeps a write off");
            self.abort(holder);
            self.has_freed = true;
        }
    }

    /// As if each row of these tables had changed.
    pub(super) fn change_tables(&mut self, tables: &[TableId]) {
        let is_of = |key: &&RowKey| tables.contains(&key.0);
        let keys: Vec<RowKey> = self.leases.held().filter(is_of).cloned().collect();
        keys.iter().for_each(|key| self.change(key));
        self.assumed.forget_where(|key| tables.contains(&key.0));
    }
}

/// Those that wait for a lease, and what sessions say is not there.
impl Watchers {
    /// A client waits until a lease ends.
    pub(super) fn wait(&mut self, client: ClientId) {
        self.waiters.push(client);
    }

    /// It does not wait any more.
    pub(super) fn leave(&mut self, client: ClientId) {
        self.waiters.retain(|&waiter| waiter != client);
    }

    /// Whether a change has ended an X lease since the waiters were told last.
    pub(super) fn has_freed(&self) -> bool {
        self.has_freed
    }

    /// All who wait: they ask again.
    pub(super) fn take_waiters(&mut self) -> Vec<ClientId> {
        self.has_freed = false;
        std::mem::take(&mut self.waiters)
    }

    /// What sessions say is not there.
    pub(super) fn assumed(&self) -> &Assumed {
        &self.assumed
    }

    /// The same, to be changed.
    pub(super) fn assumed_mut(&mut self) -> &mut Assumed {
        &mut self.assumed
    }

    /// The leases beside it, by which it counts.
    pub(super) fn leases_and_assumed(&mut self) -> (&Leases<RowKey>, &mut Assumed) {
        (&self.leases, &mut self.assumed)
    }

    /// Rows of which sessions say so whose leases have ended.
    pub(super) fn void_claims(&self, now: Time) -> Vec<RowKey> {
        self.assumed.void(|token| self.leases.check(now, token).is_ok())
    }

    #[cfg(test)]
    pub(super) fn is_all_gone(&self) -> bool {
        self.is_empty() && self.ends.is_empty()
    }
}

/// Observers.
impl Watchers {
    /// Tells an observer of everything from now on.
    pub(super) fn observe(&mut self, observer: Arc<dyn Observer>) {
        self.observers.push(observer);
    }

    /// Whether anyone is to be told of changes.
    pub(super) fn has_observers(&self) -> bool {
        !self.observers.is_empty()
    }

    /// Nothing more for those who are not interested any more, as nobody else holds them.
    fn forget_observers(&mut self) {
        self.observers.retain(|observer| Arc::strong_count(observer) > 1);
    }

    /// A group is visible, which holds this.
    pub(super) fn tell_changed(&mut self, schema: &Schema, lsn: Lsn, bytes: &[u8]) {
        self.forget_observers();
        let changes: Vec<Change<'_>> = changes(schema, bytes).collect();
        let mut names = Vec::new();
        let mut is_any = false;
        for observer in &self.observers {
            match observer.changed(schema, lsn, &changes) {
                Some(named) => names.extend(named),
                None => is_any = true,
            }
        }
        names.iter().for_each(|name| self.change(&entry_key(name.as_bytes())));
        if is_any {
            self.change_tables(&[ENTRIES]);
        }
    }

    /// A group with raw SQL has taken its place.
    pub(super) fn tell_raw_sql(&mut self, lsn: Lsn, domain: DomainId) {
        self.forget_observers();
        self.observers.iter().for_each(|observer| observer.raw_sql(lsn, domain));
        self.change_tables(&[ENTRIES]);
    }

    /// Rows of these tables may have changed.
    pub(super) fn tell_unsure(&mut self, tables: &[TableId]) {
        if self.has_observers() {
            self.observers.iter().for_each(|observer| observer.unsure(tables));
            self.change_tables(&[ENTRIES]);
        }
    }

    /// The origin has decided everything up to here.
    pub(super) fn tell_decided(&self, decided: Lsn) {
        self.observers.iter().for_each(|observer| observer.decided(decided));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(table: u16, id: u8) -> RowKey {
        (TableId(table), [id].into())
    }

    #[test]
    fn a_change_voids_those_who_watch_the_row_and_no_others() {
        let (mut all, now) = (Watchers::default(), Time::ZERO);
        let (one, two) = (all.begin(now, Span::MAX), all.begin(now, Span::MAX));
        all.share(now, one, &key(1, 1)).unwrap();
        all.share(now, two, &key(1, 2)).unwrap();
        all.change(&key(1, 1));
        assert!(all.check(now, one).is_err() && all.check(now, two).is_ok());
        all.change_tables(&[TableId(1)]);
        assert!(all.check(now, two).is_err());
    }

    #[test]
    fn what_the_origin_changes_ends_the_right_to_write_it() {
        let (mut all, now) = (Watchers::default(), Time::ZERO);
        let token = all.begin(now, Span::from_millis(10));
        all.exclude(now, token, &key(1, 1)).unwrap();
        assert!(
            all.is_leased_away(&key(1, 1), None) && !all.is_leased_away(&key(1, 1), Some(token))
        );
        assert!(
            all.is_table_leased_away(TableId(1), None)
                && !all.is_table_leased_away(TableId(2), None)
        );
        all.change(&key(1, 1));
        assert!(!all.is_leased_away(&key(1, 1), None) && all.check(now, token).is_err());
        assert!(!all.abort(token), "nobody can wait for it any more");
    }
}
