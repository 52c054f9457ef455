//! MongoDB's `decimal`: IEEE 754-2008 decimal128, finite and never rounded. How it is written tells its scale, so `1.50` and
//! `1.5` stay apart.
//!
//! *Source:* BSON Decimal128, of MongoDB's specifications.

use super::{ValueError, refused, refused_sum, trimmed};
use mongodb::bson::Decimal128;

/// The one text of a number of that scale.
pub(super) fn canonical(input: &[u8]) -> Result<String, ValueError> {
    let number = std::str::from_utf8(trimmed(input)).ok().filter(|text| is_number(text));
    let number = number.and_then(|text| text.parse::<Decimal128>().ok());
    number.map(|number| number.to_string()).ok_or_else(|| refused(NUMBERS, input))
}

/// `value + amount`, exactly, with the scale of the one that has more digits after the point.
pub(super) fn add(value: &[u8], amount: &[u8]) -> Result<String, ValueError> {
    let sum = Number::read(value)?.plus(Number::read(amount)?);
    sum.and_then(Number::text).ok_or_else(|| refused_sum(NUMBERS, value, amount))
}

/// Digits with a point and an exponent: the driver takes more than that.
fn is_number(text: &str) -> bool {
    let text = text.strip_prefix(['-', '+']).unwrap_or(text);
    let (digits, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
    let exponent = exponent.strip_prefix(['-', '+']).unwrap_or(exponent);
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let are_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    are_digits(whole)
        && are_digits(fraction)
        && are_digits(exponent)
        && !exponent.is_empty()
        && !(whole.is_empty() && fraction.is_empty())
}

/// `digits * 10^exponent`.
#[derive(Clone, Copy)]
struct Number {
    negative: bool,
    digits: u128,
    exponent: i32,
}

impl Number {
    fn read(input: &[u8]) -> Result<Self, ValueError> {
        let text = canonical(input)?;
        Self::of(&text).ok_or_else(|| refused(NUMBERS, input))
    }

    /// The number of a canonical text.
    fn of(text: &str) -> Option<Self> {
        let (negative, text) = match text.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, text),
        };
        let (digits, exponent) = text.split_once('E').unwrap_or((text, "0"));
        let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
        let exponent: i32 = exponent.parse().ok()?;
        let decimals = i32::try_from(fraction.len()).ok()?;
        let digits = format!("{whole}{fraction}").parse().ok()?;
        Some(Self { negative, digits, exponent: exponent - decimals })
    }

    /// The canonical text; `None` if there is no such number.
    fn text(self) -> Option<String> {
        let Self { negative, digits, exponent } = self;
        let sign = if negative { "-" } else { "" };
        canonical(format!("{sign}{digits}E{exponent}").as_bytes()).ok()
    }

    /// The exact sum; `None` if it has too many digits.
    fn plus(self, other: Self) -> Option<Self> {
        let preferred = self.exponent.min(other.exponent);
        let (a, b) = match (self.digits, other.digits) {
            // Nothing has no digits to line up.
            (0, 0) => (self.at(preferred)?, other.at(preferred)?),
            (0, _) => return Some(other.towards(preferred)),
            (_, 0) => return Some(self.towards(preferred)),
            _ => {
                let (a, b) = (self.bare(), other.bare());
                let common = a.exponent.min(b.exponent);
                (a.at(common)?, b.at(common)?)
            }
        };
        let (negative, digits) = if a.negative == b.negative {
            (a.negative, a.digits.checked_add(b.digits)?)
        } else if a.digits > b.digits {
            (a.negative, a.digits - b.digits)
        } else {
            (b.negative && a.digits != b.digits, b.digits - a.digits)
        };
        let sum = Self { negative, digits, exponent: a.exponent }.bare();
        (sum.digits < DIGITS_END).then(|| sum.towards(preferred))
    }

    /// Without zeros at its end.
    fn bare(mut self) -> Self {
        while self.digits != 0 && self.digits.is_multiple_of(10) {
            self.digits /= 10;
            self.exponent += 1;
        }
        self
    }

    /// The same number with a smaller exponent; `None` if its digits are far too many then.
    fn at(mut self, exponent: i32) -> Option<Self> {
        let zeros = u32::try_from(self.exponent - exponent).ok()?;
        if self.digits != 0 {
            self.digits = 10_u128.checked_pow(zeros)?.checked_mul(self.digits)?;
        }
        self.exponent = exponent;
        Some(self)
    }

    /// The same number with that exponent, or the next one at which the digits are not too many.
    fn towards(mut self, preferred: i32) -> Self {
        if self.digits == 0 {
            self.exponent = preferred;
        }
        while self.exponent > preferred && self.digits < DIGITS_END / 10 {
            self.digits *= 10;
            self.exponent -= 1;
        }
        self
    }
}

