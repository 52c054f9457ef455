//! Numbers as scripts read and write them: floating point ones of 64 bits, as in Lua 5.1.

/// A number as Lua reads it, with blanks around it.
pub(super) fn number(text: &[u8]) -> Option<f64> {
    let is_blank = |byte: &u8| byte.is_ascii_whitespace() || *byte == 0x0b;
    let start = text.iter().position(|byte| !is_blank(byte))?;
    let end = text.iter().rposition(|byte| !is_blank(byte))?;
    let text = std::str::from_utf8(&text[start..=end]).ok()?;
    let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
    if let Some(digits) = unsigned.strip_prefix("0x").or_else(|| unsigned.strip_prefix("0X")) {
        if !digits.starts_with(|c: char| c.is_ascii_hexdigit()) {
            return None;
        }
        let number = u64::from_str_radix(digits, 16).ok()? as f64;
        return Some(if text.starts_with('-') { -number } else { number });
    }
    let is_of_number = |byte: u8| byte.is_ascii_digit() || b"+-.eE".contains(&byte);
    if text.bytes().all(is_of_number) { text.parse().ok() } else { None }
}

/// A number as a command gets it: whole ones without a fraction, others with 17 digits, which are all that it has.
pub(super) fn argument(number: f64) -> String {
    match whole(number) {
        Some(whole) => whole.to_string(),
        None => general(number, 17),
    }
}

/// The whole number that a number is, unless it is too large to be sure.
fn whole(number: f64) -> Option<i64> {
    let is_small = number.abs() <= (i64::MAX / 2) as f64;
    (is_small && number.fract() == 0.0).then_some(number as i64)
}

/// A number as Lua shows it.
pub(super) fn shown(number: f64) -> String {
    general(number, 14)
}

/// As `%.Ng` of C, N being the number of digits.
fn general(number: f64, digits: usize) -> String {
    if !number.is_finite() {
        let sign = if number.is_sign_negative() { "-" } else { "" };
        return format!("{sign}{}", if number.is_nan() { "nan" } else { "inf" });
    }
    let scientific = format!("{number:.*e}", digits - 1);
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let without_zeros = |text: &str| {
        let text = if text.contains('.') { text.trim_end_matches('0') } else { text };
        text.strip_suffix('.').unwrap_or(text).to_owned()
    };
    if exponent < -4 || exponent >= digits as i32 {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{}e{sign}{:02}", without_zeros(mantissa), exponent.abs());
    }
    without_zeros(&format!("{number:.*}", (digits as i32 - 1 - exponent) as usize))
}

/// A number as a reply tells it: without its fraction.
pub(super) fn replied(number: f64) -> i64 {
    // What has no whole number is the least one, as on most machines in C.
    let is_in_range = (-(2_f64.powi(63))..2_f64.powi(63)).contains(&number);
    if is_in_range { number as i64 } else { i64::MIN }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_as_in_lua() {
        for (text, expected) in [
            ("12", Some(12.0)),
            (" -1.5e3\n", Some(-1500.0)),
            ("0x1f", Some(31.0)),
            ("-0X10", Some(-16.0)),
            (".5", Some(0.5)),
            ("5.", Some(5.0)),
            ("", None),
            (" ", None),
            ("1 2", None),
            ("1e", None),
            ("0x", None),
            ("0x+1", None),
            ("nil", None),
            ("--1", None),
        ] {
            assert_eq!(number(text.as_bytes()), expected, "{text:?}");
        }
    }

    #[test]
    fn numbers_are_shown_as_in_lua() {
        for (number, expected) in [
            (1.0, "1"),
            (-0.5, "-0.5"),
            (0.1 + 0.2, "0.3"),
            (1e15, "1e+15"),
            (123_456_789_012_345.0, "1.2345678901234e+14"),
            (12_345_678_901_234.0, "12345678901234"),
            (1.5e-7, "1.5e-07"),
            (f64::INFINITY, "inf"),
            (0.0, "0"),
        ] {
            assert_eq!(shown(number), expected);
        }
        assert_eq!(argument(0.1), "0.10000000000000001");
        assert_eq!(argument(1e15), "1000000000000000");
        assert_eq!(argument(-0.0), "0");
        assert_eq!((replied(2.9), replied(-2.9), replied(f64::NAN)), (2, -2, i64::MIN));
    }
}
