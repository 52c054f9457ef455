//! What a write group changes, and its bytes in the journal.
//!
//! A group is a sequence of changes, each to one row:
//!
//! ```text
//! change  = table:varint op:u8 key:cells [ count:varint { column:varint kind:u8 cell } ]
//! op      = 0 insert | 1 update | 2 delete (no list follows)
//! kind    = 0 set | 1 increment (the cell is the signed amount, in the column's text form)
//! ```
//!
//! Among them may stand raw SQL, for which `table` is 65535 and `op` is 3: see [`crate::dml`].

use crate::cells::{Cell, Reader, push_cell, push_varint};
use crate::dml::Dml;
use crate::schema::TableId;

/// What happens to the row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// The row must not exist yet.
    Insert,
    /// The row must exist.
    Update,
    /// The row must exist.
    Delete,
}

/// How a column changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Set<'a> {
    /// Takes this value or NULL.
    To(Cell<'a>),
    /// Grows by this amount, a decimal number in text form; never of a NULL.
    By(&'a [u8]),
}

/// One change, borrowed from a group's bytes.
#[derive(Clone, Copy, Debug)]
pub struct Change<'a> {
    /// The table.
    pub table: TableId,
    /// What happens.
    pub op: Op,
    /// The encoded key cells.
    pub key: &'a [u8],
    sets: &'a [u8],
    count: usize,
}

impl<'a> Change<'a> {
    /// The changed columns with their values, in the order written. Each column at most once.
    pub fn sets(&self) -> impl Iterator<Item = (usize, Set<'a>)> + use<'a> {
        let mut reader = Reader::new(self.sets);
        (0..self.count).map_while(move |_| {
            let column = reader.varint()? as usize;
            let kind = reader.byte()?;
            let cell = reader.cell()?;
            Some((column, if kind == 1 { Set::By(cell.value()?) } else { Set::To(cell) }))
        })
    }

    /// How many columns it changes.
    pub fn set_count(&self) -> usize {
        self.count
    }
}

/// A part of a group.
#[derive(Clone, Copy, Debug)]
pub enum Item<'a> {
    /// The change of one row.
    Change(Change<'a>),
    /// Raw SQL.
    Dml(Dml<'a>),
}

/// What stands in the place of the table before raw SQL.
const DML_TABLE: u16 = u16::MAX;
const DML_OP: u8 = 3;

/// Builds a group's bytes. Changes are closed by starting the next one or by [`GroupWriter::finish`].
#[derive(Debug, Default)]
pub struct GroupWriter {
    out: Vec<u8>,
    sets: Vec<u8>,
    count: u64,
    open: bool,
}

impl GroupWriter {
    /// An empty group.
    pub fn new() -> Self {
        Self::default()
    }

    /// Starts the change of one row.
    pub fn begin(&mut self, table: TableId, op: Op, key: &[u8]) {
        self.close();
        push_varint(&mut self.out, u64::from(table.0));
        self.out.push(match op {
            Op::Insert => 0,
            Op::Update => 1,
            Op::Delete => 2,
        });
        self.out.extend_from_slice(key);
        self.open = op != Op::Delete;
    }

    /// Adds a column to the open change.
    pub fn set(&mut self, column: usize, set: Set<'_>) {
        assert!(self.open, "a column belongs to an insert or an update");
        push_varint(&mut self.sets, column as u64);
        match set {
            Set::To(cell) => {
                self.sets.push(0);
                push_cell(&mut self.sets, cell);
            }
            Set::By(amount) => {
                self.sets.push(1);
                push_cell(&mut self.sets, Cell::Value(amount));
            }
        }
        self.count += 1;
    }

    /// Adds raw SQL, as [`crate::dml::encode`] writes it.
    pub fn dml(&mut self, bytes: &[u8]) {
        self.close();
        push_varint(&mut self.out, u64::from(DML_TABLE));
        self.out.push(DML_OP);
        self.out.extend_from_slice(bytes);
    }

    fn close(&mut self) {
        if self.open {
            push_varint(&mut self.out, self.count);
            self.out.extend_from_slice(&self.sets);
        }
        self.sets.clear();
        self.count = 0;
        self.open = false;
    }

    /// The bytes so far, complete.
    pub fn finish(&mut self) -> &[u8] {
        self.close();
        &self.out
    }

    /// Starts anew, keeping the memory.
    pub fn clear(&mut self) {
        self.close();
        self.out.clear();
    }
}

/// Reads a group. `key_len` tells how many key columns a table has; `None` from it or malformed bytes end the iteration with
/// an error.
pub fn items<'a>(
    bytes: &'a [u8],
    key_len: impl Fn(TableId) -> Option<usize>,
) -> impl Iterator<Item = Result<Item<'a>, MalformedGroup>> {
    let mut reader = Reader::new(bytes);
    let mut failed = false;
    std::iter::from_fn(move || {
        if failed || reader.is_empty() {
            return None;
        }
        let item = read_item(&mut reader, &key_len).ok_or(MalformedGroup);
        failed = item.is_err();
        Some(item)
    })
}

