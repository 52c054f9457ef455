//! Values on their way: cells to the arrays that multi-row statements take, and back from what a query returns.
//!
//! Types with a simple binary form travel in it, the others as text that the server casts. Casts never name a length or
//! precision: an explicit cast would cut silently, the assignment to the column refuses.

use crate::cells::{Cell, push_cell, push_varint};
use crate::contract::OriginError;
use crate::dml::Parameter;
use crate::schema::Column;
use crate::value::{ColumnType, format_float4, format_float8};
use destage_core::Fault;
use std::borrow::Cow;
use std::error::Error;
use tokio_postgres::types::private::BytesMut;
use tokio_postgres::types::{Format, FromSql, IsNull, ToSql, Type, to_sql_checked};

/// How the values of a column are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    Int2,
    Int4,
    Int8,
    Float4,
    Float8,
    Bool,
    Bytea,
    Uuid,
    Text,
}

impl Form {
    /// The form of a column's values or, for an increment, of its amounts. The sum of several amounts may exceed the
    /// column's own type where no single sum does.
    pub(super) fn of(ty: &ColumnType, increment: bool) -> Self {
        match *ty {
            ColumnType::Int { .. } if increment => Self::Int8,
            ColumnType::Int { min, max } => {
                if min >= i64::from(i16::MIN) && max <= i64::from(i16::MAX) {
                    Self::Int2
                } else if min >= i64::from(i32::MIN) && max <= i64::from(i32::MAX) {
                    Self::Int4
                } else {
                    Self::Int8
                }
            }
            ColumnType::Float4 => Self::Float4,
            ColumnType::Float8 | ColumnType::SqliteReal => Self::Float8,
            ColumnType::Bool => Self::Bool,
            ColumnType::Bytes => Self::Bytea,
            ColumnType::Uuid => Self::Uuid,
            _ => Self::Text,
        }
    }

    fn element(self) -> Type {
        match self {
            Self::Int2 => Type::INT2,
            Self::Int4 => Type::INT4,
            Self::Int8 => Type::INT8,
            Self::Float4 => Type::FLOAT4,
            Self::Float8 => Type::FLOAT8,
            Self::Bool => Type::BOOL,
            Self::Bytea => Type::BYTEA,
            Self::Uuid => Type::UUID,
            Self::Text => Type::TEXT,
        }
    }

    /// The array type of the form, and its name in SQL.
    pub(super) fn array(self) -> (Type, &'static str) {
        match self {
            Self::Int2 => (Type::INT2_ARRAY, "int2[]"),
            Self::Int4 => (Type::INT4_ARRAY, "int4[]"),
            Self::Int8 => (Type::INT8_ARRAY, "int8[]"),
            Self::Float4 => (Type::FLOAT4_ARRAY, "float4[]"),
            Self::Float8 => (Type::FLOAT8_ARRAY, "float8[]"),
            Self::Bool => (Type::BOOL_ARRAY, "bool[]"),
            Self::Bytea => (Type::BYTEA_ARRAY, "bytea[]"),
            Self::Uuid => (Type::UUID_ARRAY, "uuid[]"),
            Self::Text => (Type::TEXT_ARRAY, "text[]"),
        }
    }
}

/// The type to cast a value to that was sent as text; `None` where its own form fits.
pub(super) fn cast(column: &Column) -> Option<Cow<'_, str>> {
    Some(Cow::Borrowed(match column.ty {
        ColumnType::Array(ref element) => {
            let name = &column.type_name;
            return Some(match **element {
                ColumnType::Enum(_) => Cow::Borrowed(name),
                _ => Cow::Owned(format!("pg_catalog.{name}")),
            });
        }
        ColumnType::Numeric { .. } => "pg_catalog.numeric",
        ColumnType::PaddedText { .. } => "pg_catalog.bpchar",
        ColumnType::Date => "pg_catalog.date",
        ColumnType::Time { .. } => "pg_catalog.time",
        ColumnType::Timestamp { zone: false, .. } => "pg_catalog.timestamp",
        ColumnType::Timestamp { zone: true, .. } => "pg_catalog.timestamptz",
        ColumnType::Json => "pg_catalog.json",
        ColumnType::Jsonb => "pg_catalog.jsonb",
        ColumnType::Enum(_) => return Some(Cow::Borrowed(&column.type_name)),
        _ => return None,
    }))
}

