//! Buffered writes: the payload of every group that the origin has not decided, and what a fetched row must be overlaid
//! with.
//!
//! A row that is loaded includes its undecided changes, so nothing is kept for it. Of one that is not, the groups are
//! chained which changed it. What a fetch brings is as old as the watermark that it was read with, in the same snapshot:
//! the groups behind that are applied to it. Two kinds are applied whatever the watermark says. A group that is being
//! parked may be passed by the watermark, and was not applied. And what is parked never was, while readers go on seeing it.

use crate::cells::{Cell, Reader, push_cell};
use crate::change::{Change, Op, Set};
use crate::dml::Dml;
use crate::schema::{Schema, Table, TableId};
use destage_core::ring::Ring;
use destage_core::{Lsn, Time, UnitId};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

/// A buffered write group.
#[derive(Debug)]
pub(crate) struct BufferedGroup {
    pub(crate) stamp: Time,
    pub(crate) bytes: Box<[u8]>,
}

/// Memory that a buffered write takes besides its payload: this entry, the allocator's share, the core's entries.
pub(crate) const GROUP_OVERHEAD: usize = 136;

/// A group parked at the origin, with its number.
type ParkedGroup = (Lsn, Arc<[u8]>);

/// All groups that may still be needed.
#[derive(Debug)]
pub(crate) struct Overlay {
    groups: Ring<BufferedGroup>,
    /// For units whose row is not loaded: the groups that changed them, oldest first. Present rows include their changes.
    chains: HashMap<UnitId, Vec<Lsn>>,
    /// Changes that the origin rejected and keeps parked, by unit: readers still see them. A group's units share its bytes.
    parked: HashMap<UnitId, Vec<ParkedGroup>>,
    /// Groups on their way there: a watermark beyond them does not mean that they were applied.
    parking: BTreeSet<Lsn>,
}

impl Overlay {
    /// Nothing; groups up to `decided` are at the origin.
    pub(crate) fn new(decided: Lsn) -> Self {
        Self {
            groups: Ring::new(decided),
            chains: HashMap::new(),
            parked: HashMap::new(),
            parking: BTreeSet::new(),
        }
    }

    /// Adds the next group.
    pub(crate) fn push(&mut self, lsn: Lsn, stamp: Time, bytes: Box<[u8]>) {
        assert!(lsn > self.groups.forgotten(), "a new group comes behind all that are forgotten");
        if self.groups.is_empty() {
            self.groups.skip_to(Lsn(lsn.0 - 1), |_| unreachable!("nothing is kept"));
        }
        self.groups.push(lsn, BufferedGroup { stamp, bytes });
    }

    /// The groups before this one that are not here are decided: they hold nothing.
    pub(crate) fn skip_to(&mut self, lsn: Lsn, stamp: Time) {
        self.groups.skip_to(Lsn(lsn.0 - 1), |_| BufferedGroup { stamp, bytes: Box::default() });
    }

    /// Notes that a group changed a unit whose row is not loaded.
    pub(crate) fn chain(&mut self, unit: UnitId, lsn: Lsn) {
        let chain = self.chains.entry(unit).or_default();
        if chain.len() == chain.capacity() {
            // A row that is written all the time and never read would grow a chain without end.
            chain.retain(|&older| older > self.groups.forgotten());
        }
        chain.push(lsn);
    }

    /// The row of this unit is loaded, or the unit is gone.
    pub(crate) fn unchain(&mut self, unit: UnitId) {
        self.chains.remove(&unit);
    }

    /// Whether groups changed this unit while its row was not loaded.
    pub(crate) fn is_chained(&self, unit: UnitId) -> bool {
        self.chains.contains_key(&unit)
    }

    /// A group is on its way to the parked ones.
    pub(crate) fn begin_park(&mut self, lsn: Lsn) {
        self.parking.insert(lsn);
    }

    /// It has got there.
    pub(crate) fn end_park(&mut self, lsn: Lsn) {
        self.parking.remove(&lsn);
    }

    /// Notes a change that is parked at the origin.
    pub(crate) fn park(&mut self, unit: UnitId, lsn: Lsn, group: &Arc<[u8]>) {
        self.parked.entry(unit).or_default().push((lsn, group.clone()));
        self.unchain_group(unit, lsn);
    }

