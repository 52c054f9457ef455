//! When keys expire, as clients say it and are told of it.

use super::command::Verb;
use super::numbers::{NOT_INTEGER, integer};
use crate::mapping::Shape;
use crate::resp::{Code, ReplyError};
use crate::schema::Table;
use destage_core::{Span, Time};

/// What a command does about its key's deadline.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Expire {
    pub(super) change: Change,
    pub(super) conditions: Conditions,
}

/// What becomes of a key's deadline.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Change {
    /// It stays as it is.
    #[default]
    Keep,
    /// The key does not expire.
    Never,
    /// So many milliseconds from now.
    In(i64),
    /// So many milliseconds after the Unix epoch.
    At(i64),
}

/// Under which conditions EXPIRE changes a deadline.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Conditions {
    /// NX: there is none.
    absent: bool,
    /// XX: there is one.
    present: bool,
    /// GT: the new one is later; none counts as the latest.
    later: bool,
    /// LT: the new one is earlier.
    earlier: bool,
}

/// Nanoseconds of a millisecond.
const MILLISECOND: u64 = Span::from_millis(1).as_nanos();
/// The latest deadline, in milliseconds since the Unix epoch: in the year 2554.
const DEADLINE_MS_MAX: i64 = (u64::MAX / MILLISECOND) as i64;

impl Change {
    /// A time as SET and GETEX take it, which lies in the future unless it is a point in time; `None` if the word is none of
    /// theirs.
    ///
    /// # Errors
    /// It is no number, not positive, or too late.
    pub(super) fn read(
        word: &[u8],
        time: &[u8],
        command: &str,
    ) -> Result<Option<Self>, ReplyError> {
        let (is_seconds, is_absolute) = match word {
            b"ex" => (true, false),
            b"px" => (false, false),
            b"exat" => (true, true),
            b"pxat" => (false, true),
            _ => return Ok(None),
        };
        let change = Self::of(time, is_seconds, is_absolute, command)?;
        match change {
            Self::In(ms) | Self::At(ms) if ms <= 0 => Err(invalid(command)),
            change => Ok(Some(change)),
        }
    }

    pub(super) fn of(
        time: &[u8],
        is_seconds: bool,
        is_absolute: bool,
        command: &str,
    ) -> Result<Self, ReplyError> {
        let number = integer(time).map_err(|_| NOT_INTEGER)?;
        let ms = if is_seconds { number.checked_mul(1_000) } else { Some(number) };
        let ms = ms.filter(|ms| (-DEADLINE_MS_MAX..=DEADLINE_MS_MAX).contains(ms));
        let ms = ms.ok_or_else(|| invalid(command))?;
        Ok(if is_absolute { Self::At(ms) } else { Self::In(ms) })
    }

    /// Whether the key gets a deadline.
    pub(super) fn is_timed(self) -> bool {
        matches!(self, Self::In(_) | Self::At(_))
    }

    /// The deadline that the key gets; one in the past is reached already.
    pub(super) fn deadline(self, now: Time) -> Option<Time> {
        let ms = match self {
            Self::Keep | Self::Never => return None,
            Self::In(ms) => milliseconds(now).saturating_add(ms),
            Self::At(ms) => ms,
        };
        Some(time_of(ms))
    }
}

impl Conditions {
    pub(super) fn read(args: &[&[u8]]) -> Result<Self, ReplyError> {
        let mut conditions = Self::default();
        for arg in args {
            match arg.to_ascii_lowercase().as_slice() {
                b"nx" => conditions.absent = true,
                b"xx" => conditions.present = true,
                b"gt" => conditions.later = true,
                b"lt" => conditions.earlier = true,
                _ => {
                    return Err(ReplyError::err(format!(
                        "Unsupported option {}",
                        crate::key_text::show(arg)
                    )));
                }
            }
        }
        let Self { absent, present, later, earlier } = conditions;
        if absent && (present || later || earlier) {
            return Err(ReplyError::fixed(
                Code::Err,
                "NX and XX, GT or LT options at the same time are not compatible",
            ));
        }
        if later && earlier {
            return Err(ReplyError::fixed(
                Code::Err,
                "GT and LT options at the same time are not compatible",
            ));
        }
        Ok(conditions)
    }

    /// Whether the deadline may change.
    pub(super) fn allow(self, old: Option<Time>, new: Time) -> bool {
        !(self.absent && old.is_some()
            || self.present && old.is_none()
            || self.later && old.is_none_or(|old| new <= old)
            || self.earlier && old.is_some_and(|old| new >= old))
    }
}

