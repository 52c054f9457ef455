//! The cached rows: a slot per unit, found by table and key.
//!
//! A slot's content is `table:u16-le cells`, the table's two highest bits saying what the slot holds: all cells of a present
//! row; only the key cells while the row is not loaded or does not exist. The key cells come first, so they are compared in
//! place and stored once.

use super::page_clock::PageClock;
use super::slabs::{Handle, Place, Slabs};
use super::tracking::Tracking;
use crate::cells::Reader;
use crate::schema::{Schema, TableId};
use destage_core::{PerUnit, UnitId};
#[cfg(not(test))]
use hashbrown::DefaultHashBuilder as Hasher;
use hashbrown::HashTable;
use std::collections::HashSet;
use std::hash::BuildHasher;

/// Without a seed of its own, since simulated runs must repeat exactly.
#[cfg(test)]
type Hasher = std::hash::BuildHasherDefault<std::hash::DefaultHasher>;

/// What a slot holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Nothing is known of the row.
    NotLoaded = 0,
    /// The row exists; all cells follow.
    Row = 1,
    /// The row does not exist.
    Absent = 2,
}

const HEADER: usize = 2;
/// Where the kind stands in the table's number: there are fewer than 2^14 tables.
const KIND_SHIFT: u32 = 14;
const TABLE_MASK: u16 = (1 << KIND_SHIFT) - 1;

/// A row by its table and its encoded key.
pub(crate) type RowKey = (TableId, Box<[u8]>);

/// All slots.
#[derive(Debug)]
pub(crate) struct Rows {
    /// Key columns of each table: they delimit the key in a slot's cells.
    key_lens: Vec<usize>,
    slots: PerUnit<Handle>,
    slabs: Slabs,
    free: Vec<UnitId>,
    /// The units by hash, in parts, so that a part grows in no time and leaves little behind.
    index: Box<[HashTable<u32>]>,
    hasher: Hasher,
    scratch: Vec<u8>,
    losses: u64,
    pages: PageClock,
    /// Who holds copies of rows, and is told when they change.
    tracking: Tracking,
}

/// Parts of the index: with ten million rows one grows in about 2 ms.
const PARTS: usize = 1_024;
/// Where the part's number stands in a hash: the tables use the lowest and the highest bits.
const PART_SHIFT: u32 = 40;

/// A slot's content.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RowRef<'a> {
    pub(crate) kind: Kind,
    pub(crate) table: TableId,
    /// The row's cells, or the key cells alone.
    pub(crate) cells: &'a [u8],
}

fn split(bytes: &[u8]) -> RowRef<'_> {
    let header = u16::from_le_bytes([bytes[0], bytes[1]]);
    let kind = match header >> KIND_SHIFT {
        1 => Kind::Row,
        2 => Kind::Absent,
        _ => Kind::NotLoaded,
    };
    RowRef { kind, table: TableId(header & TABLE_MASK), cells: &bytes[HEADER..] }
}

fn header(table: TableId, kind: Kind) -> [u8; HEADER] {
    (table.0 | (kind as u16) << KIND_SHIFT).to_le_bytes()
}

fn part(hash: u64) -> usize {
    (hash >> PART_SHIFT) as usize % PARTS
}

impl Rows {
    /// No rows yet.
    pub(crate) fn new(schema: &Schema) -> Self {
        Self {
            key_lens: schema.tables.iter().map(|table| table.key_len).collect(),
            slots: PerUnit::default(),
            slabs: Slabs::default(),
            free: Vec::new(),
            index: vec![HashTable::new(); PARTS].into(),
            hasher: Hasher::default(),
            scratch: Vec::new(),
            losses: 0,
            pages: PageClock::default(),
            tracking: Tracking::default(),
        }
    }

    /// The same; clients are told of the changes of so many rows at most.
    pub(super) fn tracked(schema: &Schema, tracking_keys_max: usize) -> Self {
        Self { tracking: Tracking::new(tracking_keys_max), ..Self::new(schema) }
    }

    /// Takes in more tables, whose keys have `key_len` columns.
    pub(crate) fn add_tables(&mut self, count: usize, key_len: usize) {
        self.key_lens.extend(std::iter::repeat_n(key_len, count));
    }

    /// Takes in one more table; its number is returned.
    pub(crate) fn add_table(&mut self, key_len: usize) -> TableId {
        self.add_tables(1, key_len);
        let number =
            u16::try_from(self.key_lens.len() - 1).ok().filter(|number| *number <= TABLE_MASK);
        TableId(number.expect("there are fewer tables than a slot's header can tell"))
    }

