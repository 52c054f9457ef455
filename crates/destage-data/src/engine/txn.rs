//! One command or one MULTI ... EXEC on its way: rows as changed so far, and the group that it will become.

use super::command::Verb;
use super::key::key_shown;
use super::once::command::OnceRecord;
use super::overlay::{encode, forget_computed, new_cells};
use super::prepared::Prepared;
use super::rows::{Kind, Rows};
use super::script::budget::Budget;
use crate::cells::{Cell, Reader};
use crate::change::{GroupWriter, Op, Set};
use crate::once::TokenRecord;
use crate::resp::Reply;
use crate::schema::{ColumnDefault, Schema, Table, TableId};
use destage_core::{Lsn, Time, UnitId};
use std::collections::{HashMap, HashSet};

/// How a column of a row changes, owned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Update {
    Null,
    To(Vec<u8>),
    By(Vec<u8>),
}

/// A row as it will be: `None` if it will not exist.
#[derive(Debug)]
pub(crate) struct Staged {
    pub(crate) unit: UnitId,
    pub(crate) row: Option<Box<[u8]>>,
    /// Where its newest change stands, if it has one.
    newest: Option<usize>,
}

/// What a transaction does that is no part of its write group.
#[derive(Debug, Default)]
pub(crate) struct Beside {
    /// Plain keys.
    pub(super) keys: Vec<Staged>,
    /// Deadlines, of plain keys and of cached copies.
    pub(super) deadlines: Vec<(UnitId, Option<Time>)>,
    /// What stays locked for it until it takes effect or is given up.
    pub(super) locked: Vec<UnitId>,
}

impl Beside {
    /// The units that it changes, or whose deadlines.
    pub(super) fn units(&self) -> HashSet<UnitId> {
        let timed = self.deadlines.iter().map(|(unit, _)| *unit);
        self.keys.iter().map(|staged| staged.unit).chain(timed).collect()
    }
}

#[derive(Debug)]
struct RowChange {
    unit: UnitId,
    table: TableId,
    op: Op,
    sets: Vec<(usize, Update)>,
    /// It comes later instead.
    is_moved: bool,
    /// The change of the same row before.
    before: Option<usize>,
    /// The change of the same table before.
    earlier: Option<usize>,
}

/// Staged rows and changes; nothing is visible to others until they are committed.
#[derive(Debug, Default)]
pub(crate) struct Txn {
    pub(crate) staged: Vec<Staged>,
    /// Where a row is staged, once there are more than `SEARCHED_MAX`.
    places: HashMap<UnitId, usize>,
    changes: Vec<RowChange>,
    /// The last change of each table.
    last: Vec<(TableId, usize)>,
    /// Deadlines that keys get, or lose; the last word on a key counts.
    pub(crate) deadlines: Vec<(UnitId, Option<Time>)>,
    /// Raw SQL, each with the number of the changes before it.
    dmls: Vec<(usize, Box<[u8]>)>,
    /// What its group tells of the command, if that is carried out once.
    pub(super) once_record: Option<OnceRecord>,
    /// What its scripts may still do.
    pub(super) budget: Budget,
}

/// Up to so many staged rows, looking through them is faster than a map.
const SEARCHED_MAX: usize = 16;

impl Txn {
    pub(crate) fn clear(&mut self) {
        self.staged.clear();
        self.places.clear();
        self.changes.clear();
        self.last.clear();
        self.deadlines.clear();
        self.dmls.clear();
        self.once_record = None;
        self.budget = Budget::default();
    }

    /// Adds raw SQL. What was changed before is applied before it.
    pub(crate) fn dml(&mut self, bytes: Box<[u8]>) {
        self.dmls.push((self.changes.len(), bytes));
    }

    /// Whether raw SQL is among it.
    pub(crate) fn has_dml(&self) -> bool {
        !self.dmls.is_empty()
    }

    /// Changes from this place on come behind all raw SQL.
    fn behind_dml(&self) -> usize {
        self.dmls.last().map_or(0, |(place, _)| *place)
    }

    /// Where a row is staged.
    fn place(&self, unit: UnitId) -> Option<usize> {
        if self.staged.len() <= SEARCHED_MAX {
            self.staged.iter().position(|staged| staged.unit == unit)
        } else {
            self.places.get(&unit).copied()
        }
    }

