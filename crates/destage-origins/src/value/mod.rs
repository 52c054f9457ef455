//! Canonical values: what a column takes, and the one form in which cache, journal and replies hold it.
//!
//! The canonical form is the origin's own text form (fixed time zone and date style, exact decimals), raw bytes for
//! binary columns. `canonical(canonical(x)) == canonical(x)`, and a value read back from the origin after its destage is
//! byte for byte the value before it.

mod array;
pub(crate) mod bson;
mod decimal128;
mod float;
mod json;
mod mysql;
mod number;
mod numeric;
mod sqlite;
mod text;
mod time;

pub use float::{format_float4, format_float8, format_sqlite_real};
pub use mysql::MysqlType;
pub(crate) use sqlite::{Number as SqliteNumber, number as sqlite_number};

use std::borrow::Cow;

/// Which values a column takes and how they are written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ColumnType {
    /// Whole numbers within the bounds.
    Int {
        /// Smallest value.
        min: i64,
        /// Largest value.
        max: i64,
    },
    /// PostgreSQL `real`: shortest text that reads back the same.
    Float4,
    /// PostgreSQL `double precision`.
    Float8,
    /// SQLite REAL: always with a fraction or exponent, shortest text that reads back the same.
    SqliteReal,
    /// SQLite NUMERIC affinity (also DATE, BOOLEAN, DECIMAL, JSON): what looks like a number is one, whole where it can be
    /// (`1.50` is `1.5`, `2.0` is `2`); all else is text.
    SqliteNumeric,
    /// Exact decimals; without bounds where `precision` is `None` (then the scale given is kept).
    Numeric {
        /// Total digits and digits after the point.
        precision: Option<(u16, i16)>,
        /// Whether `NaN` is one of the values, as in PostgreSQL.
        has_nan: bool,
    },
    /// UTF-8 text without NUL.
    Text {
        /// Most characters.
        chars_max: Option<u32>,
    },
    /// PostgreSQL `char(n)`: padded with blanks to `n` characters.
    PaddedText {
        /// The width in characters.
        chars: u32,
    },
    /// Raw bytes.
    Bytes,
    /// `t` or `f`.
    Bool,
    /// Lower-case with dashes.
    Uuid,
    /// MongoDB's identifier: 24 hexadecimal digits in lower case.
    ObjectId,
    /// `YYYY-MM-DD`.
    Date,
    /// `HH:MM:SS[.ffffff]`, with at most `precision` digits of a second.
    Time {
        /// Digits after the second, 0 to 6.
        precision: u8,
    },
    /// `YYYY-MM-DD HH:MM:SS[.ffffff]`; with a zone: in UTC, followed by `+00`.
    Timestamp {
        /// Whether the instant is absolute.
        zone: bool,
        /// Digits after the second, 0 to 6.
        precision: u8,
    },
    /// Valid JSON, kept as written.
    Json,
    /// JSON in PostgreSQL's normal form: keys ordered by length, then bytes; the last of equal keys; `", "` and `": "`.
    Jsonb,
    /// An array of PostgreSQL of any dimensions, as PostgreSQL writes it.
    Array(Box<Self>),
    /// MongoDB's `decimal`: finite, of at most 34 digits, with the scale given.
    Decimal128,
    /// A value of MongoDB, its arrays only or any but null: compact JSON, what JSON has no form for in relaxed Extended
    /// JSON.
    Bson {
        /// Whether only arrays are taken.
        is_array: bool,
    },
    /// One of these labels.
    Enum(Vec<String>),
    /// A type that MariaDB has in its own form.
    Mysql(MysqlType),
    /// A type whose form only the origin knows: readable, not writable.
    Opaque,
}

/// A value does not fit its column.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ValueError(pub String);

impl ColumnType {
    /// Exact decimals of any size and scale.
    pub const DECIMAL: Self = Self::Numeric { precision: None, has_nan: false };

