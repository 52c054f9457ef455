//! Reading from an origin.

use crate::cells::{self, Cell};
use crate::collection::Edge;
use crate::derived::{Answer, Query, Statement, Uses};
use crate::error::OriginError;
use crate::schema::{Schema, Table};
use crate::ttl::EndedAsk;
use destage_core::{DomainId, Fault, Lsn};
use std::time::Duration;

/// Rows as of one snapshot.
#[derive(Debug, Default)]
pub struct Snapshot {
    /// For each key asked, in order: the encoded row (see [`crate::cells`]), or `None` where there is no row.
    pub rows: Vec<Option<Box<[u8]>>>,
    /// Each domain's watermark in the same snapshot. A domain without a row stands at 0.
    pub watermarks: Watermarks,
    /// For each row, in the same order: the last group of its own that it holds, where it may be ahead of the watermark.
    /// Empty where rows and watermarks are of one snapshot.
    pub seen: Vec<Lsn>,
}

/// Values of a generated key, handed out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NextKeys {
    /// The values.
    pub keys: Vec<i64>,
    /// No row had one of them, or a greater one, and nobody else is handed any of them.
    pub are_new: bool,
}

/// Watermarks by domain.
pub type Watermarks = Vec<(DomainId, Lsn)>;

/// In the place of a domain: everything up to this watermark is decided, in whatever domain it is.
pub const ALL_DOMAINS: DomainId = DomainId(u16::MAX);

/// Up to where a domain is decided by these watermarks: its own, and what is said of all.
pub fn decided_of(watermarks: &[(DomainId, Lsn)], domain: DomainId) -> Lsn {
    let concerns = |&&(d, _): &&(DomainId, Lsn)| d == domain || d == ALL_DOMAINS;
    watermarks.iter().filter(concerns).map(|&(_, lsn)| lsn).max().unwrap_or(Lsn::ZERO)
}

impl Snapshot {
    /// The number up to which the row of this index holds all groups: its own or the watermark of its domain, `watermark`.
    pub fn seen(&self, index: usize, watermark: Lsn) -> Lsn {
        self.seen.get(index).copied().unwrap_or(watermark).max(watermark)
    }

    /// The watermark of a domain.
    pub fn watermark(&self, domain: DomainId) -> Lsn {
        decided_of(&self.watermarks, domain)
    }
}

/// Encoded keys, in key order.
pub type Keys = Vec<Box<[u8]>>;

/// Rows that share the values of some key columns, in an order.
#[derive(Clone, Debug)]
pub struct Range<'a> {
    /// Key columns with their values.
    pub equal: Vec<(usize, Cell<'a>)>,
    /// The columns to order by: a number, and then a column of the key by the bytes of its canonical form; or that alone.
    pub order: Vec<usize>,
    /// Where the first of these columns begins.
    pub min: Option<Edge>,
    /// Where it ends.
    pub max: Option<Edge>,
    /// From the end to the beginning.
    pub reverse: bool,
    /// At most so many.
    pub limit: usize,
}

impl Range<'_> {
    /// The edges with the operators that keep them.
    pub(crate) fn edges(&self) -> impl Iterator<Item = (&'static str, &Edge)> {
        let operator = |edge: &Edge, [included, excluded]: [&'static str; 2]| {
            if edge.is_included { included } else { excluded }
        };
        let min = self.min.iter().map(move |edge| (operator(edge, [">=", ">"]), edge));
        let max = self.max.iter().map(move |edge| (operator(edge, ["<=", "<"]), edge));
        min.chain(max)
    }

    /// Whether a column is ordered as a number.
    pub(crate) fn is_number(&self, column: usize) -> bool {
        self.order.len() == 2 && self.order[0] == column
    }

    /// What follows an expression in ORDER BY.
    pub(crate) fn direction(&self) -> &'static str {
        if self.reverse { " DESC" } else { "" }
    }
}

/// Keys of rows that have ended, see [`crate::ttl`].
#[derive(Debug, Default)]
pub struct EndedKeys {
    /// In key order. With each, whether rows of other tables are known to refer to its row, so that it cannot be deleted.
    pub keys: Vec<(Box<[u8]>, bool)>,
    /// The origin's clock, in milliseconds since 1970.
    pub clock_ms: i64,
    /// Their rows had ended at this time, which lies in the past by the origin's clock, too.
    pub cutoff_ms: i64,
}

/// A connection for reads.
pub trait Reader: Send {
    /// The rows of `keys` (encoded key cells) with the watermarks of the same snapshot, in one statement.
    ///
    /// # Errors
    /// See [`OriginError`]; after [`Fault::Unavailable`] the connection is to be dropped.
    fn fetch(&mut self, table: &Table, keys: &[&[u8]]) -> Result<Snapshot, OriginError>;

    /// Up to `limit` encoded keys greater than `after` in key order (numbers by value, text by bytes), with the
    /// watermarks of the same snapshot. Ordered as [`crate::value::ColumnType`]s compare, see `key_order`.
    ///
    /// # Errors
    /// As for `fetch`.
    fn scan(
        &mut self,
        table: &Table,
        after: Option<&[u8]>,
        limit: usize,
    ) -> Result<(Keys, Watermarks), OriginError>;