    /// Whether nothing is changed that a write group tells of.
    pub(crate) fn is_empty(&self) -> bool {
        self.changes.is_empty() && self.dmls.is_empty()
    }

    /// Bytes of the rows as they will be.
    pub(crate) fn staged_bytes(&self) -> usize {
        self.staged.iter().flat_map(|staged| &staged.row).map(|row| row.len()).sum()
    }

    /// Whether a row that was known is changed.
    pub(crate) fn changes_row(&self, unit: UnitId) -> bool {
        self.place(unit).is_some_and(|place| self.staged[place].newest.is_some())
    }

    /// The changes of rows, in order.
    pub(crate) fn row_changes(
        &self,
    ) -> impl Iterator<Item = (UnitId, TableId, Op, &[(usize, Update)])> {
        self.changes().map(|change| (change.unit, change.table, change.op, &change.sets[..]))
    }

    fn changes(&self) -> impl Iterator<Item = &RowChange> {
        self.changes.iter().filter(|change| !change.is_moved)
    }

    /// Adds a change; its place is returned.
    fn push(&mut self, unit: UnitId, table: TableId, op: Op, sets: Vec<(usize, Update)>) -> usize {
        let place = self.changes.len();
        let newest = self.place(unit).and_then(|place| self.staged[place].newest);
        let before = newest.and_then(|newest| match &self.changes[newest] {
            RowChange { is_moved: true, before, .. } => *before,
            _ => Some(newest),
        });
        let last = self.last.iter_mut().find(|(other, _)| *other == table);
        let earlier = match last {
            Some((_, last)) => Some(std::mem::replace(last, place)),
            None => {
                self.last.push((table, place));
                None
            }
        };
        self.changes.push(RowChange { unit, table, op, sets, is_moved: false, before, earlier });
        place
    }

    /// Takes back the last change.
    fn pop(&mut self) {
        let behind = self.behind_dml();
        // Nothing that has moved is the last one.
        loop {
            let Some(RowChange { table, earlier, .. }) = self.changes.pop() else { return };
            let at = self.last.iter().position(|(other, _)| *other == table);
            let at = at.expect("each change is the last of its table once");
            match earlier {
                Some(earlier) => self.last[at].1 = earlier,
                None => drop(self.last.swap_remove(at)),
            }
            if self.changes.len() <= behind || self.changes.last().is_none_or(|last| !last.is_moved)
            {
                return;
            }
        }
    }

    /// Whether a table is changed behind this place.
    fn is_changed_behind(&mut self, place: usize, table: TableId) -> bool {
        let Some((_, last)) = self.last.iter_mut().find(|(other, _)| *other == table) else {
            return false;
        };
        while *last > place && self.changes[*last].is_moved {
            match self.changes[*last].earlier {
                Some(earlier) => *last = earlier,
                None => return false,
            }
        }
        *last > place
    }

    /// The row's cells as this transaction sees them.
    pub(crate) fn row<'a>(&'a self, rows: &'a Rows, unit: UnitId) -> Option<&'a [u8]> {
        if let Some(place) = self.place(unit) {
            return self.staged[place].row.as_deref();
        }
        let row = rows.get(unit);
        (row.kind == Kind::Row).then_some(row.cells)
    }

