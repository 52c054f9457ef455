//! EXPIRE and its kin: keys that leave the cache at a time that a client has chosen.
//!
//! A plain cache key is gone then, as in Redis. Of a row at the origin only the cached copy expires, where its table's
//! settings allow that at all: the row is fetched again when it is asked for, and a change that the origin lacks keeps its
//! copy until it is destaged. Deadlines are kept by [`destage_core::expiry`]; what is due is dropped before it is used
//! ([`Engine::expire_due`]) and some at every tick.

use super::Engine;
use super::command::{Prepared, Spec, Verb};
use super::perform::{Context, Trouble};
use super::strings::{NOT_INTEGER, integer};
use crate::mapping::Shape;
use crate::resp::{Code, Reply, ReplyError};
use crate::schema::{Schema, Table, TableId};
use destage_core::{Span, Time, UnitId};

/// What a command does about its key's deadline.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Expire {
    pub(super) change: Change,
    conditions: Conditions,
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
struct Conditions {
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

    fn of(
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
    fn deadline(self, now: Time) -> Option<Time> {
        let ms = match self {
            Self::Keep | Self::Never => return None,
            Self::In(ms) => milliseconds(now).saturating_add(ms),
            Self::At(ms) => ms,
        };
        Some(Time(ms.clamp(0, DEADLINE_MS_MAX) as u64 * MILLISECOND))
    }
}

impl Verb {
    /// Whether the command is about its key's deadline alone.
    pub(super) fn is_of_expiry(self) -> bool {
        matches!(
            self,
            Self::Expire
                | Self::Persist
                | Self::Ttl
                | Self::PTtl
                | Self::ExpireTime
                | Self::PExpireTime
        )
    }
}

impl Prepared {
    /// Checks the arguments of a command on a key's deadline.
    ///
    /// # Errors
    /// A message for the client.
    pub(super) fn read_expiry(
        &mut self,
        schema: &Schema,
        spec: &Spec,
        args: &[&[u8]],
    ) -> Result<(), ReplyError> {
        let (table, shape) = self.push_key(schema, args[1])?;
        if spec.verb != Verb::Expire {
            return Ok(());
        }
        self.expire.conditions = Conditions::read(&args[3..])?;
        let is_seconds = !spec.name.starts_with('p');
        self.expire.change = Change::of(args[2], is_seconds, spec.name.ends_with("at"), spec.name)?;
        refuse_expiry(shape, table)
    }
}

impl Conditions {
    fn read(args: &[&[u8]]) -> Result<Self, ReplyError> {
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
    fn allow(self, old: Option<Time>, new: Time) -> bool {
        !(self.absent && old.is_some()
            || self.present && old.is_none()
            || self.later && old.is_none_or(|old| new <= old)
            || self.earlier && old.is_some_and(|old| new >= old))
    }
}

/// Refuses to have rows expire, unless their cached copies may.
///
/// # Errors
/// Says how.
pub(super) fn refuse_expiry(shape: Shape, table: &Table) -> Result<(), ReplyError> {
    if shape == Shape::Plain || table.copies_expire {
        return Ok(());
    }
    Err(ReplyError::err(format!(
        "this key is of {0} at the origin, and rows do not expire: DEL deletes them; where ttl = \"cached-copy\" in \
         [table.{0}], their cached copies expire",
        table.name
    )))
}

impl Context<'_> {
    /// When a key expires, as this transaction sees it.
    fn deadline(&self, unit: UnitId) -> Option<Time> {
        let staged = self.txn.deadlines.iter().rev().find(|(staged, _)| *staged == unit);
        staged.map_or_else(|| self.expiries.get(unit), |&(_, deadline)| deadline)
    }

