//! Exact decimals with PostgreSQL's rules: the scale given is kept, a column's own scale rounds half away from zero.

use super::{ValueError, refused, refused_sum, trimmed};

/// The canonical form for a column of that precision and scale.
pub(super) fn canonical(
    input: &[u8],
    precision: Option<(u16, i16)>,
    has_nan: bool,
) -> Result<String, ValueError> {
    match parse(input)? {
        Number::NaN if has_nan => Ok("NaN".to_owned()),
        Number::NaN => Err(refused("finite decimal numbers", input)),
        Number::Infinity { .. } if precision.is_some() => {
            Err(refused("finite decimal numbers", input))
        }
        Number::Infinity { negative } => Ok(infinity(negative)),
        Number::Finite(decimal) => fit(decimal, precision).map_err(|takes| refused(&takes, input)),
    }
}

/// `value + amount`, then rounded as the column rounds.
pub(super) fn add(
    value: &[u8],
    amount: &[u8],
    precision: Option<(u16, i16)>,
) -> Result<String, ValueError> {
    let Number::Finite(more) = parse(amount)? else {
        return Err(refused("amounts that are finite numbers", amount));
    };
    match parse(value)? {
        Number::NaN => Ok("NaN".to_owned()),
        Number::Infinity { negative } => Ok(infinity(negative)),
        Number::Finite(decimal) => {
            fit(decimal.plus(more), precision).map_err(|takes| refused_sum(&takes, value, amount))
        }
    }
}

enum Number {
    Finite(Decimal),
    Infinity { negative: bool },
    NaN,
}

/// `digits / 10^scale`; the digits (values 0 to 9) have no leading zeros, zero has none at all.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Decimal {
    negative: bool,
    digits: Vec<u8>,
    scale: usize,
}

fn infinity(negative: bool) -> String {
    if negative { "-Infinity" } else { "Infinity" }.to_owned()
}

fn parse(input: &[u8]) -> Result<Number, ValueError> {
    let text = trimmed(input);
    let (negative, rest) = match text.split_first() {
        Some((b'-', rest)) => (true, rest),
        Some((b'+', rest)) => (false, rest),
        _ => (false, text),
    };
    if text.eq_ignore_ascii_case(b"nan") {
        return Ok(Number::NaN);
    }
    if rest.eq_ignore_ascii_case(b"infinity") || rest.eq_ignore_ascii_case(b"inf") {
        return Ok(Number::Infinity { negative });
    }
    parse_finite(negative, rest).map(Number::Finite).ok_or_else(|| refused(NUMBERS, input))
}

fn parse_finite(negative: bool, text: &[u8]) -> Option<Decimal> {
    let split = text.iter().position(|b| matches!(b, b'e' | b'E'));
    let (mantissa, exponent) = match split {
        Some(at) => (&text[..at], Some(&text[at + 1..])),
        None => (text, None),
    };
    let exponent: i64 = match exponent {
        None => 0,
        Some(digits) => std::str::from_utf8(digits).ok()?.parse().ok()?,
    };
    let point = mantissa.iter().position(|&b| b == b'.');
    let decimals = point.map_or(0, |at| mantissa.len() - at - 1);
    let mut digits = Vec::with_capacity(mantissa.len());
    for (at, &byte) in mantissa.iter().enumerate() {
        if Some(at) == point {
            continue;
        }
        digits.push(byte.is_ascii_digit().then(|| byte - b'0')?);
    }
    if digits.is_empty() || exponent.abs() > EXPONENT_MAX {
        return None;
    }
    let scale = decimals as i64 - exponent;
    if scale < 0 {
        digits.resize(digits.len() + scale.unsigned_abs() as usize, 0);
    }
    let decimal = Decimal { negative, digits, scale: usize::try_from(scale).unwrap_or(0) };
    let decimal = decimal.normal();
    let whole = decimal.digits.len().saturating_sub(decimal.scale);
    (whole <= WHOLE_DIGITS_MAX && decimal.scale <= SCALE_MAX).then_some(decimal)
}

/// Rounds to the column's scale and checks its precision; else what the column takes.
fn fit(mut decimal: Decimal, precision: Option<(u16, i16)>) -> Result<String, String> {
    let Some((digits_max, scale)) = precision else { return Ok(decimal.text()) };
    // The column holds whole multiples of 10^-scale of at most `digits_max` digits.
    let mut units = decimal.rounded(i64::from(scale));
    if units.len() > usize::from(digits_max) {
        return Err(format!("numbers of {digits_max} digits, {scale} of them after the point"));
    }
    if scale < 0 && !units.is_empty() {
        units.resize(units.len() + usize::from(scale.unsigned_abs()), 0);
    }
    decimal.digits = units;
    decimal.scale = usize::try_from(scale).unwrap_or(0);
    Ok(decimal.normal().text())
}

impl Decimal {
    fn normal(mut self) -> Self {
        let zeros = self.digits.iter().take_while(|&&d| d == 0).count();
        self.digits.drain(..zeros);
        self.negative &= !self.digits.is_empty();
        self
    }

    /// The digits of `self * 10^scale`, rounded half away from zero, without leading zeros.
    fn rounded(&self, scale: i64) -> Vec<u8> {
        let mut digits = self.digits.clone();
        let surplus = self.scale as i64 - scale;
        if surplus <= 0 {
            if !digits.is_empty() {
                digits.resize(digits.len() + surplus.unsigned_abs() as usize, 0);
            }
            return digits;
        }
        let surplus = surplus as usize;
        if surplus > digits.len() {
            return Vec::new();
        }
        let kept = digits.len() - surplus;
        let up = digits[kept] >= 5;
        digits.truncate(kept);
        if up {
            increment(&mut digits);
        }
        digits
    }

