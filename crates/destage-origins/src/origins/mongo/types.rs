//! The types that fields are declared with, and values between their canonical form and BSON.

use crate::cells::{Cell, push_cell};
use crate::contract::OriginError;
use crate::schema::Column;
use crate::value::{ColumnType, MysqlType, bson};
use destage_core::Fault;
use mongodb::bson::oid::ObjectId;
use mongodb::bson::spec::BinarySubtype;
use mongodb::bson::{Binary, Bson, DateTime};

/// The type of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    String,
    Int,
    Long,
    Double,
    Decimal,
    Bool,
    Date,
    ObjectId,
    Binary,
    Array,
    /// Whatever is there, as JSON.
    Json,
}

/// Every kind with its name, which is BSON's own where there is one.
const NAMES: [(&str, Kind); 11] = [
    ("string", Kind::String),
    ("int", Kind::Int),
    ("long", Kind::Long),
    ("double", Kind::Double),
    ("decimal", Kind::Decimal),
    ("bool", Kind::Bool),
    ("date", Kind::Date),
    ("objectId", Kind::ObjectId),
    ("binData", Kind::Binary),
    ("array", Kind::Array),
    ("json", Kind::Json),
];

impl Kind {
    /// The kind of that name.
    pub(super) fn named(name: &str) -> Option<Self> {
        NAMES.iter().find(|(known, _)| *known == name).map(|(_, kind)| *kind)
    }

    pub(super) fn name(self) -> &'static str {
        NAMES.iter().find(|(_, kind)| *kind == self).map_or("json", |(name, _)| name)
    }

    /// All names, for messages.
    pub(super) fn names() -> String {
        NAMES.map(|(name, _)| name).join(", ")
    }

    /// Whether documents can be found by it.
    pub(super) fn is_key(self) -> bool {
        matches!(self, Self::String | Self::Int | Self::Long | Self::ObjectId)
    }

    /// The kind of a column that the catalogue has made.
    pub(super) fn of(column: &Column) -> Self {
        Self::named(&column.type_name).unwrap_or(Self::Json)
    }

    pub(super) fn column_type(self) -> ColumnType {
        match self {
            Self::String => ColumnType::Text { chars_max: None },
            Self::Int => ColumnType::Int { min: i64::from(i32::MIN), max: i64::from(i32::MAX) },
            Self::Long => ColumnType::Int { min: i64::MIN, max: i64::MAX },
            // Finite, and without the sign of a zero: what FerretDB holds too.
            Self::Double => ColumnType::Mysql(MysqlType::Double),
            Self::Decimal => ColumnType::Decimal128,
            Self::Bool => ColumnType::Bool,
            Self::Date => ColumnType::Timestamp { zone: true, precision: 3 },
            Self::ObjectId => ColumnType::ObjectId,
            Self::Binary => ColumnType::Bytes,
            Self::Array => ColumnType::Bson { is_array: true },
            Self::Json => ColumnType::Bson { is_array: false },
        }
    }

    /// A canonical value as BSON; `None` if it is not one.
    fn encoded(self, value: &[u8]) -> Option<Bson> {
        if self == Self::Binary {
            let bytes = value.to_vec();
            return Some(Bson::Binary(Binary { subtype: BinarySubtype::Generic, bytes }));
        }
        let text = std::str::from_utf8(value).ok()?;
        Some(match self {
            Self::String => Bson::String(text.to_owned()),
            Self::Int => Bson::Int32(text.parse().ok()?),
            Self::Long => Bson::Int64(text.parse().ok()?),
            Self::Double => Bson::Double(text.parse().ok()?),
            Self::Decimal => Bson::Decimal128(text.parse().ok()?),
            Self::Bool => Bson::Boolean(text == "t"),
            Self::Date => Bson::DateTime(instant(text)?),
            Self::ObjectId => Bson::ObjectId(ObjectId::parse_str(text).ok()?),
            Self::Array | Self::Json => return bson::parse(value).ok(),
            Self::Binary => return None,
        })
    }

    /// The canonical form of a value that the database holds; `None` if it is of another type.
    fn decoded(self, value: &Bson) -> Option<Vec<u8>> {
        let text = match (self, value) {
            (Self::String, Bson::String(text)) => text.clone(),
            (Self::Int | Self::Long, value) => integer(value)?.to_string(),
            (Self::Double, Bson::Double(number)) => number.to_string(),
            (Self::Double, Bson::Int32(number)) => number.to_string(),
            (Self::Double, Bson::Int64(number)) => number.to_string(),
            (Self::Decimal, Bson::Decimal128(number)) => number.to_string(),
            (Self::Decimal, Bson::Int32(number)) => number.to_string(),
            (Self::Decimal, Bson::Int64(number)) => number.to_string(),
            (Self::Bool, Bson::Boolean(value)) => if *value { "t" } else { "f" }.to_owned(),
            (Self::Date, Bson::DateTime(instant)) => instant.try_to_rfc3339_string().ok()?,
            (Self::ObjectId, Bson::ObjectId(id)) => id.to_hex(),
            (Self::Binary, Bson::Binary(binary)) => return Some(binary.bytes.clone()),
            (Self::Array, Bson::Array(_)) | (Self::Json, _) => {
                return Some(bson::text(value).into_bytes());
            }
            _ => return None,
        };
        let canonical = self.column_type().canonical(text.as_bytes()).map(|value| value.to_vec());
        // What is not canonical (a NUL in a text, say) was not written by us; it is shown as it is.
        Some(canonical.unwrap_or_else(|_| text.into_bytes()))
    }
}

