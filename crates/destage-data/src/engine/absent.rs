//! Knowing what the origin does not have: of each table a set of keys, from which a key that it certainly does not hold is
//! answered without asking.
//!
//! It owns the sets and what is known of their gaps. A set is of use once it holds every key that the origin has or may come
//! to have: it is filled by reading the table's keys page by page, and takes in, from before the first page on, each row
//! that is made here. So of a row it does not matter whether its insert reaches the origin before or after the page. Nothing
//! is kept of it through a restart: what an earlier run left undecided is taken in with its groups, and the origin is read
//! anew.
//!
//! Keys are never taken out. A deletion may be rejected, or undone by what comes behind it, so a deleted row stays one that
//! may be there, and is asked for. Where many have been deleted, or an insert was rejected, the keys are read again into a
//! second set, and the first one answers until that is full. A key in those pages that the first set lacks is one that
//! another program has made: then the table is asked for as ever from there on.

mod fill;
mod handed;
mod keys;
mod report;

use crate::schema::{Schema, Table, TableId};
use crate::settings::{Settings, TableSettings};
use destage_core::{Lsn, Span, Time};
use handed::Handed;
use keys::Keys;
use std::collections::BTreeSet;

/// Keys of a page: at first, and where the origin takes its time for each, as it does without an index in their order.
const PAGE: usize = if cfg!(test) { 2 } else { 1_000 };
const PAGE_MAX: usize = 16_000;
/// A page that took longer than this is followed by a larger one.
const QUICK: Span = Span::from_millis(100);
/// What cannot go on now is looked at again after so long.
const AGAIN_AFTER: Span = Span::from_secs(1);
/// A table's keys are not read again earlier than so long after they were last.
const REFILL_EVERY: Span = if cfg!(test) { Span::from_millis(10) } else { Span::from_secs(60) };
/// Rows of a table whose inserts were rejected, and which are looked for.
const DOUBTED_MAX: usize = 1_000;
/// So many rows are deleted, and half of the keys that are held, before the rest is read again.
const DELETED_MIN: u64 = if cfg!(test) { 2 } else { 100_000 };
/// With more undecided groups than this a set is not begun: all of them are looked through.
const UNDECIDED_MAX: u64 = 100_000;
/// The sets may take so much memory if an eighth of the cache is less.
const BYTES_MIN: u64 = 1 << 20;

/// The sets of all tables.
#[derive(Debug, Default)]
pub(super) struct Absent {
    /// By the table's number; none if nothing is to be known.
    tables: Vec<Known>,
    /// What is known without them.
    handed: Handed,
    /// Tables whose keys are to be read.
    pending: BTreeSet<TableId>,
    /// The page under way.
    asked: Option<Asked>,
    page: usize,
    due: Time,
    bytes_max: usize,
    /// Rows that the origin was not asked for.
    answered: u64,
    /// Negative control, see [`crate::settings::UnsafeFlags::forgetful_filter`].
    unsafe_forgets: bool,
}

/// What is known of a table's keys.
#[derive(Debug, Default)]
struct Known {
    /// Why nothing is, until the end of the process.
    off: Option<String>,
    /// Every key that the origin may have.
    whole: Option<Keys>,
    /// Such a set as far as it has been read.
    filling: Option<Filling>,
    /// Nobody tells now what others change, and somebody did.
    is_deaf: bool,
    /// The keys are read once the origin has decided everything up to here.
    not_before: Lsn,
    /// Counts what made the keys unknown: a page that was asked for before that is of no use.
    epoch: u64,
    /// When the set was begun, or was whole.
    begun: Option<Time>,
    /// Rows whose insert the origin has rejected: if it has one of them, another program has made it.
    doubted: BTreeSet<Box<[u8]>>,
    /// Rows deleted since the set was begun.
    deleted: u64,
}

#[derive(Debug)]
struct Filling {
    keys: Keys,
    /// Read up to here.
    after: Option<Box<[u8]>>,
}

/// A page under way.
#[derive(Clone, Copy, Debug)]
struct Asked {
    request: u64,
    table: TableId,
    epoch: u64,
    at: Time,
    limit: usize,
}

