//! What a write group changes, and its bytes in the journal.
//!
//! A group is a sequence of changes, each to one row:
//!
//! ```text
//! change  = table:varint op:u8 key:cells [ count:varint { column:varint kind:u8 cell } ]
//! op      = 0 insert | 1 update | 2 delete (no list follows) | 6 end (one column: see [`Op::End`])
//! kind    = 0 set | 1 increment (the cell is the signed amount, in the column's text form)
//! ```
//!
//! Among them may stand raw SQL, for which `table` is 65535 and `op` is 3: see [`crate::dml`]. A group that builds on groups
//! whose rows it does not change begins with their numbers, ascending, each but the first as the distance from the one
//! before:
//!
//! ```text
//! builds on = 65535:varint 4:u8 count:varint { number:varint }
//! ```
//!
//! Then, before all changes, what it tells of commands that are carried out once, with `op` 5: see [`crate::once`].

use crate::cells::{Cell, Reader, push_cell, push_varint};
use crate::dml::Dml;
use crate::once::TokenRecord;
use crate::schema::TableId;
use destage_core::Lsn;

/// What happens to the row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// The row must not exist yet.
    Insert,
    /// The row must exist.
    Update,
    /// The row must exist.
    Delete,
    /// Deletes the row if it is there and its column, the only one given, holds this time or an earlier one. What is found
    /// instead is left alone: another program may have prolonged the row, or deleted it.
    End,
}

impl Op {
    /// Whether it leaves no row, or none that is seen.
    pub fn removes(self) -> bool {
        matches!(self, Self::Delete | Self::End)
    }
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

    /// Of [`Op::End`]: the column and the time that it is compared with.
    pub fn end(&self) -> Option<(usize, &'a [u8])> {
        match self.sets().next() {
            Some((column, Set::To(Cell::Value(time)))) if self.count == 1 => Some((column, time)),
            _ => None,
        }
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

/// What stands in the place of the table before what changes no row of one: raw SQL, what the group builds on, and what it
/// tells of commands that are carried out once.
const NO_TABLE: u16 = u16::MAX;
const DML_OP: u8 = 3;
const BUILDS_ON_OP: u8 = 4;
const ONCE_OP: u8 = 5;
/// The first of the operations on rows that came after those.
const END_OP: u8 = 6;

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

    /// Says on which groups this one builds, ascending, each once. Before anything else.
    pub fn builds_on(&mut self, on: impl ExactSizeIterator<Item = Lsn>) {
        assert!(self.out.is_empty() && !self.open, "a group begins with what it builds on");
        if on.len() == 0 {
            return;
        }
        push_varint(&mut self.out, u64::from(NO_TABLE));
        self.out.push(BUILDS_ON_OP);
        push_varint(&mut self.out, on.len() as u64);
        let mut before = 0;
        for lsn in on {
            push_varint(&mut self.out, lsn.0 - before);
            before = lsn.0;
        }
    }

    /// Tells of a command that is carried out once. Before all changes.
    pub fn token_record(&mut self, record: &TokenRecord<'_>) {
        assert!(!self.open, "a group tells of commands before it changes anything");
        push_varint(&mut self.out, u64::from(NO_TABLE));
        self.out.push(ONCE_OP);
        record.push(&mut self.out);
    }

    /// Starts the change of one row.
    pub fn begin(&mut self, table: TableId, op: Op, key: &[u8]) {
        self.close();
        push_varint(&mut self.out, u64::from(table.0));
        self.out.push(match op {
            Op::Insert => 0,
            Op::Update => 1,
            Op::Delete => 2,
            Op::End => END_OP,
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
        push_varint(&mut self.out, u64::from(NO_TABLE));
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
        if failed {
            return None;
        }
        let item = next_item(&mut reader, &key_len);
        failed = item.as_ref().is_some_and(Result::is_err);
        item
    })
}

/// The groups on which a group builds, although it changes none of their rows; none if it is malformed there.
pub fn builds_on(bytes: &[u8]) -> Vec<Lsn> {
    let mut reader = Reader::new(bytes);
    let begins =
        reader.varint() == Some(u64::from(NO_TABLE)) && reader.byte() == Some(BUILDS_ON_OP);
    if begins { read_builds_on(&mut reader).unwrap_or_default() } else { Vec::new() }
}

/// What a group tells of commands that are carried out once; nothing more from where it is malformed.
pub fn token_records(bytes: &[u8]) -> impl Iterator<Item = TokenRecord<'_>> {
    let mut reader = Reader::new(bytes);
    std::iter::from_fn(move || {
        loop {
            if reader.varint() != Some(u64::from(NO_TABLE)) {
                return None;
            }
            match reader.byte()? {
                BUILDS_ON_OP => drop(read_builds_on(&mut reader)?),
                ONCE_OP => return TokenRecord::read(&mut reader),
                _ => return None,
            }
        }
    })
}

fn read_builds_on(reader: &mut Reader<'_>) -> Option<Vec<Lsn>> {
    let count = usize::try_from(reader.varint()?).ok()?;
    // Each takes a byte at the least, so that a damaged count cannot ask for much memory.
    let mut on = Vec::with_capacity(count.min(reader.rest().len()));
    let mut before = 0u64;
    for index in 0..count {
        let lsn = before.checked_add(reader.varint()?).filter(|&lsn| index == 0 || lsn > before)?;
        on.push(Lsn(lsn));
        before = lsn;
    }
    Some(on)
}

/// Whether a group does nothing but end rows.
pub fn only_ends(bytes: &[u8], key_len: impl Fn(TableId) -> Option<usize>) -> bool {
    let mut ends = 0;
    let is_end = |item| {
        ends += 1;
        matches!(item, Ok(Item::Change(Change { op: Op::End, .. })))
    };
    items(bytes, key_len).all(is_end) && ends > 0
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
pub fn statements<'a>(
    bytes: &'a [u8],
    key_len: impl Fn(TableId) -> Option<usize>,
) -> impl Iterator<Item = Dml<'a>> {
    items(bytes, key_len).filter_map(|item| match item {
        Ok(Item::Dml(dml)) => Some(dml),
        _ => None,
    })
}