/// A whole number, in whatever type it is held.
pub(super) fn integer(value: &Bson) -> Option<i64> {
    match value {
        Bson::Int32(number) => Some(i64::from(*number)),
        Bson::Int64(number) => Some(*number),
        Bson::Double(number) if number.fract() == 0.0 && number.abs() <= EXACT_MAX => {
            Some(*number as i64)
        }
        _ => None,
    }
}

/// Whole numbers up to here are exact in a double.
const EXACT_MAX: f64 = 9_007_199_254_740_992.0;

/// `2026-01-31 13:37:00.25+00`, the canonical form.
fn instant(text: &str) -> Option<DateTime> {
    let (date, time) = text.strip_suffix("+00")?.split_once(' ')?;
    DateTime::parse_rfc3339_str(format!("{date}T{time}Z")).ok()
}

/// A canonical value of a column as BSON.
///
/// # Errors
/// [`Fault::Failed`]: the value is not of the column's type, which the engine checks before.
pub(super) fn to_bson(column: &Column, value: &[u8]) -> Result<Bson, OriginError> {
    Kind::of(column).encoded(value).ok_or_else(|| unfit(column, value))
}

/// An amount to add, which need not fit the column.
///
/// # Errors
/// As for [`to_bson`].
pub(super) fn amount_to_bson(column: &Column, amount: &[u8]) -> Result<Bson, OriginError> {
    let kind = Kind::of(column);
    let number = kind.encoded(amount).or_else(|| Kind::Long.encoded(amount));
    let is_number = matches!(kind, Kind::Int | Kind::Long | Kind::Double);
    number.filter(|_| is_number).ok_or_else(|| unfit(column, amount))
}

fn unfit(column: &Column, value: &[u8]) -> OriginError {
    let message = format!(
        "the field {} ({}) cannot hold '{}'",
        column.name,
        column.type_name,
        value[..value.len().min(SHOWN_BYTES_MAX)].escape_ascii()
    );
    OriginError::new(Fault::Failed, message)
}

/// Appends a field's value as read. What is of another type than declared is shown as JSON; commands that need the declared
/// type refuse it then.
pub(super) fn push_read(out: &mut Vec<u8>, column: &Column, value: Option<&Bson>) {
    let Some(value) = value.filter(|value| **value != Bson::Null) else {
        return push_cell(out, Cell::Null);
    };
    match Kind::of(column).decoded(value) {
        Some(bytes) => push_cell(out, Cell::Value(&bytes)),
        None => push_cell(out, Cell::Value(bson::text(value).as_bytes())),
    }
}

/// A key as encoded cells; `None` if the document's `_id` is of another type than declared, so that no key reaches it.
pub(super) fn key_cells(column: &Column, id: &Bson) -> Option<Box<[u8]>> {
    let value = Kind::of(column).decoded(id)?;
    let canonical = column.ty.canonical(&value).ok()?;
    let mut out = Vec::new();
    push_cell(&mut out, Cell::Value(&canonical));
    Some(out.into_boxed_slice())
}

