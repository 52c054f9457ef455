//! Whole numbers.

use super::{ValueError, refused, trimmed};
use std::borrow::Cow;

/// The canonical form of a whole number within the bounds: no sign but a minus, no leading zeros.
#[inline]
pub(super) fn int(input: &[u8], min: i64, max: i64) -> Result<Cow<'_, [u8]>, ValueError> {
    if let Some(value) = plain(input)
        && (min..=max).contains(&value)
    {
        return Ok(Cow::Borrowed(input));
    }
    let value = parse(input, min, max)?;
    let mut buffer = itoa::Buffer::new();
    let output = buffer.format(value).as_bytes();
    Ok(if output == input { Cow::Borrowed(input) } else { Cow::Owned(output.to_vec()) })
}

/// `value + amount` within the bounds.
pub(super) fn add_int(
    value: &[u8],
    amount: &[u8],
    min: i64,
    max: i64,
) -> Result<Vec<u8>, ValueError> {
    // An amount may be negative where no value is.
    let (value, amount) = (parse(value, min, max)?, parse(amount, i64::MIN, i64::MAX)?);
    let sum =
        value.checked_add(amount).filter(|sum| (min..=max).contains(sum)).ok_or_else(|| {
            ValueError(format!("holds {value}; {amount} more leaves its range from {min} to {max}"))
        })?;
    Ok(itoa::Buffer::new().format(sum).as_bytes().to_vec())
}

/// A number of at most 18 digits that is canonical already: the common case, decided in one pass.
#[inline]
fn plain(input: &[u8]) -> Option<i64> {
    let (negative, digits) = match input.split_first()? {
        (b'-', digits) => (true, digits),
        _ => (false, input),
    };
    let first = *digits.first()?;
    if digits.len() > 18 || (first == b'0' && (negative || digits.len() > 1)) {
        return None;
    }
    let mut value = 0i64;
    for &byte in digits {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        value = value * 10 + i64::from(digit);
    }
    Some(if negative { -value } else { value })
}

/// Any spelling that PostgreSQL takes: blanks around, a plus sign, leading zeros.
fn parse(input: &[u8], min: i64, max: i64) -> Result<i64, ValueError> {
    std::str::from_utf8(trimmed(input))
        .ok()
        .and_then(|text| text.parse::<i64>().ok())
        .filter(|value| (min..=max).contains(value))
        .ok_or_else(|| refused(&format!("whole numbers from {min} to {max}"), input))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn canonical(input: &str) -> Option<String> {
        let output = int(input.as_bytes(), i64::MIN, i64::MAX).ok()?;
        Some(String::from_utf8(output.into_owned()).unwrap())
    }

    #[test]
    fn one_spelling_for_each_number() {
        for (input, output) in [
            ("0", "0"),
            ("-0", "0"),
            ("+7", "7"),
            (" 007\n", "7"),
            ("-12", "-12"),
            ("9223372036854775807", "9223372036854775807"),
            ("-9223372036854775808", "-9223372036854775808"),
            ("000000000000000000000000000000001", "1"),
        ] {
            assert_eq!(canonical(input).as_deref(), Some(output), "{input}");
        }
        for input in ["", " ", "-", "+", "1.0", "1e3", "0x10", "9223372036854775808", "1 2", "--1"]
        {
            assert_eq!(canonical(input), None, "{input}");
        }
    }

    #[test]
    fn canonical_numbers_are_borrowed() {
        for input in ["0", "42", "-42", "999999999999999999", "-9223372036854775808"] {
            let output = int(input.as_bytes(), i64::MIN, i64::MAX).unwrap();
            assert!(matches!(output, Cow::Borrowed(_)), "{input}");
        }
    }

    #[test]
    fn bounds_hold_for_values_amounts_and_sums() {
        assert!(int(b"32768", -32768, 32767).is_err());
        assert!(int(b"-32768", -32768, 32767).is_ok());
        assert_eq!(add_int(b"32766", b"1", -32768, 32767).unwrap(), b"32767");
        assert!(add_int(b"32766", b"2", -32768, 32767).is_err());
        assert!(add_int(b"9223372036854775807", b"1", i64::MIN, i64::MAX).is_err());
        assert!(add_int(b"1", b"1.5", i64::MIN, i64::MAX).is_err());
        assert_eq!(add_int(b"3", b"-3", 0, 255).unwrap(), b"0");
        assert!(add_int(b"3", b"-4", 0, 255).is_err());
    }
}