    /// A group does not change this unit after all, or is noted elsewhere.
    pub(crate) fn unchain_group(&mut self, unit: UnitId, lsn: Lsn) {
        if let Some(chain) = self.chains.get_mut(&unit) {
            chain.retain(|&other| other != lsn);
        }
    }

    /// A group is parked no more.
    pub(crate) fn unpark(&mut self, unit: UnitId, lsn: Lsn) {
        if let Some(parked) = self.parked.get_mut(&unit) {
            parked.retain(|(other, _)| *other != lsn);
            if parked.is_empty() {
                self.parked.remove(&unit);
            }
        }
    }

    /// These units' rows are to be loaded again although they have undecided changes: notes which groups hold these.
    pub(crate) fn chain_again(
        &mut self,
        units: &HashSet<UnitId>,
        units_of: impl Fn(&[u8]) -> Vec<UnitId>,
    ) {
        self.chains.retain(|unit, _| !units.contains(unit));
        for (lsn, group) in self.groups.iter() {
            for unit in units_of(&group.bytes).into_iter().filter(|unit| units.contains(unit)) {
                let chain = self.chains.entry(unit).or_default();
                if chain.last() != Some(&lsn) {
                    chain.push(lsn);
                }
            }
        }
    }

    /// The parked groups that changed this unit, oldest first.
    pub(crate) fn parked_in(&self, unit: UnitId) -> impl Iterator<Item = Lsn> {
        self.parked.get(&unit).into_iter().flatten().map(|(lsn, _)| *lsn)
    }

    /// The groups noted as having changed this unit while its row was not loaded; of a set, all of them. Some may be decided.
    pub(crate) fn chained_in(&self, unit: UnitId) -> impl Iterator<Item = Lsn> {
        self.chains.get(&unit).into_iter().flatten().copied()
    }

    /// Whether a change of this unit is parked.
    pub(crate) fn is_parked(&self, unit: UnitId) -> bool {
        self.parked.contains_key(&unit)
    }

    /// A group's payload.
    pub(crate) fn get(&self, lsn: Lsn) -> Option<&BufferedGroup> {
        self.groups.get(lsn)
    }

    /// The payloads of all groups that are not decided, and of some that are, oldest first.
    pub(crate) fn undecided(&self) -> impl Iterator<Item = &[u8]> {
        self.groups.iter().map(|(_, group)| &group.bytes[..])
    }

    /// The payloads of the groups up to here, which are about to be dropped, oldest first.
    pub(crate) fn upto(&self, upto: Lsn) -> impl Iterator<Item = &[u8]> {
        let groups = self.groups.iter().take_while(move |(lsn, _)| *lsn <= upto);
        groups.map(|(_, group)| &group.bytes[..])
    }

    /// Drops groups that nobody needs any more.
    pub(crate) fn forget(&mut self, upto: Lsn) {
        self.groups.forget_while(|lsn, _| lsn <= upto);
    }

    /// The groups that changed a unit and that a reader at `watermark` lacks, oldest first.
    pub(crate) fn later(&self, unit: UnitId, watermark: Lsn) -> Vec<(Lsn, &[u8])> {
        let parked = self.parked.get(&unit).into_iter().flatten();
        let chain = self.chains.get(&unit).into_iter().flatten();
        let lacks = |lsn: &&Lsn| **lsn > watermark || self.parking.contains(lsn);
        let later = chain.filter(lacks).filter_map(|&lsn| Some((lsn, &self.get(lsn)?.bytes[..])));
        let mut groups: Vec<(Lsn, &[u8])> =
            parked.map(|(lsn, bytes)| (*lsn, &bytes[..])).chain(later).collect();
        groups.sort_unstable_by_key(|(lsn, _)| *lsn);
        groups
    }

    /// A row as readers must see it: as fetched at `watermark`, with every later change of the unit.
    pub(crate) fn overlay(
        &self,
        schema: &Schema,
        unit: UnitId,
        table: TableId,
        key: &[u8],
        mut row: Option<Box<[u8]>>,
        watermark: Lsn,
    ) -> Option<Box<[u8]>> {
        for (_, bytes) in self.later(unit, watermark) {
            let is_of_row = |change: &Change<'_>| change.table == table && change.key == key;
            let mut changes = changes(schema, bytes).filter(is_of_row).peekable();
            let table = schema.table(table);
            while let Some(change) = changes.next() {
                // Unless a new row follows, whether the origin has let the old one go is not certain: others may refer to it.
                let is_replaced = changes.peek().is_some_and(|next| next.op == Op::Insert);
                let is_gone = is_replaced && has_ended_by(table, row.as_deref(), &change);
                row = if is_gone { None } else { apply(table, row.as_deref(), &change) };
            }
        }
        row
    }
}