    /// The cells of a row that a change leaves there; and those from before it, of a row that was there.
    pub(super) fn around<'a>(
        &'a self,
        rows: &'a Rows,
        unit: UnitId,
        op: Op,
    ) -> Option<(Vec<Cell<'a>>, Option<Vec<Cell<'a>>>)> {
        let after = Reader::new(self.row(rows, unit)?).collect();
        let before = rows.get(unit);
        let before = (op == Op::Update && before.kind == Kind::Row)
            .then(|| Reader::new(before.cells).collect());
        Some((after, before))
    }

    /// Changes columns of a row, which is created if it does not exist.
    pub(crate) fn set(
        &mut self,
        rows: &Rows,
        table: &Table,
        unit: UnitId,
        sets: Vec<(usize, Update)>,
    ) {
        let key = rows.key(unit);
        let joined = self.mergeable(table, unit, &sets);
        // Of a row that was made in this transaction the origin may hear as of a new one.
        let is_new = joined.is_some_and(|index| self.changes[index].op == Op::Insert);
        let (row, op) = match self.row(rows, unit) {
            Some(row) => (changed(table, Reader::new(row).collect(), &sets, is_new), Op::Update),
            None => (changed(table, new_cells(table, key), &sets, true), Op::Insert),
        };
        let newest = match joined {
            Some(index) => {
                let change = &mut self.changes[index];
                let sets = if change.op == Op::Insert { as_values(&row, sets) } else { sets };
                merge(table, change, sets);
                index
            }
            None => self.push(unit, table.id, op, sets),
        };
        self.stage(unit, Some(row), Some(newest));
    }

    /// Changes columns of what no write group tells of, which is created if it does not exist.
    pub(crate) fn set_beside(
        &mut self,
        rows: &Rows,
        table: &Table,
        unit: UnitId,
        sets: &[(usize, Update)],
    ) {
        let cells = match self.row(rows, unit) {
            Some(row) => Reader::new(row).collect(),
            None => new_cells(table, rows.key(unit)),
        };
        let row = changed(table, cells, sets, false);
        self.stage(unit, Some(row), None);
    }

    /// Deletes what no write group tells of.
    pub(crate) fn delete_beside(&mut self, unit: UnitId) {
        self.stage(unit, None, None);
    }

    /// Takes out what is staged of these units. Nothing more may be staged afterwards.
    pub(crate) fn take_of(&mut self, is_meant: impl Fn(UnitId) -> bool) -> Vec<Staged> {
        self.staged.extract_if(.., |staged| is_meant(staged.unit)).collect()
    }

    /// The earlier change of the row that these sets may join. What other rows may depend on keeps its place among their
    /// changes, since the origin checks its constraints at each of them.
    fn mergeable(
        &mut self,
        table: &Table,
        unit: UnitId,
        sets: &[(usize, Update)],
    ) -> Option<usize> {
        let mut index = self.place(unit).and_then(|place| self.staged[place].newest)?;
        if index < self.behind_dml() {
            return None;
        }
        let structural = sets.iter().any(|(column, _)| table.columns[*column].structural);
        if structural
            && self.changes[index].op == Op::Insert
            && index + 1 < self.changes.len()
            && !table.referenced_by.iter().any(|&other| self.is_changed_behind(index, other))
        {
            // A new row may come later as well, as long as nothing in between refers to it. The others keep their places, so that
            // a long transaction takes no longer for it.
            let change = &mut self.changes[index];
            change.is_moved = true;
            let sets = std::mem::take(&mut change.sets);
            index = self.push(unit, table.id, Op::Insert, sets);
        }
        let earlier = &self.changes[index];
        let is_last = index + 1 == self.changes.len();
        let fits = sets.iter().all(|(column, update)| {
            let before = earlier.sets.iter().find(|(set, _)| set == column);
            let ty = &table.columns[*column].ty;
            match (before, update) {
                (Some((_, Update::By(first))), Update::By(second)) => {
                    sum(first, second).is_some_and(|sum| ty.add(b"0", &sum).is_ok())
                }
                _ => true,
            }
        });
        (!earlier.op.removes() && fits && (is_last || !structural)).then_some(index)
    }

    /// Deletes a row that exists.
    pub(crate) fn delete(&mut self, table: TableId, unit: UnitId) {
        // Only what came just before can be left out: other rows may have been made to fit what lies further back.
        let behind = self.behind_dml();
        let count = self.changes.len();
        let last = self.changes.last().filter(|last| count > behind && last.unit == unit);
        let last = last.filter(|last| !last.op.removes()).map(|last| (last.op, last.before));
        if let Some((op, before)) = last {
            self.pop();
            self.stage(unit, None, before);
            if op == Op::Insert {
                // Created in this very transaction: nothing of it reaches the origin.
                return;
            }
        }
        let place = self.push(unit, table, Op::Delete, Vec::new());
        self.stage(unit, None, Some(place));
    }

    /// Deletes a row that has ended, unless the origin finds it prolonged: its column, and the time that it is compared with.
    pub(crate) fn end(&mut self, table: TableId, unit: UnitId, end: (usize, Update)) {
        let place = self.push(unit, table, Op::End, vec![end]);
        self.stage(unit, None, Some(place));
    }

    fn stage(&mut self, unit: UnitId, row: Option<Box<[u8]>>, newest: Option<usize>) {
        if let Some(place) = self.place(unit) {
            let staged = &mut self.staged[place];
            (staged.row, staged.newest) = (row, newest);
            return;
        }
        self.staged.push(Staged { unit, row, newest });
        let count = self.staged.len();
        if count > SEARCHED_MAX {
            let missing = if self.places.is_empty() { 0 } else { count - 1 };
            let units = self.staged.iter().enumerate().skip(missing);
            self.places.extend(units.map(|(place, staged)| (staged.unit, place)));
        }
    }

    /// Changes columns of a row that is not known, and is taken to exist.
    pub(crate) fn set_blind(&mut self, prepared: &Prepared, unit: UnitId, reply: &mut Reply<'_>) {
        let sets: Vec<_> =
            prepared.sets().map(|(column, value)| (column, Update::To(value.to_vec()))).collect();
        match prepared.verb {
            Verb::HMSet => reply.ok(),
            _ => reply.integer(sets.len() as i64),
        }
        if !sets.is_empty() {
            let table = prepared.key_list[0].0;
            self.push(unit, table, Op::Update, sets);
        }
    }

    /// Units changed without their rows being known.
    pub(crate) fn blind_units(&self) -> impl Iterator<Item = UnitId> {
        let known = |unit| self.place(unit).is_some();
        self.changes().map(|change| change.unit).filter(move |&unit| !known(unit))
    }

    /// Forgets staged rows that are as they were: made and deleted again, nothing of them is in the write group, which is to have
    /// nothing to do with them. Nothing more may be staged afterwards.
    pub(crate) fn forget_unchanged(&mut self) {
        if self.staged.iter().all(|staged| staged.newest.is_some()) {
            return;
        }
        let changed: HashSet<UnitId> = self.changes().map(|change| change.unit).collect();
        self.staged.retain(|staged| staged.newest.is_some() || changed.contains(&staged.unit));
    }

    /// The staged rows, for a commit that comes later.
    pub(crate) fn take_staged(&mut self) -> Vec<Staged> {
        std::mem::take(&mut self.staged)
    }

    /// Checks what can only be judged at the end: that new rows are complete, that rows meet the constraints that are known
    /// here, and that the origin takes so many at once.
    ///
    /// # Errors
    /// A message that lists the missing columns, names the constraint, or says what to do instead.
    pub(crate) fn check(&self, schema: &Schema, rows: &Rows) -> Result<(), String> {
        if schema.one_row_groups && self.has_dml() {
            return Err("this origin takes no SQL".to_owned());
        }
        let mut units = self.changes().map(|change| change.unit);
        let first = units.next();
        if schema.one_row_groups && units.any(|unit| Some(unit) != first) {
            return Err(
                "this origin takes documents one at a time: a command or a MULTI that changes several of them could \
                 end half done; change each in a command of its own"
                    .to_owned(),
            );
        }
        for change in self.changes().filter(|change| change.op == Op::Insert) {
            let table = schema.table(change.table);
            let missing: Vec<&str> = table
                .columns
                .iter()
                .enumerate()
                .skip(table.key_len)
                .filter(|(index, column)| {
                    column.not_null
                        && !table.is_filled_by_origin(*index)
                        && column.default == ColumnDefault::None
                        && !change.sets.iter().any(|(set, _)| set == index)
                })
                .map(|(_, column)| column.name.as_str())
                .collect();
            if !missing.is_empty() {
                return Err(format!(
                    "{} does not exist, and a new row also needs {} (NOT NULL without default): give them in \
                     one HSET or one MULTI",
                    key_shown(table, rows.key(change.unit)),
                    missing.join(", ")
                ));
            }
        }
        self.check_constraints(schema, rows)
    }

    /// Writes the group, which builds on others. Constant defaults of new rows are written out, so that cache and origin agree.
    pub(crate) fn write(&self, schema: &Schema, rows: &Rows, on: &[Lsn], writer: &mut GroupWriter) {
        writer.clear();
        writer.builds_on(on.iter().copied());
        if let Some(record) = &self.once_record {
            writer.token_record(&TokenRecord::Done(record.done()));
        }
        let mut dmls = self.dmls.iter().peekable();
        for (place, change) in self.changes.iter().enumerate() {
            while let Some((_, dml)) = dmls.next_if(|(before, _)| *before <= place) {
                writer.dml(dml);
            }
            if change.is_moved {
                continue;
            }
            let table = schema.table(change.table);
            writer.begin(change.table, change.op, rows.key(change.unit));
            for (column, update) in &change.sets {
                writer.set(
                    *column,
                    match update {
                        Update::Null => Set::To(Cell::Null),
                        Update::To(value) => Set::To(Cell::Value(value)),
                        Update::By(amount) => Set::By(amount),
                    },
                );
            }
            // Where it may meet a row, what nobody has written must not change that.
            if change.op == Op::Insert && !table.merges_new {
                for (index, column) in table.columns.iter().enumerate().skip(table.key_len) {
                    if let ColumnDefault::Constant(value) = &column.default
                        && !column.generated
                        && !change.sets.iter().any(|(set, _)| *set == index)
                    {
                        writer.set(index, Set::To(Cell::Value(value)));
                    }
                }
            }
        }
        dmls.for_each(|(_, dml)| writer.dml(dml));
    }

    /// The tables that it changes, with the operation and the columns.
    pub(crate) fn touched(&self) -> impl Iterator<Item = (TableId, Op, &[(usize, Update)])> {
        self.changes().map(|change| (change.table, change.op, &change.sets[..]))
    }
}

