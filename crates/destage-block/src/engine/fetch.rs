//! Misses: neighbours are fetched together, and installed only if nothing newer is known.

use super::Volume;
use super::fetches::Fetched;
use super::install::CleanBlock;
use super::job::{FetchPurpose, Work as JobWork};
use crate::block::{BLOCK, Extent};
use crate::origin::{OriginIoError, OriginIoErrorKind};
use destage_core::{Fault, Input, UnitId};
use std::sync::Arc;

impl Volume {
    /// The core wants a block present.
    pub(super) fn fetch(&mut self, unit: UnitId) {
        if self.overlay.is_dirty(self.slots.lba(unit), unit) {
            // Its newest version is known whole.
            return self.fetched(unit, Ok(()));
        }
        self.slots.set_undefined(unit);
        self.fetches.want(self.now, unit);
    }

    fn fetched(&mut self, unit: UnitId, result: Result<(), Fault>) {
        let identity = self.slots.identity(unit);
        let result = result.map(|()| BLOCK as u32);
        self.core.handle(self.now, Input::Fetched { unit, result, identity });
    }

    /// Starts the fetches that were asked for since, neighbours together.
    pub(super) fn start_fetches(&mut self) {
        for run in self.fetches.take_misses(|unit| self.slots.lba(unit)) {
            self.push_fetch(run);
        }
    }

    fn push_fetch(&mut self, units: Vec<UnitId>) {
        let Some(&first) = units.first() else { return };
        let extent = Extent { first: self.slots.lba(first), blocks: units.len() as u32 };
        let purpose = FetchPurpose::Cache(units);
        self.counters.fetches += 1;
        self.jobs.push(JobWork::Fetch { extent, purpose });
    }

    /// The origin answered a fetch.
    pub(super) fn fetch_done(&mut self, units: &[UnitId], result: Result<Vec<u8>, OriginIoError>) {
        match result {
            Ok(bytes) => self.install(units, bytes),
            Err(error) => self.fetch_failed(units, &error),
        }
    }

    fn install(&mut self, units: &[UnitId], bytes: Vec<u8>) {
        self.counters.fetched_blocks += units.len() as u64;
        let data = Arc::new(bytes);
        for (index, &unit) in units.iter().enumerate() {
            let Some(fetched) = self.fetches.arrived(unit) else { continue };
            if fetched == Fetched::Overwritten {
                self.fetched_late(unit);
                continue;
            }
            let at = index * BLOCK;
            let crc = crc32c::crc32c(&data[at..at + BLOCK]);
            self.slots.keep(unit, CleanBlock { data: data.clone(), at, crc });
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

    fn fetch_failed(&mut self, units: &[UnitId], error: &OriginIoError) {
        self.counters.note_origin_error(&error.message);
        if error.kind == OriginIoErrorKind::Failed && units.len() > 1 {
            // One bad place must not fail its neighbours.
            units.iter().for_each(|&unit| self.push_fetch(vec![unit]));
            return;
        }
        let fault = match error.kind {
            OriginIoErrorKind::Unavailable => Fault::Unavailable,
            _ => Fault::Denied,
        };
        for &unit in units {
            match self.fetches.failed(self.now, unit, error.kind, self.service.is_stopped()) {
                Some(Fetched::Overwritten) => self.fetched_late(unit),
                Some(Fetched::Ended) => self.fetched(unit, Err(fault)),
                Some(Fetched::Retried) | None => {}
            }
        }
    }
}
