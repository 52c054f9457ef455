//! Which writes make which results old: for each table, and for the values of columns that are matched, the newest change.
//!
//! Results are not looked for when a row is written: a result knows the count of changes as of which it holds, and is old
//! once something that it depends on has changed later. So a write costs a few stores however many results there are, and
//! the memory is bounded: values share places by their hash, and a collision costs a query that was not needed.

use super::{Queries, Query};
use crate::cells::{Cell, Reader};
use crate::schema::TableId;
use destage_core::Lsn;
use std::hash::{DefaultHasher, Hash, Hasher};

/// Something changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Version {
    /// The how manieth change this was.
    pub count: u64,
    /// The newest write group that took part in it; 0 for what happened at the origin alone.
    pub lsn: Lsn,
}

impl Version {
    fn and(self, other: Self) -> Self {
        Self { count: self.count.max(other.count), lsn: self.lsn.max(other.lsn) }
    }
}

/// Places for the values of one column.
const PLACES: usize = 1 << 12;

#[derive(Debug)]
struct Followed {
    table: TableId,
    column: usize,
    places: Box<[Version]>,
    /// Changes of rows whose values are not known, or are not told apart by their bytes.
    any: Version,
}

/// The newest changes.
#[derive(Debug, Default)]
pub struct Versions {
    count: u64,
    /// Of anything whatever.
    all: Version,
    /// Of any row of a table.
    tables: Vec<Version>,
    followed: Vec<Followed>,
    /// Results dropped by hand: all of a query, or one.
    queries: Vec<Version>,
    named: Box<[Version]>,
}

impl Versions {
    /// Nothing has changed yet.
    pub fn new(queries: &Queries, tables: usize) -> Self {
        let followed = queries.followed.iter().map(|&(table, column)| Followed {
            table,
            column,
            places: vec![Version::default(); PLACES].into(),
            any: Version::default(),
        });
        Self {
            followed: followed.collect(),
            tables: vec![Version::default(); tables],
            queries: vec![Version::default(); queries.len()],
            named: vec![Version::default(); PLACES].into(),
            ..Self::default()
        }
    }

    fn next(&mut self, lsn: Lsn) -> Version {
        self.count += 1;
        Version { count: self.count, lsn }
    }

    /// The newest change of what a query depends on, for these parameters.
    pub fn newest(&self, index: usize, query: &Query, values: &[u8]) -> Version {
        let start = self.all.and(self.dropped(index, values));
        query.dependencies().iter().fold(start, |newest, dependency| {
            let table = self.tables[usize::from(dependency.table.0)];
            let Some((place, parameter)) = dependency.matched else { return newest.and(table) };
            let value = Reader::new(values).nth(parameter).and_then(Cell::value);
            let followed = &self.followed[place];
            newest.and(match value.and_then(hash) {
                Some(hash) => followed.places[hash].and(followed.any),
                None => table,
            })
        })
    }

    /// A write group changes a row: its cells before and after, `None` where there is no row.
    pub fn row(&mut self, table: TableId, before: Option<&[u8]>, after: Option<&[u8]>, lsn: Lsn) {
        let version = self.next(lsn);
        let slot = &mut self.tables[usize::from(table.0)];
        *slot = slot.and(version);
        for followed in self.followed.iter_mut().filter(|followed| followed.table == table) {
            for row in [before, after].into_iter().flatten() {
                followed.change(Reader::new(row).nth(followed.column), version);
            }
        }
    }

    /// Rows of a table have changed that nobody names.
    pub fn table(&mut self, table: TableId, lsn: Lsn) {
        let version = self.next(lsn);
        if let Some(slot) = self.tables.get_mut(usize::from(table.0)) {
            *slot = slot.and(version);
        }
        for followed in self.followed.iter_mut().filter(|followed| followed.table == table) {
            followed.any = followed.any.and(version);
        }
    }

    /// Everything may have changed.
    pub fn everything(&mut self, lsn: Lsn) {
        let version = self.next(lsn);
        self.all = self.all.and(version);
    }

    /// When a result was last dropped by hand.
    pub fn dropped(&self, index: usize, values: &[u8]) -> Version {
        self.queries[index].and(self.named[place((index, values))])
    }

    /// A result is to be fetched again.
    pub fn drop(&mut self, index: usize, values: &[u8]) {
        let version = self.next(Lsn::ZERO);
        let slot = &mut self.named[place((index, values))];
        *slot = slot.and(version);
    }

    /// The results of a query are to be fetched again.
    pub fn query(&mut self, index: usize) {
        let version = self.next(Lsn::ZERO);
        self.queries[index] = self.queries[index].and(version);
    }
}

impl Followed {
    /// A row has this value, or had it.
    fn change(&mut self, cell: Option<Cell<'_>>, version: Version) {
        match cell {
            // No comparison with a parameter holds for NULL.
            Some(Cell::Null) => {}
            Some(Cell::Value(value)) if let Some(hash) = hash(value) => {
                self.places[hash] = self.places[hash].and(version);
            }
            Some(Cell::Value(_) | Cell::Unknown) | None => self.any = self.any.and(version),
        }
    }
}

/// The place of a value; `None` where equality may be more than equal bytes. Collations fold case and blanks at the end,
/// which is done here too; which of the other characters they take for one another, only the origin knows.
fn hash(value: &[u8]) -> Option<usize> {
    if !value.iter().all(|byte| matches!(byte, b' '..=b'~')) {
        return None;
    }
    Some(place(value.trim_ascii_end().to_ascii_lowercase()))
}

fn place(value: impl Hash) -> usize {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish() as usize % PLACES
}