/// The changes of a group that is known to be whole.
pub(crate) fn changes<'a>(
    schema: &'a Schema,
    bytes: &'a [u8],
) -> impl Iterator<Item = Change<'a>> + use<'a> {
    let key_len = |table: TableId| schema.tables.get(usize::from(table.0)).map(|t| t.key_len);
    crate::change::changes(bytes, key_len)
        .map(|change| change.expect("groups are checked when they are written or recovered"))
}

/// The raw SQL of a group that is known to be whole.
pub(crate) fn statements<'a>(
    schema: &'a Schema,
    bytes: &'a [u8],
) -> impl Iterator<Item = Dml<'a>> + use<'a> {
    let key_len = |table: TableId| schema.tables.get(usize::from(table.0)).map(|t| t.key_len);
    crate::change::statements(bytes, key_len)
}

/// Whether this change ends the row at the origin.
fn has_ended_by(table: &Table, row: Option<&[u8]>, change: &Change<'_>) -> bool {
    let Some((column, time)) = change.end().filter(|_| change.op == Op::End) else { return false };
    let Some(ttl) = table.ttl.as_ref().filter(|ttl| ttl.column == column) else { return false };
    let ends = row.and_then(|row| ttl.end_of_row(row)).zip(ttl.end_of(time));
    ends.is_some_and(|(end, cutoff)| end <= cutoff)
}

/// A row after a change. A change that does not fit the row (the origin rejected what it builds on) leaves it as it is.
pub(crate) fn apply(table: &Table, row: Option<&[u8]>, change: &Change<'_>) -> Option<Box<[u8]>> {
    let mut cells: Vec<Cell<'_>> = match (change.op, row) {
        (Op::Delete, _) => return None,
        // It is not seen, or was prolonged where the group found it.
        (Op::End, row) => return row.map(Into::into),
        (Op::Update, None) => return None,
        (Op::Update, Some(row)) => Reader::new(row).collect(),
        (Op::Insert, Some(row)) if table.merges_new => Reader::new(row).collect(),
        (Op::Insert, _) => new_cells(table, change.key),
    };
    let mut sums: Vec<(usize, Vec<u8>)> = Vec::new();
    for (column, set) in change.sets() {
        match set {
            Set::To(cell) => cells[column] = cell,
            Set::By(amount) => {
                let old = cells[column].value();
                let sum = old.and_then(|old| table.columns[column].ty.add(old, amount).ok());
                sums.extend(sum.map(|sum| (column, sum)));
            }
        }
    }
    for (column, sum) in &sums {
        cells[*column] = Cell::Value(sum);
    }
    forget_computed(table, &mut cells, change.op == Op::Insert);
    Some(encode(&cells))
}

/// What the origin computes from a row that has been written is not known here.
pub(crate) fn forget_computed(table: &Table, cells: &mut [Cell<'_>], is_new: bool) {
    if table.has_computed() {
        for (index, cell) in cells.iter_mut().enumerate() {
            if table.is_left_to_origin(index, is_new) {
                *cell = Cell::Unknown;
            }
        }
    }
}

/// The cells of a new row before its columns are set.
pub(crate) fn new_cells<'a>(table: &'a Table, key: &'a [u8]) -> Vec<Cell<'a>> {
    use crate::schema::ColumnDefault;
    let mut cells: Vec<Cell<'a>> = Reader::new(key).collect();
    cells.extend(table.columns[table.key_len..].iter().map(|column| match &column.default {
        _ if column.generated => Cell::Unknown,
        ColumnDefault::None => Cell::Null,
        ColumnDefault::Constant(value) => Cell::Value(value),
        ColumnDefault::Computed | ColumnDefault::Formula(_) => Cell::Unknown,
    }));
    cells
}

/// Cells in their stored form.
pub(crate) fn encode(cells: &[Cell<'_>]) -> Box<[u8]> {
    let mut out = Vec::with_capacity(cells.iter().map(|cell| cell.encoded_len()).sum());
    cells.iter().for_each(|&cell| push_cell(&mut out, cell));
    out.into_boxed_slice()
}
