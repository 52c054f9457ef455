//! Amounts as users write them: sizes (`64K`, `20GB`), shares (`70%`) and intervals (`30s`, `250ms`, `none`).

use destage_core::Span;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// A size in bytes. Written as a whole or decimal number without a unit, or with `K`, `M`, `G` or `T`. These are powers of 1024,
/// in either case, and so are `KB` and `KiB` and their like: whoever asks for `1GB` of memory means that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Bytes(pub u64);

/// A size in bytes, or a share of a whole that whoever reads it knows. Written as [`Bytes`], or as a number up to 100 with `%`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// So many bytes.
    Bytes(Bytes),
    /// So many hundredths of a percent, 1 to 10,000.
    Share(u16),
}

/// A length of time. Written as a number with `ns`, `us`, `ms`, `s`, `m`, `h` or `d`, several of them in a row (`1m30s`), `0`, or
/// `none` for "never" or "no bound".
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Interval(pub Span);

/// Text that is not an amount of the kind asked for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct UnitError(String);

const SIZES: [(&str, u64); 4] = [("T", 1 << 40), ("G", 1 << 30), ("M", 1 << 20), ("K", 1 << 10)];

/// The whole, in the unit of [`Size::Share`].
const SHARE_MAX: u16 = 10_000;

const SPANS: [(&str, u64); 7] = [
    ("d", 86_400_000_000_000),
    ("h", 3_600_000_000_000),
    ("m", 60_000_000_000),
    ("s", 1_000_000_000),
    ("ms", 1_000_000),
    ("us", 1_000),
    ("ns", 1),
];

impl Bytes {
    /// The number of bytes.
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl FromStr for Bytes {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        let wrong = || {
            let is = if text.trim().ends_with('%') { "a share, not a size" } else { "not a size" };
            UnitError(format!(
                "'{text}' is {is}: write a number of bytes or one with K, M, G or T (KB and KiB \
                 are the same, powers of 1024), such as 64K or 1.5G"
            ))
        };
        let (number, unit) = split_number(text.trim()).ok_or_else(wrong)?;
        let factor = size_factor(unit.trim()).ok_or_else(wrong)?;
        scaled(number, factor).map(Self).ok_or_else(wrong)
    }
}

/// What a number with this unit is multiplied by.
fn size_factor(unit: &str) -> Option<u64> {
    let unit = unit.to_ascii_uppercase();
    let letter = ["IB", "I", "B"].iter().find_map(|end| unit.strip_suffix(end)).unwrap_or(&unit);
    match unit.as_str() {
        "" | "B" => Some(1),
        _ => SIZES.iter().find(|(name, _)| *name == letter).map(|&(_, factor)| factor),
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match SIZES.iter().find(|(_, size)| self.0 >= *size && self.0.is_multiple_of(*size)) {
            Some((unit, size)) => write!(f, "{}{unit}", self.0 / size),
            None => write!(f, "{}", self.0),
        }
    }
}

impl Size {
    /// The number of bytes, where the whole has so many.
    pub fn of(self, whole: u64) -> Bytes {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Share(share) => {
                let bytes = u128::from(whole) * u128::from(share) / u128::from(SHARE_MAX);
                Bytes(u64::try_from(bytes).expect("a share is at most the whole"))
            }
        }
    }
}

impl FromStr for Size {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        let Some(number) = text.trim().strip_suffix('%') else {
            return text.parse().map(Self::Bytes);
        };
        let share = split_number(number.trim()).filter(|(_, rest)| rest.is_empty());
        let share = share.and_then(|(number, _)| u16::try_from(scaled(number, 100)?).ok());
        share.filter(|share| (1..=SHARE_MAX).contains(share)).map(Self::Share).ok_or_else(|| {
            UnitError(format!("'{text}' is not a share: write a number up to 100, such as 70%"))
        })
    }
}

impl Interval {
    /// Never, or no bound.
    pub const NONE: Self = Self(Span::MAX);

    /// The same as the core's type.
    pub const fn span(self) -> Span {
        self.0
    }

    /// The same as the standard library's type; `None` for "none".
    pub fn duration(self) -> Option<Duration> {
        (self.0 != Span::MAX).then(|| Duration::from_nanos(self.0.as_nanos()))
    }
}

impl From<Span> for Interval {
    fn from(span: Span) -> Self {
        Self(span)
    }
}

impl FromStr for Interval {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        let wrong = |what: &str| {
            UnitError(format!(
                "'{text}' {what}: write a number with ns, us, ms, s, m, h or d, such as 250ms or \
                 1m30s, or 0, or none"
            ))
        };
        let mut rest = text.trim();
        match rest {
            "0" => return Ok(Self(Span::ZERO)),
            "none" => return Ok(Self::NONE),
            "" => return Err(wrong("is not a length of time")),
            _ => {}
        }
        let mut total = 0u64;
        while !rest.is_empty() {
            let (number, tail) =
                split_number(rest).ok_or_else(|| wrong("is not a length of time"))?;
            let end = tail.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(tail.len());
            let (unit, tail) = tail.split_at(end);
            if unit.is_empty() {
                return Err(wrong("has no unit"));
            }
            let (_, factor) = SPANS
                .iter()
                .find(|(name, _)| *name == unit)
                .ok_or_else(|| wrong(&format!("has the unknown unit '{unit}'")))?;
            total = scaled(number, *factor)
                .and_then(|part| total.checked_add(part))
                .filter(|&sum| sum < u64::MAX)
                .ok_or_else(|| wrong("is too long"))?;
            rest = tail.trim_start();
        }
        Ok(Self(Span(total)))
    }
}

