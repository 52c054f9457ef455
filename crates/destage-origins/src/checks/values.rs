//! What kinds of values conditions compare, and how.

use crate::value::SqliteNumber;
use crate::value::sqlite_number;
use std::borrow::Cow;
use std::cmp::Ordering;

/// What an operand is to its database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A column of whole numbers of so many bits.
    Whole { bits: u32 },
    /// A column of exact decimals.
    Exact,
    /// A number in the text of the condition, or a length.
    Number,
    /// Double precision.
    Double,
    /// Single precision.
    Single,
    /// Text, compared by this rule.
    Text(TextRule),
    /// A text in quotes that has no type of its own.
    Word,
    /// Days, times of day, and moments.
    Moment(Moment),
    /// PostgreSQL's `t` and `f`.
    Bool,
    /// A label of an enumeration.
    Label,
    /// A column of SQLite with INTEGER, REAL or NUMERIC affinity.
    Affine,
    /// The word NULL.
    Null,
    /// Only whether it is NULL is known.
    Other,
}

/// When two texts are equal. None says which of two comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TextRule {
    /// Where their bytes are.
    Bytes,
    /// Where their bytes are but for blanks at the end.
    Padded,
    /// Where their letters are, in either case. What is known of that concerns ASCII.
    Folded,
}

/// Which moments can be compared with each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Moment {
    Date,
    Time,
    Stamp,
    Instant,
}

/// How two values are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum By {
    Decimal,
    Double,
    Bytes,
    Padded,
    Folded,
    Moment,
    /// As SQLite does where numeric affinity is applied: numbers before texts, those by their bytes.
    Affinity,
}

/// The order of two values. `None`: it is not known, also where both are equal. Of texts that fold, only whether they are
/// equal means anything.
pub(super) fn order(by: By, a: &[u8], b: &[u8]) -> Option<Ordering> {
    match by {
        By::Decimal => decimal(a, b),
        By::Double => number(a)?.partial_cmp(&number(b)?),
        By::Bytes => Some(a.cmp(b)),
        By::Padded => Some(unpadded(a).cmp(unpadded(b))),
        By::Folded => folded(a, b),
        By::Moment => moment(a, b),
        By::Affinity => affinity(a, b),
    }
}

/// Digits before and behind the point, without zeros that say nothing.
struct Digits<'a> {
    is_negative: bool,
    whole: &'a [u8],
    part: &'a [u8],
}

fn digits(text: &[u8]) -> Option<Digits<'_>> {
    let unsigned = text.strip_prefix(b"-").unwrap_or(text);
    let (whole, part) = match unsigned.iter().position(|&byte| byte == b'.') {
        Some(at) => (&unsigned[..at], &unsigned[at + 1..]),
        None => (unsigned, &[][..]),
    };
    if unsigned.len() == usize::from(unsigned.contains(&b'.'))
        || !whole.iter().chain(part).all(u8::is_ascii_digit)
    {
        return None;
    }
    let first = whole.iter().position(|&byte| byte != b'0').unwrap_or(whole.len());
    let last = part.iter().rposition(|&byte| byte != b'0').map_or(0, |last| last + 1);
    let (whole, part) = (&whole[first..], &part[..last]);
    let is_zero = whole.is_empty() && part.is_empty();
    Some(Digits { is_negative: unsigned.len() < text.len() && !is_zero, whole, part })
}

fn decimal(a: &[u8], b: &[u8]) -> Option<Ordering> {
    let (a, b) = (digits(a)?, digits(b)?);
    let size = || {
        let whole = a.whole.len().cmp(&b.whole.len()).then_with(|| a.whole.cmp(b.whole));
        whole.then_with(|| a.part.cmp(b.part))
    };
    Some(match (a.is_negative, b.is_negative) {
        (false, false) => size(),
        (true, true) => size().reverse(),
        (true, false) => Ordering::Less,
        (false, true) => Ordering::Greater,
    })
}

/// Whether a text is a plain decimal number.
pub(super) fn is_decimal(text: &str) -> bool {
    digits(text.as_bytes()).is_some()
}

/// A finite number of double precision. Where others are, databases differ.
fn number(text: &[u8]) -> Option<f64> {
    let number: f64 = std::str::from_utf8(text).ok()?.parse().ok()?;
    number.is_finite().then_some(number)
}

fn unpadded(text: &[u8]) -> &[u8] {
    let end = text.iter().rposition(|&byte| byte != b' ').map_or(0, |last| last + 1);
    &text[..end]
}

/// Letters, digits and what joins them in names differ in every collation that is known here, but for their case.
fn folded(a: &[u8], b: &[u8]) -> Option<Ordering> {
    if a == b {
        return Some(Ordering::Equal);
    }
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
    let (a, b) = (unpadded(a), unpadded(b));
    let is_known = a.iter().chain(b).all(is_plain) && !a.eq_ignore_ascii_case(b);
    is_known.then_some(Ordering::Less)
}

