//! Ranges of rows that share a part of their key.

use super::reader::{PostgresReader, encoded_row, ordered};
use super::wire::{Array, Form, Param, casted, selected};
use crate::cells::Cell;
use crate::collection::Edge;
use crate::contract::{OriginError, Range, Snapshot};
use crate::origins::ledger::parse_watermarks;
use crate::schema::{Column, Table};
use crate::value::ColumnType;
use destage_core::{DomainId, Lsn};
use tokio_postgres::types::Type;

/// Parameters, each an array of one value.
#[derive(Default)]
struct Params {
    types: Vec<Type>,
    values: Vec<Param>,
}

impl Params {
    /// Adds a value and returns its expression.
    fn push(&mut self, form: Form, cell: Cell<'_>, column: &Column) -> Result<String, OriginError> {
        let mut array = Array::new(form, 1);
        array.push(cell, column)?;
        self.values.push(array.finish());
        let (ty, name) = form.array();
        self.types.push(ty);
        Ok(format!("(${}::{name})[1]", self.values.len()))
    }

    /// `column = value` for each, after WHERE; nothing where there is none.
    fn conditions(
        &mut self,
        table: &Table,
        equal: &[(usize, Cell<'_>)],
    ) -> Result<Vec<String>, OriginError> {
        let terms = equal.iter().map(|&(index, cell)| {
            let column = &table.columns[index];
            let value = self.push(Form::of(&column.ty, false), cell, column)?;
            Ok(format!("t.{} = {}", column.sql_name, casted(&value, column)))
        });
        terms.collect()
    }
}

fn filtered(conditions: &[String]) -> String {
    match conditions {
        [] => String::new(),
        conditions => format!("WHERE {}", conditions.join(" AND ")),
    }
}

/// What to order by: numbers by value, members by the bytes of their canonical form.
fn order(table: &Table, range: &Range<'_>, index: usize) -> String {
    let column = &table.columns[index];
    let name = format!("t.{}", column.sql_name);
    match (range.is_number(index), &column.ty) {
        (true, _) => name,
        (false, ColumnType::Int { .. }) => format!("{name}::text COLLATE \"C\""),
        (false, _) => ordered(&name, column),
    }
}

/// The value of an edge, in the form in which it is compared.
fn edge_value(
    params: &mut Params,
    table: &Table,
    range: &Range<'_>,
    edge: &Edge,
) -> Result<String, OriginError> {
    let index = range.order[0];
    let column = &table.columns[index];
    let form = match (range.is_number(index), &column.ty) {
        (false, ColumnType::Int { .. }) => Form::Text,
        (_, ty) => Form::of(ty, false),
    };
    let value = params.push(form, Cell::Value(&edge.value), column)?;
    Ok(match form {
        Form::Text if !range.is_number(index) => format!("{value} COLLATE \"C\""),
        _ => casted(&value, column),
    })
}

impl PostgresReader {
    pub(super) fn read_range(
        &mut self,
        table: &Table,
        range: &Range<'_>,
    ) -> Result<Snapshot, OriginError> {
        let what = format!("read a range of {}", table.name);
        let mut params = Params::default();
        let mut conditions = params.conditions(table, &range.equal)?;
        for (operator, edge) in range.edges() {
            let value = edge_value(&mut params, table, range, edge)?;
            conditions.push(format!("{} {operator} {value}", order(table, range, range.order[0])));
        }
        let columns = table.columns.iter().enumerate();
        let columns = columns.map(|(at, column)| format!("{} AS c{at}", selected(column)));
        let direction = range.direction();
        let orders = range.order.iter().map(|&index| order(table, range, index) + direction);
        // One row even where the range is empty, so that the watermarks arrive in any case.
        let sql = format!(
            "SELECT {}, s.* FROM (SELECT 1) AS v LEFT JOIN LATERAL (SELECT {} FROM {} AS t {} ORDER BY {} LIMIT {}) \
             AS s ON true",
            self.watermarks()?,
            columns.collect::<Vec<_>>().join(", "),
            table.sql_name,
            filtered(&conditions),
            orders.collect::<Vec<_>>().join(", "),
            range.limit
        );
        let found = self.rows(&what, &sql, &params.types, &params.values, range.limit.max(1))?;
        let text: Option<&str> = found.first().and_then(|row| row.get(0));
        let watermarks = parse_watermarks(text);
        let mut rows = Vec::with_capacity(found.len());
        for row in &found {
            rows.extend(encoded_row(row, 1, &table.columns, table)?.map(Some));
        }
        Ok(Snapshot { rows, watermarks, ..Snapshot::default() })
    }

    pub(super) fn count_rows(
        &mut self,
        table: &Table,
        equal: &[(usize, Cell<'_>)],
    ) -> Result<(u64, Vec<(DomainId, Lsn)>), OriginError> {
        let what = format!("count rows of {}", table.name);
        let mut params = Params::default();
        let conditions = params.conditions(table, equal)?;
        let sql = format!(
            "SELECT {}, count(*) FROM {} AS t {}",
            self.watermarks()?,
            table.sql_name,
            filtered(&conditions)
        );
        let found = self.rows(&what, &sql, &params.types, &params.values, 1)?;
        let text: Option<&str> = found.first().and_then(|row| row.get(0));
        let count = found.first().map_or(0, |row| row.get::<_, i64>(1).cast_unsigned());
        Ok((count, parse_watermarks(text)))
    }
}
