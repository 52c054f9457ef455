//! A row as a session sees it after changes of its own.

use super::value::Field;
use super::{Change, Error, ErrorKind, Key, Row, Value};
use crate::cells::Reader;
use crate::engine::{format_key, key_cells};
use crate::schema::{ColumnDefault, Schema, Table};
use crate::value::ColumnType;

/// The one spelling of a key.
pub(super) fn canonical_key(schema: &Schema, key: &Key) -> Result<Key, Error> {
    let (table, cells) = key_cells(schema, key.0.as_bytes())?;
    let mut text = Vec::with_capacity(key.0.len());
    format_key(table, Reader::new(&cells), &mut text);
    match String::from_utf8(text) {
        Ok(text) if *text == *key.0 => Ok(key.clone()),
        Ok(text) => Ok(text.into()),
        Err(_) => Ok(key.clone()),
    }
}

/// The row after a change.
pub(super) fn applied(
    schema: &Schema,
    row: Option<Row>,
    change: &Change,
) -> Result<Option<Row>, Error> {
    // What raw SQL covers is not shown at all.
    let Some(key) = change.key() else { return Ok(row) };
    let (table, cells) = key_cells(schema, key.0.as_bytes())?;
    let mut row = match (change, row) {
        (Change::Delete { .. }, _) => return Ok(None),
        (_, Some(row)) => row,
        (Change::Unset { .. }, None) => return Ok(None),
        (_, None) => new_row(table, &cells),
    };
    match change {
        Change::Set { fields, .. } | Change::Insert { fields, .. } => {
            for (name, value) in fields {
                let (index, value) = canonical(table, name, value)?;
                row.fields[index].1 = Field::Is(value);
            }
        }
        Change::Unset { columns, .. } => {
            for name in columns {
                row.fields[column(table, name)?].1 = Field::Is(Value::NULL);
            }
        }
        Change::Inc { field, by, .. } => {
            let index = column(table, field)?;
            row.fields[index].1 = sum(table, index, &row.fields[index].1, by)?;
        }
        Change::Delete { .. } | Change::Execute(_) => {}
    }
    for (index, (_, field)) in row.fields.iter_mut().enumerate() {
        // The change may join another one that makes the row.
        if table.is_computed(index) {
            *field = Field::Unknown;
        }
    }
    Ok(Some(row))
}

/// The type of a column of a key's table.
pub(super) fn column_type<'s>(
    schema: &'s Schema,
    key: &Key,
    name: &str,
) -> Result<&'s ColumnType, Error> {
    let (table, _) = key_cells(schema, key.0.as_bytes())?;
    Ok(&table.columns[column(table, name)?].ty)
}

fn column(table: &Table, name: &str) -> Result<usize, Error> {
    table.column(name.as_bytes()).ok_or_else(|| {
        Error::new(ErrorKind::Invalid, format!("{} has no column '{name}'", table.name))
    })
}

fn canonical(table: &Table, name: &str, value: &Value) -> Result<(usize, Value), Error> {
    let index = column(table, name)?;
    let Some(bytes) = value.as_bytes() else { return Ok((index, Value::NULL)) };
    let canonical = table.columns[index].ty.canonical(bytes);
    let canonical = canonical.map_err(|error| unfit(table, index, bytes, &error.0))?;
    Ok((index, canonical.into_owned().into()))
}

fn unfit(table: &Table, index: usize, value: &[u8], why: &str) -> Error {
    let column = &table.columns[index];
    let shown = String::from_utf8_lossy(value);
    let message = format!(
        "{}.{} ({}) does not take '{shown}': {why}",
        table.name, column.name, column.type_name
    );
    Error::new(ErrorKind::Invalid, message)
}

fn sum(table: &Table, index: usize, old: &Field, by: &str) -> Result<Field, Error> {
    let Field::Is(old) = old else { return Ok(Field::Unknown) };
    let sum = table.columns[index].ty.add(old.as_bytes().unwrap_or(b"0"), by.as_bytes());
    let sum = sum.map_err(|error| unfit(table, index, by.as_bytes(), &error.0))?;
    Ok(Field::Is(sum.into()))
}

/// A row before its columns are set.
fn new_row(table: &Table, key: &[u8]) -> Row {
    let mut key = Reader::new(key);
    let fields = table.columns.iter().map(|column| {
        let field = match (key.cell(), &column.default) {
            (Some(cell), _) => Field::Is(cell.value().map(<[u8]>::to_vec).into()),
            (None, ColumnDefault::None) => Field::Is(Value::NULL),
            (None, ColumnDefault::Constant(value)) => Field::Is(value.clone().into()),
            (None, ColumnDefault::Computed | ColumnDefault::Formula(_)) => Field::Unknown,
        };
        (column.name.as_str().into(), field)
    });
    Row { table: table.name.as_str().into(), fields: fields.collect() }
}
