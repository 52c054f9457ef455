//! Those who are told of every change before anyone is told that it is done: the library's cache entries, which follow the
//! rows that they are made of.

use super::rows::RowKey;
use crate::change::Change;
use crate::schema::{Schema, TableId};
use destage_core::{DomainId, Lsn};

/// Leases on names of entries stand under this table's number, which no table has.
pub(super) const ENTRIES: TableId = TableId(u16::MAX);

/// Someone who is told of changes, in their order, on the engine's thread.
pub(crate) trait Observer: std::fmt::Debug + Send + Sync {
    /// A group's changes of rows are visible to all from now on, all at once: whoever sees one of them sees the others. The
    /// names of what they make another are returned; `None` if nobody knows.
    fn changed(&self, schema: &Schema, lsn: Lsn, changes: &[Change<'_>]) -> Option<Vec<String>>;

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
