//! Fields of text records.

use super::{Bad, DEVICES_MAX};
use hashbrown::HashMap;

/// A whole number.
pub(super) fn number(field: &[u8]) -> Option<u64> {
    if field.is_empty() {
        return None;
    }
    let digit = |value: u64, byte: &u8| {
        let digit = byte.is_ascii_digit().then(|| u64::from(byte - b'0'))?;
        value.checked_mul(10)?.checked_add(digit)
    };
    field.iter().try_fold(0, digit)
}

/// `field * scale`, rounded down; the field may have decimals.
pub(super) fn scaled(field: &[u8], scale: u64) -> Option<u64> {
    let Some(point) = memchr::memchr(b'.', field) else {
        return number(field)?.checked_mul(scale);
    };
    let (whole, part) = (&field[..point], &field[point + 1..]);
    let whole = if whole.is_empty() { 0 } else { number(whole)? };
    // Eighteen digits fit, and are finer than any scale.
    let part = &part[..part.len().min(18)];
    let value = if part.is_empty() { 0 } else { number(part)? };
    let fraction = u128::from(value) * u128::from(scale) / 10u128.pow(part.len() as u32);
    whole.checked_mul(scale)?.checked_add(u64::try_from(fraction).ok()?)
}

/// A hexadecimal number, with or without `0x`.
pub(super) fn hexadecimal(field: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(field).ok()?;
    u64::from_str_radix(text.strip_prefix("0x").unwrap_or(text), 16).ok()
}

/// The fields of a line that is separated by commas; blanks and quotes around them do not count, nor do commas within quotes.
pub(super) fn commas(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = Some(line);
    std::iter::from_fn(move || {
        let (field, after) = rest?.split_at(field_bytes(rest?));
        rest = after.strip_prefix(b",");
        let field = field.trim_ascii();
        Some(match field {
            [b'"', inner @ .., b'"'] => inner,
            _ => field,
        })
    })
}

/// Bytes up to the comma that ends the first field. A quote that nothing closes is a letter like any other.
fn field_bytes(line: &[u8]) -> usize {
    let mut is_quoted = false;
    let mut is_end = |&byte: &u8| {
        is_quoted ^= byte == b'"';
        byte == b',' && !is_quoted
    };
    let ends = match line.trim_ascii_start() {
        [b'"', ..] => {
            line.iter().position(&mut is_end).or_else(|| (!is_quoted).then_some(line.len()))
        }
        _ => None,
    };
    let plain = || line.iter().position(|&byte| byte == b',');
    ends.or_else(plain).unwrap_or(line.len())
}

/// The fields of a line that is separated by blanks.
pub(super) fn blanks(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    line.split(u8::is_ascii_whitespace).filter(|field| !field.is_empty())
}

/// A field as it is shown in messages.
pub(super) fn shown(field: &[u8]) -> String {
    String::from_utf8_lossy(&field[..field.len().min(40)]).into_owned()
}

/// FNV-1a with a final mix: the number that stands for a key.
pub(super) fn hash(key: &[u8]) -> u64 {
    let step = |hash: u64, &byte: &u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    crate::blocks::mix(key.iter().fold(0xcbf2_9ce4_8422_2325, step))
}

/// Numbers for device names, from 0 in the order of appearance.
#[derive(Debug, Default)]
pub(super) struct Devices {
    numbers: HashMap<Box<[u8]>, u32>,
    names: Vec<Box<[u8]>>,
    last: Option<(Box<[u8]>, u32)>,
}

/// Longest device name, bytes.
const NAME_MAX: usize = 4_096;

impl Devices {
    /// The number of a device.
    pub(super) fn number(&mut self, name: &[u8]) -> Result<u32, Bad> {
        if let Some((last, number)) = &self.last
            && **last == *name
        {
            return Ok(*number);
        }
        let number = match self.numbers.get(name) {
            Some(&number) => number,
            None if name.len() > NAME_MAX => return Err("the name of a device is too long".into()),
            None if self.numbers.len() >= DEVICES_MAX as usize => {
                return Err(format!("more than {DEVICES_MAX} devices").into());
            }
            None => {
                let number = self.numbers.len() as u32;
                self.numbers.insert(name.into(), number);
                self.names.push(name.into());
                number
            }
        };
        self.last = Some((name.into(), number));
        Ok(number)
    }

    /// What the device of a number was called.
    pub(super) fn name(&self, number: u32) -> Option<&[u8]> {
        self.names.get(number as usize).map(|name| &**name)
    }

    /// The same for people, who part names by commas: colons stand for those within.
    pub(super) fn shown(&self, number: u32) -> Option<String> {
        let name = String::from_utf8_lossy(self.name(number)?);
        Some(name.trim_end_matches(',').replace(',', ":"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_exact_or_refused() {
        assert_eq!(scaled(b"1.5", 1_000_000_000), Some(1_500_000_000));
        assert_eq!(scaled(b"0.000000001", 1_000_000_000), Some(1));
        assert_eq!(scaled(b".25", 1_000), Some(250));
        assert_eq!(scaled(b"7.", 1_000), Some(7_000));
        assert_eq!(scaled(b"128166372003061629", 100), Some(12_816_637_200_306_162_900));
        for bad in [&b""[..], b"-1", b"1e9", b"18446744073709551616", b"1.2.3", b"1.-2", b" 1"] {
            assert_eq!(scaled(bad, 1), None, "{}", shown(bad));
        }
        assert_eq!(scaled(b"18446744073709551615", 2), None);
        assert_eq!((hexadecimal(b"0x1b"), hexadecimal(b"1B")), (Some(27), Some(27)));
        assert_eq!(hexadecimal(b"xyz"), None);
    }

    #[test]
    fn a_comma_within_quotes_parts_no_fields() {
        for (line, fields) in [
            (r#"1,"a,b", "c" ,"#, &["1", "a,b", "c", ""][..]),
            (r#""a "",""b""",2"#, &[r#"a "",""b"""#, "2"]),
            // Nothing closes these, or they do not begin a field.
            (r#""a,b,c"#, &["\"a", "b", "c"]),
            (r#"5"disk,3"disk"#, &["5\"disk", "3\"disk"]),
            ("", &[""]),
        ] {
            let found: Vec<_> = commas(line.as_bytes()).map(String::from_utf8_lossy).collect();
            assert_eq!(found, fields, "{line}");
        }
    }

    #[test]
    fn devices_are_numbered_in_the_order_of_appearance() {
        let mut devices = Devices::default();
        let mut number = |name: &str| devices.number(name.as_bytes()).unwrap();
        assert_eq!([number("sdb"), number("8,1,"), number("sdb"), number("")], [0, 1, 0, 2]);
        let shown: Vec<_> = (0..4).map_while(|number| devices.shown(number)).collect();
        assert_eq!(shown, ["sdb", "8:1", ""]);
        assert!(devices.number(&[b'x'; NAME_MAX + 1]).is_err());
        (3..DEVICES_MAX).for_each(|n| assert!(devices.number(n.to_string().as_bytes()).is_ok()));
        assert!(devices.number(b"one more").is_err());
    }
}
