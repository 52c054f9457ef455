//! What the data commands do, upon rows that are all present.

use super::command::Verb;
use super::cursors::Cursors;
use super::elements::set_of_table;
use super::ended::has_ended;
use super::fresh::{Fresh, Moment};
use super::given::Given;
use super::hash_scan::HashScan;
use super::numbers::integer;
use super::prepared::{Prepared, Trouble};
use super::rows::Rows;
use super::set_scan::Place;
use super::txn::{Txn, Update};
use crate::cells::{Cell, Reader};
use crate::defaults::Formula;
use crate::mapping::Shape;
use crate::resp::{Code, Reply, ReplyError};
use crate::schema::{Column, Schema, Table};
use crate::value::ColumnType;
use destage_core::expiry::Expiries;
use destage_core::{Time, UnitId};
use std::cell::RefCell;
use std::collections::HashSet;

/// What commands work on.
pub(crate) struct Context<'a> {
    pub(crate) schema: &'a Schema,
    pub(crate) rows: &'a Rows,
    pub(crate) txn: &'a mut Txn,
    /// `\r\n`-framed field names, per table and column.
    pub(crate) fields: &'a FieldNames,
    /// Most bytes of a value that grows in place, or of a plain hash: as much as a request may bring.
    pub(super) bytes_max: usize,
    pub(crate) now: Time,
    /// What has ended by then has ended by the origin's clock, too.
    pub(super) agreed_ms: i64,
    pub(crate) expiries: &'a Expiries,
    /// Where scans of sets go on.
    pub(super) places: &'a RefCell<Cursors<Place>>,
    pub(super) fresh: &'a Fresh,
    /// Numbers that its new rows were given already.
    pub(super) given: &'a mut Given,
    /// The transaction's.
    pub(super) moment: Moment,
}

/// Every column's name as a bulk string, ready to be copied into replies.
#[derive(Debug)]
pub(crate) struct FieldNames(Vec<Vec<Box<[u8]>>>);

impl FieldNames {
    pub(crate) fn new(schema: &Schema) -> Self {
        let bulk = |name: &str| format!("${}\r\n{name}\r\n", name.len()).into_bytes().into();
        let table = |table: &Table| table.columns.iter().map(|c| bulk(&c.name)).collect();
        Self(schema.tables.iter().map(table).collect())
    }

    fn of(&self, table: &Table) -> &[Box<[u8]>] {
        &self.0[usize::from(table.id.0)]
    }
}