/// An expression cast as the column needs it.
pub(super) fn casted(expression: &str, column: &Column) -> String {
    match cast(column) {
        Some(ty) => format!("{expression}::{ty}"),
        None => expression.to_owned(),
    }
}

/// The expression that reads a column of the table alias `t`.
pub(super) fn selected(column: &Column) -> String {
    let binary = match column.ty {
        ColumnType::Text { .. } | ColumnType::PaddedText { .. } | ColumnType::Json => true,
        ref ty => Form::of(ty, false) != Form::Text,
    };
    format!("t.{}{}", column.sql_name, if binary { "" } else { "::text" })
}

/// A one-dimensional array in its binary form, built element by element.
#[derive(Debug)]
pub(super) struct Array {
    form: Form,
    bytes: Vec<u8>,
    len: i32,
    has_null: bool,
}

impl Array {
    pub(super) fn new(form: Form, rows: usize) -> Self {
        let mut bytes = Vec::with_capacity(HEADER_BYTES + rows * 16);
        bytes.resize(HEADER_BYTES, 0);
        Self { form, bytes, len: 0, has_null: false }
    }

    pub(super) fn push(&mut self, cell: Cell<'_>, column: &Column) -> Result<(), OriginError> {
        self.len += 1;
        let value = match cell {
            Cell::Value(value) => value,
            Cell::Null => {
                self.has_null = true;
                self.bytes.extend_from_slice(&(-1i32).to_be_bytes());
                return Ok(());
            }
            Cell::Unknown => return Err(unfit(column)),
        };
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&[0; 4]);
        push_value(&mut self.bytes, self.form, value).ok_or_else(|| unfit(column))?;
        let len = i32::try_from(self.bytes.len() - start - 4).map_err(|_| unfit(column))?;
        self.bytes[start..start + 4].copy_from_slice(&len.to_be_bytes());
        Ok(())
    }

    /// The finished parameter.
    pub(super) fn finish(mut self) -> Param {
        let header =
            [1, i32::from(self.has_null), self.form.element().oid().cast_signed(), self.len, 1];
        for (slot, value) in self.bytes.as_chunks_mut::<4>().0.iter_mut().zip(header) {
            *slot = value.to_be_bytes();
        }
        Param::scalar(Some(self.bytes))
    }
}

fn push_value(out: &mut Vec<u8>, form: Form, value: &[u8]) -> Option<()> {
    let text = || std::str::from_utf8(value).ok();
    match form {
        Form::Text | Form::Bytea => out.extend_from_slice(value),
        Form::Int2 => out.extend_from_slice(&text()?.parse::<i16>().ok()?.to_be_bytes()),
        Form::Int4 => out.extend_from_slice(&text()?.parse::<i32>().ok()?.to_be_bytes()),
        Form::Int8 => out.extend_from_slice(&text()?.parse::<i64>().ok()?.to_be_bytes()),
        Form::Float4 => out.extend_from_slice(&text()?.parse::<f32>().ok()?.to_be_bytes()),
        Form::Float8 => out.extend_from_slice(&text()?.parse::<f64>().ok()?.to_be_bytes()),
        Form::Bool => out.push(u8::from(value == b"t")),
        Form::Uuid => {
            let bits = u128::from_str_radix(&text()?.replace('-', ""), 16).ok()?;
            out.extend_from_slice(&bits.to_be_bytes());
        }
    }
    Some(())
}

/// A parameter in its binary form or as text, or NULL.
#[derive(Debug)]
pub(super) struct Param {
    bytes: Option<Vec<u8>>,
    is_text: bool,
}

