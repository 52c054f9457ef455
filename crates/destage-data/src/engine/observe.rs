//! Those who are told of every change before anyone is told that it is done: the library's cache entries, which follow the
//! rows that they are made of.

use super::watchers::RowKey;
use super::{Engine, overlay};
use crate::change::Change;
use crate::schema::{Schema, TableId};
use destage_core::{DomainId, Lsn};
use std::sync::Arc;

/// Leases on names of entries stand under this table's number, which no table has.
pub(super) const ENTRIES: TableId = TableId(u16::MAX);

/// Someone who is told of changes, in their order, on the engine's thread.
pub(crate) trait Observer: std::fmt::Debug + Send + Sync {
    /// A group's change of a row is visible to all from now on. The names of what it makes another are returned.
    fn changed(&self, schema: &Schema, lsn: Lsn, change: &Change<'_>) -> Vec<String>;

    /// A group holds raw SQL: once the origin has decided it, any row may be another. The watermark of this domain tells.
    fn raw_sql(&self, lsn: Lsn, domain: DomainId);

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
                observer.raw_sql(lsn, spread.first());
            }
            lsn = lsn.next();
        }
        self.watchers.observe(observer);
    }

    /// A group is visible.
    pub(super) fn tell_changed(&mut self, lsn: Lsn) {
        if self.watchers.has_observers()
            && let Some(group) = self.overlay.get(lsn)
        {
            self.watchers.tell_changed(&self.schema, lsn, &group.bytes);
        }
    }
}
