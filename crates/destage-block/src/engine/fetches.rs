//! Fetches: which blocks are on their way from the origin, and when one is asked for again.

use crate::block::Lba;
use crate::origin::OriginIoErrorKind;
use destage_core::{Span, Time, UnitId};
use hashbrown::HashMap;

/// The blocks that the core wants present.
#[derive(Debug)]
pub(super) struct Fetches {
    under_way: HashMap<UnitId, Fetch>,
    /// Blocks that no job asks the origin for yet.
    misses: Vec<UnitId>,
    retries: Vec<Retry>,
    /// How long an origin that is out of reach is asked.
    patience: Span,
}

/// A block on its way from the origin.
#[derive(Clone, Copy, Debug)]
struct Fetch {
    /// When it was first asked for.
    since: Time,
    /// It was written meanwhile: what the origin gives may be older.
    is_overwritten: bool,
}

/// A block to be asked for again.
#[derive(Clone, Copy, Debug)]
struct Retry {
    at: Time,
    unit: UnitId,
}

/// What becomes of a fetch that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fetched {
    /// It counts.
    Ended,
    /// The block was written meanwhile; that counts.
    Overwritten,
    /// The block is asked for again later.
    Retried,
}

impl Fetches {
    pub(super) fn new(patience: Span) -> Self {
        Self { under_way: HashMap::new(), misses: Vec::new(), retries: Vec::new(), patience }
    }

    /// The core wants a block present.
    pub(super) fn want(&mut self, now: Time, unit: UnitId) {
        self.under_way.insert(unit, Fetch { since: now, is_overwritten: false });
        self.misses.push(unit);
    }

    /// A block has a newer version than what a fetch under way may bring.
    pub(super) fn outdate(&mut self, unit: UnitId) {
        if let Some(fetch) = self.under_way.get_mut(&unit) {
            fetch.is_overwritten = true;
        }
    }

    /// Blocks under way.
    pub(super) fn len(&self) -> usize {
        self.under_way.len()
    }

    pub(super) fn contains(&self, unit: UnitId) -> bool {
        self.under_way.contains_key(&unit)
    }

    /// Takes the blocks to ask the origin for, in runs of neighbours.
    pub(super) fn take_misses(&mut self, lba: impl Fn(UnitId) -> Lba) -> Vec<Vec<UnitId>> {
        let mut misses = std::mem::take(&mut self.misses);
        misses.sort_unstable_by_key(|&unit| lba(unit));
        misses.dedup();
        let mut runs: Vec<Vec<UnitId>> = Vec::new();
        for unit in misses {
            match runs.last_mut() {
                Some(run)
                    if run.len() < FETCH_BLOCKS_MAX
                        && run.last().is_some_and(|&last| lba(last).0 + 1 == lba(unit).0) =>
                {
                    run.push(unit);
                }
                _ => runs.push(vec![unit]),
            }
        }
        runs
    }

    /// The origin gave a block. `None` if nobody wants it any more.
    pub(super) fn arrived(&mut self, unit: UnitId) -> Option<Fetched> {
        let fetch = self.under_way.remove(&unit)?;
        Some(if fetch.is_overwritten { Fetched::Overwritten } else { Fetched::Ended })
    }

    /// The origin did not give a block. `None` if nobody wants it any more. A stopped volume is not patient.
    pub(super) fn failed(
        &mut self,
        now: Time,
        unit: UnitId,
        kind: OriginIoErrorKind,
        is_stopped: bool,
    ) -> Option<Fetched> {
        let fetch = self.under_way.get(&unit)?;
        let waited = now.since(fetch.since);
        let is_patient =
            kind == OriginIoErrorKind::Unavailable && waited < self.patience && !is_stopped;
        if fetch.is_overwritten || !is_patient {
            return self.arrived(unit);
        }
        let pause = Span((waited.0 / 4).clamp(RETRY_MIN.0, RETRY_MAX.0));
        self.retries.push(Retry { at: now + pause, unit });
        Some(Fetched::Retried)
    }