/// What is set in a new row has nothing to add to: increments become the values that the row has after them.
fn as_values(row: &[u8], sets: Vec<(usize, Update)>) -> Vec<(usize, Update)> {
    let value = |column| match Reader::new(row).nth(column) {
        Some(Cell::Value(value)) => Update::To(value.to_vec()),
        _ => Update::Null,
    };
    let sets = sets.into_iter().map(|(column, update)| match update {
        Update::By(_) => (column, value(column)),
        update => (column, update),
    });
    sets.collect()
}

/// Later values replace earlier ones; increments add up, or change the value set before.
fn merge(table: &Table, change: &mut RowChange, sets: Vec<(usize, Update)>) {
    for (column, update) in sets {
        let Some((_, earlier)) = change.sets.iter_mut().find(|(set, _)| *set == column) else {
            change.sets.push((column, update));
            continue;
        };
        let ty = &table.columns[column].ty;
        *earlier = match (&*earlier, update) {
            (Update::To(value), Update::By(amount)) => {
                Update::To(ty.add(value, &amount).expect("checked when the increment was executed"))
            }
            (Update::By(first), Update::By(second)) => match sum(first, &second) {
                Some(sum) => Update::By(sum),
                None => Update::By(second),
            },
            (_, update) => update,
        };
    }
}

