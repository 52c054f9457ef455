//! What MariaDB's types do in their own way: lengths in bytes, blanks and zeros at the end, sets of labels.

use super::{ColumnType, ValueError, float, refused, text, time};
use super::{format_float4, format_float8};
use std::borrow::Cow;

/// A type that only the MySQL family knows in this form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MysqlType {
    /// FLOAT: finite, otherwise as [`super::ColumnType::Float4`].
    Float,
    /// DOUBLE: finite, otherwise as [`super::ColumnType::Float8`].
    Double,
    /// DECIMAL, FLOAT or DOUBLE without negative values: as the type without UNSIGNED otherwise.
    Unsigned(Box<ColumnType>),
    /// Text whose blanks at the end do not count: CHAR, which drops them, and keys that are compared without them.
    Trimmed {
        /// Most characters.
        chars_max: u32,
    },
    /// TEXT and its like: UTF-8 text without NUL.
    Text {
        /// Most bytes.
        bytes_max: u32,
    },
    /// VARBINARY, BLOB and its like.
    Bytes {
        /// Most bytes.
        bytes_max: u32,
    },
    /// BINARY: filled with zero bytes up to its width.
    PaddedBytes {
        /// The width.
        bytes: u32,
    },
    /// SET: labels separated by commas, in the order of the type's declaration, each at most once.
    Set(Vec<String>),
    /// TIMESTAMP: an instant in UTC, followed by `+00`, from 1970-01-01 00:00:01 to 2038-01-19 03:14:07.
    Timestamp {
        /// Digits after the second, 0 to 6.
        precision: u8,
    },
}

impl MysqlType {
    pub(super) fn canonical<'a>(&self, input: &'a [u8]) -> Result<Cow<'a, [u8]>, ValueError> {
        let output = match self {
            // The server keeps no sign of a zero.
            Self::Float => {
                format_float4(finite(float::parse4(input)?, f32::is_finite, input)? + 0.0)
            }
            Self::Double => {
                format_float8(finite(float::parse8(input)?, f64::is_finite, input)? + 0.0)
            }
            Self::Unsigned(signed) => return not_negative(signed.canonical(input)?, input),
            Self::Trimmed { chars_max } => return text::text(trimmed(input), Some(*chars_max)),
            Self::Text { bytes_max } => {
                text::utf8(input)?;
                return sized(input, *bytes_max).map(Cow::Borrowed);
            }
            Self::Bytes { bytes_max } => return sized(input, *bytes_max).map(Cow::Borrowed),
            Self::PaddedBytes { bytes } => return padded(input, *bytes),
            Self::Set(labels) => set(input, labels)?,
            Self::Timestamp { precision } => timestamp(input, *precision)?,
        };
        Ok(super::borrow_if_equal(input, output))
    }

    pub(super) fn is_number(&self) -> bool {
        matches!(self, Self::Float | Self::Double | Self::Unsigned(_))
    }

    pub(super) fn add(&self, value: &[u8], amount: &[u8]) -> Result<Vec<u8>, ValueError> {
        let sum = match self {
            Self::Float => float::add4(value, amount)?,
            Self::Double => float::add8(value, amount)?,
            Self::Unsigned(signed) => {
                let sum = signed.add(value, amount)?;
                let below = || super::refused_sum(NOT_NEGATIVE, value, amount);
                return if sum.starts_with(b"-") { Err(below()) } else { Ok(sum) };
            }
            _ => return Err(ValueError(super::NO_NUMBER.to_owned())),
        };
        Ok(sum.into_bytes())
    }
}

fn finite<F: Copy>(value: F, is_finite: fn(F) -> bool, input: &[u8]) -> Result<F, ValueError> {
    if is_finite(value) { Ok(value) } else { Err(refused("finite numbers such as 1.5", input)) }
}

const NOT_NEGATIVE: &str = "numbers from 0 on";

/// A canonical number that a column without negative ones takes.
fn not_negative<'a>(number: Cow<'a, [u8]>, input: &[u8]) -> Result<Cow<'a, [u8]>, ValueError> {
    if number.starts_with(b"-") { Err(refused(NOT_NEGATIVE, input)) } else { Ok(number) }
}

fn trimmed(input: &[u8]) -> &[u8] {
    let end = input.iter().rposition(|&byte| byte != b' ').map_or(0, |last| last + 1);
    &input[..end]
}

fn sized(input: &[u8], bytes_max: u32) -> Result<&[u8], ValueError> {
    if input.len() > bytes_max as usize {
        return Err(ValueError(format!("takes at most {bytes_max} bytes, not {}", input.len())));
    }
    Ok(input)
}