    /// When the next block is asked for again.
    pub(super) fn retry_at(&self) -> Option<Time> {
        self.retries.iter().map(|retry| retry.at).min()
    }

    /// Asks again for what is due.
    pub(super) fn retry(&mut self, now: Time) {
        let due = self.retries.extract_if(.., |retry| retry.at <= now);
        self.misses.extend(due.map(|retry| retry.unit));
    }
}

/// Longest fetch, in blocks: 1 MiB.
const FETCH_BLOCKS_MAX: usize = 256;
/// First and longest pause before the origin is asked again.
const RETRY_MIN: Span = Span::from_millis(50);
const RETRY_MAX: Span = Span::from_secs(2);

#[cfg(test)]
mod tests {
    use super::*;

    const AWAY: OriginIoErrorKind = OriginIoErrorKind::Unavailable;

    fn fetches(units: &[u32]) -> Fetches {
        let mut fetches = Fetches::new(Span::from_secs(30));
        units.iter().for_each(|&unit| fetches.want(Time::ZERO, UnitId(unit)));
        fetches
    }

    fn taken(fetches: &mut Fetches) -> Vec<Vec<u32>> {
        let runs = fetches.take_misses(|unit| Lba(u64::from(unit.0)));
        runs.iter().map(|run| run.iter().map(|unit| unit.0).collect()).collect()
    }

    #[test]
    fn neighbours_are_asked_for_together_as_far_as_a_fetch_reaches() {
        let mut fetches = fetches(&[7, 3, 2, 9, 8, 3]);
        assert_eq!(taken(&mut fetches), [vec![2, 3], vec![7, 8, 9]]);
        assert!(taken(&mut fetches).is_empty());
        (0..300).for_each(|unit| fetches.want(Time::ZERO, UnitId(unit)));
        let lens: Vec<usize> = taken(&mut fetches).iter().map(Vec::len).collect();
        assert_eq!(lens, [FETCH_BLOCKS_MAX, 300 - FETCH_BLOCKS_MAX]);
    }

    #[test]
    fn what_was_written_meanwhile_counts_whether_the_fetch_fails_or_not() {
        let mut fetches = fetches(&[1, 2, 3]);
        fetches.outdate(UnitId(1));
        fetches.outdate(UnitId(2));
        assert_eq!(fetches.arrived(UnitId(1)), Some(Fetched::Overwritten));
        let failed = fetches.failed(Time::ZERO, UnitId(2), AWAY, false);
        assert_eq!(failed, Some(Fetched::Overwritten));
        assert_eq!(fetches.arrived(UnitId(3)), Some(Fetched::Ended));
        assert_eq!(fetches.arrived(UnitId(3)), None);
        assert_eq!(fetches.len(), 0);
    }

    #[test]
    fn an_origin_that_is_away_is_asked_again_until_patience_ends() {
        let mut fetches = fetches(&[1]);
        taken(&mut fetches);
        assert_eq!(fetches.failed(Time::ZERO, UnitId(1), AWAY, false), Some(Fetched::Retried));
        let at = fetches.retry_at().expect("a retry is due");
        assert_eq!(at, Time::ZERO + RETRY_MIN);
        fetches.retry(Time::ZERO);
        assert!(taken(&mut fetches).is_empty(), "not yet");
        fetches.retry(at);
        assert_eq!(taken(&mut fetches), [vec![1]]);
        assert_eq!(fetches.retry_at(), None);
        let late = Time::ZERO + Span::from_secs(30);
        assert_eq!(fetches.failed(late, UnitId(1), AWAY, false), Some(Fetched::Ended));
    }

    #[test]
    fn neither_a_refusal_nor_a_stopped_volume_is_patient() {
        let mut fetches = fetches(&[1, 2]);
        let denied = fetches.failed(Time::ZERO, UnitId(1), OriginIoErrorKind::Denied, false);
        assert_eq!(denied, Some(Fetched::Ended));
        assert_eq!(fetches.failed(Time::ZERO, UnitId(2), AWAY, true), Some(Fetched::Ended));
    }
}
