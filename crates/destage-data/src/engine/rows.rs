//! The cached rows: a slot per unit, found by table and key.
//!
//! A slot's bytes are `table:u16-le cells`, the table's two highest bits saying what the slot holds: all cells of a present
//! row; only the key cells while the row is not loaded or does not exist. The key cells come first, so they are compared in place and stored once.

use super::thin::ThinBytes;
use crate::cells::Reader;
use crate::schema::{Schema, TableId};
use destage_core::UnitId;
#[cfg(not(test))]
use hashbrown::DefaultHashBuilder as Hasher;
use hashbrown::HashTable;
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

/// All slots.
#[derive(Debug)]
pub(crate) struct Rows {
    /// Key columns of each table: they delimit the key in a slot's cells.
    key_lens: Vec<usize>,
    slots: Vec<ThinBytes>,
    free: Vec<u32>,
    index: HashTable<u32>,
    hasher: Hasher,
}

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

fn join(table: TableId, kind: Kind, cells: &[u8]) -> ThinBytes {
    let header = table.0 | (kind as u16) << KIND_SHIFT;
    ThinBytes::join(&header.to_le_bytes(), cells)
}

impl Rows {
    /// No rows yet.
    pub(crate) fn new(schema: &Schema) -> Self {
        Self {
            key_lens: schema.tables.iter().map(|table| table.key_len).collect(),
            slots: Vec::new(),
            free: Vec::new(),
            index: HashTable::new(),
            hasher: Hasher::default(),
        }
    }

    /// A hash of what a unit stands for.
    pub(crate) fn identity(&self, table: TableId, key: &[u8]) -> u64 {
        self.hasher.hash_one((table.0, key))
    }

    /// The unit of a row, if it has one.
    #[inline]
    pub(crate) fn find(&self, table: TableId, key: &[u8]) -> Option<UnitId> {
        let hash = self.identity(table, key);
        let slots = &self.slots;
        self.index
            .find(hash, |&slot| is_at(slots[slot as usize].as_slice(), table, key))
            .copied()
            .map(UnitId)
    }

    /// The unit of a row; a new one, not loaded, if it has none.
    #[inline]
    pub(crate) fn find_or_insert(&mut self, table: TableId, key: &[u8]) -> UnitId {
        let hash = self.identity(table, key);
        let slots = &self.slots;
        if let Some(&slot) =
            self.index.find(hash, |&slot| is_at(slots[slot as usize].as_slice(), table, key))
        {
            return UnitId(slot);
        }
        let bytes = join(table, Kind::NotLoaded, key);
        let slot = match self.free.pop() {
            Some(slot) => {
                self.slots[slot as usize] = bytes;
                slot
            }
            None => {
                self.slots.push(bytes);
                u32::try_from(self.slots.len() - 1).expect("memory ends before 2^32 rows")
            }
        };
        let (slots, hasher, key_lens) = (&self.slots, &self.hasher, &self.key_lens);
        self.index.insert_unique(hash, slot, |&slot| {
            let row = split(slots[slot as usize].as_slice());
            hasher.hash_one((row.table.0, key_of(key_lens, row)))
        });
        UnitId(slot)
    }

    /// A unit's key cells.
    pub(crate) fn key(&self, unit: UnitId) -> &[u8] {
        key_of(&self.key_lens, self.get(unit))
    }

    /// A unit's content.
    #[inline]
    pub(crate) fn get(&self, unit: UnitId) -> RowRef<'_> {
        split(self.slots[unit.0 as usize].as_slice())
    }

    /// The cells of a present row, to be overwritten in place by as many bytes.
    pub(crate) fn cells_mut(&mut self, unit: UnitId) -> &mut [u8] {
        &mut self.slots[unit.0 as usize].as_mut_slice()[HEADER..]
    }

    /// Replaces a unit's content: by a row's cells, or with `None` by the fact that there is no row.
    pub(crate) fn set(&mut self, unit: UnitId, row: Option<&[u8]>) {
        let table = self.get(unit).table;
        self.slots[unit.0 as usize] = match row {
            Some(cells) => join(table, Kind::Row, cells),
            None => join(table, Kind::Absent, self.key(unit)),
        };
    }

    /// Forgets what a unit holds, but not which row it stands for.
    pub(crate) fn unload(&mut self, unit: UnitId) {
        let table = self.get(unit).table;
        self.slots[unit.0 as usize] = join(table, Kind::NotLoaded, self.key(unit));
    }

    /// Drops a unit; its handle may be given out again. The hash of what it stood for is returned.
    pub(crate) fn remove(&mut self, unit: UnitId) -> u64 {
        let hash = self.identity(self.get(unit).table, self.key(unit));
        if let Ok(entry) = self.index.find_entry(hash, |&slot| slot == unit.0) {
            entry.remove();
        }
        self.slots[unit.0 as usize] = ThinBytes::default();
        self.free.push(unit.0);
        hash
    }

    /// Bytes that a unit's content takes in memory, its share of the index included.
    pub(crate) fn bytes(&self, unit: UnitId) -> u32 {
        u32::try_from(self.slots[unit.0 as usize].as_slice().len() + OVERHEAD).unwrap_or(u32::MAX)
    }

    /// The units of all rows of these tables.
    pub(crate) fn units_of_tables(&self, tables: &[TableId]) -> Vec<UnitId> {
        let is_of = |bytes: &ThinBytes| {
            let bytes = bytes.as_slice();
            !bytes.is_empty() && tables.contains(&split(bytes).table)
        };
        let units = self.slots.iter().enumerate().filter(|(_, bytes)| is_of(bytes));
        units.map(|(slot, _)| UnitId(slot as u32)).collect()
    }

    /// Units in use.
    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }
}

/// What a cached row takes besides its cells: slot, index entry, the allocator's and the replacement's share.
pub(crate) const OVERHEAD: usize = 56;

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
}
