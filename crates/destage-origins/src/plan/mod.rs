//! Merging the groups of one batch into few multi-row statements.
//!
//! Applying the [`Bucket`]s of a [`Plan`] in order in one transaction leaves the same rows as applying the groups one by
//! one, and it fails if any of the groups would have been rejected. Rows of a bucket are distinct and may be written in any
//! order, inserts in theirs. What makes that true:
//!
//! - a change joins an earlier bucket only if it commutes with everything in the buckets behind that one: it touches other
//!   rows (or other free columns of the same row), and where it inserts, deletes or changes a *structural* column, neither a
//!   unique constraint nor a foreign key can tell the difference;
//! - two changes of one row are folded into one only where no intermediate value can be rejected: never on structural or
//!   checked columns, never over a NULL in a NOT NULL column; an insert never turns into an upsert,
//!   but for that of a table whose new rows are merged, which is one from the start;
//! - raw SQL stands alone: what precedes it is applied before it, and what follows behind it;
//! - a trigger that only sets a column to the time fires for each row that is left, and an update stays one: it is not
//!   folded into an insert;
//! - what is not plain (other triggers, generated columns, cascading changes, deferred constraints) stands alone, in order.
//!
//! The caller has checked that values fit their columns and that every prefix of the increments of an exact number does.

mod fold;
mod links;
mod planner;

use crate::cells::Cell;
use crate::change::{MalformedGroup, Op, Set};
use crate::dml::Dml;
use crate::schema::{Schema, Table, TableId};
use hashbrown::HashMap;

/// The statements of one batch.
#[derive(Debug, Default)]
pub struct Plan<'a> {
    /// In the order of their application.
    pub buckets: Vec<Bucket<'a>>,
    /// Raw SQL between them, in order.
    raw: Vec<Raw<'a>>,
    /// How many changes the groups held; [`Plan::rows`] of them are left.
    pub changes: usize,
    /// The rows touched, with the newest touch of each; only those behind the last change that stands alone.
    touched: HashMap<(TableId, &'a [u8]), u32>,
}

impl<'a> Plan<'a> {
    /// Rows to write, after folding; of raw SQL nobody knows how many, so each counts as one.
    pub fn rows(&self) -> usize {
        self.raw.len() + self.buckets.iter().map(Bucket::len).sum::<usize>()
    }

    /// What is to be done, in order.
    pub fn steps(&self) -> impl Iterator<Item = Step<'_, 'a>> {
        let mut raw = self.raw.iter().peekable();
        let mut buckets = self.buckets.iter().enumerate().peekable();
        std::iter::from_fn(move || {
            let next = buckets.peek().map_or(usize::MAX, |(place, _)| *place);
            match raw.next_if(|raw| raw.before <= next) {
                Some(raw) => Some(Step::Raw(raw)),
                None => buckets.next().map(|(_, bucket)| Step::Bucket(bucket)),
            }
        })
    }

    /// Whether all of it commutes with whatever leaves its rows alone: updates of columns that no key, constraint or trigger
    /// looks at.
    pub fn is_free(&self) -> bool {
        self.raw.is_empty() && self.buckets.iter().all(|bucket| bucket.free)
    }

    /// Whether a row is written, by its table and encoded key; tells all rows only where [`Plan::is_free`].
    pub fn writes(&self, table: TableId, key: &[u8]) -> bool {
        self.touched.contains_key(&(table, key))
    }
}

/// Raw SQL of a plan.
#[derive(Clone, Copy, Debug)]
pub struct Raw<'a> {
    /// The statement.
    pub dml: Dml<'a>,
    /// As [`Bucket::check_after`].
    pub check_after: bool,
    /// It comes before the bucket of this number.
    before: usize,
}

/// What is to be done next.
#[derive(Clone, Copy, Debug)]
pub enum Step<'p, 'a> {
    /// A multi-row statement.
    Bucket(&'p Bucket<'a>),
    /// Raw SQL.
    Raw(&'p Raw<'a>),
}

/// One multi-row statement. Each of its rows must be written exactly once, else the batch is rejected.
#[derive(Debug)]
pub struct Bucket<'a> {
    /// The table.
    pub table: TableId,
    /// What happens to all rows.
    pub op: Op,
    /// The columns given, ascending, without those of the key. An update without columns only demands that the row exists.
    pub columns: Vec<Target>,
    /// Whether deferred constraints must be checked once this bucket is applied: a group ends here that touched them.
    pub check_after: bool,
    keys: Vec<&'a [u8]>,
    values: Vec<Datum<'a>>,
    /// Updates of neither structural nor checked columns.
    free: bool,
}

/// A column of a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Target {
    /// Its index in the table's columns.
    pub column: u16,
    /// Whether the value is an amount to add rather than the new value.
    pub increment: bool,
}

#[derive(Debug)]
enum Datum<'a> {
    Borrowed(Cell<'a>),
    Folded(Vec<u8>),
}

impl Datum<'_> {
    fn cell(&self) -> Cell<'_> {
        match self {
            Datum::Borrowed(cell) => *cell,
            Datum::Folded(bytes) => Cell::Value(bytes),
        }
    }
}

impl<'a> Bucket<'a> {
    /// How many rows it writes; at least one.
    #[expect(clippy::len_without_is_empty, reason = "a bucket is never empty")]
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Whether its statement meets each row exactly once. Of rows that end some may be gone; of new rows that are merged and
    /// give no column some may be there.
    pub fn meets_all(&self, table: &Table) -> bool {
        match self.op {
            Op::End => false,
            Op::Insert => !(table.merges_new && self.columns.is_empty()),
            Op::Update | Op::Delete => true,
        }
    }

    /// The encoded key of a row.
    pub fn key(&self, row: usize) -> &'a [u8] {
        self.keys[row]
    }

    /// The values of a row, one for each of [`Bucket::columns`].
    pub fn values(&self, row: usize) -> impl ExactSizeIterator<Item = Cell<'_>> {
        let width = self.columns.len();
        self.values[row * width..(row + 1) * width].iter().map(Datum::cell)
    }

    /// The value of one column (its place in [`Bucket::columns`]) in one row.
    pub fn value(&self, row: usize, place: usize) -> Cell<'_> {
        self.values[row * self.columns.len() + place].cell()
    }
}

/// Plans the groups, in order.
///
/// # Errors
/// [`MalformedGroup`] if a group's bytes do not follow the format or do not fit the schema.
pub fn plan<'a>(
    schema: &Schema,
    groups: impl IntoIterator<Item = &'a [u8]>,
) -> Result<Plan<'a>, MalformedGroup> {
    let groups = groups.into_iter();
    let mut planner = planner::Planner::new(schema, groups.size_hint().0);
    for group in groups {
        planner.group(group)?;
    }
    Ok(planner.finish())
}

/// A change's columns, ascending, with their values or amounts.
type Sets<'a> = Vec<(Target, Cell<'a>)>;

fn target(column: usize, set: Set<'_>) -> Option<(Target, Cell<'_>)> {
    let column = u16::try_from(column).ok()?;
    Some(match set {
        Set::To(cell) => (Target { column, increment: false }, cell),
        Set::By(amount) => (Target { column, increment: true }, Cell::Value(amount)),
    })
}