/// Moments of one form are in the order of their texts.
fn moment(a: &[u8], b: &[u8]) -> Option<Ordering> {
    let form = form(a)?;
    (form == self::form(b)?).then(|| a.cmp(b))
}

/// The form of a moment: `2026-01-31`, `13:37:00`, both, or both with a zone. A fraction may follow the seconds: it ends where
/// another one goes on, and a zone's sign comes before a point.
fn form(text: &[u8]) -> Option<(&'static [u8], bool)> {
    const DATE: &[u8] = b"0000-00-00";
    const TIME: &[u8] = b"00:00:00";
    const BOTH: &[u8] = b"0000-00-00 00:00:00";
    let has = |form: &[u8]| {
        let is_one = |(byte, place): (&u8, &u8)| match place {
            b'0' => byte.is_ascii_digit(),
            other => byte == other,
        };
        text.len() >= form.len() && text.iter().zip(form).all(is_one)
    };
    let form = [BOTH, DATE, TIME].into_iter().find(|form| has(form))?;
    let rest = &text[form.len()..];
    let (rest, has_zone) = match rest.strip_suffix(b"+00") {
        Some(rest) => (rest, true),
        None => (rest, false),
    };
    let is_fraction = match rest.strip_prefix(b".") {
        Some(part) => form != DATE && !part.is_empty() && part.iter().all(u8::is_ascii_digit),
        None => rest.is_empty(),
    };
    (is_fraction && (!has_zone || form == BOTH)).then_some((form, has_zone))
}

/// Whether a text is a moment of this kind, written in the one form that they have here.
pub(super) fn is_moment(kind: Moment, text: &str) -> bool {
    use crate::value::ColumnType;
    let precision = 6;
    let ty = match kind {
        Moment::Date => ColumnType::Date,
        Moment::Time => ColumnType::Time { precision },
        Moment::Stamp => ColumnType::Timestamp { zone: false, precision },
        Moment::Instant => ColumnType::Timestamp { zone: true, precision },
    };
    let text = text.as_bytes();
    form(text).is_some() && ty.canonical(text).is_ok_and(|canonical| *canonical == *text)
}

fn affinity(a: &[u8], b: &[u8]) -> Option<Ordering> {
    let is_infinite = |text: &[u8]| matches!(text, b"Inf" | b"-Inf");
    if is_infinite(a) || is_infinite(b) {
        // A number in a column of REAL affinity, a text elsewhere.
        return None;
    }
    match (sqlite_number(a), sqlite_number(b)) {
        (None, None) => Some(a.cmp(b)),
        (Some(_), None) => Some(Ordering::Less),
        (None, Some(_)) => Some(Ordering::Greater),
        (Some(SqliteNumber::Int(a)), Some(SqliteNumber::Int(b))) => Some(a.cmp(&b)),
        (Some(SqliteNumber::Real(a)), Some(SqliteNumber::Real(b))) => a.partial_cmp(&b),
        (Some(SqliteNumber::Int(a)), Some(SqliteNumber::Real(b))) => with_real(a, b),
        (Some(SqliteNumber::Real(a)), Some(SqliteNumber::Int(b))) => {
            with_real(b, a).map(Ordering::reverse)
        }
    }
}

/// The exact order of a whole number and one of double precision.
fn with_real(int: i64, real: f64) -> Option<Ordering> {
    const BEYOND: f64 = 9_223_372_036_854_775_808.0;
    if real.is_nan() {
        return None;
    }
    if real >= BEYOND {
        return Some(Ordering::Less);
    }
    if real < -BEYOND {
        return Some(Ordering::Greater);
    }
    let whole = real.trunc();
    // Within the range, so nothing is cut off but the fraction.
    Some(
        int.cmp(&(whole as i64))
            .then_with(|| 0.0.partial_cmp(&(real - whole)).unwrap_or(Ordering::Equal)),
    )
}

/// A number of single precision in the text of double precision.
pub(super) fn doubled(value: Cow<'_, [u8]>) -> Option<Cow<'_, [u8]>> {
    let single: f32 = std::str::from_utf8(&value).ok()?.parse().ok()?;
    Some(Cow::Owned(f64::from(single).to_string().into_bytes()))
}

/// How many characters a text has; not known of what is no text, or may end early.
pub(super) fn chars(value: Cow<'_, [u8]>) -> Option<Cow<'_, [u8]>> {
    let text = std::str::from_utf8(&value).ok().filter(|text| !text.contains('\0'))?;
    Some(count(text.chars().count()))
}

pub(super) fn count(count: usize) -> Cow<'static, [u8]> {
    Cow::Owned(count.to_string().into_bytes())
}

pub(super) fn trimmed(value: Cow<'_, [u8]>) -> Cow<'_, [u8]> {
    let start = value.iter().position(|&byte| byte != b' ').unwrap_or(value.len());
    match value {
        Cow::Borrowed(value) => Cow::Borrowed(unpadded(&value[start..])),
        Cow::Owned(value) => Cow::Owned(unpadded(&value[start..]).to_vec()),
    }
}
