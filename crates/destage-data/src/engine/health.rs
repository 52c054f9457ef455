//! Whether the origin works, as people see it: the status, the metrics and the log.

use destage_core::{Span, Time};
use std::collections::HashMap;

/// What the origin is used for. A disk that is full or a server that is read-only fails one of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// Misses, scans and queries.
    Read,
    /// Batches, parking and what goes with them. Where these work, the origin works.
    Write,
}

/// Since when the origin has failed, and what the log was told of it.
#[derive(Debug, Default)]
pub(crate) struct OriginHealth {
    reads_failing: Option<Time>,
    writes_failing: Option<Time>,
    /// The log was told of this failure.
    is_told: bool,
    /// When the log was told of a failure last.
    told: Option<Time>,
    /// When the log was told of a denial last, by table or query.
    denials: HashMap<Box<str>, Time>,
}

impl OriginHealth {
    pub(super) fn works(&mut self, way: Way) {
        self.reads_failing = None;
        if way == Way::Write {
            self.writes_failing = None;
        }
        if self.failing_since().is_none() && std::mem::take(&mut self.is_told) {
            tracing::info!("the origin answers again");
        }
    }

    pub(super) fn failed(&mut self, now: Time, way: Way, error: &str) {
        match way {
            Way::Read => self.reads_failing.get_or_insert(now),
            Way::Write => self.writes_failing.get_or_insert(now),
        };
        if !self.is_told && is_past(self.told, now, TELL_EVERY) {
            tracing::warn!(error, "the origin failed; trying again");
            (self.is_told, self.told) = (true, Some(now));
        }
    }

    /// The origin works and refuses what concerns this table, or the result of this query.
    pub(super) fn denied(&mut self, now: Time, table: &str, error: &str) {
        let told = self.denials.get(table).copied();
        if is_past(told, now, DENIAL_EVERY) {
            tracing::warn!(table, error, "the origin denies a read; told once a minute");
            self.denials.insert(table.into(), now);
        }
    }

    /// Whether nothing has worked since a read failed.
    pub(super) fn is_read_failing(&self) -> bool {
        self.reads_failing.is_some()
    }

    /// Since when some way has failed.
    pub(super) fn failing_since(&self) -> Option<Time> {
        self.reads_failing.into_iter().chain(self.writes_failing).min()
    }
}

fn is_past(told: Option<Time>, now: Time, every: Span) -> bool {
    told.is_none_or(|told| now >= told + every)
}

/// A failure that comes and goes fills no log.
const TELL_EVERY: Span = Span::from_secs(10);
const DENIAL_EVERY: Span = Span::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Time {
        Time::ZERO + Span::from_secs(seconds)
    }

    #[test]
    fn writes_fail_until_a_write_succeeds_whatever_is_read_meanwhile() {
        let mut health = OriginHealth::default();
        health.failed(at(1), Way::Write, "the disk is full");
        health.works(Way::Read);
        assert_eq!(health.failing_since(), Some(at(1)));
        health.failed(at(3), Way::Write, "the disk is full");
        health.failed(at(4), Way::Read, "no answer");
        assert_eq!(health.failing_since(), Some(at(1)));
        health.works(Way::Write);
        assert_eq!(health.failing_since(), None);
    }

    #[test]
    fn reads_fail_until_anything_succeeds() {
        for way in [Way::Read, Way::Write] {
            let mut health = OriginHealth::default();
            health.failed(at(1), Way::Read, "no answer");
            assert_eq!(health.failing_since(), Some(at(1)));
            health.works(way);
            assert_eq!(health.failing_since(), None);
        }
    }

    #[test]
    fn a_denial_of_one_table_is_no_failure() {
        let mut health = OriginHealth::default();
        health.denied(at(1), "parent", "permission denied");
        health.denied(at(2), "parent", "permission denied");
        assert_eq!(health.failing_since(), None);
        assert_eq!(health.denials["parent"], at(1));
        health.denied(at(61), "parent", "permission denied");
        assert_eq!(health.denials["parent"], at(61));
    }

    #[test]
    fn what_fails_again_and_again_is_told_once_in_a_while() {
        let mut health = OriginHealth::default();
        let mut told = Vec::new();
        for second in 0..25 {
            health.failed(at(second), Way::Write, "no answer");
            told.extend(health.is_told.then_some(second));
            health.works(Way::Write);
            assert!(!health.is_told);
        }
        assert_eq!(told, [0, 10, 20]);
    }
}
