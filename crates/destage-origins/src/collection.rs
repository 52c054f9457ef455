//! Sets and sorted sets over junction tables: which rows are their elements, and how parts of them are asked for.
//!
//! An element is a row whose key is the set's owner (no, one or several columns) and the member. A collection as a whole
//! is a unit of its own, so that it is fetched, evicted and watched like a row: its key is the owner, and it stands in a
//! table that only the cache knows. A collection too large to be cached is read in pages, which are units as well.

use crate::cells::{Cell, Reader, push_cell};
use crate::contract::{self, OriginError, Snapshot};
use crate::schema::{Column, ColumnDefault, Schema, Table, TableId};
use crate::value::{ColumnType, MysqlType};

/// A collection's position in [`Schema::collections`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CollectionId(pub u16);

/// All sets of one mapping.
#[derive(Clone, Debug)]
pub struct Collection {
    /// Its place in the schema.
    pub id: CollectionId,
    /// The table of the elements.
    pub table: TableId,
    /// The cache's own tables: of whole collections, and of pages.
    pub parts: [TableId; 2],
    /// The key columns that tell whose set it is, in key order.
    pub owners: Vec<usize>,
    /// The key column of the members.
    pub member: usize,
    /// The column of the scores, of a sorted set.
    pub score: Option<usize>,
    /// Most members that are cached as a whole.
    pub members_max: usize,
}

/// What a unit of the cache's own tables stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// All members of a collection, if they are not too many.
    Whole,
    /// Some of them: what a [`Query`] asks for.
    Page,
}

/// Cells of a page's key behind the owner's.
pub(crate) const QUERY_CELLS: usize = 7;

impl Collection {
    /// The table of whole collections.
    pub fn whole(&self) -> TableId {
        self.parts[0]
    }

    /// The table of pages.
    pub fn page(&self) -> TableId {
        self.parts[1]
    }

    /// Whether elements have scores.
    pub fn is_sorted(&self) -> bool {
        self.score.is_some()
    }

    /// Appends the key of an element: the owner's cells and the member, in key order.
    pub fn push_element(&self, key_len: usize, owners: &[u8], member: &[u8], out: &mut Vec<u8>) {
        let mut owners = Reader::new(owners);
        for column in 0..key_len {
            if column == self.member {
                push_cell(out, Cell::Value(member))
            } else {
                push_cell(out, owners.cell().unwrap_or(Cell::Null))
            }
        }
    }

    /// An element's key apart: the owner's cells are appended, the member is returned.
    pub fn split<'k>(&self, key: &'k [u8], owners: &mut Vec<u8>) -> &'k [u8] {
        let mut member: &[u8] = &[];
        for (column, cell) in Reader::new(key).enumerate() {
            if column == self.member {
                member = cell.value().unwrap_or_default()
            } else {
                push_cell(owners, cell)
            }
        }
        member
    }
}

/// Which elements of a collection are asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Query {
    /// The order, or their number alone.
    pub by: By,
    /// Where they begin in that order; `None`: with the first.
    pub min: Option<Edge>,
    /// Where they end.
    pub max: Option<Edge>,
    /// From the end to the beginning.
    pub reverse: bool,
    /// At most so many.
    pub limit: usize,
}

/// In which order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// By score, then by the member's bytes.
    Score,
    /// By the member's bytes.
    Member,
    /// None is wanted, but their number.
    Count,
}

/// Where a range begins or ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Edge {
    /// A value, in the canonical form of its column.
    pub value: Vec<u8>,
    /// Whether the value itself is in the range.
    pub is_included: bool,
}

impl Query {
    /// Appends the query to a page's key.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let by: &[u8] = match self.by {
            By::Score => b"s",
            By::Member => b"m",
            By::Count => b"n",
        };
        push_cell(out, Cell::Value(by));
        for edge in [&self.min, &self.max] {
            let value = edge.as_ref().map_or(Cell::Null, |edge| Cell::Value(&edge.value));
            push_cell(out, value);
            let is_included = edge.as_ref().is_some_and(|edge| edge.is_included);
            push_cell(out, Cell::Value(if is_included { b"1" } else { b"0" }));
        }
        push_cell(out, Cell::Value(if self.reverse { b"1" } else { b"0" }));
        push_cell(out, Cell::Value(self.limit.to_string().as_bytes()));
    }

    /// Reads a query from a page's key, behind the owner's cells; `None` if it is none.
    pub fn decode(reader: &mut Reader<'_>) -> Option<Self> {
        let by = match reader.cell()?.value()? {
            b"s" => By::Score,
            b"m" => By::Member,
            _ => By::Count,
        };
        let mut edge = || -> Option<Option<Edge>> {
            let value = reader.cell()?.value().map(<[u8]>::to_vec);
            let is_included = reader.cell()?.value()? == b"1";
            Some(value.map(|value| Edge { value, is_included }))
        };
        let (min, max) = (edge()?, edge()?);
        let reverse = reader.cell()?.value()? == b"1";
        let limit = std::str::from_utf8(reader.cell()?.value()?).ok()?.parse().ok()?;
        Some(Self { by, min, max, reverse, limit })
    }
}

