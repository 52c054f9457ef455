//! OnceRecord the observers.

use super::observer::Observer;
use super::{Engine, overlay};
use destage_core::Lsn;
use std::sync::Arc;

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