impl Param {
    pub(super) fn scalar(bytes: Option<Vec<u8>>) -> Self {
        Self { bytes, is_text: false }
    }

    /// The parameter of raw SQL, as the text that the server reads by the type it has found for it.
    pub(super) fn raw(parameter: Parameter<'_>) -> Self {
        let bytes = match parameter {
            Parameter::Null => None,
            Parameter::Text(text) => Some(text.as_bytes().to_vec()),
            Parameter::Integer(number) => Some(number.to_string().into_bytes()),
            Parameter::Real(number) => Some(format!("{number:?}").into_bytes()),
            Parameter::Bytes(bytes) => {
                let digits = bytes.iter().map(|byte| format!("{byte:02x}"));
                Some(format!("\\x{}", digits.collect::<String>()).into_bytes())
            }
        };
        Self { bytes, is_text: true }
    }
}

impl ToSql for Param {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        let Some(bytes) = &self.bytes else { return Ok(IsNull::Yes) };
        out.extend_from_slice(bytes);
        Ok(IsNull::No)
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    fn encode_format(&self, _: &Type) -> Format {
        if self.is_text { Format::Text } else { Format::Binary }
    }

    to_sql_checked!();
}

/// The parameters as the client takes them.
pub(super) fn refs(params: &[Param]) -> Vec<&(dyn ToSql + Sync)> {
    params.iter().map(|param| param as &(dyn ToSql + Sync)).collect()
}

/// The bytes of a result's value as they came.
pub(super) struct Raw<'a>(pub(super) &'a [u8]);

impl<'a> FromSql<'a> for Raw<'a> {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn Error + Sync + Send>> {
        Ok(Self(raw))
    }

    fn accepts(_: &Type) -> bool {
        true
    }
}

/// Appends the cell of a value that [`selected`] read; `None` if its bytes are not of the column's type.
pub(super) fn push_read(out: &mut Vec<u8>, ty: &ColumnType, raw: Option<Raw<'_>>) -> Option<()> {
    let Some(Raw(raw)) = raw else {
        push_cell(out, Cell::Null);
        return Some(());
    };
    match ty {
        ColumnType::Int { .. } => {
            let value = match *raw {
                [a, b] => i64::from(i16::from_be_bytes([a, b])),
                [a, b, c, d] => i64::from(i32::from_be_bytes([a, b, c, d])),
                _ => i64::from_be_bytes(raw.try_into().ok()?),
            };
            push_cell(out, Cell::Value(itoa::Buffer::new().format(value).as_bytes()));
        }
        ColumnType::Float4 => {
            let value = f32::from_be_bytes(raw.try_into().ok()?);
            push_cell(out, Cell::Value(format_float4(value).as_bytes()));
        }
        ColumnType::Float8 => {
            let value = f64::from_be_bytes(raw.try_into().ok()?);
            push_cell(out, Cell::Value(format_float8(value).as_bytes()));
        }
        ColumnType::Bool => push_cell(out, Cell::Value(if raw == [0] { b"f" } else { b"t" })),
        ColumnType::Uuid => push_uuid(out, raw.try_into().ok()?),
        _ => push_cell(out, Cell::Value(raw)),
    }
    Some(())
}

fn push_uuid(out: &mut Vec<u8>, bytes: [u8; 16]) {
    push_varint(out, 36 + 2);
    for (at, byte) in bytes.iter().enumerate() {
        if matches!(at, 4 | 6 | 8 | 10) {
            out.push(b'-');
        }
        out.extend([byte >> 4, byte & 15].map(|digit| HEX[usize::from(digit)]));
    }
}

fn unfit(column: &Column) -> OriginError {
    let Column { name, type_name, .. } = column;
    let message = format!("the value of column {name} is not of type {type_name}");
    OriginError::new(Fault::Rejected, message)
}

const HEX: &[u8; 16] = b"0123456789abcdef";
/// Dimensions, null flag, element type, length and lower bound, four bytes each.
const HEADER_BYTES: usize = 20;