/// Refuses to have rows expire, unless they end or their cached copies may expire.
///
/// # Errors
/// Says how.
pub(super) fn refuse_expiry(shape: Shape, table: &Table) -> Result<(), ReplyError> {
    if shape == Shape::Plain || table.copies_expire || table.ttl.is_some() {
        return Ok(());
    }
    Err(ReplyError::err(format!(
        "this key is of {0} at the origin, and rows do not expire: DEL deletes them; where ttl = \"column NAME\" in \
         [table.{0}], they end at the time in that column, and where it is \"cached-copy\", their cached copies expire",
        table.name
    )))
}

/// What TTL, PTTL, EXPIRETIME and PEXPIRETIME say of a deadline.
pub(super) fn ttl_reply(verb: Verb, at: Time, now: Time) -> i64 {
    let (at, now) = (milliseconds(at), milliseconds(now));
    let ms = match verb {
        Verb::Ttl | Verb::PTtl => (at - now).max(0),
        _ => at,
    };
    // Seconds are rounded as Redis does it.
    if matches!(verb, Verb::Ttl | Verb::ExpireTime) { (ms + 500) / 1_000 } else { ms }
}

/// Milliseconds since the Unix epoch.
pub(super) fn milliseconds(time: Time) -> i64 {
    (time.0 / MILLISECOND) as i64
}

/// The time so many milliseconds after the Unix epoch.
pub(super) fn time_of(ms: i64) -> Time {
    Time(ms.clamp(0, DEADLINE_MS_MAX) as u64 * MILLISECOND)
}

fn invalid(command: &str) -> ReplyError {
    ReplyError::err(format!("invalid expire time in '{command}' command"))
}

#[cfg(test)]
mod tests {
    use super::super::numbers::NOT_INTEGER;
    use super::*;

    #[test]
    fn deadlines_change_under_the_conditions_of_redis() {
        let condition = |word: &str| Conditions::read(&[word.as_bytes()]).unwrap();
        let (early, late) = (Time(5), Time(9));
        for (word, old, new, expected) in [
            ("NX", None, early, true),
            ("NX", Some(early), late, false),
            ("XX", None, early, false),
            ("XX", Some(late), early, true),
            ("GT", None, late, false),
            ("GT", Some(early), late, true),
            ("GT", Some(late), late, false),
            ("LT", None, late, true),
            ("LT", Some(late), early, true),
            ("LT", Some(early), early, false),
        ] {
            assert_eq!(condition(word).allow(old, new), expected, "{word} {old:?} {new:?}");
        }
        assert!(Conditions::read(&[b"nx", b"gt"]).is_err());
        assert!(Conditions::read(&[b"gt", b"lt"]).is_err());
        assert!(Conditions::read(&[b"xx", b"lt"]).is_ok());
        assert!(
            Conditions::read(&[b"what"]).unwrap_err().text().contains("Unsupported option what")
        );
    }

    #[test]
    fn times_are_told_as_they_were_given() {
        let now = Time::from_secs(1_000);
        let read = |word: &str, time: &str| {
            let change = Change::read(word.as_bytes(), time.as_bytes(), "set");
            change.map(|change| change.and_then(|change| change.deadline(now)))
        };
        assert_eq!(read("ex", "7"), Ok(Some(Time::from_secs(1_007))));
        assert_eq!(read("pxat", "5"), Ok(Some(Time(5 * MILLISECOND))));
        assert_eq!(read("exat", "2000"), Ok(Some(Time::from_secs(2_000))));
        assert_eq!(read("nx", "2000"), Ok(None));
        for (word, time) in [("ex", "0"), ("px", "-1"), ("ex", "9223372036854775807")] {
            assert!(read(word, time).unwrap_err().text().contains("invalid expire time in 'set'"));
        }
        assert_eq!(read("ex", "soon"), Err(NOT_INTEGER.to_owned()));
        let at = Time::from_secs(1_007);
        assert_eq!(ttl_reply(Verb::Ttl, at, now), 7);
        assert_eq!(ttl_reply(Verb::PTtl, at, now + Span::from_millis(1)), 6_999);
        assert_eq!(ttl_reply(Verb::ExpireTime, at, now), 1_007);
        assert_eq!(ttl_reply(Verb::PExpireTime, at, now), 1_007_000);
        assert_eq!(ttl_reply(Verb::Ttl, now, at), 0, "what waits for its destage");
    }
}
