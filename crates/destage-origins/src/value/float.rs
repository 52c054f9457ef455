//! Binary floating point: the shortest text that reads back as the same number, laid out as PostgreSQL and SQLite do.

use super::{ValueError, refused, trimmed};

/// A `double precision` as PostgreSQL writes it.
pub fn format_float8(value: f64) -> String {
    special(value).map_or_else(
        || layout(&Shortest::of(value, format!("{value:e}"), DOUBLE), DOUBLE.fixed_below, false),
        str::to_owned,
    )
}

/// A `real` as PostgreSQL writes it.
pub fn format_float4(value: f32) -> String {
    special(f64::from(value)).map_or_else(
        || {
            let shortest = Shortest::of(value, format!("{value:e}"), SINGLE);
            layout(&shortest, SINGLE.fixed_below, false)
        },
        str::to_owned,
    )
}

/// A REAL of SQLite: always with a fraction. Zero has no sign, since SQLite keeps none. Not for NaN, which SQLite turns
/// into NULL.
pub fn format_sqlite_real(value: f64) -> String {
    if value.is_infinite() {
        return if value > 0.0 { "Inf" } else { "-Inf" }.to_owned();
    }
    let value = if value == 0.0 { 0.0 } else { value };
    layout(&Shortest::parse(&format!("{value:e}")), DOUBLE.fixed_below, true)
}

pub(super) fn parse8(input: &[u8]) -> Result<f64, ValueError> {
    let number = number(input)?;
    let value: f64 = number.parse().map_err(|_| refused(NUMBERS, input))?;
    in_range(value.is_finite(), value == 0.0, number, input)?;
    Ok(value)
}

pub(super) fn parse4(input: &[u8]) -> Result<f32, ValueError> {
    let number = number(input)?;
    let value: f32 = number.parse().map_err(|_| refused(NUMBERS, input))?;
    in_range(value.is_finite(), value == 0.0, number, input)?;
    Ok(value)
}

pub(super) fn parse_sqlite(input: &[u8]) -> Result<f64, ValueError> {
    let value = parse8(input)?;
    if value.is_nan() { Err(refused(NUMBERS, input)) } else { Ok(value) }
}

pub(super) fn add8(value: &[u8], amount: &[u8]) -> Result<String, ValueError> {
    let (value, amount) = (parse8(value)?, parse8(finite(amount)?)?);
    let sum = value + amount;
    if sum.is_infinite() && value.is_finite() {
        return Err(overflow(value, amount));
    }
    Ok(format_float8(sum))
}

pub(super) fn add4(value: &[u8], amount: &[u8]) -> Result<String, ValueError> {
    let (value, amount) = (parse4(value)?, parse4(finite(amount)?)?);
    let sum = value + amount;
    if sum.is_infinite() && value.is_finite() {
        return Err(overflow(f64::from(value), f64::from(amount)));
    }
    Ok(format_float4(sum))
}

pub(super) fn add_sqlite(value: &[u8], amount: &[u8]) -> Result<String, ValueError> {
    let (value, amount) = (parse_sqlite(value)?, parse_sqlite(finite(amount)?)?);
    let sum = value + amount;
    if sum.is_infinite() && value.is_finite() {
        return Err(overflow(value, amount));
    }
    Ok(format_sqlite_real(sum))
}

fn overflow(value: f64, amount: f64) -> ValueError {
    ValueError(format!("holds {value:e}; {amount:e} more leaves its range"))
}

/// An amount is a plain number: what infinity does to a counter, nobody means.
fn finite(amount: &[u8]) -> Result<&[u8], ValueError> {
    if amount.iter().any(|b| b.is_ascii_digit()) {
        Ok(amount)
    } else {
        Err(refused("amounts that are finite numbers", amount))
    }
}

/// The text of a number in a spelling that both Rust and the C library read alike.
fn number(input: &[u8]) -> Result<&str, ValueError> {
    std::str::from_utf8(trimmed(input)).map_err(|_| refused(NUMBERS, input))
}

/// Refuses what only rounds to zero or infinity, as PostgreSQL does.
fn in_range(finite: bool, zero: bool, number: &str, input: &[u8]) -> Result<(), ValueError> {
    let mantissa = number.split(['e', 'E']).next().unwrap_or(number);
    let overflowed = !finite && number.bytes().any(|b| b.is_ascii_digit());
    let vanished = zero && mantissa.bytes().any(|b| matches!(b, b'1'..=b'9'));
    if overflowed || vanished {
        return Err(refused("numbers within the range of its floating-point type", input));
    }
    Ok(())
}

fn special(value: f64) -> Option<&'static str> {
    if value.is_nan() {
        Some("NaN")
    } else if value.is_infinite() {
        Some(if value > 0.0 { "Infinity" } else { "-Infinity" })
    } else {
        None
    }
}

/// A binary format.
#[derive(Clone, Copy)]
struct Format {
    /// Significant bits of the middle between two neighbours.
    middle_bits: u32,
    /// Digits that always suffice.
    digits_max: usize,
    /// The decimal exponent from which on PostgreSQL writes an exponent.
    fixed_below: i32,
}

/// The shortest decimal of a number: `0.d1d2d3... * 10^(exponent + 1)`.
struct Shortest {
    negative: bool,
    digits: String,
    exponent: i32,
}