    /// The canonical form of `input`, borrowed where it is canonical already.
    ///
    /// # Errors
    /// [`ValueError`] says what the column takes, for a message that begins with the column's name.
    #[inline]
    pub fn canonical<'a>(&self, input: &'a [u8]) -> Result<Cow<'a, [u8]>, ValueError> {
        match self {
            Self::Text { chars_max } => text::text(input, *chars_max),
            Self::Int { min, max } => number::int(input, *min, *max),
            Self::Bytes => Ok(Cow::Borrowed(input)),
            _ => self.canonical_rare(input),
        }
    }

    fn canonical_rare<'a>(&self, input: &'a [u8]) -> Result<Cow<'a, [u8]>, ValueError> {
        let output = match self {
            Self::Text { .. } | Self::Int { .. } | Self::Bytes => return self.canonical(input),
            Self::Enum(labels) => return text::label(input, labels),
            Self::Mysql(ty) => return ty.canonical(input),
            Self::Json => return json::json(input),
            Self::Bool => return text::boolean(input),
            Self::PaddedText { chars } => return text::padded(input, *chars),
            Self::Float4 => format_float4(float::parse4(input)?),
            Self::Float8 => format_float8(float::parse8(input)?),
            Self::SqliteReal => format_sqlite_real(float::parse_sqlite(input)?),
            Self::SqliteNumeric => return sqlite::canonical(input),
            Self::Numeric { precision, has_nan } => {
                numeric::canonical(input, *precision, *has_nan)?
            }
            Self::Uuid => text::uuid(input)?,
            Self::ObjectId => text::object_id(input)?,
            Self::Date => time::date(input)?,
            Self::Time { precision } => time::time(input, *precision)?,
            Self::Timestamp { zone, precision } => time::timestamp(input, *zone, *precision)?,
            Self::Jsonb => json::jsonb(input)?,
            Self::Array(element) => array::canonical(input, element)?,
            Self::Decimal128 => decimal128::canonical(input)?,
            Self::Bson { is_array } => bson::canonical(input, *is_array)?,
            Self::Opaque => {
                return Err(ValueError(
                    "is readable but not writable through Destage: only the origin knows the \
                     form of its type"
                        .to_owned(),
                ));
            }
        };
        Ok(borrow_if_equal(input, output))
    }

    /// The type without a rule against negative values, for what such a rule does not concern.
    pub fn signed(&self) -> &Self {
        match self {
            Self::Mysql(MysqlType::Unsigned(signed)) => signed,
            _ => self,
        }
    }

    /// Whether sums of its values are the same in any grouping.
    pub fn is_exact(&self) -> bool {
        matches!(self.signed(), Self::Int { .. } | Self::Numeric { .. })
    }

    /// Whether amounts can be added to its values.
    pub fn is_number(&self) -> bool {
        match self {
            Self::Int { .. }
            | Self::Float4
            | Self::Float8
            | Self::SqliteReal
            | Self::SqliteNumeric
            | Self::Decimal128
            | Self::Numeric { .. } => true,
            Self::Mysql(ty) => ty.is_number(),
            _ => false,
        }
    }

    /// The form in which an amount is kept that values of this type are to grow by. Exact ones take the column's scale, so
    /// that they add up to the same value in any grouping.
    ///
    /// # Errors
    /// [`ValueError`] if the type is not numeric, or the amount is no finite number by which one of its values can grow.
    pub fn amount<'a>(&self, input: &'a [u8]) -> Result<Cow<'a, [u8]>, ValueError> {
        match self {
            // It may be negative where no value is.
            Self::Int { min, max } => {
                let most = max.saturating_sub(*min);
                number::int(input, most.saturating_neg(), most)
            }
            Self::Mysql(MysqlType::Unsigned(signed)) => signed.amount(input),
            _ => {
                self.add(b"0", input)?;
                self.canonical(input)
            }
        }
    }

    /// `value + amount` for HINCRBY and HINCRBYFLOAT, both canonical or (the amount) a plain decimal number; the result is
    /// canonical and equals what the origin computes for `column = column + amount`.
    ///
    /// # Errors
    /// [`ValueError`] if the type is not numeric, the amount is not a number of that type, or the sum leaves the range.
    pub fn add(&self, value: &[u8], amount: &[u8]) -> Result<Vec<u8>, ValueError> {
        match self {
            Self::Int { min, max } => number::add_int(value, amount, *min, *max),
            Self::Float4 => float::add4(value, amount).map(String::into_bytes),
            Self::Float8 => float::add8(value, amount).map(String::into_bytes),
            Self::SqliteReal => float::add_sqlite(value, amount).map(String::into_bytes),
            Self::SqliteNumeric => sqlite::add(value, amount),
            Self::Numeric { precision, .. } => {
                numeric::add(value, amount, *precision).map(String::into_bytes)
            }
            Self::Decimal128 => decimal128::add(value, amount).map(String::into_bytes),
            Self::Mysql(ty) => ty.add(value, amount),
            _ => Err(ValueError(NO_NUMBER.to_owned())),
        }
    }
}