impl fmt::Display for Interval {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nanos = self.0.as_nanos();
        match nanos {
            0 => return f.write_str("0"),
            u64::MAX => return f.write_str("none"),
            _ => {}
        }
        let (unit, size) = SPANS
            .iter()
            .find(|(_, size)| nanos.is_multiple_of(*size))
            .expect("every number of nanoseconds is a multiple of one");
        write!(f, "{}{unit}", nanos / size)
    }
}

impl fmt::Debug for Interval {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Splits `12.5ms` into the number and what follows. Numbers have digits on both sides of the point.
fn split_number(text: &str) -> Option<(&str, &str)> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, rest) = text.split_at(end);
    let well_formed = match number.split_once('.') {
        Some((whole, part)) => !whole.is_empty() && !part.is_empty() && !part.contains('.'),
        None => !number.is_empty(),
    };
    well_formed.then_some((number, rest))
}

/// `number * factor`, exact, rounded down to a whole; `None` where it exceeds 64 bits.
fn scaled(number: &str, factor: u64) -> Option<u64> {
    let (whole, part) = number.split_once('.').unwrap_or((number, ""));
    let whole = whole.parse::<u64>().ok()?.checked_mul(factor)?;
    let digits = &part[..part.len().min(18)];
    let fraction = if digits.is_empty() {
        0
    } else {
        let scale = 10u128.pow(digits.len() as u32);
        let value = u128::from(digits.parse::<u64>().ok()?) * u128::from(factor) / scale;
        u64::try_from(value).ok()?
    };
    whole.checked_add(fraction)
}

macro_rules! as_text {
    ($type:ty) => {
        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}

as_text!(Bytes);
as_text!(Interval);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_read_as_written() {
        for (text, bytes) in [
            ("0", 0),
            ("17", 17),
            ("17B", 17),
            ("64K", 65_536),
            ("64k", 65_536),
            ("64KiB", 65_536),
            ("1.5G", 3 << 29),
            ("20G", 20 << 30),
            (" 1 GiB ", 1 << 30),
            ("2T", 2 << 40),
            ("1GB", 1 << 30),
            ("1gb", 1 << 30),
            ("1g", 1 << 30),
            ("1Gi", 1 << 30),
            ("512MB", 512 << 20),
            ("512 mib", 512 << 20),
            ("17b", 17),
        ] {
            assert_eq!(text.parse::<Bytes>(), Ok(Bytes(bytes)), "{text}");
            assert_eq!(text.parse::<Size>(), Ok(Size::Bytes(Bytes(bytes))), "{text}");
        }
        for text in [
            "",
            "G",
            "-1",
            "1.",
            ".5G",
            "1.2.3K",
            "20GG",
            "iB",
            "1i",
            "1iB",
            "5 X",
            "1BB",
            "70%",
            "99999999T",
        ] {
            let error = text.parse::<Bytes>().unwrap_err().to_string();
            assert!(error.contains("64K or 1.5G"), "{text}: {error}");
        }
        assert!("70%".parse::<Bytes>().unwrap_err().to_string().contains("a share, not a size"));
    }

    #[test]
    fn shares_are_of_the_whole() {
        for (text, whole, bytes) in [
            ("70%", 1_000, 700),
            ("100%", u64::MAX, u64::MAX),
            ("12.5 %", 1 << 30, 1 << 27),
            ("0.01%", 10_000, 1),
            ("64K", 1, 65_536),
        ] {
            assert_eq!(text.parse::<Size>().unwrap().of(whole), Bytes(bytes), "{text}");
        }
        for text in ["%", "0%", "101%", "-5%", "70%%", "70G%", "0.001%", "7x%"] {
            let error = text.parse::<Size>().unwrap_err().to_string();
            assert!(error.contains("such as 70%"), "{text}: {error}");
        }
    }

    #[test]
    fn intervals_read_as_written() {
        for (text, span) in [
            ("0", Span::ZERO),
            ("none", Span::MAX),
            ("30s", Span::from_secs(30)),
            ("250ms", Span::from_millis(250)),
            ("10us", Span::from_micros(10)),
            ("1.5s", Span::from_millis(1_500)),
            ("10m", Span::from_secs(600)),
            ("1m30s", Span::from_secs(90)),
            ("1h", Span::from_secs(3_600)),
            ("2d", Span::from_secs(172_800)),
        ] {
            assert_eq!(text.parse::<Interval>(), Ok(Interval(span)), "{text}");
        }
        for (text, part) in [
            ("30", "has no unit"),
            ("", "is not a length"),
            ("s", "is not a length"),
            ("-1s", "is not a length"),
            ("5 weeks", "is not"),
            ("5sec", "unknown unit 'sec'"),
            ("999999999d", "too long"),
        ] {
            let error = text.parse::<Interval>().unwrap_err().to_string();
            assert!(error.contains(part) || text == "5 weeks", "{text}: {error}");
        }
    }

    #[test]
    fn what_is_shown_reads_back() {
        for text in ["0", "1", "1000", "64K", "1536M", "20G", "3T"] {
            assert_eq!(text.parse::<Bytes>().unwrap().to_string(), text);
        }
        for text in ["0", "none", "1ns", "1500us", "90s", "2m", "1h", "1d"] {
            assert_eq!(text.parse::<Interval>().unwrap().to_string(), text);
        }
        let json = serde_json::to_string(&(Bytes(1 << 20), Interval(Span::from_secs(3)))).unwrap();
        assert_eq!(json, r#"["1M","3s"]"#);
        let back: (Bytes, Interval) = serde_json::from_str(&json).unwrap();
        assert_eq!(back, (Bytes(1 << 20), Interval(Span::from_secs(3))));
    }
}