fn padded(input: &[u8], bytes: u32) -> Result<Cow<'_, [u8]>, ValueError> {
    if sized(input, bytes)?.len() == bytes as usize {
        return Ok(Cow::Borrowed(input));
    }
    let mut out = input.to_vec();
    out.resize(bytes as usize, 0);
    Ok(Cow::Owned(out))
}

fn set(input: &[u8], labels: &[String]) -> Result<String, ValueError> {
    let mut given = vec![false; labels.len()];
    for part in input.split(|&byte| byte == b',').filter(|_| !input.is_empty()) {
        let label = text::label(part, labels)?;
        for (known, given) in labels.iter().zip(&mut given) {
            *given |= known.as_bytes() == &*label;
        }
    }
    let chosen: Vec<_> = labels.iter().zip(given).filter(|(_, given)| *given).collect();
    Ok(chosen.into_iter().map(|(label, _)| label.as_str()).collect::<Vec<_>>().join(","))
}

fn timestamp(input: &[u8], precision: u8) -> Result<String, ValueError> {
    let instant = time::timestamp(input, true, precision)?;
    let seconds = &instant[..FIRST_INSTANT.len()];
    if (FIRST_INSTANT..=LAST_INSTANT).contains(&seconds) {
        return Ok(instant);
    }
    Err(refused(&format!("instants from {FIRST_INSTANT} to {LAST_INSTANT} UTC"), input))
}

const FIRST_INSTANT: &str = "1970-01-01 00:00:01";
const LAST_INSTANT: &str = "2038-01-19 03:14:07";

#[cfg(test)]
mod tests {
    use super::*;

    fn canonical(ty: &MysqlType, input: &str) -> Option<String> {
        let once = ty.canonical(input.as_bytes()).ok()?;
        assert_eq!(ty.canonical(&once).as_ref(), Ok(&once), "{input}");
        Some(String::from_utf8(once.into_owned()).unwrap())
    }

    #[test]
    fn what_does_not_count_at_the_end_is_dropped_or_filled() {
        let char4 = MysqlType::Trimmed { chars_max: 4 };
        assert_eq!(canonical(&char4, "ab    ").as_deref(), Some("ab"));
        assert_eq!(canonical(&char4, "    ").as_deref(), Some(""));
        assert_eq!(canonical(&char4, "\u{e4}\u{f6}\u{fc}\u{df}").map(|s| s.len()), Some(8));
        assert_eq!(canonical(&char4, "abcde"), None);
        let binary = MysqlType::PaddedBytes { bytes: 4 };
        assert_eq!(canonical(&binary, "ab").as_deref(), Some("ab\0\0"));
        assert_eq!(canonical(&binary, "abcde"), None);
    }

    #[test]
    fn lengths_are_in_bytes_where_the_server_counts_bytes() {
        let text = MysqlType::Text { bytes_max: 4 };
        assert_eq!(canonical(&text, "\u{e4}\u{f6}").as_deref(), Some("\u{e4}\u{f6}"));
        assert_eq!(canonical(&text, "\u{e4}\u{f6}x"), None);
        assert!(MysqlType::Bytes { bytes_max: 2 }.canonical(b"\xff\0").is_ok());
        assert!(MysqlType::Bytes { bytes_max: 2 }.canonical(b"\xff\0\0").is_err());
    }

    #[test]
    fn sets_have_one_order() {
        let set = MysqlType::Set(["red", "green", "blue"].map(str::to_owned).to_vec());
        for (input, output) in [
            ("blue,red", Some("red,blue")),
            ("red,red", Some("red")),
            ("", Some("")),
            ("red,", None),
            ("Red", None),
            ("grey", None),
        ] {
            assert_eq!(canonical(&set, input).as_deref(), output, "{input}");
        }
    }

    #[test]
    fn what_the_server_cannot_hold_is_refused() {
        assert_eq!(canonical(&MysqlType::Double, "inf"), None);
        assert_eq!(canonical(&MysqlType::Float, "nan"), None);
        assert_eq!(canonical(&MysqlType::Double, "-0").as_deref(), Some("0"));
        assert_eq!(canonical(&MysqlType::Float, "0.10").as_deref(), Some("0.1"));
        let instant = MysqlType::Timestamp { precision: 0 };
        assert_eq!(canonical(&instant, "1970-01-01 00:00:00"), None);
        assert_eq!(canonical(&instant, "2038-01-19 03:14:08"), None);
        let shown = canonical(&instant, "2026-01-31 13:37:00.4+02");
        assert_eq!(shown.as_deref(), Some("2026-01-31 11:37:00+00"));
    }
}
