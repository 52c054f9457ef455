//! Whether the origin tells what others change, and what is to be thought of the cache while it does not.

use crate::schema::TableId;
use destage_runtime::status::InvalidationReport;

/// Whether the origin tells, and what it has told.
#[derive(Debug, Default)]
pub(in crate::engine) struct Listening {
    /// The tables of which it tells, or did when it was last heard.
    tables: Vec<TableId>,
    is_heard: bool,
    notifications: u64,
    dropped: u64,
    resyncs: u64,
}

impl Listening {
    /// The origin tells of these tables from now on. Those of which something may have been missed are returned: these, and
    /// those of which it does not tell any more.
    pub(in crate::engine) fn begin(&mut self, tables: Vec<TableId>) -> Vec<TableId> {
        self.is_heard = true;
        self.resyncs += 1;
        let before = std::mem::replace(&mut self.tables, tables);
        let gone = before.into_iter().filter(|table| !self.tables.contains(table));
        self.tables.iter().copied().chain(gone).collect()
    }

    /// It is not heard any more.
    pub(in crate::engine) fn end(&mut self) {
        self.is_heard = false;
    }

    /// The tables of which it tells, or did when it was last heard.
    pub(in crate::engine) fn tables(&self) -> &[TableId] {
        &self.tables
    }

    /// Whether it tells of a table.
    pub(in crate::engine) fn tells_of(&self, table: TableId) -> bool {
        self.tables.contains(&table)
    }

    /// It has told so many changes.
    pub(in crate::engine) fn heard(&mut self, notifications: u64) {
        self.notifications += notifications;
    }

    /// So many cached copies were dropped for it.
    pub(in crate::engine) fn dropped(&mut self, copies: usize) {
        self.dropped += copies as u64;
    }

    /// What there is to see of it.
    pub(in crate::engine) fn report(&self) -> InvalidationReport {
        InvalidationReport {
            tables: self.tables.len() as u64,
            listening: self.is_heard,
            notifications_total: self.notifications,
            dropped_total: self.dropped,
            resyncs_total: self.resyncs,
        }
    }

    /// What a user should know of it.
    pub(in crate::engine) fn warning(&self) -> Option<String> {
        let is_deaf = !self.tables.is_empty() && !self.is_heard;
        is_deaf.then(|| {
            "the origin does not tell now what others change: cached rows may be old until it is heard again; see the log"
                .to_owned()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_that_is_told_of_no_more_is_looked_at_once_more() {
        let mut listening = Listening::default();
        assert!(listening.warning().is_none(), "nobody listens");
        let mut begin = |tables: &[u16]| {
            let tables = tables.iter().copied().map(TableId).collect();
            listening.begin(tables).into_iter().map(|table| table.0).collect::<Vec<_>>()
        };
        assert_eq!(begin(&[1, 2]), [1, 2]);
        assert_eq!(begin(&[2, 3]), [2, 3, 1]);
        assert!(listening.warning().is_none());
        listening.end();
        assert!(listening.warning().is_some() && listening.report().resyncs_total == 2);
    }
}