    fn plus(self, other: Self) -> Self {
        let scale = self.scale.max(other.scale);
        let (a, b) = (self.rounded(scale as i64), other.rounded(scale as i64));
        let (negative, digits) = if self.negative == other.negative {
            (self.negative, sum(&a, &b))
        } else if greater(&a, &b) {
            (self.negative, difference(&a, &b))
        } else {
            (other.negative, difference(&b, &a))
        };
        Self { negative, digits, scale }.normal()
    }

    fn text(&self) -> String {
        let mut out = String::with_capacity(self.digits.len() + 3);
        if self.negative {
            out.push('-');
        }
        let digit = |&d: &u8| char::from(b'0' + d);
        let whole = self.digits.len().saturating_sub(self.scale);
        if whole == 0 {
            out.push('0');
        }
        out.extend(self.digits[..whole].iter().map(digit));
        if self.scale > 0 {
            out.push('.');
            let zeros = self.scale - (self.digits.len() - whole);
            out.extend(std::iter::repeat_n('0', zeros));
            out.extend(self.digits[whole..].iter().map(digit));
        }
        out
    }
}

fn increment(digits: &mut Vec<u8>) {
    for digit in digits.iter_mut().rev() {
        if *digit < 9 {
            *digit += 1;
            return;
        }
        *digit = 0;
    }
    digits.insert(0, 1);
}

/// Whether `a` exceeds `b`, both without leading zeros.
fn greater(a: &[u8], b: &[u8]) -> bool {
    a.len() > b.len() || (a.len() == b.len() && a > b)
}

fn sum(a: &[u8], b: &[u8]) -> Vec<u8> {
    let mut out = vec![0; a.len().max(b.len()) + 1];
    let mut carry = 0;
    for (at, digit) in out.iter_mut().rev().enumerate() {
        let total = nth_last(a, at) + nth_last(b, at) + carry;
        *digit = total % 10;
        carry = total / 10;
    }
    out
}

/// `a - b`, where `a` is not smaller.
fn difference(a: &[u8], b: &[u8]) -> Vec<u8> {
    let mut out = vec![0; a.len()];
    let mut borrow = 0;
    for (at, digit) in out.iter_mut().rev().enumerate() {
        let total = 10 + nth_last(a, at) - nth_last(b, at) - borrow;
        *digit = total % 10;
        borrow = 1 - total / 10;
    }
    out
}

fn nth_last(digits: &[u8], at: usize) -> u8 {
    digits.len().checked_sub(at + 1).map_or(0, |index| digits[index])
}

const NUMBERS: &str = "decimal numbers such as 12.50";
/// PostgreSQL's limits for an unbounded `numeric`.
const WHOLE_DIGITS_MAX: usize = 131_072;
const SCALE_MAX: usize = 16_383;
/// Keeps a short input from growing without bound.
const EXPONENT_MAX: i64 = 16_383;

#[cfg(test)]
mod tests {
    use super::*;

    fn free(input: &str) -> Option<String> {
        canonical(input.as_bytes(), None, true).ok()
    }

    #[test]
    fn the_scale_given_is_kept() {
        for (input, output) in [
            ("1.50", "1.50"),
            ("-0.00", "0.00"),
            ("+007.", "7"),
            (".5", "0.5"),
            ("1e3", "1000"),
            ("1.5e1", "15"),
            ("1.25e1", "12.5"),
            ("12e-4", "0.0012"),
            ("-0.001", "-0.001"),
            ("nan", "NaN"),
            ("-inf", "-Infinity"),
        ] {
            assert_eq!(free(input).as_deref(), Some(output), "{input}");
        }
        for input in ["", ".", "e5", "1e", "1.2.3", "1e99999", "0x1", "1_000", "--1", "-nan"] {
            assert_eq!(free(input), None, "{input}");
        }
    }

    #[test]
    fn columns_round_half_away_from_zero_and_pad() {
        let column = |input: &str, p, s| canonical(input.as_bytes(), Some((p, s)), true).ok();
        assert_eq!(column("1", 10, 2).as_deref(), Some("1.00"));
        assert_eq!(column("1.005", 10, 2).as_deref(), Some("1.01"));
        assert_eq!(column("-1.005", 10, 2).as_deref(), Some("-1.01"));
        assert_eq!(column("-0.004", 10, 2).as_deref(), Some("0.00"));
        assert_eq!(column("9.995", 3, 2), None);
        assert_eq!(column("9.994", 3, 2).as_deref(), Some("9.99"));
        assert_eq!(column("149", 2, -2).as_deref(), Some("100"));
        assert_eq!(column("49", 2, -2).as_deref(), Some("0"));
        assert_eq!(column("0.00345", 2, 4).as_deref(), Some("0.0035"));
        assert_eq!(column("0.01", 2, 4), None);
        assert_eq!(column("inf", 10, 2), None);
        assert_eq!(column("nan", 10, 2).as_deref(), Some("NaN"));
        assert!(canonical(b"nan", Some((10, 2)), false).is_err());
    }

    #[test]
    fn sums_are_exact_and_take_the_larger_scale() {
        let plus = |a: &str, b: &str| add(a.as_bytes(), b.as_bytes(), None).unwrap();
        assert_eq!(plus("0.1", "0.20"), "0.30");
        assert_eq!(plus("1.00", "-1"), "0.00");
        assert_eq!(plus("-5", "3.5"), "-1.5");
        assert_eq!(plus("999", "1"), "1000");
        assert_eq!(plus("1000", "-1"), "999");
        assert_eq!(add(b"1.00", b"0.005", Some((10, 2))).unwrap(), "1.01");
        assert!(add(b"9.99", b"0.01", Some((3, 2))).is_err());
        assert!(add(b"1", b"inf", None).is_err());
    }
}
