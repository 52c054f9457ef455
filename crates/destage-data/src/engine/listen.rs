//! What the origin tells of others' changes, and what is to be thought of the cache while it does not.

use super::Engine;
use crate::origins::ForeignChanges;
use crate::schema::TableId;
use destage_core::Time;
use destage_runtime::status::InvalidationReport;

/// Whether the origin tells, and what it has told.
#[derive(Debug, Default)]
pub(super) struct Listening {
    /// The tables of which it tells, or did when it was last heard.
    tables: Vec<TableId>,
    is_heard: bool,
    notifications: u64,
    dropped: u64,
    resyncs: u64,
}

impl Engine {
    /// From now on the origin tells what others change in these tables. What they changed before may have been missed, so
    /// everything cached of the tables is fetched again before it is used. With `None` it is not heard any more: what is cached
    /// may grow old until it is heard again.
    pub fn listening(&mut self, now: Time, tables: Option<Vec<TableId>>) {
        self.now = self.now.max(now);
        self.listening.is_heard = tables.is_some();
        let Some(tables) = tables else { return };
        self.listening.resyncs += 1;
        let before = std::mem::replace(&mut self.listening.tables, tables.clone());
        let gone = before.into_iter().filter(|table| !tables.contains(table));
        for table in tables.iter().copied().chain(gone) {
            self.listening.dropped += self.changed_at_origin(table, None) as u64;
        }
        self.pump();
        self.run_ready();
    }

    /// The origin tells what others have changed.
    pub fn told_of_changes(&mut self, now: Time, changes: ForeignChanges) {
        self.now = self.now.max(now);
        self.listening.notifications += changes.notifications();
        for (table, keys) in changes.into_tables() {
            self.listening.dropped += self.changed_at_origin(table, keys.as_deref()) as u64;
        }
        self.pump();
        self.run_ready();
    }

    /// What there is to see of it.
    pub(super) fn invalidation_report(&self) -> InvalidationReport {
        let listening = &self.listening;
        InvalidationReport {
            tables: listening.tables.len() as u64,
            listening: listening.is_heard,
            notifications_total: listening.notifications,
            dropped_total: listening.dropped,
            resyncs_total: listening.resyncs,
        }
    }

    /// What a user should know of it.
    pub(super) fn invalidation_warning(&self) -> Option<String> {
        let is_deaf = !self.listening.tables.is_empty() && !self.listening.is_heard;
        is_deaf.then(|| {
            "the origin does not tell now what others change: cached rows may be old until it is heard again; see the log"
                .to_owned()
        })
    }
}