/// Reads what a unit of the cache's own tables stands for: one row of cells, of each element its score, if it has one, and
/// its member; or their number alone.
///
/// # Errors
/// As for [`contract::Reader::fetch`].
pub fn read(
    reader: &mut dyn contract::Reader,
    schema: &Schema,
    unit: &Table,
    key: &[u8],
) -> Result<Snapshot, OriginError> {
    let (id, part) = unit.part.expect("only what the cache's own tables hold is read so");
    let collection = &schema.collections[usize::from(id.0)];
    let table = schema.table(collection.table);
    let mut cells = Reader::new(key);
    let owners: Vec<(usize, Cell<'_>)> =
        collection.owners.iter().copied().zip(cells.by_ref()).collect();
    let query = match part {
        Part::Whole => {
            let limit = collection.members_max + 1;
            Query { by: By::Member, min: None, max: None, reverse: false, limit }
        }
        Part::Page => Query::decode(&mut cells).expect("keys of pages are made by the cache"),
    };
    if query.by == By::Count {
        let (count, watermarks) = reader.count(table, &owners)?;
        let mut row = Vec::new();
        push_cell(&mut row, Cell::Value(count.to_string().as_bytes()));
        return Ok(Snapshot { rows: vec![Some(row.into())], watermarks, ..Snapshot::default() });
    }
    let order = match (query.by, collection.score) {
        (By::Score, Some(score)) => vec![score, collection.member],
        _ => vec![collection.member],
    };
    let range = contract::Range {
        equal: owners,
        order,
        min: query.min,
        max: query.max,
        reverse: query.reverse,
        limit: query.limit,
    };
    let found = reader.range(table, &range)?;
    let mut out = Vec::new();
    for row in found.rows.iter().flatten() {
        let cells: Vec<Cell<'_>> = Reader::new(row).collect();
        if let Some(score) = collection.score {
            push_cell(&mut out, cells[score]);
        }
        push_cell(&mut out, cells[collection.member]);
    }
    let rows = vec![Some(out.into())];
    Ok(Snapshot { rows, watermarks: found.watermarks, ..Snapshot::default() })
}

/// Whether members of that type can be ordered by the bytes of their canonical form at every origin.
pub(crate) fn is_member_type(ty: &ColumnType) -> bool {
    matches!(
        ty,
        ColumnType::Text { .. }
            | ColumnType::Int { .. }
            | ColumnType::Uuid
            | ColumnType::Bytes
            | ColumnType::Mysql(
                MysqlType::Text { .. } | MysqlType::Trimmed { .. } | MysqlType::Bytes { .. }
            )
    )
}

/// Whether scores of that type are numbers which compare at the origin as they do here.
pub(crate) fn is_score_type(ty: &ColumnType) -> bool {
    matches!(
        ty.signed(),
        ColumnType::Int { .. }
            | ColumnType::Float8
            | ColumnType::SqliteReal
            | ColumnType::SqliteNumeric
            | ColumnType::Numeric { .. }
            | ColumnType::Mysql(MysqlType::Double)
    )
}

/// What keeps a table from holding elements.
pub(crate) fn check(table: &Table, member: usize, score: Option<usize>) -> Result<(), String> {
    let name = |index: usize| format!("{}.{}", table.name, table.columns[index].name);
    if member >= table.key_len {
        return Err(format!(
            "{} is not part of the key, so an owner could have one member only",
            name(member)
        ));
    }
    let member_type = &table.columns[member];
    if !is_member_type(&member_type.ty) {
        return Err(format!(
            "{} is of type {}; members are texts, whole numbers, UUIDs or bytes",
            name(member),
            member_type.type_name
        ));
    }
    if let Some(score) = score {
        let column = &table.columns[score];
        if score < table.key_len || table.is_computed(score) || !is_score_type(&column.ty) {
            return Err(format!(
                "{} cannot be a score: a number that can be written is",
                name(score)
            ));
        }
        if !column.not_null {
            return Err(format!("{} must be NOT NULL: a member has a score", name(score)));
        }
    }
    if let Some(why) = &table.class.opaque {
        return Err(format!("{}: {why}, so what a change does to its sets is unknown", table.name));
    }
    let needed = |(index, column): (usize, &Column)| {
        let is_given =
            index < table.key_len || Some(index) == score || table.is_filled_by_origin(index);
        (!is_given && column.not_null && column.default == ColumnDefault::None).then_some(index)
    };
    match table.columns.iter().enumerate().find_map(needed) {
        Some(index) => Err(format!(
            "{} is NOT NULL without default, and a new member has no value for it",
            name(index)
        )),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_read_back_as_written() {
        let edge = |value: &str, is_included| Some(Edge { value: value.into(), is_included });
        for (by, min, max, reverse, limit) in [
            (By::Score, None, edge("5", true), false, 10),
            (By::Member, edge("", false), edge("z", false), true, 1),
            (By::Count, None, None, false, 0),
        ] {
            let query = Query { by, min, max, reverse, limit };
            let mut bytes = Vec::new();
            query.encode(&mut bytes);
            assert_eq!(Reader::new(&bytes).count(), QUERY_CELLS);
            assert_eq!(Query::decode(&mut Reader::new(&bytes)), Some(query));
        }
    }
}
