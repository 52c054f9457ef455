//! Raw SQL that takes longer at the origin than one operation may.
//!
//! A batch is repeated as it was until it lands, which such a statement never does, and nothing behind it is destaged. So
//! - a batch that was given up for its time goes group by group from then on, each in a transaction of its own, if raw SQL is
//!   among it: what takes too long only together lands;
//! - a group that was given up by itself [`ATTEMPTS_MAX`] times is named in an error that needs a person, as a missing
//!   permission does. It is tried again once in [`AGAIN_AFTER`], since the origin works for nothing each time.
//!
//! It is not parked: the data were not refused, and given more time it may well be applied.

use crate::change::statements;
use crate::origins::{GroupRef, OriginError};
use crate::schema::{Schema, TableId};
use destage_core::{Fault, Lsn};
use std::time::{Duration, Instant};

/// So many times something may take too long before it is told.
const ATTEMPTS_MAX: u32 = 3;
/// How long it then waits before the next try.
const AGAIN_AFTER: Duration = Duration::from_secs(60);
/// Most characters of a statement that an error shows.
const SHOWN_MAX: usize = 200;

/// What took too long.
#[derive(Debug, Default)]
pub(super) struct Slow {
    /// The batch with this first group goes group by group.
    split: Option<Lsn>,
    stuck: Option<Stuck>,
}

/// Groups that took too long by themselves.
#[derive(Debug)]
struct Stuck {
    batch: Lsn,
    lsn: Lsn,
    attempts: u32,
    /// What is told until this time.
    told: Option<(OriginError, Instant)>,
}

impl Slow {
    /// Why a batch is not tried now.
    pub(super) fn refusal(&self, batch: Lsn, now: Instant) -> Option<OriginError> {
        let stuck = self.stuck.as_ref().filter(|stuck| stuck.batch == batch)?;
        let (error, until) = stuck.told.as_ref()?;
        (now < *until).then(|| error.clone())
    }

    /// Whether a batch goes group by group.
    pub(super) fn is_split(&self, batch: Lsn) -> bool {
        self.split == Some(batch)
    }

