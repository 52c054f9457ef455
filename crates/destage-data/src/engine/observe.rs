//! Observers: told of every group once it is visible, and of what the origin has not decided when they come.

use super::observer::Observer;
use super::{Engine, overlay};
use destage_core::{DomainId, Lsn};
use std::sync::Arc;

impl Engine {
    /// Tells an observer of everything from now on, and of what the origin has not decided yet.
    pub(crate) fn observe(&mut self, observer: Arc<dyn Observer>) {
        let decided = self.core.decided();
        observer.decided(decided);
        let mut lsn = decided.next();
        while let Some(group) = self.overlay.get(lsn) {
            if let Some(domain) = self.raw_sql_in(&group.bytes) {
                observer.raw_sql(lsn, domain);
            }
            // What waits for the origin's word is told of when that has come.
            if !self.undecided.is_through(lsn) {
                let changes: Vec<_> = overlay::changes(&self.schema, &group.bytes).collect();
                observer.changed(&self.schema, lsn, &changes);
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

    /// A group has its place in the order of writes: told before [`Engine::tell_changed`], so that nobody sees the rest of it
    /// without its raw SQL.
    pub(super) fn tell_raw_sql(&mut self, lsn: Lsn) {
        if self.watchers.has_observers()
            && let Some(group) = self.overlay.get(lsn)
            && let Some(domain) = self.raw_sql_in(&group.bytes)
        {
            self.watchers.tell_raw_sql(lsn, domain);
        }
    }

    /// A domain of a group that holds raw SQL: the watermark of any of them tells of it.
    fn raw_sql_in(&self, bytes: &[u8]) -> Option<DomainId> {
        overlay::statements(&self.schema, bytes).next()?;
        Some(self.domains.partition().of_group(&self.schema, bytes).first())
    }
}