    /// The rows of a range with the watermarks of the same snapshot, in one statement.
    ///
    /// # Errors
    /// As for `fetch`; [`Fault::Denied`] where the origin has no such ranges.
    fn range(&mut self, table: &Table, range: &Range<'_>) -> Result<Snapshot, OriginError> {
        let _ = range;
        Err(no_ranges(table))
    }

    /// How many rows have these values in these columns, with the watermarks of the same snapshot.
    ///
    /// # Errors
    /// As for `range`.
    fn count(
        &mut self,
        table: &Table,
        equal: &[(usize, Cell<'_>)],
    ) -> Result<(u64, Vec<(DomainId, Lsn)>), OriginError> {
        let _ = equal;
        Err(no_ranges(table))
    }

    /// The encoded key of a row that has these values in these columns, as the origin compares them, if there is one.
    ///
    /// # Errors
    /// As for `range`.
    fn holder(
        &mut self,
        table: &Table,
        equal: &[(usize, Cell<'_>)],
    ) -> Result<Option<Box<[u8]>>, OriginError> {
        let (equal, order) = (equal.to_vec(), vec![0]);
        let range = Range { equal, order, min: None, max: None, reverse: false, limit: 1 };
        let found = self.range(table, &range)?.rows.into_iter().flatten().next();
        Ok(found.and_then(|row| Some(cells::Reader::new(&row).cells(table.key_len)?.into())))
    }

    /// The origin's clock, in milliseconds since 1970.
    ///
    /// # Errors
    /// As for `fetch`; [`Fault::Denied`] where rows do not end.
    fn clock_ms(&mut self) -> Result<i64, OriginError> {
        Err(no_ends())
    }

    /// Whether the user may delete rows of a table, where the schema has not told.
    ///
    /// # Errors
    /// As for `fetch`; [`Fault::Denied`] if not.
    fn may_delete(&mut self, _table: &Table) -> Result<(), OriginError> {
        Ok(())
    }

    /// The statement that creates the index by which rows of a table are found that have ended, if there is none whose first
    /// column is theirs.
    ///
    /// # Errors
    /// As for `clock_ms`.
    fn missing_index(&mut self, _table: &Table) -> Result<Option<String>, OriginError> {
        Err(no_ends())
    }

    /// The encoded keys of rows that have ended, in the order of `scan`.
    ///
    /// # Errors
    /// As for `clock_ms`.
    fn ended(&mut self, _schema: &Schema, _ask: &EndedAsk) -> Result<EndedKeys, OriginError> {
        Err(no_ends())
    }

    /// Reserves `count` new values of the table's generated key.
    ///
    /// # Errors
    /// As for `fetch`; [`Fault::Denied`] if the table has no generated key.
    fn next_keys(&mut self, table: &Table, count: u32) -> Result<NextKeys, OriginError>;

    /// Reserves `count` new values of the sequence that numbers a column, and that the column owns.
    ///
    /// # Errors
    /// As for `fetch`; [`Fault::Denied`] if the origin numbers no columns but keys.
    fn next_numbers(
        &mut self,
        table: &Table,
        column: usize,
        _count: u32,
    ) -> Result<Vec<i64>, OriginError> {
        let message = format!(
            "column {} of table {} has no sequence of its own",
            table.columns[column].name, table.name
        );
        Err(OriginError::new(Fault::Denied, message))
    }

    /// Which tables the query of a derived key reads.
    ///
    /// # Errors
    /// As for `fetch`; [`Fault::Denied`] if the query cannot be run.
    fn uses(&mut self, _query: &Query, _schema: &Schema) -> Result<Uses, OriginError> {
        Err(OriginError::new(Fault::Denied, "the origin takes no SQL, so it has no derived keys"))
    }

    /// Has the origin prepare raw SQL, which is not run: it is one statement that writes rows. The names of the tables that
    /// it writes by itself, without what triggers and cascades add; `None` where the origin does not tell.
    ///
    /// # Errors
    /// As for `fetch`; [`Fault::Denied`] if it is no such statement or cannot be prepared.
    fn check_dml(
        &mut self,
        _statement: &Statement,
        _schema: &Schema,
    ) -> Result<Option<Vec<String>>, OriginError> {
        Err(OriginError::new(Fault::Denied, "this kind of origin takes no SQL"))
    }

    /// Runs the query of a derived key on one snapshot, in which nothing can be written. `values` are its parameters'
    /// values, as cells. At the origin nothing of it is left after `limit`, which is not zero, or after the time of one
    /// operation.
    ///
    /// # Errors
    /// As for `fetch`; [`Fault::Rejected`] for values that the query does not bear. [`OriginError::is_late`] past the limit.
    fn query(
        &mut self,
        query: &Query,
        _values: &[u8],
        _limit: Duration,
    ) -> Result<Answer, OriginError> {
        let message = format!("the origin takes no SQL, so it has no {}", query.key);
        Err(OriginError::new(Fault::Denied, message))
    }
}

fn no_ranges(table: &Table) -> OriginError {
    let message = format!("this kind of origin does not serve sets over {}", table.name);
    OriginError::new(Fault::Denied, message)
}

fn no_ends() -> OriginError {
    OriginError::new(Fault::Denied, "this kind of origin has no rows that end")
}