    /// A part of a batch has failed; `can_split` if its groups may go one by one. What is made of the error.
    pub(super) fn failed(
        &mut self,
        schema: &Schema,
        (batch, part): (Lsn, &[GroupRef<'_>]),
        can_split: bool,
        error: OriginError,
        now: Instant,
    ) -> OriginError {
        if !error.is_late {
            return error;
        }
        let Some(sql) = first_statement(schema, part) else { return error };
        if part.len() > 1 && can_split {
            self.split = Some(batch);
            return error;
        }
        let lsn = part[0].lsn;
        let before = self.stuck.take().filter(|stuck| (stuck.batch, stuck.lsn) == (batch, lsn));
        let attempts = before.map_or(0, |stuck| stuck.attempts) + 1;
        let mut stuck = Stuck { batch, lsn, attempts, told: None };
        let error = if attempts < ATTEMPTS_MAX {
            error
        } else {
            let error = tell(part, &sql, attempts, &error);
            stuck.told = Some((error.clone(), now + AGAIN_AFTER));
            error
        };
        self.stuck = Some(stuck);
        error
    }

    /// A batch has landed.
    pub(super) fn landed(&mut self, batch: Lsn) {
        if self.is_split(batch) {
            self.split = None;
        }
        if self.stuck.as_ref().is_some_and(|stuck| stuck.batch == batch) {
            self.stuck = None;
        }
    }
}

fn first_statement(schema: &Schema, groups: &[GroupRef<'_>]) -> Option<String> {
    let key_len = |id: TableId| schema.tables.get(usize::from(id.0)).map(|table| table.key_len);
    let found = groups.iter().find_map(|group| statements(group.bytes, key_len).next());
    found.map(|dml| dml.sql().chars().take(SHOWN_MAX).collect())
}

fn tell(groups: &[GroupRef<'_>], sql: &str, attempts: u32, error: &OriginError) -> OriginError {
    let writes = match groups {
        [one] => format!("(write {})", one.lsn.0),
        _ => {
            let last = groups.last().map_or(0, |last| last.lsn.0);
            format!("among the writes {} to {last}", groups[0].lsn.0)
        }
    };
    let message = format!(
        "raw SQL {writes} was given up {attempts} times, since it takes longer than one operation at the origin may, and what is \
         behind it waits: {sql}: {}. Make it faster there, or start with a longer --origin-timeout (in the library: \
         Settings::origin_timeout); it is tried again every {} s",
        error.message,
        AGAIN_AFTER.as_secs()
    );
    tracing::error!(error = message, "destaging stands still");
    OriginError::new(Fault::Denied, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::change::GroupWriter;
    use crate::dml;

    const PLAIN: &[u8] = &[];

    fn raw() -> Vec<u8> {
        let mut group = GroupWriter::new();
        group.dml(&dml::encode("UPDATE t SET n = slow()", &[], &[(TableId(0), None)]));
        group.finish().to_vec()
    }

    fn group(lsn: u64, bytes: &[u8]) -> GroupRef<'_> {
        GroupRef { lsn: Lsn(lsn), bytes }
    }

    fn late() -> OriginError {
        OriginError::new(Fault::Unavailable, "no answer within 10s").late()
    }

    /// What is made of a part that took too long.
    fn after(slow: &mut Slow, batch: u64, part: &[GroupRef<'_>], now: Instant) -> OriginError {
        let schema = Schema::new(Vec::new(), Vec::new());
        slow.failed(&schema, (Lsn(batch), part), true, late(), now)
    }

    #[test]
    fn a_statement_that_takes_too_long_by_itself_is_named_and_left_alone_for_a_while() {
        let (raw, now) = (raw(), Instant::now());
        let mut slow = Slow::default();
        let batch = [group(4, PLAIN), group(5, &raw), group(6, PLAIN)];
        assert_eq!(after(&mut slow, 4, &batch, now).fault, Fault::Unavailable);
        assert!(slow.is_split(Lsn(4)) && !slow.is_split(Lsn(5)));
        for _ in 1..ATTEMPTS_MAX {
            assert_eq!(after(&mut slow, 4, &batch[1..2], now).fault, Fault::Unavailable);
            assert!(slow.refusal(Lsn(4), now).is_none());
        }
        let told = after(&mut slow, 4, &batch[1..2], now);
        assert_eq!(told.fault, Fault::Denied);
        for words in ["(write 5)", "UPDATE t SET n = slow()", "--origin-timeout", "within 10s"] {
            assert!(told.message.contains(words), "{told}");
        }
        assert_eq!(slow.refusal(Lsn(4), now).unwrap().message, told.message);
        assert!(slow.refusal(Lsn(9), now).is_none(), "another batch");
        assert!(slow.refusal(Lsn(4), now + AGAIN_AFTER).is_none());
        // Still too long: once more, and it is left alone again.
        assert_eq!(after(&mut slow, 4, &batch[1..2], now + AGAIN_AFTER).fault, Fault::Denied);
        assert!(slow.refusal(Lsn(4), now + AGAIN_AFTER).is_some());
        slow.landed(Lsn(4));
        assert!(slow.refusal(Lsn(4), now + AGAIN_AFTER).is_none() && !slow.is_split(Lsn(4)));
    }

    #[test]
    fn other_failures_and_other_writes_are_left_as_they_are() {
        let (raw, now) = (raw(), Instant::now());
        let mut slow = Slow::default();
        let schema = Schema::new(Vec::new(), Vec::new());
        for _ in 0..2 * ATTEMPTS_MAX {
            let away = OriginError::new(Fault::Unavailable, "connection refused");
            let part = [group(5, &raw)];
            let error = slow.failed(&schema, (Lsn(5), &part), true, away, now);
            assert_eq!(error.message, "connection refused");
            assert_eq!(after(&mut slow, 7, &[group(7, PLAIN)], now).fault, Fault::Unavailable);
        }
        assert!(slow.refusal(Lsn(5), now).is_none() && slow.refusal(Lsn(7), now).is_none());
        // Of several domains, it cannot be split.
        let across = [group(8, PLAIN), group(9, &raw)];
        let mut error = late();
        for _ in 0..ATTEMPTS_MAX {
            error = slow.failed(&schema, (Lsn(8), &across), false, late(), now);
        }
        assert!(error.message.contains("among the writes 8 to 9"), "{error}");
    }
}