impl Absent {
    /// Sets that are still to be filled, if the settings ask for any. What an earlier run left undecided follows by
    /// [`Absent::add`].
    pub(super) fn new(settings: &Settings, schema: &Schema, tables: &[TableSettings]) -> Self {
        let may_be = |table: &Table| {
            let own = table.key_len == 1 && table.generated_key == Some(0);
            own && why_unsteady(schema, tables, table).is_none()
        };
        let handed = Handed::new(schema.reachable().iter().map(may_be).collect());
        let unsafe_forgets = settings.unsafe_flags.in_force().forgetful_filter;
        if !settings.absent_filter {
            return Self { handed, unsafe_forgets, ..Self::default() };
        }
        let known = |table: &Table| match why_off(schema, tables, table) {
            None => Known { filling: Some(Filling::new(0)), ..Known::default() },
            off => Known { off, ..Known::default() },
        };
        let tables: Vec<Known> = schema.reachable().iter().map(known).collect();
        let is_on = |&(_, known): &(usize, &Known)| known.off.is_none();
        let on = tables.iter().enumerate().filter(is_on);
        let bytes_max = (settings.policy.limits.cache_bytes_max / 8).max(BYTES_MIN);
        Self {
            pending: on.map(|(number, _)| TableId(number as u16)).collect(),
            tables,
            page: PAGE,
            bytes_max: usize::try_from(bytes_max).unwrap_or(usize::MAX),
            handed,
            unsafe_forgets,
            ..Self::default()
        }
    }

    /// Whether nothing is to be known of any table.
    #[inline]
    pub(super) fn is_off(&self) -> bool {
        self.tables.is_empty() && self.handed.is_off()
    }

    /// Keys of a table are asked for, to be handed out; `newest` is the newest write.
    pub(super) fn expect_keys(&mut self, table: TableId, newest: Lsn) {
        self.handed.expect(table, newest);
    }

    /// Keys were handed out that no row had. When they were asked for, the origin had decided everything up to `decided`.
    pub(super) fn hand_out(&mut self, table: TableId, keys: &[i64], decided: Lsn) {
        self.handed.hand_out(table, keys, decided);
    }

    fn known_mut(&mut self, table: TableId) -> Option<&mut Known> {
        self.tables.get_mut(usize::from(table.0)).filter(|known| known.off.is_none())
    }

    /// The origin has this row, or may come to have it.
    pub(super) fn add(&mut self, table: TableId, key: &[u8]) {
        self.handed.note(table, key);
        let Some(known) = self.known_mut(table) else { return };
        known.doubted.remove(key);
        let filling = known.filling.as_mut().map(|filling| &mut filling.keys);
        let sets = known.whole.iter_mut().chain(filling);
        if sets.fold(false, |grew, keys| keys.insert(key) | grew) {
            self.bound(table);
        }
    }

    /// A row is deleted here. Its key stays.
    fn deleted(&mut self, table: TableId) {
        let Some(known) = self.known_mut(table) else { return };
        known.deleted += 1;
        let held = known.whole.as_ref().map_or(u64::MAX, Keys::len);
        if known.deleted >= DELETED_MIN.max(held / 2) {
            self.read_again(table);
        }
    }

    /// Whether the origin certainly has no such row, apart from what is undecided.
    #[inline]
    pub(super) fn is_absent(&self, table: TableId, key: &[u8]) -> bool {
        let known = self.tables.get(usize::from(table.0));
        let whole = known.filter(|known| !known.is_deaf).and_then(|known| known.whole.as_ref());
        whole.is_some_and(|keys| !keys.may_hold(key)) || self.handed.is_unused(table, key)
    }

    /// The origin was not asked for a row.
    pub(super) fn note_answered(&mut self) {
        self.answered += 1;
    }

    /// Any row of the table may have come to be. It is read anew once the origin has decided everything up to `not_before`.
    pub(super) fn forget(&mut self, table: TableId, not_before: Lsn) {
        self.handed.forget(table, not_before);
        let Some(known) = self.known_mut(table) else { return };
        (known.whole, known.filling) = (None, None);
        known.epoch += 1;
        known.not_before = known.not_before.max(not_before);
        self.pending.insert(table);
    }

    /// The origin has rejected the insert of a row. If it has the row, another program has made it, and may make more.
    fn doubt(&mut self, table: TableId, key: &[u8]) {
        let Some(known) = self.known_mut(table) else { return };
        if known.whole.is_some() && known.doubted.len() < DOUBTED_MAX {
            known.doubted.insert(key.into());
            self.read_again(table);
        }
    }

