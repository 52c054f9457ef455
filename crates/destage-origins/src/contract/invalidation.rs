//! What others change at an origin, where it tells that.

use crate::error::OriginError;
use crate::schema::TableId;
use destage_core::Fault;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A connection on which an origin tells what others change. What was committed after it was opened is told; what was
/// committed before is seen by fetches that begin afterwards.
pub trait Listener: Send {
    /// The tables of which it tells.
    fn tables(&self) -> &[TableId];

    /// What others have changed; nothing if nobody changed anything for as long as `limit`.
    ///
    /// # Errors
    /// The connection is to be dropped: from now on changes may be missed.
    fn wait(&mut self, limit: Duration) -> Result<ForeignChanges, OriginError>;
}

/// What was done, or would be, so that an origin tells of tables or does not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InvalidationChange {
    /// The tables, and whether anything changes for them.
    pub tables: Vec<(String, bool)>,
    /// The statements, in order; none if nothing changes.
    pub statements: Vec<String>,
}

/// What others changed, folded: each row once, and where there are too many, their table as a whole. So it stays small
/// however much they change before somebody looks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ForeignChanges {
    notifications: u64,
    /// The encoded keys of each table's rows; `None` for any rows.
    tables: BTreeMap<TableId, Option<BTreeSet<Box<[u8]>>>>,
    /// Bytes that the keys of all tables take.
    bytes: usize,
}

/// The encoded keys of a table's rows that changed; `None` for any rows.
pub type ChangedRows = Option<Vec<Box<[u8]>>>;

/// More rows of a table are as good as all of them.
const ROWS_MAX: usize = 10_000;
/// Most bytes that the keys of all tables take; the table whose key would be beyond is taken as a whole.
const BYTES_MAX: usize = 8 << 20;
/// Bytes that a key takes besides its own: its entry and the allocator's share.
const KEY_OVERHEAD: usize = 48;

impl ForeignChanges {
    /// Whether nobody changed anything.
    pub fn is_empty(&self) -> bool {
        self.tables.is_empty()
    }

    /// How often the origin said so.
    pub fn notifications(&self) -> u64 {
        self.notifications
    }

    /// Takes in one notification, of these rows of a table.
    pub fn note(&mut self, table: TableId, rows: ChangedRows) {
        self.notifications += 1;
        self.fold(table, rows);
    }

    /// Takes in what others changed later.
    pub fn merge(&mut self, later: Self) {
        self.notifications += later.notifications;
        for (table, rows) in later.into_tables() {
            self.fold(table, rows);
        }
    }

    /// The tables, each with the rows that changed.
    pub fn into_tables(self) -> impl Iterator<Item = (TableId, ChangedRows)> {
        let listed = |rows: BTreeSet<Box<[u8]>>| rows.into_iter().collect();
        self.tables.into_iter().map(move |(table, rows)| (table, rows.map(listed)))
    }

    fn fold(&mut self, table: TableId, rows: ChangedRows) {
        let known = self.tables.entry(table).or_insert_with(|| Some(BTreeSet::new()));
        let Some(keys) = known else { return };
        let mut is_whole = rows.is_none();
        for key in rows.into_iter().flatten() {
            let size = key.len() + KEY_OVERHEAD;
            if keys.insert(key) {
                self.bytes += size;
            }
            is_whole = keys.len() > ROWS_MAX || self.bytes > BYTES_MAX;
            if is_whole {
                break;
            }
        }
        if is_whole {
            self.bytes -= keys.iter().map(|key| key.len() + KEY_OVERHEAD).sum::<usize>();
            *known = None;
        }
    }
}

/// What was heard on one thread and another has not looked at yet.
#[derive(Clone, Debug, Default)]
pub struct Notices(Arc<Mutex<ForeignChanges>>);

impl Notices {
    /// Adds to it. True if there was nothing before, so that whoever looks at it is to be told.
    pub fn add(&self, add: impl FnOnce(&mut ForeignChanges)) -> bool {
        let mut heard = self.lock();
        let was_empty = heard.is_empty();
        add(&mut heard);
        was_empty && !heard.is_empty()
    }