fn next_item<'a>(
    reader: &mut Reader<'a>,
    key_len: &impl Fn(TableId) -> Option<usize>,
) -> Option<Result<Item<'a>, MalformedGroup>> {
    while !reader.is_empty() {
        match read_item(reader, key_len) {
            Some(Some(item)) => return Some(Ok(item)),
            // What the group builds on and what it tells of changes nothing.
            Some(None) => {}
            None => return Some(Err(MalformedGroup)),
        }
    }
    None
}

/// The inner `None` stands for what changes nothing.
fn read_item<'a>(
    reader: &mut Reader<'a>,
    key_len: &impl Fn(TableId) -> Option<usize>,
) -> Option<Option<Item<'a>>> {
    let table = TableId(u16::try_from(reader.varint()?).ok()?);
    match reader.byte()? {
        DML_OP if table.0 == NO_TABLE => Dml::read(reader).map(Item::Dml).map(Some),
        BUILDS_ON_OP if table.0 == NO_TABLE => read_builds_on(reader).map(|_| None),
        ONCE_OP if table.0 == NO_TABLE => TokenRecord::read(reader).map(|_| None),
        op => read_change(table, op, reader, key_len).map(Item::Change).map(Some),
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
        END_OP => Op::End,
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
    let is_whole = op != Op::End || change.end().is_some();
    is_whole.then_some(change)
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
        writer.begin(TableId(3), Op::End, &key);
        writer.set(1, Set::To(Cell::Value(b"12")));
        let bytes = writer.finish().to_vec();

        let read: Vec<_> = changes(&bytes, |_| Some(1)).map(Result::unwrap).collect();
        assert_eq!(read.len(), 4);
        assert_eq!((read[3].op, read[3].end()), (Op::End, Some((1, &b"12"[..]))));
        assert_eq!(read[2].end(), None);
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
    fn what_a_group_builds_on_is_read_back_and_changes_nothing() {
        let mut key = Vec::new();
        push_cell(&mut key, Cell::Value(b"42"));
        let on = [Lsn(7), Lsn(300), Lsn(1 << 40)];
        let mut writer = GroupWriter::new();
        writer.builds_on(on.iter().copied());
        writer.begin(TableId(3), Op::Delete, &key);
        let bytes = writer.finish().to_vec();
        assert_eq!(builds_on(&bytes), on);
        assert_eq!(
            changes(&bytes, |_| Some(1)).map(|c| c.unwrap().table.0).collect::<Vec<_>>(),
            [3]
        );
        // Groups may be put together.
        let twice = [&bytes[..], &bytes].concat();
        assert_eq!(changes(&twice, |_| Some(1)).filter(Result::is_ok).count(), 2);

        let documented = include_str!("../../../docs/FORMAT.md");
        writer.clear();
        writer.builds_on([Lsn(5), Lsn(300)].into_iter());
        let example: Vec<String> = writer.finish().iter().map(|b| format!("{b:02x}")).collect();
        assert!(documented.contains(&format!("writes 5 and 300: `{}`", example.join(" "))));

        writer.clear();
        writer.builds_on([].into_iter());
        writer.begin(TableId(3), Op::Delete, &key);
        assert_eq!(builds_on(writer.finish()), []);
        let without = writer.finish().len();
        assert!(bytes.ends_with(writer.finish()) && without < bytes.len());
        for cut in 1..bytes.len() - without {
            assert!(changes(&bytes[..cut], |_| Some(1)).any(|c| c.is_err()), "cut at {cut}");
        }
        // Not ascending.
        let mut same = [&bytes[..4], &[2, 7, 0]].concat();
        assert!(changes(&same, |_| Some(1)).any(|c| c.is_err()));
        same[6] = 1;
        assert_eq!(builds_on(&same), [Lsn(7), Lsn(8)]);
    }

    #[test]
    fn a_group_that_only_ends_rows_is_told_from_others() {
        let mut key = Vec::new();
        push_cell(&mut key, Cell::Value(b"42"));
        let only = |ops: &[Op]| {
            let mut writer = GroupWriter::new();
            writer.builds_on([Lsn(7)].into_iter());
            for &op in ops {
                writer.begin(TableId(0), op, &key);
                if op != Op::Delete {
                    writer.set(1, Set::To(Cell::Value(b"1")));
                }
            }
            only_ends(writer.finish(), |_| Some(1))
        };
        assert!(only(&[Op::End]) && only(&[Op::End, Op::End]));
        assert!(!only(&[]) && !only(&[Op::Delete]) && !only(&[Op::End, Op::Insert]));
        // An end without a time is malformed.
        let mut writer = GroupWriter::new();
        writer.begin(TableId(0), Op::End, &key);
        assert!(changes(writer.finish(), |_| Some(1)).any(|c| c.is_err()));
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