/// Bytes of a value that a message shows.
const SHOWN_BYTES_MAX: usize = 48;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::ColumnDefault;

    fn column(kind: Kind) -> Column {
        Column {
            name: "field".into(),
            sql_name: "field".into(),
            ty: kind.column_type(),
            type_name: kind.name().into(),
            not_null: false,
            default: ColumnDefault::None,
            generated: false,
            structural: false,
            checked: false,
        }
    }

    fn read(kind: Kind, value: &Bson) -> Vec<u8> {
        let mut out = Vec::new();
        push_read(&mut out, &column(kind), Some(value));
        crate::cells::Reader::new(&out).cell().unwrap().value().unwrap().to_vec()
    }

    #[test]
    fn values_come_back_as_they_were_written() {
        for (kind, inputs) in [
            (Kind::String, &["", "a", "\u{e4}\u{1f980}", "1.0"][..]),
            (Kind::Int, &["0", "-2147483648", "+7"]),
            (Kind::Long, &["9223372036854775807", "-9223372036854775808"]),
            (Kind::Double, &["0.1", "-0", "1e300", "5", "2.5e-7", "123456789012345680"]),
            (Kind::Bool, &["true", "0"]),
            (
                Kind::Decimal,
                &["1.50", "-0.00", "1e40", "0.1", "9999999999999999999999999999999999"],
            ),
            (
                Kind::Date,
                &[
                    "2026-01-31 13:37",
                    "1969-12-31 23:59:59.999",
                    "0001-01-01",
                    "9999-12-31T23:59:59Z",
                ],
            ),
            (Kind::ObjectId, &["65A0C3D2E1F0A1B2C3D4E5F6"]),
            (Kind::Binary, &["", "\0\n"]),
            (
                Kind::Array,
                &["[]", r#"[ "a", {"b" : [2.50, null]}, {"$date":"2026-01-31T00:00:00Z"} ]"#],
            ),
            (Kind::Json, &["[]", "1", "{}", r#"{"b":1,"a":{"$oid":"65A0C3D2E1F0A1B2C3D4E5F6"}}"#]),
        ] {
            for input in inputs {
                let canonical = kind.column_type().canonical(input.as_bytes()).unwrap();
                let bson = to_bson(&column(kind), &canonical).unwrap();
                assert_eq!(read(kind, &bson), &*canonical, "{kind:?} {input}");
            }
        }
    }

    #[test]
    fn numbers_of_other_types_are_numbers_and_everything_else_is_json() {
        assert_eq!(read(Kind::Int, &Bson::Int64(5)), b"5");
        assert_eq!(read(Kind::Long, &Bson::Double(5.0)), b"5");
        assert_eq!(read(Kind::Double, &Bson::Int32(5)), b"5");
        assert_eq!(read(Kind::Decimal, &Bson::Int64(5)), b"5");
        assert_eq!(read(Kind::Decimal, &Bson::Double(0.5)), b"0.5");
        let infinite = Bson::Decimal128("-inf".parse().unwrap());
        assert_eq!(read(Kind::Decimal, &infinite), b"-Infinity");
        assert_eq!(read(Kind::Long, &Bson::Double(5.5)), b"5.5");
        assert_eq!(read(Kind::Long, &Bson::String("5".into())), b"\"5\"");
        let array = Bson::Array(vec![Bson::Int32(1), Bson::String("x".into())]);
        assert_eq!(read(Kind::Json, &array), b"[1,\"x\"]");
        assert_eq!(read(Kind::String, &array), b"[1,\"x\"]");
        assert_eq!(read(Kind::Array, &array), b"[1,\"x\"]");
        assert_eq!(read(Kind::Array, &Bson::String("[]".into())), b"\"[]\"");
        let bytes = vec![0xff];
        let binary = Bson::Binary(Binary { subtype: BinarySubtype::Generic, bytes });
        let shown = br#"{"$binary":{"base64":"/w==","subType":"00"}}"#;
        assert_eq!(read(Kind::Array, &binary), shown);
        assert_eq!(read(Kind::String, &binary), shown);
    }

    #[test]
    fn amounts_are_whole_or_not_as_their_field_is() {
        assert_eq!(amount_to_bson(&column(Kind::Int), b"-7").unwrap(), Bson::Int32(-7));
        let beyond = amount_to_bson(&column(Kind::Int), b"4294967295").unwrap();
        assert_eq!(beyond, Bson::Int64(4_294_967_295));
        assert_eq!(amount_to_bson(&column(Kind::Double), b"1").unwrap(), Bson::Double(1.0));
        amount_to_bson(&column(Kind::String), b"1").unwrap_err();
        amount_to_bson(&column(Kind::Json), b"1").unwrap_err();
    }
}