    /// Takes all of it.
    pub fn take(&self) -> ForeignChanges {
        std::mem::take(&mut self.lock())
    }

    fn lock(&self) -> MutexGuard<'_, ForeignChanges> {
        // What a thread that died has folded holds as it is.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The refusal of an origin that cannot tell.
pub(crate) fn no_invalidation(place: &str) -> OriginError {
    let message = format!(
        "{place} cannot tell what others change: only PostgreSQL can. Use max_age in the tables' sections of the settings \
         file, or DESTAGE INVALIDATE"
    );
    OriginError::new(Fault::Denied, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ORDERS: TableId = TableId(0);
    const SEEN: TableId = TableId(1);

    fn key(number: usize) -> Box<[u8]> {
        number.to_be_bytes().into()
    }

    fn rows_of(changes: &ForeignChanges, table: TableId) -> ChangedRows {
        let mut tables = changes.clone().into_tables();
        tables.find(|(changed, _)| *changed == table).expect("the table has changed").1
    }

    #[test]
    fn a_row_is_kept_once_however_often_it_changes() {
        let mut changes = ForeignChanges::default();
        assert!(changes.is_empty());
        for _ in 0..ROWS_MAX * 2 {
            changes.note(ORDERS, Some(vec![key(7), key(8)]));
        }
        assert_eq!(changes.notifications(), 20_000);
        assert_eq!(rows_of(&changes, ORDERS), Some(vec![key(7), key(8)]));
    }

    #[test]
    fn beyond_a_number_of_rows_it_is_the_table_as_a_whole_and_other_tables_keep_theirs() {
        let mut changes = ForeignChanges::default();
        changes.note(SEEN, Some(vec![key(1)]));
        for number in 0..ROWS_MAX {
            changes.note(ORDERS, Some(vec![key(number)]));
        }
        assert_eq!(rows_of(&changes, ORDERS).map(|rows| rows.len()), Some(ROWS_MAX));
        for number in 0..ROWS_MAX * 3 {
            changes.note(ORDERS, Some(vec![key(number)]));
        }
        assert_eq!(rows_of(&changes, ORDERS), None);
        assert_eq!(rows_of(&changes, SEEN), Some(vec![key(1)]));
        assert_eq!(changes.bytes, key(1).len() + KEY_OVERHEAD, "what is folded takes no room");
    }

    #[test]
    fn long_keys_of_many_tables_take_no_more_than_their_room() {
        let mut changes = ForeignChanges::default();
        let long = |number: usize| [key(number), vec![0; 6_000].into()].concat().into_boxed_slice();
        for number in 0..10_000 {
            changes.note(TableId((number % 20) as u16), Some(vec![long(number)]));
            assert!(changes.bytes <= BYTES_MAX);
        }
        let kept = changes.clone().into_tables().filter(|(_, rows)| rows.is_some()).count();
        assert!((1..20).contains(&kept), "{kept} tables have kept their rows");
    }

    #[test]
    fn what_comes_later_is_merged_as_if_it_had_come_at_once() {
        let (mut first, mut later) = (ForeignChanges::default(), ForeignChanges::default());
        let mut both = ForeignChanges::default();
        for (number, table) in [(1, ORDERS), (2, SEEN), (3, ORDERS), (4, ORDERS)] {
            let part = if number < 3 { &mut first } else { &mut later };
            part.note(table, Some(vec![key(number)]));
            both.note(table, Some(vec![key(number)]));
        }
        later.note(SEEN, None);
        both.note(SEEN, None);
        first.merge(later);
        assert_eq!(first, both);
    }

    #[test]
    fn whoever_looks_is_told_once_of_all_that_was_heard_until_then() {
        let heard = Notices::default();
        assert!(!heard.add(|_| {}));
        assert!(heard.add(|all| all.note(ORDERS, Some(vec![key(1)]))));
        for number in 0..100_000 {
            assert!(!heard.add(|all| all.note(ORDERS, Some(vec![key(number)]))));
        }
        let taken = heard.take();
        assert_eq!((taken.notifications(), rows_of(&taken, ORDERS)), (100_001, None));
        assert!(heard.take().is_empty());
        assert!(heard.add(|all| all.note(SEEN, None)), "told anew");
    }
}
