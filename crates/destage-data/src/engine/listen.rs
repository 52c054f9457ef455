//! What the origin tells of others' changes.

use super::Engine;
use crate::origins::ForeignChanges;
use crate::schema::TableId;
use destage_core::Time;

impl Engine {
    /// From now on the origin tells what others change in these tables. What they changed before may have been missed, so
    /// everything cached of the tables is fetched again before it is used. With `None` it is not heard any more: what is cached
    /// may grow old until it is heard again.
    pub fn listening(&mut self, now: Time, tables: Option<Vec<TableId>>) {
        self.now = self.now.max(now);
        let Some(tables) = tables else {
            let told = self.freshness.listening().tables().to_vec();
            self.absent.set_deaf(&told, true);
            return self.freshness.listening_mut().end();
        };
        for table in self.freshness.listening_mut().begin(tables) {
            self.absent.set_deaf(&[table], false);
            let dropped = self.changed_at_origin(table, None);
            self.freshness.listening_mut().dropped(dropped);
        }
        self.pump();
        self.run_ready();
    }

    /// The origin tells what others have changed.
    pub fn note_foreign_changes(&mut self, now: Time, changes: ForeignChanges) {
        self.now = self.now.max(now);
        self.freshness.listening_mut().heard(changes.notifications());
        for (table, keys) in changes.into_tables() {
            let dropped = self.changed_at_origin(table, keys.as_deref());
            self.freshness.listening_mut().dropped(dropped);
        }
        self.pump();
        self.run_ready();
    }
}