const NUMBERS: &str = "finite decimal numbers of at most 34 digits, such as 12.50 or 1E+40";
/// The first number with more than 34 digits.
const DIGITS_END: u128 = 10_u128.pow(34);

#[cfg(test)]
mod tests {
    use super::*;
    use mongodb::bson::{doc, serialize_to_vec};

    #[test]
    fn decimals_are_written_as_the_specification_has_them() {
        for (input, output) in [
            ("1.50", "1.50"),
            ("+007", "7"),
            (".5", "0.5"),
            ("5.", "5"),
            ("-0", "-0"),
            ("-0.00", "-0.00"),
            ("1e3", "1E+3"),
            ("12.5e1", "125"),
            ("1.05E+3", "1.05E+3"),
            ("0.000001", "0.000001"),
            ("0.0000001", "1E-7"),
            (" 12 ", "12"),
            (
                "9.999999999999999999999999999999999E+6144",
                "9.999999999999999999999999999999999E+6144",
            ),
            ("1E-6176", "1E-6176"),
            ("12345678901234567890123456789012340", "1.234567890123456789012345678901234E+34"),
        ] {
            assert_eq!(canonical(input.as_bytes()).as_deref(), Ok(output), "{input}");
            assert_eq!(canonical(output.as_bytes()).as_deref(), Ok(output), "{input}");
        }
    }

    #[test]
    fn what_is_no_such_number_is_refused() {
        for input in [
            "",
            ".",
            "-",
            "+-5",
            "-+5",
            ".+5",
            "1e",
            "e5",
            "1e+",
            "1,5",
            "0x1",
            "1_0",
            "NaN",
            "inf",
            "-Infinity",
            "sNaN",
            "1E+6145",
            "1E-6177",
            "12345678901234567890123456789012345",
            "1.2.3",
            "\u{661}",
        ] {
            let error = canonical(input.as_bytes()).unwrap_err().to_string();
            assert!(error.contains("34 digits"), "{input}: {error}");
        }
    }

    #[test]
    fn the_bytes_are_those_of_the_specification() {
        for (text, bytes) in [
            ("0", "00000000000000000000000000004030"),
            ("-0", "000000000000000000000000000040b0"),
            ("1", "01000000000000000000000000004030"),
            ("-1", "010000000000000000000000000040b0"),
            ("0.1", "01000000000000000000000000003e30"),
            ("0.001234", "d2040000000000000000000000003430"),
            ("1E+3", "01000000000000000000000000004630"),
            ("9.999999999999999999999999999999999E+6144", "ffffffff638e8d37c087adbe09edff5f"),
            ("1E-6176", "01000000000000000000000000000000"),
        ] {
            let decimal: Decimal128 = text.parse().unwrap();
            let document = serialize_to_vec(&doc! { "d": decimal }).unwrap();
            let hex: String = document[7..23].iter().map(|byte| format!("{byte:02x}")).collect();
            assert_eq!((document[4], hex.as_str()), (0x13, bytes), "{text}");
            assert_eq!(decimal.to_string(), text);
        }
    }

    #[test]
    fn sums_are_exact_or_refused() {
        let plus = |a: &str, b: &str| add(a.as_bytes(), b.as_bytes()).ok();
        for (a, b, sum) in [
            ("0.1", "0.20", Some("0.30")),
            ("1.00", "-1", Some("0.00")),
            ("-1.00", "1", Some("0.00")),
            ("-0", "-0", Some("-0")),
            ("-0", "0.0", Some("0.0")),
            ("1E+3", "1E+3", Some("2E+3")),
            ("1E+3", "0", Some("1000")),
            ("999", "1", Some("1000")),
            ("-5", "3.5", Some("-1.5")),
            ("1E+33", "1", Some("1000000000000000000000000000000001")),
            ("1E+34", "1", None),
            ("1E+34", "10", Some("1.000000000000000000000000000000001E+34")),
            ("1E+34", "0.0", Some("1.000000000000000000000000000000000E+34")),
            (
                "9999999999999999999999999999999999",
                "1",
                Some("1.000000000000000000000000000000000E+34"),
            ),
            ("9.999999999999999999999999999999999E+6144", "1E+6111", None),
            ("1E+6000", "1E-6000", None),
            ("0E+6000", "0E-6000", Some("0E-6000")),
            ("1E+6000", "-1E+6000", Some("0E+6000")),
        ] {
            assert_eq!(plus(a, b).as_deref(), sum, "{a} + {b}");
            assert_eq!(plus(b, a).as_deref(), sum, "{b} + {a}");
        }
        let error = add(b"1E+34", b"1").unwrap_err().to_string();
        assert!(error.starts_with("holds '1E+34' and takes finite decimal"), "{error}");
        assert!(add(b"NaN", b"1").is_err() && add(b"1", b"inf").is_err());
    }
}
