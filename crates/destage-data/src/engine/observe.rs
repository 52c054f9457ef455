//! Those who are told of every change before anyone is told that it is done: the library's cache entries, which follow the
//! rows that they are made of.

use super::watch::RowKey;
use super::{Engine, overlay};
use crate::change::Change;
use crate::schema::{Schema, TableId};
use destage_core::{DomainId, Lsn};
use std::sync::Arc;

/// Leases on names of entries stand under this table's number, which no table has.
const ENTRIES: TableId = TableId(u16::MAX);

/// Someone who is told of changes, in their order, on the engine's thread.
pub(crate) trait Observer: std::fmt::Debug + Send + Sync {
    /// A group's change of a row is visible to all from now on. The names of what it makes another are returned.
    fn changed(&self, schema: &Schema, lsn: Lsn, change: &Change<'_>) -> Vec<String>;

    /// A group holds raw SQL: once the origin has decided it, any row may be another. The watermark of this domain tells.
    fn opaque(&self, lsn: Lsn, domain: DomainId);

    /// Rows of these tables may have changed in ways that nobody knows; all of them if there are none.
    fn unsure(&self, tables: &[TableId]);

    /// The origin has decided everything up to here.
    fn decided(&self, upto: Lsn);
}

/// The lease key of an entry's name.
pub(super) fn entry_key(name: &[u8]) -> RowKey {
    (ENTRIES, name.into())
}

impl Engine {
    /// Tells an observer of everything from now on, and of what the origin has not decided yet.
    pub(crate) fn observe(&mut self, observer: Arc<dyn Observer>) {
        let mut lsn = self.overlay.forgotten().next();
        observer.decided(self.overlay.forgotten());
        while let Some(group) = self.overlay.get(lsn) {
            for change in overlay::changes(&self.schema, &group.bytes) {
                observer.changed(&self.schema, lsn, &change);
            }
            if overlay::statements(&self.schema, &group.bytes).next().is_some() {
                let spread = self.domains.partition().of_group(&self.schema, &group.bytes);
                observer.opaque(lsn, spread.first());
            }
            lsn = lsn.next();
        }
        self.observers.push(observer);
    }

    /// Nothing more for those who are not interested any more, as nobody else holds them.
    fn forget_observers(&mut self) {
        self.observers.retain(|observer| Arc::strong_count(observer) > 1);
    }

    /// A group is visible.
    pub(super) fn tell_changed(&mut self, lsn: Lsn) {
        if self.observers.is_empty() {
            return;
        }
        self.forget_observers();
        let Some(group) = self.overlay.get(lsn) else { return };
        let mut names = Vec::new();
        for change in overlay::changes(&self.schema, &group.bytes) {
            for observer in &self.observers {
                names.extend(observer.changed(&self.schema, lsn, &change));
            }
        }
        names.iter().for_each(|name| self.watched.change(&entry_key(name.as_bytes())));
    }

    /// A group with raw SQL has taken its place.
    pub(super) fn tell_opaque(&mut self, lsn: Lsn, domain: DomainId) {
        if !self.observers.is_empty() {
            self.forget_observers();
            self.observers.iter().for_each(|observer| observer.opaque(lsn, domain));
            self.watched.change_tables(&[ENTRIES]);
        }
    }

    /// Rows of these tables may have changed.
    pub(super) fn tell_unsure(&mut self, tables: &[TableId]) {
        if !self.observers.is_empty() {
            self.observers.iter().for_each(|observer| observer.unsure(tables));
            self.watched.change_tables(&[ENTRIES]);
        }
    }

    /// The origin has decided more.
    pub(super) fn tell_decided(&self) {
        let decided = self.core.decided();
        self.observers.iter().for_each(|observer| observer.decided(decided));
    }
}
