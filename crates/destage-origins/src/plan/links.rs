//! Which structural changes must keep their order: unique constraints and foreign keys.
//!
//! Changes are told apart as finely as their bytes allow: an insert tells the values of both sides of a foreign key, a
//! delete or an update does not tell the old ones and counts for the whole table.

use super::Sets;
use crate::cells::{Cell, Reader};
use crate::change::Op;
use crate::schema::{ColumnDefault, ForeignKey, Schema, Table, TableId};
use hashbrown::{DefaultHashBuilder, HashMap};
use std::hash::{BuildHasher, Hasher};

/// The first bucket behind the last conflicting change; 0 where there is none.
type Next = u32;

#[derive(Clone, Copy, Default)]
struct Last {
    insert: Next,
    delete: Next,
    update: Next,
}

impl Last {
    fn any(self) -> Next {
        self.insert.max(self.delete).max(self.update)
    }
}

/// The structural changes of the batch so far.
pub(super) struct Links {
    last: Vec<Last>,
    /// By hash of a foreign key, its side and a tuple of values.
    tuples: HashMap<u64, Next>,
    hasher: DefaultHashBuilder,
}

/// A structural change.
#[derive(Clone, Copy)]
pub(super) struct Structural<'c, 'a> {
    pub(super) table: &'c Table,
    pub(super) op: Op,
    pub(super) key: &'a [u8],
    pub(super) sets: &'c Sets<'a>,
}

enum Tuple {
    /// One of its values is NULL: it refers to nothing.
    Null,
    /// Not all of its values are in the change.
    Unknown,
    /// Its hash.
    Known(u64),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Child,
    Parent,
}

impl Links {
    pub(super) fn new(tables: usize) -> Self {
        Self {
            last: vec![Last::default(); tables],
            tuples: HashMap::new(),
            hasher: DefaultHashBuilder::default(),
        }
    }

    /// The first bucket that the change may join, as far as other rows are concerned.
    pub(super) fn earliest(&self, schema: &Schema, change: Structural<'_, '_>) -> Next {
        let table = change.table;
        let mut next = 0;
        if table.has_unique {
            let last = self.of(table.id);
            next = match change.op {
                Op::Insert => last.delete.max(last.update),
                Op::Delete | Op::End => last.insert.max(last.update),
                Op::Update => last.any(),
            };
        }
        for &parent in &table.references {
            if !exact(table, parent) {
                next = next.max(self.of(parent).any());
            }
        }
        for &child in &table.referenced_by {
            if !exact(schema.table(child), table.id) {
                next = next.max(self.of(child).any());
            }
        }
        self.each_side(schema, change, |links, fk, child, side| {
            next = next.max(links.behind(change, fk, child, side));
        });
        next
    }

    /// Remembers that the change went to `bucket`.
    pub(super) fn note(&mut self, schema: &Schema, change: Structural<'_, '_>, bucket: u32) {
        let next = bucket + 1;
        let last = &mut self.last[usize::from(change.table.id.0)];
        let slot = match change.op {
            Op::Insert => &mut last.insert,
            Op::Delete | Op::End => &mut last.delete,
            Op::Update => &mut last.update,
        };
        *slot = next.max(*slot);
        let mut noted = Vec::new();
        self.each_side(schema, change, |links, fk, child, side| {
            noted.extend(match links.tuple(change, fk, child, side) {
                _ if change.op.removes() => None,
                Tuple::Null => None,
                Tuple::Unknown => Some(links.hash(fk, child, side, &[])),
                Tuple::Known(hash) => Some(hash),
            });
        });
        for hash in noted {
            let slot = self.tuples.entry(hash).or_insert(0);
            *slot = next.max(*slot);
        }
    }

    /// Calls back for each foreign key side that the change touches.
    fn each_side(
        &self,
        schema: &Schema,
        change: Structural<'_, '_>,
        mut visit: impl FnMut(&Self, &ForeignKey, TableId, Side),
    ) {
        let touches = |columns: &[usize]| {
            change.op != Op::Update
                || change.sets.iter().any(|(t, _)| columns.contains(&usize::from(t.column)))
        };
        for fk in &change.table.foreign_keys {
            if touches(&fk.columns) {
                visit(self, fk, change.table.id, Side::Child);
            }
        }
        for &child in &change.table.referenced_by {
            for fk in &schema.table(child).foreign_keys {
                if fk.parent == change.table.id && touches(&fk.parent_columns) {
                    visit(self, fk, child, Side::Parent);
                }
            }
        }
    }