/// Canonical values that were canonical already cost no copy to their holder.
fn borrow_if_equal(input: &[u8], output: String) -> Cow<'_, [u8]> {
    if output.as_bytes() == input { Cow::Borrowed(input) } else { Cow::Owned(output.into_bytes()) }
}

/// The error of a value that is not what the column takes.
fn refused(takes: &str, input: &[u8]) -> ValueError {
    ValueError(format!("takes {takes}, not {}", quoted(input)))
}

/// The error of an amount by which the column's value cannot grow; neither of the two is wrong by itself.
fn refused_sum(takes: &str, value: &[u8], amount: &[u8]) -> ValueError {
    let (value, amount) = (quoted(value), quoted(amount));
    ValueError(format!("holds {value} and takes {takes}: {amount} more leaves its range"))
}

/// A value as far as a message can bear.
fn quoted(input: &[u8]) -> String {
    let shown = &input[..input.len().min(SHOWN_BYTES_MAX)];
    let more = if shown.len() < input.len() { "..." } else { "" };
    format!("'{}'{more}", shown.escape_ascii())
}

/// The text of a value whose type ignores blanks around it, as PostgreSQL's numbers, dates and booleans do.
fn trimmed(input: &[u8]) -> &[u8] {
    let blank = |b: &u8| matches!(b, b' ' | b'\t'..=b'\r');
    let start = input.iter().position(|b| !blank(b)).unwrap_or(input.len());
    let end = input.iter().rposition(|b| !blank(b)).map_or(start, |last| last + 1);
    &input[start..end]
}

const NO_NUMBER: &str = "is not a number and cannot be incremented";
/// Bytes of a refused value that a message shows.
const SHOWN_BYTES_MAX: usize = 48;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sum_out_of_range_is_told_with_the_value_and_the_amount() {
        let cents = ColumnType::Numeric { precision: Some((6, 2)), has_nan: false };
        let unsigned = ColumnType::Mysql(MysqlType::Unsigned(Box::new(cents.clone())));
        let digits = "numbers of 6 digits, 2 of them after the point";
        for (ty, amount, takes) in [
            (&cents, "9999", digits),
            (&unsigned, "9999", digits),
            (&unsigned, "-9", "numbers from 0 on"),
        ] {
            let error = ty.add(b"4.00", amount.as_bytes()).unwrap_err().to_string();
            let told = format!("holds '4.00' and takes {takes}: '{amount}' more leaves its range");
            assert_eq!(error, told);
        }
        assert_eq!(unsigned.add(b"4.00", b"-4").unwrap(), b"0.00");
        let error = unsigned.canonical(b"-9").unwrap_err().to_string();
        assert_eq!(error, "takes numbers from 0 on, not '-9'");
    }

    #[test]
    fn amounts_are_finite_numbers_that_a_value_can_grow_by() {
        let int = ColumnType::Int { min: i64::MIN, max: i64::MAX };
        let byte = ColumnType::Int { min: 0, max: 255 };
        let cents = ColumnType::Numeric { precision: Some((10, 2)), has_nan: true };
        let unsigned = ColumnType::Mysql(MysqlType::Unsigned(Box::new(cents.clone())));
        for (ty, input, output) in [
            (&int, "5", Some("5")),
            (&int, "-9223372036854775807", Some("-9223372036854775807")),
            (&int, "abc", None),
            (&int, "1 WHERE 1 = 1", None),
            (&int, "", None),
            (&int, "1.5", None),
            (&byte, "-3", Some("-3")),
            (&byte, "256", None),
            (&cents, "0.105", Some("0.11")),
            (&cents, "NaN", None),
            (&cents, "inf", None),
            (&unsigned, "-0.105", Some("-0.11")),
            (&ColumnType::Float8, "0.50", Some("0.5")),
            (&ColumnType::Float8, "nan", None),
            (&ColumnType::SqliteReal, "2", Some("2.0")),
            (&ColumnType::SqliteNumeric, "12.50", Some("12.5")),
            (&ColumnType::SqliteNumeric, "many", None),
            (&ColumnType::Text { chars_max: None }, "5", None),
            (&ColumnType::Date, "1", None),
        ] {
            let amount = ty.amount(input.as_bytes()).ok();
            assert_eq!(amount.as_deref(), output.map(str::as_bytes), "{input} for {ty:?}");
        }
    }
}