    /// Has the keys be read again, while those that are known stay in use.
    fn read_again(&mut self, table: TableId) {
        self.pending.insert(table);
    }

    /// Whether somebody tells what others change in these tables: while nobody does, what they make is not known. What was
    /// missed is told by [`Absent::forget`].
    pub(super) fn set_deaf(&mut self, tables: &[TableId], is_deaf: bool) {
        for &table in tables {
            self.handed.forget(table, Lsn::ZERO);
            if let Some(known) = self.known_mut(table) {
                known.is_deaf = is_deaf;
            }
        }
    }

    /// Nothing is known of this table from now on.
    fn turn_off(&mut self, table: TableId, why: String) {
        if let Some(known) = self.known_mut(table) {
            *known = Known { off: Some(why), ..Known::default() };
        }
        self.pending.remove(&table);
    }

    /// Gives up the table that has grown last, if all of them have become too large.
    fn bound(&mut self, table: TableId) {
        if self.bytes() > self.bytes_max {
            self.turn_off(
                table,
                format!(
                    "its keys would take more than {} bytes with those of the other tables, which is an eighth of \
                     --cache-size, or 1 MiB",
                    self.bytes_max
                ),
            );
        }
    }

    fn bytes(&self) -> usize {
        self.tables.iter().map(Known::bytes).sum()
    }
}

impl Known {
    fn bytes(&self) -> usize {
        let filling = self.filling.as_ref().map(|filling| &filling.keys);
        self.whole.iter().chain(filling).map(Keys::bytes).sum()
    }
}

impl Filling {
    /// Nothing yet, with room for so many keys.
    fn new(keys: u64) -> Self {
        Self { keys: Keys::with_room(keys), after: None }
    }
}

/// Why nobody can tell from what passes here which rows of a table there are; `None` if one can, as long as no other program
/// makes rows.
fn why_off(schema: &Schema, settings: &[TableSettings], table: &Table) -> Option<String> {
    if settings[usize::from(table.id.0)].others_write {
        return Some("other programs write to it (writers)".into());
    }
    why_unsteady(schema, settings, table)
}

/// Why a row may come to be by something else than an insert, or may not be taken for missing all the time.
fn why_unsteady(schema: &Schema, settings: &[TableSettings], table: &Table) -> Option<String> {
    let of = |table: &Table| &settings[usize::from(table.id.0)];
    let own = of(table);
    if own.max_age.is_some() || own.copies_expire {
        return Some(
            "its cached copies have a greatest age (max_age, ttl), so others write to it".into(),
        );
    }
    if let Some(opaque) = &table.class.opaque {
        return Some(format!("which rows it has is the origin's to say: {opaque}"));
    }
    for other in schema.reachable() {
        let triggers = &of(other).triggers;
        if other.class.opaque.is_some() && triggers.is_none() {
            return Some(format!("nobody says what the triggers of {} do (triggers)", other.name));
        }
        if triggers.iter().flatten().any(|name| *name == table.name) {
            return Some(format!("triggers of {} change it", other.name));
        }
        if other.class.cascades_to.contains(&table.id) && may_move(table, other) {
            return Some(format!("changes of {} may change its keys", other.name));
        }
    }
    None
}

