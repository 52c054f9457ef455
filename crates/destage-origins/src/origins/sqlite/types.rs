//! Values between SQLite and their canonical form.
//!
//! SQLite types values, not columns; a column's *affinity* says what becomes of a text that is stored in it. The canonical
//! form of each affinity is the text that SQLite gives back: INTEGER whole numbers, REAL with a fraction, TEXT as is, BLOB
//! raw bytes, NUMERIC see [`ColumnType::SqliteNumeric`]. A column without type takes and gives text. A value that another
//! program stored in a class that does not fit its column is delivered as its text.

use crate::cells::{Cell, push_cell};
use crate::checks::{Kind, TextRule};
use crate::dml::Parameter;
use crate::schema::Column;
use crate::value::{ColumnType, SqliteNumber, format_sqlite_real, sqlite_number};
use rusqlite::Statement;
use rusqlite::types::{ToSqlOutput, Value, ValueRef};

/// The type of a column declared as `declared`, by SQLite's rules of affinity; `is_strict`: in a STRICT table, where ANY has
/// none. In any other table that name is one without a rule of its own.
pub(super) fn column_type(declared: &str, is_strict: bool) -> ColumnType {
    let name = declared.to_ascii_uppercase();
    let has = |part: &str| name.contains(part);
    if has("INT") {
        ColumnType::Int { min: i64::MIN, max: i64::MAX }
    } else if has("CHAR") || has("CLOB") || has("TEXT") {
        // The length in VARCHAR(n) is not enforced by SQLite, hence not here.
        ColumnType::Text { chars_max: None }
    } else if has("BLOB") {
        ColumnType::Bytes
    } else if name.is_empty() || (is_strict && name == "ANY") {
        ColumnType::Text { chars_max: None }
    } else if has("REAL") || has("FLOA") || has("DOUB") {
        ColumnType::SqliteReal
    } else {
        ColumnType::SqliteNumeric
    }
}

/// What a column is in conditions. `has_collations`: some column may compare texts otherwise than by their bytes.
pub(super) fn kind(column: &Column, has_collations: bool) -> Kind {
    let declared = column.type_name.to_ascii_uppercase();
    match column.ty {
        ColumnType::Int { .. } | ColumnType::SqliteReal | ColumnType::SqliteNumeric => Kind::Affine,
        // Without one of these names it has no affinity, although it takes text.
        ColumnType::Text { .. }
            if !has_collations
                && ["CHAR", "CLOB", "TEXT"].iter().any(|name| declared.contains(name)) =>
        {
            Kind::Text(TextRule::Bytes)
        }
        _ => Kind::Other,
    }
}

/// Binds a canonical value to a parameter, in the storage class that the column gives it.
pub(super) fn bind(
    statement: &mut Statement<'_>,
    parameter: usize,
    ty: &ColumnType,
    cell: Cell<'_>,
) -> rusqlite::Result<()> {
    statement.raw_bind_parameter(parameter, parameter_value(ty, cell))
}

/// Binds a parameter of raw SQL.
pub(super) fn bind_parameter(
    statement: &mut Statement<'_>,
    place: usize,
    parameter: Parameter<'_>,
) -> rusqlite::Result<()> {
    let value = match parameter {
        Parameter::Null => ToSqlOutput::Owned(Value::Null),
        Parameter::Text(text) => ToSqlOutput::Borrowed(ValueRef::Text(text.as_bytes())),
        Parameter::Integer(number) => ToSqlOutput::Owned(Value::Integer(number)),
        Parameter::Real(number) => ToSqlOutput::Owned(Value::Real(number)),
        Parameter::Bytes(bytes) => ToSqlOutput::Borrowed(ValueRef::Blob(bytes)),
    };
    statement.raw_bind_parameter(place, value)
}

fn parameter_value<'a>(ty: &ColumnType, cell: Cell<'a>) -> ToSqlOutput<'a> {
    let Some(bytes) = cell.value() else {
        return ToSqlOutput::Owned(Value::Null);
    };
    let number = match ty {
        ColumnType::Bytes => return ToSqlOutput::Borrowed(ValueRef::Blob(bytes)),
        ColumnType::Int { .. } => parse(bytes).map(Value::Integer),
        ColumnType::SqliteReal => real(bytes).map(Value::Real),
        ColumnType::SqliteNumeric => sqlite_number(bytes).map(|number| match number {
            SqliteNumber::Int(value) => Value::Integer(value),
            SqliteNumber::Real(value) => Value::Real(value),
        }),
        _ => None,
    };
    number.map_or(ToSqlOutput::Borrowed(ValueRef::Text(bytes)), ToSqlOutput::Owned)
}

fn real(bytes: &[u8]) -> Option<f64> {
    match bytes {
        b"Inf" => Some(f64::INFINITY),
        b"-Inf" => Some(f64::NEG_INFINITY),
        _ => parse(bytes),
    }
}

fn parse<T: std::str::FromStr>(bytes: &[u8]) -> Option<T> {
    std::str::from_utf8(bytes).ok()?.parse().ok()
}

/// Appends what a column holds as a cell.
pub(super) fn push_value(out: &mut Vec<u8>, value: ValueRef<'_>) {
    match value {
        ValueRef::Null => push_cell(out, Cell::Null),
        ValueRef::Integer(value) => {
            push_cell(out, Cell::Value(itoa::Buffer::new().format(value).as_bytes()));
        }
        ValueRef::Real(value) => push_cell(out, Cell::Value(format_sqlite_real(value).as_bytes())),
        ValueRef::Text(bytes) | ValueRef::Blob(bytes) => push_cell(out, Cell::Value(bytes)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn affinity_follows_the_first_rule_that_matches() {
        let int = ColumnType::Int { min: i64::MIN, max: i64::MAX };
        let text = ColumnType::Text { chars_max: None };
        for (declared, ty) in [
            ("INTEGER", &int),
            ("unsigned big int", &int),
            ("FLOATING POINT", &int),
            ("CHARINT", &int),
            ("VARCHAR(20)", &text),
            ("clob", &text),
            ("", &text),
            ("BLOB", &ColumnType::Bytes),
            ("DOUBLE PRECISION", &ColumnType::SqliteReal),
            ("DECIMAL(10,2)", &ColumnType::SqliteNumeric),
            ("DATE", &ColumnType::SqliteNumeric),
            ("STRING", &ColumnType::SqliteNumeric),
            ("ANY", &ColumnType::SqliteNumeric),
        ] {
            assert_eq!(column_type(declared, false), *ty, "{declared}");
        }
        assert_eq!(column_type("any", true), text);
        assert_eq!(column_type("INT", true), int);
    }
}