    /// Performs one command on a key's deadline; its reply is appended.
    pub(super) fn perform_expiry(
        &mut self,
        prepared: &Prepared,
        units: &[UnitId],
        reply: &mut Reply<'_>,
    ) -> Result<(), Trouble> {
        let unit = units[0];
        let is_there = self.is_there(unit, units)?;
        let old = self.deadline(unit);
        match prepared.verb {
            Verb::Expire => {
                let new = prepared.expire.change.deadline(self.now);
                let conditions = prepared.expire.conditions;
                let is_done = is_there && new.is_some_and(|new| conditions.allow(old, new));
                if is_done {
                    let table = prepared.key_list[0].0;
                    self.change_deadline(table, unit, prepared.expire.change);
                }
                reply.integer(i64::from(is_done));
            }
            Verb::Persist => {
                let is_done = is_there && old.is_some();
                if is_done {
                    self.txn.deadlines.push((unit, None));
                }
                reply.integer(i64::from(is_done));
            }
            verb => reply.integer(match (is_there, old) {
                (false, _) => -2,
                (true, None) => -1,
                (true, Some(at)) => told(verb, at, self.now),
            }),
        }
        Ok(())
    }

    /// Gives a key that is there another deadline. A plain one whose deadline has passed is gone at once.
    pub(super) fn change_deadline(&mut self, table: TableId, unit: UnitId, change: Change) {
        match change.deadline(self.now) {
            Some(at) if at <= self.now && self.is_plain(unit) => self.remove(table, unit),
            Some(at) => self.txn.deadlines.push((unit, Some(at))),
            None if change == Change::Keep => {}
            None => self.forget_deadline(unit),
        }
    }

    /// The key does not expire any more, or is gone.
    pub(super) fn forget_deadline(&mut self, unit: UnitId) {
        if self.expiries.is_empty() && self.txn.deadlines.is_empty() {
            return;
        }
        if self.deadline(unit).is_some() {
            self.txn.deadlines.push((unit, None));
        }
    }
}

/// What TTL, PTTL, EXPIRETIME and PEXPIRETIME say of a deadline.
fn told(verb: Verb, at: Time, now: Time) -> i64 {
    let (at, now) = (milliseconds(at), milliseconds(now));
    let ms = match verb {
        Verb::Ttl | Verb::PTtl => (at - now).max(0),
        _ => at,
    };
    // Seconds are rounded as Redis does it.
    if matches!(verb, Verb::Ttl | Verb::ExpireTime) { (ms + 500) / 1_000 } else { ms }
}

/// Milliseconds since the Unix epoch.
fn milliseconds(time: Time) -> i64 {
    (time.0 / MILLISECOND) as i64
}

fn invalid(command: &str) -> ReplyError {
    ReplyError::err(format!("invalid expire time in '{command}' command"))
}

impl Engine {
    /// Drops those of the units whose deadline is reached, before they are used.
    pub(super) fn expire_due(&mut self, units: &[UnitId]) {
        for &unit in units {
            if self.freshness.expiries().is_due(unit, self.now) {
                self.expire(unit);
            }
        }
    }

    /// Drops some of what nobody has asked for since it expired.
    pub(super) fn expire_some(&mut self) {
        for unit in self.freshness.take_expired(self.now) {
            self.expire(unit);
        }
    }

    /// Drops a unit whose deadline is reached. A copy with changes that the origin lacks stays until it has them.
    fn expire(&mut self, unit: UnitId) {
        self.invalidate(unit);
        if self.core.is_present(unit) {
            return self.freshness.postpone(unit, self.now);
        }
        self.freshness.set_deadline(unit, None);
        if self.schema.plain == Some(self.rows.get(unit).table) {
            self.plain_changed(unit);
        }
    }

    /// Sets deadlines as a transaction has them.
    pub(super) fn set_deadlines(&mut self, deadlines: &[(UnitId, Option<Time>)]) {
        for &(unit, deadline) in deadlines {
            // What is not cached has nothing that could expire.
            let deadline = deadline.filter(|_| self.core.is_present(unit));
            self.freshness.set_deadline(unit, deadline);
        }
        for &(unit, _) in deadlines {
            self.expire_due(&[unit]);
        }
    }
}

#[cfg(test)]
mod tests {
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
        assert_eq!(told(Verb::Ttl, at, now), 7);
        assert_eq!(told(Verb::PTtl, at, now + Span::from_millis(1)), 6_999);
        assert_eq!(told(Verb::ExpireTime, at, now), 1_007);
        assert_eq!(told(Verb::PExpireTime, at, now), 1_007_000);
        assert_eq!(told(Verb::Ttl, now, at), 0, "what waits for its destage");
    }
}