/// As [`items`], without the raw SQL.
pub fn changes<'a>(
    bytes: &'a [u8],
    key_len: impl Fn(TableId) -> Option<usize>,
) -> impl Iterator<Item = Result<Change<'a>, MalformedGroup>> {
    items(bytes, key_len).filter_map(|item| match item {
        Ok(Item::Change(change)) => Some(Ok(change)),
        Ok(Item::Dml(_)) => None,
        Err(error) => Some(Err(error)),
    })
}

/// The raw SQL of a group that is known to be whole.
pub(crate) fn statements<'a>(
    bytes: &'a [u8],
    key_len: impl Fn(TableId) -> Option<usize>,
) -> impl Iterator<Item = Dml<'a>> {
    items(bytes, key_len).filter_map(|item| match item {
        Ok(Item::Dml(dml)) => Some(dml),
        _ => None,
    })
}

fn read_item<'a>(
    reader: &mut Reader<'a>,
    key_len: &impl Fn(TableId) -> Option<usize>,
) -> Option<Item<'a>> {
    let table = TableId(u16::try_from(reader.varint()?).ok()?);
    match reader.byte()? {
        DML_OP if table.0 == DML_TABLE => Dml::read(reader).map(Item::Dml),
        op => read_change(table, op, reader, key_len).map(Item::Change),
    }
}

fn read_change<'a>(
    table: TableId,
    op: u8,
    reader: &mut Reader<'a>,
    key_len: &impl Fn(TableId) -> Option<usize>,
) -> Option<Change<'a>> {
    let op = match op {
        0 => Op::Insert,
        1 => Op::Update,
        2 => Op::Delete,
        _ => return None,
    };
    let key = reader.cells(key_len(table)?)?;
    let mut change = Change { table, op, key, sets: &[], count: 0 };
    if op != Op::Delete {
        change.count = usize::try_from(reader.varint()?).ok()?;
        let start = reader.rest();
        for _ in 0..change.count {
            reader.varint()?;
            let kind = reader.byte()?;
            let cell = reader.cell()?;
            if kind > 1 || (kind == 1 && cell.value().is_none()) || cell == Cell::Unknown {
                return None;
            }
        }
        change.sets = &start[..start.len() - reader.rest().len()];
    }
    Some(change)
}

/// The bytes of a group do not follow the format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the write group does not follow the format")]
pub struct MalformedGroup;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_read_back_as_written() {
        let mut key = Vec::new();
        push_cell(&mut key, Cell::Value(b"42"));
        let mut writer = GroupWriter::new();
        writer.begin(TableId(3), Op::Insert, &key);
        writer.set(1, Set::To(Cell::Value(b"x")));
        writer.set(2, Set::To(Cell::Null));
        writer.begin(TableId(3), Op::Delete, &key);
        writer.begin(TableId(300), Op::Update, &key);
        writer.set(5, Set::By(b"-7"));
        let bytes = writer.finish().to_vec();

        let read: Vec<_> = changes(&bytes, |_| Some(1)).map(Result::unwrap).collect();
        assert_eq!(read.len(), 3);
        assert_eq!((read[0].op, read[0].key), (Op::Insert, &key[..]));
        assert_eq!(
            read[0].sets().collect::<Vec<_>>(),
            [(1, Set::To(Cell::Value(b"x"))), (2, Set::To(Cell::Null))]
        );
        assert_eq!((read[1].op, read[1].set_count()), (Op::Delete, 0));
        assert_eq!(read[2].table, TableId(300));
        assert_eq!(read[2].sets().collect::<Vec<_>>(), [(5, Set::By(b"-7".as_slice()))]);
    }

    #[test]
    fn malformed_groups_end_in_an_error() {
        let mut key = Vec::new();
        push_cell(&mut key, Cell::Value(b"42"));
        let mut writer = GroupWriter::new();
        writer.begin(TableId(0), Op::Update, &key);
        writer.set(1, Set::To(Cell::Value(b"value")));
        let bytes = writer.finish().to_vec();
        for cut in 1..bytes.len() {
            assert!(changes(&bytes[..cut], |_| Some(1)).any(|c| c.is_err()), "cut at {cut}");
        }
        assert!(changes(&bytes, |_| None).any(|c| c.is_err()));
    }
}