    /// Whether a unit is in use for a row of this table.
    pub(crate) fn is_of(&self, unit: UnitId, table: TableId) -> bool {
        let handle = self.slots.get(unit).copied().filter(|&handle| handle != Handle::NONE);
        handle.is_some_and(|handle| split(self.slabs.get(handle)).table == table)
    }

    /// A hash of what a unit stands for.
    pub(crate) fn identity(&self, table: TableId, key: &[u8]) -> u64 {
        self.hasher.hash_one((table.0, key))
    }

    /// What a unit is known by in a recording.
    pub(super) fn recorded_identity(&self, unit: UnitId) -> u64 {
        destage_record::row_identity(self.get(unit).table.0, self.key(unit))
    }

    /// The unit of a row, if it has one.
    #[inline]
    pub(crate) fn find(&self, table: TableId, key: &[u8]) -> Option<UnitId> {
        self.find_hashed(self.identity(table, key), table, key)
    }

    #[inline]
    fn find_hashed(&self, hash: u64, table: TableId, key: &[u8]) -> Option<UnitId> {
        let is_it = |&unit: &u32| is_at(self.content(UnitId(unit)), table, key);
        self.index[part(hash)].find(hash, is_it).copied().map(UnitId)
    }

    /// The unit of a row; a new one, not loaded, if it has none.
    #[inline]
    pub(crate) fn find_or_insert(&mut self, table: TableId, key: &[u8]) -> UnitId {
        let hash = self.identity(table, key);
        match self.find_hashed(hash, table, key) {
            Some(unit) => unit,
            None => self.insert(hash, table, key),
        }
    }

    fn insert(&mut self, hash: u64, table: TableId, key: &[u8]) -> UnitId {
        let handle = self.slabs.insert(&header(table, Kind::NotLoaded), key);
        let end = || u32::try_from(self.slots.len()).expect("memory ends before 2^32 rows");
        let unit = self.free.pop().unwrap_or_else(|| UnitId(end()));
        *self.slots.reach(unit, Handle::NONE) = handle;
        let (slots, slabs, hasher, key_lens) =
            (&self.slots, &self.slabs, &self.hasher, &self.key_lens);
        self.index[part(hash)].insert_unique(hash, unit.0, |&unit| {
            let row = split(slabs.get(slots[UnitId(unit)]));
            hasher.hash_one((row.table.0, key_of(key_lens, row)))
        });
        unit
    }

    #[inline]
    fn content(&self, unit: UnitId) -> &[u8] {
        self.slabs.get(self.slots[unit])
    }

    /// A unit's key cells.
    pub(crate) fn key(&self, unit: UnitId) -> &[u8] {
        key_of(&self.key_lens, self.get(unit))
    }