impl Shortest {
    /// Rust's shortest decimal may lie exactly in the middle between two neighbours, which reads back by rounding to
    /// even. PostgreSQL takes one digit more in that case, so that readers which round otherwise agree. And where the number
    /// lies in the middle between two decimals of that length, PostgreSQL takes the even one.
    fn of<F>(value: F, shortest: String, format: Format) -> Self
    where
        F: std::fmt::LowerExp + std::str::FromStr + PartialEq,
    {
        let found = Self::parse(&shortest);
        let usable = |text: &str| {
            let read = text.parse::<F>().is_ok_and(|read| read == value);
            Some(Self::parse(text)).filter(|s| read && !s.is_middle(format.middle_bits))
        };
        let same_length = found.digits.len() - 1;
        if let Some(even) = usable(&format!("{value:.same_length$e}")) {
            return even;
        }
        if !found.is_middle(format.middle_bits) {
            return found;
        }
        (same_length + 1..format.digits_max)
            .find_map(|decimals| usable(&format!("{value:.decimals$e}")))
            .unwrap_or(found)
    }

    /// Reads `-d.ddde-7`.
    fn parse(text: &str) -> Self {
        let (mantissa, exponent) = text.split_once('e').expect("written with an exponent");
        let digits: String = mantissa.chars().filter(char::is_ascii_digit).collect();
        let kept = digits.trim_end_matches('0').len().max(1);
        Self {
            negative: mantissa.starts_with('-'),
            digits: digits[..kept].to_owned(),
            exponent: exponent.parse().expect("a small decimal exponent"),
        }
    }

    /// Whether the decimal has exactly one bit more than the format holds, so that it lies between two neighbours. The
    /// decimal is `digits * 10^power`; beyond these powers the odd part cannot be that short.
    fn is_middle(&self, bits: u32) -> bool {
        let power = self.exponent + 1 - self.digits.len() as i32;
        let Ok(mut odd) = self.digits.parse::<u128>() else { return false };
        if !(-2..=23).contains(&power) || odd == 0 {
            return false;
        }
        for _ in power..0 {
            if !odd.is_multiple_of(5) {
                return false;
            }
            odd /= 5;
        }
        for _ in 0..power {
            odd *= 5;
        }
        odd >>= odd.trailing_zeros();
        128 - odd.leading_zeros() == bits
    }
}

/// Digits and exponent as text: plain from 1e-4 up to `fixed_below`, else with an exponent of at least two digits.
fn layout(shortest: &Shortest, fixed_below: i32, fraction: bool) -> String {
    let Shortest { negative, digits, exponent } = shortest;
    let mut out = String::with_capacity(24);
    if *negative {
        out.push('-');
    }
    if !(-4..fixed_below).contains(exponent) {
        out.push_str(&digits[..1]);
        if digits.len() > 1 || fraction {
            out.push('.');
            out.push_str(if digits.len() > 1 { &digits[1..] } else { "0" });
        }
        let sign = if *exponent < 0 { '-' } else { '+' };
        out.push_str(&format!("e{sign}{:02}", exponent.unsigned_abs()));
        return out;
    }
    let Ok(exponent) = usize::try_from(*exponent) else {
        out.push_str("0.");
        out.extend(std::iter::repeat_n('0', exponent.unsigned_abs() as usize - 1));
        out.push_str(digits);
        return out;
    };
    let whole = exponent + 1;
    if digits.len() > whole {
        out.push_str(&digits[..whole]);
        out.push('.');
        out.push_str(&digits[whole..]);
    } else {
        out.push_str(digits);
        out.extend(std::iter::repeat_n('0', whole - digits.len()));
        if fraction {
            out.push_str(".0");
        }
    }
    out
}

const NUMBERS: &str = "numbers such as 1.5 or 1e-3";
const DOUBLE: Format = Format { middle_bits: 54, digits_max: 17, fixed_below: 15 };
const SINGLE: Format = Format { middle_bits: 25, digits_max: 9, fixed_below: 6 };

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubles_are_written_as_postgresql_writes_them() {
        for (value, text) in [
            (0.0, "0"),
            (-0.0, "-0"),
            (1.0, "1"),
            (0.1, "0.1"),
            (1e14, "100000000000000"),
            (1e15, "1e+15"),
            (123456789012345680.0, "1.2345678901234568e+17"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (1e100, "1e+100"),
            (5e-324, "5e-324"),
            (-2.5, "-2.5"),
            (f64::NAN, "NaN"),
            (f64::NEG_INFINITY, "-Infinity"),
        ] {
            assert_eq!(format_float8(value), text);
        }
    }

    #[test]
    fn sqlite_reals_always_show_a_fraction() {
        for (value, text) in
            [(0.0, "0.0"), (-0.0, "0.0"), (3.0, "3.0"), (1e23, "1.0e+23"), (2.5e-7, "2.5e-07")]
        {
            assert_eq!(format_sqlite_real(value), text);
            assert_eq!(parse_sqlite(text.as_bytes()).unwrap(), value);
        }
    }

    #[test]
    fn what_rounds_to_zero_or_infinity_is_refused() {
        for input in ["1e400", "-1e400", "1e-400", "", ".", "1e", "abc", "0x10", "1 2"] {
            assert!(parse8(input.as_bytes()).is_err(), "{input}");
        }
        assert!(parse4(b"1e39").is_err());
        assert_eq!(parse8(b"0e-400").unwrap(), 0.0);
        assert_eq!(parse8(b" inf ").unwrap(), f64::INFINITY);
    }

    #[test]
    fn sums_round_in_the_columns_own_precision() {
        assert_eq!(add8(b"0.1", b"0.2").unwrap(), "0.30000000000000004");
        assert_eq!(add4(b"0.1", b"0.2").unwrap(), "0.3");
        assert!(add8(b"1e308", b"1e308").is_err());
        assert!(add8(b"1", b"inf").is_err());
        assert!(add_sqlite(b"1.0", b"nan").is_err());
    }
}