    fn behind(
        &self,
        change: Structural<'_, '_>,
        fk: &ForeignKey,
        child: TableId,
        side: Side,
    ) -> Next {
        let (child_last, parent_last) = (self.of(child), self.of(fk.parent));
        match (side, change.op) {
            // The old value is unknown: any parent that goes or moves may be the one referred to.
            (Side::Child, Op::Delete | Op::End) => parent_last.delete.max(parent_last.update),
            (Side::Child, Op::Insert | Op::Update) => {
                let gone = parent_last.delete.max(parent_last.update);
                gone.max(match self.tuple(change, fk, child, side) {
                    Tuple::Null => 0,
                    Tuple::Unknown => parent_last.insert,
                    Tuple::Known(_) => self.opposite(change, fk, child, side),
                })
            }
            (Side::Parent, Op::Insert) => match self.tuple(change, fk, child, side) {
                Tuple::Null => 0,
                Tuple::Unknown => child_last.insert.max(child_last.update),
                Tuple::Known(_) => self.opposite(change, fk, child, side),
            },
            (Side::Parent, Op::Delete | Op::End | Op::Update) => child_last.any(),
        }
    }

    /// Where the other side of the foreign key last took the same values.
    fn opposite(
        &self,
        change: Structural<'_, '_>,
        fk: &ForeignKey,
        child: TableId,
        side: Side,
    ) -> Next {
        let other = if side == Side::Child { Side::Parent } else { Side::Child };
        let (columns, _) = columns(fk, side);
        let mut values = Vec::with_capacity(columns.len());
        values.extend(columns.iter().map(|&c| value(change, c)));
        let same = self.hash(fk, child, other, &values);
        let unknown = self.hash(fk, child, other, &[]);
        let at = |hash| self.tuples.get(&hash).copied().unwrap_or(0);
        at(same).max(at(unknown))
    }

    fn tuple(
        &self,
        change: Structural<'_, '_>,
        fk: &ForeignKey,
        child: TableId,
        side: Side,
    ) -> Tuple {
        let (columns, _) = columns(fk, side);
        let mut values = Vec::with_capacity(columns.len());
        values.extend(columns.iter().map(|&c| value(change, c)));
        if values.contains(&Cell::Null) {
            return Tuple::Null;
        }
        if values.contains(&Cell::Unknown) {
            return Tuple::Unknown;
        }
        Tuple::Known(self.hash(fk, child, side, &values))
    }

    fn hash(&self, fk: &ForeignKey, child: TableId, side: Side, values: &[Cell<'_>]) -> u64 {
        let mut hasher = self.hasher.build_hasher();
        hasher.write_u16(child.0);
        hasher.write_u16(fk.parent.0);
        for &column in &fk.columns {
            hasher.write_usize(column);
        }
        hasher.write_u8(u8::from(side == Side::Parent));
        for value in values {
            let bytes = value.value().unwrap_or_default();
            hasher.write_usize(bytes.len());
            hasher.write(bytes);
        }
        hasher.finish()
    }

    fn of(&self, table: TableId) -> Last {
        self.last[usize::from(table.0)]
    }
}

/// Whether the columns of every foreign key between the two tables are known and compare byte for byte.
fn exact(child: &Table, parent: TableId) -> bool {
    let mut keys = child.foreign_keys.iter().filter(|fk| fk.parent == parent).peekable();
    keys.peek().is_some() && keys.all(|fk| fk.exact)
}

fn columns(fk: &ForeignKey, side: Side) -> (&[usize], TableId) {
    match side {
        Side::Child => (&fk.columns, fk.parent),
        Side::Parent => (&fk.parent_columns, fk.parent),
    }
}

/// What a column holds after the change, as far as the change tells.
fn value<'c>(change: Structural<'c, 'c>, column: usize) -> Cell<'c> {
    if column < change.table.key_len {
        return Reader::new(change.key).nth(column).unwrap_or(Cell::Unknown);
    }
    let given = change.sets.iter().find(|(t, _)| usize::from(t.column) == column);
    match (given, &change.table.columns[column].default) {
        (Some((target, cell)), _) if !target.increment => *cell,
        (None, ColumnDefault::None) if change.op == Op::Insert => Cell::Null,
        (None, ColumnDefault::Constant(bytes)) if change.op == Op::Insert => Cell::Value(bytes),
        _ => Cell::Unknown,
    }
}