    /// A unit's content.
    #[inline]
    pub(crate) fn get(&self, unit: UnitId) -> RowRef<'_> {
        split(self.content(unit))
    }

    /// The cells of a present row, to be overwritten in place by as many bytes.
    pub(crate) fn cells_mut(&mut self, unit: UnitId) -> &mut [u8] {
        self.touch(unit);
        &mut self.slabs.get_mut(self.slots[unit])[HEADER..]
    }

    /// Replaces a unit's content: by a row's cells, or with `None` by the fact that there is no row.
    pub(crate) fn set(&mut self, unit: UnitId, row: Option<&[u8]>) {
        // Nobody holds what was not there: that it left has been told.
        if self.get(unit).kind != Kind::NotLoaded {
            self.touch(unit);
        }
        match row {
            Some(cells) => self.replace(unit, Kind::Row, cells),
            None => self.keep_key(unit, Kind::Absent),
        }
    }

    /// How often a unit has lost its content or its number so far: while this stays the same, units are what they were.
    pub(super) fn losses(&self) -> u64 {
        self.losses
    }

    /// Tells whoever holds a copy of a row that it changes.
    #[inline]
    pub(super) fn touch(&mut self, unit: UnitId) {
        if !self.tracking.is_idle() {
            let row = split(self.slabs.get(self.slots[unit]));
            self.tracking.row_changed(row.table, key_of(&self.key_lens, row));
        }
    }

    /// Who holds copies of rows.
    pub(super) fn tracking(&self) -> &Tracking {
        &self.tracking
    }

    /// The same, to be changed.
    pub(super) fn tracking_mut(&mut self) -> &mut Tracking {
        &mut self.tracking
    }

    /// When pages were asked for, and collections changed.
    pub(super) fn pages(&mut self) -> &mut PageClock {
        &mut self.pages
    }

    /// Forgets what a unit holds, but not which row it stands for.
    pub(crate) fn unload(&mut self, unit: UnitId) {
        let is_loss = self.get(unit).kind != Kind::NotLoaded;
        self.losses += u64::from(is_loss);
        if is_loss {
            self.touch(unit);
        }
        self.keep_key(unit, Kind::NotLoaded);
    }

    fn keep_key(&mut self, unit: UnitId, kind: Kind) {
        let mut key = std::mem::take(&mut self.scratch);
        key.clear();
        key.extend_from_slice(self.key(unit));
        self.replace(unit, kind, &key);
        self.scratch = key;
    }

    fn replace(&mut self, unit: UnitId, kind: Kind, cells: &[u8]) {
        let header = header(self.get(unit).table, kind);
        self.slots[unit] = self.slabs.replace(self.slots[unit], &header, cells);
        self.move_from_sparse();
    }

    /// Drops a unit; its handle may be given out again. The hash of what it stood for is returned.
    pub(crate) fn remove(&mut self, unit: UnitId) -> u64 {
        self.losses += 1;
        if self.get(unit).kind != Kind::NotLoaded {
            self.touch(unit);
        }
        let hash = self.identity(self.get(unit).table, self.key(unit));
        if let Ok(entry) = self.index[part(hash)].find_entry(hash, |&other| other == unit.0) {
            entry.remove();
        }
        self.slabs.remove(self.slots[unit]);
        self.slots[unit] = Handle::NONE;
        self.free.push(unit);
        self.move_from_sparse();
        hash
    }

    /// Empties memory in which little is left.
    fn move_from_sparse(&mut self) {
        let Some((chunk, places)) = self.slabs.retire_sparse() else { return };
        for place in places {
            let unit = self.unit_at(place);
            self.slots[unit] = self.slabs.relocate(self.slots[unit]);
        }
        self.slabs.discard(chunk);
    }

    /// The unit whose content lies there.
    fn unit_at(&self, place: Place) -> UnitId {
        let row = split(self.slabs.entry(place));
        let hash = self.identity(row.table, key_of(&self.key_lens, row));
        let is_it = |&unit: &u32| self.slots[UnitId(unit)].place() == place;
        let unit = self.index[part(hash)].find(hash, is_it);
        UnitId(*unit.expect("every content is a unit's"))
    }

    /// Bytes that a unit's content takes in memory, its share of the index included.
    pub(crate) fn bytes(&self, unit: UnitId) -> u32 {
        u32::try_from(self.slabs.size(self.slots[unit]) + OVERHEAD).unwrap_or(u32::MAX)
    }

    /// The units of all rows of these tables.
    pub(crate) fn units_of_tables(&self, tables: &[TableId]) -> Vec<UnitId> {
        let is_of = |handle: Handle| tables.contains(&split(self.slabs.get(handle)).table);
        let units = self.slots.iter().filter(|&(_, &slot)| slot != Handle::NONE && is_of(slot));
        units.map(|(unit, _)| unit).collect()
    }

    /// Present rows of a table, from a unit on: at most so many, looking at `looked_max` units. And the unit from which to go
    /// on, if there may be more.
    pub(crate) fn present_from(
        &self,
        table: TableId,
        first: UnitId,
        limit: usize,
        looked_max: usize,
    ) -> (Vec<UnitId>, Option<UnitId>) {
        let end = self.slots.len().min((first.0 as usize).saturating_add(looked_max)) as u32;
        let mut units = Vec::new();
        for unit in (first.0..end).map(UnitId) {
            if units.len() == limit {
                return (units, Some(unit));
            }
            if self.slots[unit] != Handle::NONE {
                let row = self.get(unit);
                if row.table == table && row.kind == Kind::Row {
                    units.push(unit);
                }
            }
        }
        let is_end = end as usize == self.slots.len();
        (units, (!is_end).then_some(UnitId(end)))
    }

    /// Units in use.
    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }
}

/// What a cached row takes besides its content, in bytes: its handle (6), a share of the index (6 to 11), the replacement's
/// node and flag (10) and ghost (2), and of the room that these and the slabs keep for more.
pub(crate) const OVERHEAD: usize = 28;

