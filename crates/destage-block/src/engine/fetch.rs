//! Misses: neighbours are fetched together, and installed only if nothing newer is known.

use super::Volume;
use super::install::CleanBlock;
use super::job::{FetchPurpose, Work as JobWork};
use crate::block::{BLOCK, Extent};
use crate::origin::{OriginError, OriginErrorKind};
use destage_core::{Fault, Input, Span, Time, UnitId};
use std::sync::Arc;

/// A block on its way from the origin.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fetching {
    /// When it was first asked for.
    since: Time,
    /// It was written meanwhile: what the origin gives may be older.
    is_overwritten: bool,
}

/// Blocks to be asked for again.
#[derive(Clone, Copy, Debug)]
pub(super) struct Retry {
    at: Time,
    unit: UnitId,
}

impl Volume {
    /// The core wants a block present.
    pub(super) fn fetch(&mut self, unit: UnitId) {
        if self.overlay.is_dirty(self.slots.lba(unit), unit) {
            // Its newest version is known whole.
            return self.fetched(unit, Ok(()));
        }
        self.slots.set_undefined(unit);
        let fetching = Fetching { since: self.now, is_overwritten: false };
        self.fetching.insert(unit, fetching);
        self.misses.push(unit);
    }

    fn fetched(&mut self, unit: UnitId, result: Result<(), Fault>) {
        let identity = self.slots.identity(unit);
        let result = result.map(|()| BLOCK as u32);
        self.core.handle(self.now, Input::Fetched { unit, result, identity });
    }

    /// A block has a newer version than what a fetch under way may bring.
    pub(super) fn outdate_fetch(&mut self, unit: UnitId) {
        if let Some(fetching) = self.fetching.get_mut(&unit) {
            fetching.is_overwritten = true;
        }
    }

    /// Starts the fetches that were asked for since, neighbours together.
    pub(super) fn start_fetches(&mut self) {
        if self.misses.is_empty() {
            return;
        }
        let mut misses = std::mem::take(&mut self.misses);
        misses.sort_unstable_by_key(|&unit| self.slots.lba(unit));
        misses.dedup();
        let mut run: Vec<UnitId> = Vec::new();
        for unit in misses {
            let lba = self.slots.lba(unit);
            let follows = run.last().is_some_and(|&last| self.slots.lba(last).0 + 1 == lba.0);
            if !run.is_empty() && (!follows || run.len() >= FETCH_BLOCKS_MAX) {
                self.push_fetch(std::mem::take(&mut run));
            }
            run.push(unit);
        }
        self.push_fetch(run);
    }

    fn push_fetch(&mut self, units: Vec<UnitId>) {
        let Some(&first) = units.first() else { return };
        let extent = Extent { first: self.slots.lba(first), blocks: units.len() as u32 };
        let purpose = FetchPurpose::Cache(units);
        self.counters.fetches += 1;
        self.jobs.push(JobWork::Fetch { extent, purpose });
    }

    /// The origin answered a fetch.
    pub(super) fn fetch_done(&mut self, units: &[UnitId], result: Result<Vec<u8>, OriginError>) {
        match result {
            Ok(bytes) => self.install(units, bytes),
            Err(error) => self.fetch_failed(units, &error),
        }
    }

    fn install(&mut self, units: &[UnitId], bytes: Vec<u8>) {
        self.counters.fetched_blocks += units.len() as u64;
        let data = Arc::new(bytes);
        for (index, &unit) in units.iter().enumerate() {
            let Some(fetching) = self.fetching.remove(&unit) else { continue };
            if fetching.is_overwritten {
                self.fetched_late(unit);
                continue;
            }
            let at = index * BLOCK;
            let crc = crc32c::crc32c(&data[at..at + BLOCK]);
            self.keep(unit, CleanBlock { data: data.clone(), at, crc });
            self.fetched(unit, Ok(()));
        }
    }

    /// A block was written while it was being fetched: what counts is what was written.
    fn fetched_late(&mut self, unit: UnitId) {
        let is_dirty = self.overlay.is_dirty(self.slots.lba(unit), unit);
        let is_known = is_dirty || self.slots.crc(unit).is_some();
        if !is_known {
            // The core fetches it once more.
            self.core.handle(self.now, Input::Invalidate { unit });
        }
        self.fetched(unit, Ok(()));
    }

    fn fetch_failed(&mut self, units: &[UnitId], error: &OriginError) {
        self.counters.note_origin_error(&error.message);
        if error.kind == OriginErrorKind::Failed && units.len() > 1 {
            // One bad place must not fail its neighbours.
            units.iter().for_each(|&unit| self.push_fetch(vec![unit]));
            return;
        }
        for &unit in units {
            let Some(&fetching) = self.fetching.get(&unit) else { continue };
            let waited = self.now.since(fetching.since);
            let is_patient = error.kind == OriginErrorKind::Unavailable
                && waited < self.options.fetch_patience
                && self.stopped.is_none();
            if fetching.is_overwritten {
                self.fetching.remove(&unit);
                self.fetched_late(unit);
            } else if is_patient {
                let pause = Span((waited.0 / 4).clamp(RETRY_MIN.0, RETRY_MAX.0));
                self.retries.push(Retry { at: self.now + pause, unit });
            } else {
                self.fetching.remove(&unit);
                let fault = match error.kind {
                    OriginErrorKind::Unavailable => Fault::Unavailable,
                    _ => Fault::Denied,
                };
                self.fetched(unit, Err(fault));
            }
        }
    }

    /// When the next block is asked for again.
    pub(super) fn retry_at(&self) -> Option<Time> {
        self.retries.iter().map(|retry| retry.at).min()
    }

    /// Asks again for what is due.
    pub(super) fn retry_fetches(&mut self) {
        let now = self.now;
        let due: Vec<Retry> = self.retries.extract_if(.., |retry| retry.at <= now).collect();
        self.misses.extend(due.into_iter().map(|retry| retry.unit));
    }
}

/// Longest fetch, in blocks: 1 MiB.
const FETCH_BLOCKS_MAX: usize = 256;
/// First and longest pause before the origin is asked again.
const RETRY_MIN: Span = Span::from_millis(50);
const RETRY_MAX: Span = Span::from_secs(2);