impl Context<'_> {
    /// Performs one command; its reply is appended. One whose reply is more than the output may hold is refused, and nothing is
    /// done.
    pub(crate) fn perform(
        &mut self,
        prepared: &Prepared,
        units: &[UnitId],
        reply: &mut Reply<'_>,
    ) -> Result<(), Trouble> {
        self.perform_within(prepared, units, reply)?;
        Ok(reply.is_within()?)
    }

    fn perform_within(
        &mut self,
        prepared: &Prepared,
        units: &[UnitId],
        reply: &mut Reply<'_>,
    ) -> Result<(), Trouble> {
        if prepared.verb == Verb::Eval {
            return self.perform_script(prepared, units, reply);
        }
        let first = prepared.key_list[0].0;
        let schema = self.schema;
        let table = schema.table(first);
        let unit = units[0];
        if prepared.shape == Shape::Plain && prepared.verb.is_of_hashes() {
            return self.perform_fields(table, unit, prepared, reply);
        }
        match prepared.verb {
            Verb::HGetAll | Verb::HKeys | Verb::HVals => {
                self.read_all(table, unit, prepared.verb, reply)
            }
            Verb::HGet => self.read_one(unit, prepared.columns[0], reply),
            Verb::HMGet => self.read_some(unit, &prepared.columns, reply),
            Verb::HLen => self.count_fields(unit, reply),
            Verb::HExists => self.has_field(unit, prepared.columns[0], reply),
            Verb::HStrLen => {
                let value = self.cell(unit, prepared.columns[0])?;
                reply.integer(value.map_or(0, |value| value.len() as i64));
                Ok(())
            }
            Verb::HScan => self.scan_fields(table, unit, &prepared.hash_scan, reply),
            Verb::Exists => self.exists(units, prepared.own_keys, reply),
            Verb::Type => {
                let kind = match prepared.shape {
                    Shape::Hash => "hash",
                    Shape::String(_) => "string",
                    Shape::Set(_) => "set",
                    Shape::SortedSet(_) => "zset",
                    Shape::Plain => self.plain_type(unit),
                };
                reply.simple(if self.is_there(unit, units)? { kind } else { "none" });
                Ok(())
            }
            Verb::HSet | Verb::HMSet => self.set(table, unit, prepared, reply),
            Verb::HSetNx => self.set_absent(table, unit, prepared, reply),
            Verb::HDel => self.clear(table, unit, &prepared.columns, reply),
            Verb::HIncrBy | Verb::HIncrByFloat => self.increment(table, unit, prepared, reply),
            Verb::Del => self.delete(prepared, units, reply),
            verb if verb.is_of_expiry() => self.perform_expiry(prepared, units, reply),
            verb if verb.is_of_sets() => self.perform_set(prepared, units, reply),
            verb if verb.is_of_strings() => self.perform_string(prepared, units, reply),
            _ => unreachable!("not a data command"),
        }
    }

    /// The row as the transaction sees it; none if it has ended.
    pub(super) fn row(&self, unit: UnitId) -> Option<&[u8]> {
        let row = self.txn.row(self.rows, unit)?;
        let has_ended = self.schema.rows_end
            && has_ended(self.schema, self.rows.get(unit).table, row, self.now);
        (!has_ended).then_some(row)
    }

    pub(super) fn cell(&self, unit: UnitId, column: usize) -> Result<Option<&[u8]>, Trouble> {
        let Some(row) = self.row(unit) else { return Ok(None) };
        match Reader::new(row).nth(column) {
            Some(Cell::Value(value)) => Ok(Some(value)),
            Some(Cell::Unknown) => Err(Trouble::Unknown),
            Some(Cell::Null) | None => Ok(None),
        }
    }

    fn read_all(
        &self,
        table: &Table,
        unit: UnitId,
        verb: Verb,
        reply: &mut Reply<'_>,
    ) -> Result<(), Trouble> {
        let row = self.row(unit).unwrap_or_default();
        let count = count_values(row)?;
        if verb == Verb::HGetAll {
            reply.map(count);
        } else {
            reply.array(count);
        }
        let names = self.fields.of(table);
        for (cell, name) in Reader::new(row).zip(names) {
            let Cell::Value(value) = cell else { continue };
            if verb != Verb::HVals {
                reply.raw(name);
            }
            if verb != Verb::HKeys {
                reply.bulk(value);
            }
        }
        Ok(())
    }

    fn scan_fields(
        &self,
        table: &Table,
        unit: UnitId,
        scan: &HashScan,
        reply: &mut Reply<'_>,
    ) -> Result<(), Trouble> {
        let row = self.row(unit).unwrap_or_default();
        // A row of which something is not known is fetched first.
        count_values(row)?;
        let cells = Reader::new(row).zip(&table.columns);
        let fields =
            cells.filter_map(|(cell, column)| Some((column.name.as_bytes(), cell.value()?)));
        scan.tell(fields, reply);
        Ok(())
    }

    fn read_one(&self, unit: UnitId, column: usize, reply: &mut Reply<'_>) -> Result<(), Trouble> {
        reply.bulk_or_null(self.cell(unit, column)?);
        Ok(())
    }

    fn read_some(
        &self,
        unit: UnitId,
        columns: &[usize],
        reply: &mut Reply<'_>,
    ) -> Result<(), Trouble> {
        let cells: Vec<Cell<'_>> = Reader::new(self.row(unit).unwrap_or_default()).collect();
        let get = |&column: &usize| cells.get(column).copied().unwrap_or(Cell::Null);
        if columns.iter().any(|column| get(column) == Cell::Unknown) {
            return Err(Trouble::Unknown);
        }
        reply.array(columns.len());
        columns.iter().for_each(|column| reply.bulk_or_null(get(column).value()));
        Ok(())
    }

    fn count_fields(&self, unit: UnitId, reply: &mut Reply<'_>) -> Result<(), Trouble> {
        reply.integer(count_values(self.row(unit).unwrap_or_default())? as i64);
        Ok(())
    }

    fn has_field(&self, unit: UnitId, column: usize, reply: &mut Reply<'_>) -> Result<(), Trouble> {
        reply.integer(i64::from(self.cell(unit, column)?.is_some()));
        Ok(())
    }

    /// Whether there is such a row, or a member of such a set; `units` are all those of the command.
    pub(super) fn is_there(&self, unit: UnitId, units: &[UnitId]) -> Result<bool, Trouble> {
        match set_of_table(self.schema, self.rows.get(unit).table) {
            Some(id) => self.has_members(id, unit, units),
            None => Ok(self.row(unit).is_some()),
        }
    }

    fn exists(
        &self,
        units: &[UnitId],
        own_keys: usize,
        reply: &mut Reply<'_>,
    ) -> Result<(), Trouble> {
        let mut count = 0;
        for &unit in &units[..own_keys] {
            count += i64::from(self.is_there(unit, units)?);
        }
        reply.integer(count);
        Ok(())
    }

    fn set(
        &mut self,
        table: &Table,
        unit: UnitId,
        prepared: &Prepared,
        reply: &mut Reply<'_>,
    ) -> Result<(), Trouble> {
        let mut added = prepared.sets().len();
        if let Some(row) = self.row(unit) {
            let cells: Vec<Cell<'_>> = Reader::new(row).collect();
            for (column, _) in prepared.sets() {
                match cells[column] {
                    Cell::Null => {}
                    Cell::Value(_) => added -= 1,
                    // The count is worth a fetch only where somebody reads it.
                    Cell::Unknown if prepared.verb == Verb::HMSet => added -= 1,
                    Cell::Unknown if table.columns[column].not_null => added -= 1,
                    // A trigger has set it, as far as anybody knows here. Writes do not wait for the count to be sure.
                    Cell::Unknown
                        if !table.columns[column].generated && table.is_computed(column) =>
                    {
                        added -= 1;
                    }
                    Cell::Unknown => return Err(Trouble::Unknown),
                }
            }
        }
        let sets: Vec<_> = owned(prepared);
        if !sets.is_empty() || self.row(unit).is_none() {
            self.put(table, unit, sets)?;
        }
        match prepared.verb {
            Verb::HMSet => reply.ok(),
            _ => reply.integer(added as i64),
        }
        Ok(())
    }

    /// Changes columns of a row. A new one is given here what the settings say of its defaults.
    pub(super) fn change(
        &mut self,
        table: &Table,
        unit: UnitId,
        mut sets: Vec<(usize, Update)>,
    ) -> Result<(), Trouble> {
        if !table.given_here.is_empty() && self.txn.row(self.rows, unit).is_none() {
            for &(column, formula) in &table.given_here {
                if sets.iter().any(|(set, _)| *set == column) {
                    continue;
                }
                if formula == Formula::Number {
                    let number = self.number(table, column, unit)?;
                    sets.push((column, Update::To(number)));
                    continue;
                }
                let row = self.rows.key(unit);
                let uuid = || self.fresh.uuid(self.moment, table.id, column, row);
                let value = formula.value(&table.columns[column].ty, self.moment.at, uuid);
                sets.extend(value.map(|value| (column, Update::To(value))));
            }
        }
        self.txn.set(self.rows, table, unit, sets);
        Ok(())
    }

    /// The number that a column of a new row is given.
    fn number(&mut self, table: &Table, column: usize, unit: UnitId) -> Result<Vec<u8>, Trouble> {
        let key = (table.id, column, self.rows.key(unit).into());
        let number = match self.given.get(&key) {
            Some(&number) => number,
            None => {
                let of = (table.id, column);
                let number = self.fresh.numbers().take(of).ok_or(Trouble::Numbers(of))?;
                self.given.insert(key, number);
                number
            }
        };
        let Column { name, ty, .. } = &table.columns[column];
        let shown = || Some(number.to_string());
        Formula::Number.value(ty, self.moment.at, shown).ok_or_else(|| {
            Trouble::Error(ReplyError::err(format!(
                "the sequence of {}.{name} has come to {number}, which the column does not hold: nothing was done",
                table.name
            )))
        })
    }

    fn set_absent(
        &mut self,
        table: &Table,
        unit: UnitId,
        prepared: &Prepared,
        reply: &mut Reply<'_>,
    ) -> Result<(), Trouble> {
        let Some((column, _)) = prepared.sets().next() else {
            return Err(Trouble::Error(ReplyError::fixed(Code::Err, "a key column is always set")));
        };
        let is_set = self.cell(unit, column)?.is_some();
        if !is_set {
            self.put(table, unit, owned(prepared))?;
        }
        reply.integer(i64::from(!is_set));
        Ok(())
    }

    fn clear(
        &mut self,
        table: &Table,
        unit: UnitId,
        columns: &[usize],
        reply: &mut Reply<'_>,
    ) -> Result<(), Trouble> {
        let mut cleared = Vec::new();
        for &column in columns {
            if self.cell(unit, column)?.is_some() {
                cleared.push((column, Update::Null));
            }
        }
        reply.integer(cleared.len() as i64);
        if !cleared.is_empty() {
            self.put(table, unit, cleared)?;
        }
        Ok(())
    }

    pub(super) fn increment(
        &mut self,
        table: &Table,
        unit: UnitId,
        prepared: &Prepared,
        reply: &mut Reply<'_>,
    ) -> Result<(), Trouble> {
        let index = prepared.columns[0];
        let column = &table.columns[index];
        let old = self.cell(unit, index)?;
        let sum = column.ty.add(old.unwrap_or(b"0"), &prepared.amount).map_err(|error| {
            Trouble::Error(ReplyError::err(format!(
                "increment of {}.{}: {error}",
                table.name, column.name
            )))
        })?;
        // Unique values are claimed until they are decided, and a claim is made of values.
        let is_claimed =
            table.asks_unique && table.uniques.iter().any(|unique| unique.columns.contains(&index));
        // Only exact sums come out the same however increments are grouped; the others are sent as values.
        let update = match old {
            Some(_) if column.ty.is_exact() && !is_claimed => Update::By(prepared.amount.clone()),
            _ => Update::To(sum.clone()),
        };
        match prepared.verb {
            Verb::HIncrBy if matches!(column.ty, ColumnType::Int { .. }) => {
                let number = std::str::from_utf8(&sum).ok().and_then(|text| text.parse().ok());
                reply.integer(number.unwrap_or_default());
            }
            Verb::IncrBy => reply.integer(integer(&sum)?),
            _ => reply.bulk(&sum),
        }
        self.put(table, unit, vec![(index, update)])?;
        Ok(())
    }

    fn delete(
        &mut self,
        prepared: &Prepared,
        units: &[UnitId],
        reply: &mut Reply<'_>,
    ) -> Result<(), Trouble> {
        let mut deleted = 0;
        let members = member_units(units, prepared.own_keys);
        for ((table, _), &unit) in prepared.keys().zip(units).take(prepared.own_keys) {
            if let Some(id) = set_of_table(self.schema, table) {
                deleted += i64::from(self.delete_members(id, unit, units, &members)?);
            } else if self.row(unit).is_some() {
                self.remove(table, unit);
                deleted += 1;
            }
        }
        reply.integer(deleted);
        Ok(())
    }
}

fn count_values(row: &[u8]) -> Result<usize, Trouble> {
    let mut count = 0;
    for cell in Reader::new(row) {
        match cell {
            Cell::Value(_) => count += 1,
            Cell::Null => {}
            Cell::Unknown => return Err(Trouble::Unknown),
        }
    }
    Ok(count)
}

fn owned(prepared: &Prepared) -> Vec<(usize, Update)> {
    prepared.sets().map(|(column, value)| (column, Update::To(value.to_vec()))).collect()
}

/// The members' rows behind the keys of a DEL.
fn member_units(units: &[UnitId], own: usize) -> HashSet<UnitId> {
    units[own.min(units.len())..].iter().copied().collect()
}
