//! Values on their way: cells to literals of SQL, and back from the texts that a query returns.
//!
//! A literal is either a checked number, a checked text in quotes, or hexadecimal digits: nothing in a value is read as SQL,
//! whatever the session's mode.

use crate::cells::{Cell, push_cell};
use crate::contract::OriginError;
use crate::schema::Column;
use crate::value::{ColumnType, MysqlType, format_float4, format_float8};
use destage_core::Fault;
use std::fmt::Write;

/// Appends the literal of a cell for its column or, of an increment, of the amount.
///
/// # Errors
/// [`Fault::Rejected`] if the cell is not of the column's type.
pub(super) fn push(out: &mut String, cell: Cell<'_>, column: &Column) -> Result<(), OriginError> {
    match cell {
        Cell::Null => out.push_str("NULL"),
        Cell::Unknown => return Err(unfit(column)),
        Cell::Value(value) => {
            push_value(out, value, &column.ty).ok_or_else(|| unfit(column))?;
        }
    }
    Ok(())
}

fn push_value(out: &mut String, value: &[u8], ty: &ColumnType) -> Option<()> {
    match ty.signed() {
        ColumnType::Bytes => push_bytes(out, value),
        ColumnType::Mysql(MysqlType::Bytes { .. } | MysqlType::PaddedBytes { .. }) => {
            push_bytes(out, value);
        }
        ColumnType::Opaque => return None,
        ty => {
            let text = std::str::from_utf8(value).ok()?;
            match ty {
                ColumnType::Int { .. } | ColumnType::Numeric { .. } => push_number(out, text)?,
                // With an exponent it is read as a binary number, exactly this one.
                ColumnType::Mysql(MysqlType::Double) => {
                    let number = text.parse::<f64>().ok().filter(|number| number.is_finite())?;
                    push_float(out, number);
                }
                ColumnType::Mysql(MysqlType::Float) => {
                    let number = text.parse::<f32>().ok().filter(|number| number.is_finite())?;
                    push_float(out, f64::from(number));
                }
                ColumnType::Mysql(MysqlType::Timestamp { .. }) => {
                    push_text(out, text.strip_suffix("+00")?);
                }
                _ => push_text(out, text),
            }
        }
    }
    Some(())
}

/// A plain decimal number.
pub(super) fn push_number(out: &mut String, text: &str) -> Option<()> {
    let digits = text.strip_prefix('-').unwrap_or(text);
    let plain = digits.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    if !plain || !digits.starts_with(|first: char| first.is_ascii_digit()) {
        return None;
    }
    out.push_str(text);
    Some(())
}

fn push_float(out: &mut String, number: f64) {
    let _infallible = write!(out, "{number:e}");
}

/// A text as a literal; hexadecimal where quotes might not hold it.
pub(super) fn push_text(out: &mut String, text: &str) {
    if text.bytes().any(|byte| matches!(byte, b'\'' | b'\\' | 0)) {
        out.push_str("_utf8mb4 ");
        push_bytes(out, text.as_bytes());
        return;
    }
    out.push('\'');
    out.push_str(text);
    out.push('\'');
}

fn push_bytes(out: &mut String, bytes: &[u8]) {
    out.reserve(bytes.len() * 2 + 3);
    out.push_str("x'");
    for byte in bytes {
        out.push(char::from(HEX[usize::from(byte >> 4)]));
        out.push(char::from(HEX[usize::from(byte & 15)]));
    }
    out.push('\'');
}

/// The binary literal of a key's cell, which sorts by its bytes.
pub(super) fn push_binary(out: &mut String, cell: Cell<'_>) {
    push_bytes(out, cell.value().unwrap_or_default());
}

/// The expression that reads a column.
pub(super) fn selected(column: &Column) -> String {
    let name = &column.sql_name;
    match *column.ty.signed() {
        // The text of a FLOAT has six digits, that of a DOUBLE as many as it takes.
        ColumnType::Mysql(MysqlType::Float) => format!("{name} + 0e0"),
        ColumnType::Int { .. } if column.type_name == BIT => format!("{name} + 0"),
        _ => name.clone(),
    }
}

/// Appends the cell of a value that [`selected`] read. A value that the column takes no more (a date of zeros, a time of
/// days) stays as the server writes it: it can be read.
pub(super) fn push_read(out: &mut Vec<u8>, ty: &ColumnType, raw: Option<&[u8]>) {
    let Some(raw) = raw else { return push_cell(out, Cell::Null) };
    let number = || std::str::from_utf8(raw).ok().and_then(|text| text.parse::<f64>().ok());
    match ty.signed() {
        ColumnType::Text { .. }
        | ColumnType::Bytes
        | ColumnType::Enum(_)
        | ColumnType::Json
        | ColumnType::Opaque
        | ColumnType::Mysql(MysqlType::Text { .. } | MysqlType::Bytes { .. }) => {
            push_cell(out, Cell::Value(raw));
        }
        ColumnType::Mysql(MysqlType::Float) if let Some(number) = number() => {
            push_cell(out, Cell::Value(format_float4(number as f32).as_bytes()));
        }
        ColumnType::Mysql(MysqlType::Double) if let Some(number) = number() => {
            push_cell(out, Cell::Value(format_float8(number).as_bytes()));
        }
        ty => match ty.canonical(raw) {
            Ok(value) => push_cell(out, Cell::Value(&value)),
            Err(_) => push_cell(out, Cell::Value(raw)),
        },
    }
}

fn unfit(column: &Column) -> OriginError {
    let Column { name, type_name, .. } = column;
    let message = format!("the value of column {name} is not of type {type_name}");
    OriginError::new(Fault::Rejected, message)
}

/// The name of the type whose values are read as numbers.
pub(super) const BIT: &str = "bit";
const HEX: &[u8; 16] = b"0123456789abcdef";

#[cfg(test)]
mod tests {
    use super::*;

    fn literal(value: &[u8], ty: &ColumnType) -> Option<String> {
        let mut out = String::new();
        push_value(&mut out, value, ty).map(|()| out)
    }

    #[test]
    fn nothing_in_a_value_is_read_as_sql() {
        let text = ColumnType::Text { chars_max: None };
        for (value, expected) in [
            ("plain", "'plain'"),
            ("a;b -- c \"d\"", "'a;b -- c \"d\"'"),
            ("it's", "_utf8mb4 x'69742773'"),
            ("\\", "_utf8mb4 x'5c'"),
            ("", "''"),
        ] {
            assert_eq!(literal(value.as_bytes(), &text).as_deref(), Some(expected));
        }
        assert_eq!(literal(b"\xff", &text), None);
        let int = ColumnType::Int { min: i64::MIN, max: i64::MAX };
        for injected in ["1; DROP TABLE t", "", "-", ".", "0x10", "1 OR 1", "NaN"] {
            assert_eq!(literal(injected.as_bytes(), &int), None, "{injected}");
        }
        assert_eq!(literal(b"-12.50", &int).as_deref(), Some("-12.50"));
    }

    #[test]
    fn numbers_keep_all_their_bits() {
        let (float, double) =
            (ColumnType::Mysql(MysqlType::Float), ColumnType::Mysql(MysqlType::Double));
        assert_eq!(literal(b"0.1", &double).as_deref(), Some("1e-1"));
        assert_eq!(literal(b"0.1", &float).as_deref(), Some("1.0000000149011612e-1"));
        assert_eq!(literal(b"inf", &double), None);
        assert_eq!(literal(b"\x00\xff", &ColumnType::Bytes).as_deref(), Some("x'00ff'"));
    }
}