/// The exact sum of two decimal amounts.
fn sum(first: &[u8], second: &[u8]) -> Option<Vec<u8>> {
    let parse =
        |bytes| -> Option<bigdecimal::BigDecimal> { std::str::from_utf8(bytes).ok()?.parse().ok() };
    Some((parse(first)? + parse(second)?).to_plain_string().into_bytes())
}

/// A row's cells after the updates; what the origin computes from them becomes unknown.
fn changed(
    table: &Table,
    cells: Vec<Cell<'_>>,
    sets: &[(usize, Update)],
    is_new: bool,
) -> Box<[u8]> {
    let sums: Vec<Option<Vec<u8>>> = sets
        .iter()
        .map(|(column, update)| match update {
            Update::By(amount) => {
                let old = cells[*column].value().expect("checked before it is incremented");
                let sum = table.columns[*column].ty.add(old, amount);
                Some(sum.expect("checked before it is incremented"))
            }
            Update::Null | Update::To(_) => None,
        })
        .collect();
    let mut cells = cells;
    for ((column, update), sum) in sets.iter().zip(&sums) {
        cells[*column] = match (update, sum) {
            (Update::To(value), _) => Cell::Value(value),
            (_, Some(sum)) => Cell::Value(sum),
            (_, None) => Cell::Null,
        };
    }
    forget_computed(table, &mut cells, is_new);
    encode(&cells)
}