fn key_of<'a>(key_lens: &[usize], row: RowRef<'a>) -> &'a [u8] {
    let key_len = key_lens[usize::from(row.table.0)];
    Reader::new(row.cells).cells(key_len).expect("slots hold whole key cells")
}

#[inline]
fn is_at(bytes: &[u8], table: TableId, key: &[u8]) -> bool {
    bytes.len() >= HEADER + key.len()
        && u16::from_le_bytes([bytes[0], bytes[1]]) & TABLE_MASK == table.0
        && &bytes[HEADER..HEADER + key.len()] == key
}

/// The units, each once, in the order of their first occurrence.
pub(super) fn dedup(units: &[UnitId]) -> Vec<UnitId> {
    let mut seen = HashSet::with_capacity(units.len());
    units.iter().copied().filter(|&unit| seen.insert(unit)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cells::{Cell, push_cell};
    use crate::schema::Table;

    fn key(n: u32) -> Vec<u8> {
        let mut key = Vec::new();
        push_cell(&mut key, Cell::Value(n.to_string().as_bytes()));
        key
    }

    #[test]
    fn rows_are_found_again_after_growth_and_reuse() {
        let mut table = Table::named("t".into(), "t".into());
        table.key_len = 1;
        let mut rows = Rows::new(&Schema::new(vec![table.clone(), table], vec![]));
        let (a, b) = (TableId(0), TableId(1));
        let units: Vec<UnitId> = (0..1_000).map(|n| rows.find_or_insert(a, &key(n))).collect();
        for n in 0..1_000 {
            assert_eq!(rows.find(a, &key(n)), Some(units[n as usize]));
            assert_eq!(rows.find(b, &key(n)), None);
            assert_eq!(rows.get(units[n as usize]).kind, Kind::NotLoaded);
        }
        let mut cells = key(7);
        push_cell(&mut cells, Cell::Value(b"name"));
        rows.set(units[7], Some(&cells));
        assert_eq!((rows.get(units[7]).kind, rows.get(units[7]).cells), (Kind::Row, &cells[..]));
        rows.set(units[7], None);
        assert_eq!(
            (rows.get(units[7]).kind, rows.get(units[7]).cells),
            (Kind::Absent, &key(7)[..])
        );
        for &unit in &units {
            rows.remove(unit);
        }
        assert_eq!((rows.len(), rows.find(a, &key(7))), (0, None));
        assert!(rows.find_or_insert(b, &key(5)).0 < 1_000);
    }

    #[test]
    fn rows_whose_length_changes_are_found_where_they_have_been_moved_to() {
        let mut table = Table::named("t".into(), "t".into());
        table.key_len = 1;
        let mut rows = Rows::new(&Schema::new(vec![table.clone(), table], vec![]));
        let cells = |n: u32, len: usize| {
            let mut cells = key(n);
            push_cell(&mut cells, Cell::Value(&vec![n as u8; len]));
            cells
        };
        let tables = [TableId(0), TableId(1)];
        let keys = || (0..2_000).flat_map(|n| tables.map(|table| (table, n)));
        for (table, n) in keys() {
            let unit = rows.find_or_insert(table, &key(n));
            rows.set(unit, Some(&cells(n, 100)));
        }
        let before: Vec<_> = rows.slots.iter().map(|(_, handle)| handle.place()).collect();
        for (table, n) in keys().filter(|(_, n)| n % 4 > 0) {
            let unit = rows.find(table, &key(n)).unwrap();
            match n % 4 {
                1 => rows.unload(unit),
                2 => drop(rows.remove(unit)),
                _ => rows.set(unit, Some(&cells(n, 200))),
            }
        }
        let is_moved = |unit: UnitId| rows.slots[unit].place() != before[unit.0 as usize];
        let mut moved = 0;
        for (table, n) in keys() {
            let unit = rows.find(table, &key(n));
            let row = unit.map(|unit| (rows.get(unit).kind, rows.get(unit).cells));
            match n % 4 {
                0 => assert_eq!(row, Some((Kind::Row, &cells(n, 100)[..]))),
                1 => assert_eq!(row, Some((Kind::NotLoaded, &key(n)[..]))),
                2 => assert_eq!(row, None),
                _ => assert_eq!(row, Some((Kind::Row, &cells(n, 200)[..]))),
            }
            moved += usize::from(n % 4 == 0 && unit.is_some_and(is_moved));
        }
        assert!(moved > 100, "{moved} of those that stayed as they were");
    }
}
