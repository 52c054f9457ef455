//! Columns of SQLite with NUMERIC affinity (DECIMAL, BOOLEAN, DATE, JSON and every other type name without a rule of its
//! own): SQLite stores what looks like a number as a number, a whole one as an integer, and everything else as text.

use super::{ValueError, format_sqlite_real, text, trimmed};
use std::borrow::Cow;

/// What a column with NUMERIC affinity makes of a text.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Number {
    Int(i64),
    Real(f64),
}

impl Number {
    fn text(self) -> String {
        match self {
            Self::Int(value) => value.to_string(),
            Self::Real(value) => format_sqlite_real(value),
        }
    }

    fn of(value: f64) -> Self {
        // Whole numbers inside the range become integers; its ends themselves do not.
        if value.fract() == 0.0 && value.abs() < -(i64::MIN as f64) {
            Self::Int(value as i64)
        } else {
            Self::Real(value)
        }
    }
}

/// The number that the text is to SQLite, or `None` where it stays text.
pub(crate) fn number(input: &[u8]) -> Option<Number> {
    let text = trimmed(input);
    if !is_literal(text) {
        return None;
    }
    let text = std::str::from_utf8(text).ok()?;
    match text.parse() {
        Ok(int) => Some(Number::Int(int)),
        Err(_) => text.parse().ok().map(Number::of),
    }
}

pub(super) fn canonical(input: &[u8]) -> Result<Cow<'_, [u8]>, ValueError> {
    match number(input) {
        None => text::text(input, None),
        Some(Number::Real(value)) if value.is_infinite() => Err(super::refused(RANGE, input)),
        Some(number) => Ok(super::borrow_if_equal(input, number.text())),
    }
}

pub(super) fn add(value: &[u8], amount: &[u8]) -> Result<Vec<u8>, ValueError> {
    let number = |bytes| number(bytes).ok_or_else(|| super::refused(RANGE, bytes));
    let float = |number| match number {
        Number::Int(int) => int as f64,
        Number::Real(real) => real,
    };
    let (value, amount) = (number(value)?, number(amount)?);
    let sum = match (value, amount) {
        (Number::Int(a), Number::Int(b)) => a.checked_add(b).map(Number::Int),
        _ => Some(Number::of(float(value) + float(amount))),
    };
    match sum {
        Some(Number::Real(sum)) if !sum.is_finite() => None,
        sum => sum,
    }
    .map(|sum| sum.text().into_bytes())
    .ok_or_else(|| ValueError("would leave the range of SQLite's numbers".to_owned()))
}

/// `[+-] digits [. digits] [e [+-] digits]`, with a digit on at least one side of the point.
fn is_literal(text: &[u8]) -> bool {
    let unsigned =
        |text: &[u8]| text.len() - usize::from(matches!(text.first(), Some(b'+' | b'-')));
    let all_digits = |text: &[u8]| !text.is_empty() && text.iter().all(u8::is_ascii_digit);
    let (mantissa, exponent) = match text.iter().position(|b| matches!(b, b'e' | b'E')) {
        Some(at) => (&text[..at], Some(&text[at + 1..])),
        None => (text, None),
    };
    let mantissa = &mantissa[mantissa.len() - unsigned(mantissa)..];
    let digits = match mantissa.iter().position(|&b| b == b'.') {
        Some(at) => {
            let (whole, part) = (&mantissa[..at], &mantissa[at + 1..]);
            (all_digits(whole) && (part.is_empty() || all_digits(part)))
                || (whole.is_empty() && all_digits(part))
        }
        None => all_digits(mantissa),
    };
    digits && exponent.is_none_or(|e| all_digits(&e[e.len() - unsigned(e)..]))
}

const RANGE: &str = "a number within the range of a double, or text";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_text_are_told_apart_as_sqlite_does() {
        for (input, output) in [
            ("007", "7"),
            (" 12 ", "12"),
            ("12.50", "12.5"),
            ("12.0", "12"),
            ("1e3", "1000"),
            (".5", "0.5"),
            ("5.", "5"),
            ("-0.0", "0"),
            ("+4", "4"),
            ("2024-01-31", "2024-01-31"),
            ("1_000", "1_000"),
            ("inf", "inf"),
            ("1e", "1e"),
            ("", ""),
            ("9223372036854775807", "9223372036854775807"),
            ("-9223372036854775808", "-9223372036854775808"),
        ] {
            let once = canonical(input.as_bytes()).unwrap();
            assert_eq!(once, output.as_bytes(), "{input}");
            assert_eq!(canonical(&once).unwrap(), once, "{input}");
        }
        assert!(canonical(b"1e999").is_err());
    }

    #[test]
    fn sums_stay_whole_where_they_can() {
        assert_eq!(add(b"1", b"2").unwrap(), b"3");
        assert_eq!(add(b"1.5", b"2.5").unwrap(), b"4");
        assert_eq!(add(b"1", b"0.25").unwrap(), b"1.25");
        assert!(add(b"9223372036854775807", b"1").is_err());
        assert!(add(b"many", b"1").is_err());
    }
}