/// Whether an action of a foreign key may change the key of a row that refers to `parent`.
fn may_move(table: &Table, parent: &Table) -> bool {
    let mut keys = table.foreign_keys.iter().filter(|key| key.parent == parent.id).peekable();
    // Of a foreign key whose columns nobody tells, any may be meant.
    keys.peek().is_none() || keys.any(|key| key.columns.iter().any(|&c| c < table.key_len))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::ForeignKey;

    fn known(table: u16, key: &[u8], absent: &Absent) -> bool {
        absent.is_absent(TableId(table), key)
    }

    fn schema() -> Schema {
        let tables = ["a", "b", "c"].map(|name| {
            let mut table = Table::named(name.into(), name.into());
            table.key_len = 1;
            table
        });
        Schema::new(tables.to_vec(), Vec::new())
    }

    fn absent(schema: &Schema, tables: &[TableSettings]) -> Absent {
        let settings = Settings { absent_filter: true, ..Settings::default() };
        Absent::new(&settings, schema, tables)
    }

    /// As if all pages had been read.
    fn fill(absent: &mut Absent, table: u16) {
        let known = &mut absent.tables[usize::from(table)];
        known.whole = known.filling.take().map(|filling| filling.keys);
        absent.pending.remove(&TableId(table));
    }

    #[test]
    fn nothing_is_absent_before_the_last_page_nor_after_the_keys_have_become_unknown() {
        let mut absent = absent(&schema(), &vec![TableSettings::default(); 3]);
        let table = TableId(0);
        absent.add(table, b"1");
        assert!(!known(0, b"2", &absent));
        fill(&mut absent, 0);
        assert!(known(0, b"2", &absent) && !known(0, b"1", &absent) && !known(1, b"2", &absent));
        absent.set_deaf(&[table], true);
        assert!(!known(0, b"2", &absent));
        absent.set_deaf(&[table], false);
        absent.forget(table, Lsn(7));
        assert!(!known(0, b"2", &absent) && absent.pending.contains(&table));
        assert_eq!(absent.tables[0].not_before, Lsn(7));
    }

    #[test]
    fn off_is_what_others_write_and_what_triggers_or_cascades_may_give_rows() {
        let off = |change: &dyn Fn(&mut Schema, &mut [TableSettings])| {
            let (mut schema, mut tables) = (schema(), vec![TableSettings::default(); 3]);
            change(&mut schema, &mut tables);
            let absent = absent(&schema, &tables);
            absent.tables.iter().map(|known| known.off.is_some()).collect::<Vec<_>>()
        };
        assert_eq!(off(&|_, _| {}), [false; 3]);
        assert_eq!(off(&|_, tables| tables[1].others_write = true), [false, true, false]);
        assert_eq!(off(&|_, tables| tables[0].max_age = Some(Span(1))), [true, false, false]);
        let opaque = |schema: &mut Schema| schema.tables[0].class.opaque = Some("trigger".into());
        assert_eq!(off(&|schema, _| opaque(schema)), [true; 3], "nobody says what it does");
        let declared = off(&|schema, tables| {
            opaque(schema);
            tables[0].triggers = Some(vec!["c".into()]);
        });
        assert_eq!(declared, [true, false, true]);
        let cascades = |columns: Option<usize>| {
            off(&|schema, _| {
                schema.tables[0].class.cascades_to = vec![TableId(1)];
                schema.tables[1].foreign_keys = columns
                    .map(|column| ForeignKey {
                        name: None,
                        columns: vec![column],
                        parent: TableId(0),
                        parent_columns: vec![0],
                        exact: true,
                    })
                    .into_iter()
                    .collect();
            })
        };
        assert_eq!(cascades(Some(1)), [false; 3], "rows may go, and none come");
        assert_eq!(cascades(Some(0)), [false, true, false]);
        assert_eq!(cascades(None), [false, true, false], "nobody knows its columns");
    }

    #[test]
    fn a_table_whose_keys_take_too_much_memory_is_given_up() {
        let mut absent = absent(&schema(), &vec![TableSettings::default(); 3]);
        absent.bytes_max = 20_000;
        (0..20_000_u32).for_each(|number| absent.add(TableId(0), &number.to_le_bytes()));
        assert!(absent.tables[0].off.as_ref().unwrap().contains("--cache-size"));
        assert_eq!((absent.bytes(), absent.pending.len()), (0, 2));
        assert!(!known(0, b"x", &absent));
    }

    #[test]
    fn keys_are_read_again_where_many_rows_were_deleted_and_not_all_the_time() {
        let mut absent = absent(&schema(), &vec![TableSettings::default(); 3]);
        let (table, late) = (TableId(0), Time::ZERO + REFILL_EVERY);
        fill(&mut absent, 0);
        absent.pending.clear();
        absent.tables[0].begun = Some(Time::ZERO);
        (1..DELETED_MIN).for_each(|_| absent.deleted(table));
        assert_eq!(absent.next(late, fill::READY), None, "few were deleted");
        absent.deleted(table);
        absent.due = Time::ZERO;
        assert_eq!(absent.next(Time::ZERO, fill::READY), None, "they were read just now");
        assert_eq!(absent.next(late + AGAIN_AFTER, fill::READY), Some(table));
        assert!(known(0, b"1", &absent), "meanwhile it answers");
    }
}
