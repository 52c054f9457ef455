//! Clean blocks on their way into their slots.
//!
//! They are only a cache of what the origin holds, so they never come before what a client waits for: they are written in
//! bounded batches, few at a time, and what is outdated meanwhile is not written at all. Until a slot holds its block,
//! reads come from memory.

use super::Volume;
use super::job::{InstallItem, Work as JobWork};
use super::overlay::Shared;
use crate::block::BLOCK;
use destage_core::UnitId;
use std::collections::VecDeque;
use std::sync::Arc;

/// The bytes of a clean block.
#[derive(Clone, Debug)]
pub(super) struct CleanBlock {
    pub(super) data: Shared,
    /// Where in `data` the block begins.
    pub(super) at: usize,
    pub(super) crc: u32,
}

impl CleanBlock {
    /// The same without much else in memory beside it.
    pub(super) fn compact(self) -> Self {
        if self.data.len() <= COMPACT_BYTES_MAX {
            return self;
        }
        let block = self.data[self.at..self.at + BLOCK].to_vec();
        Self { data: Arc::new(block), at: 0, ..self }
    }
}

/// What is to be written into slots.
#[derive(Debug, Default)]
pub(super) struct Installs {
    waiting: VecDeque<InstallItem>,
    jobs: usize,
}

impl Installs {
    /// Whether so many wait that further blocks should rather be dropped.
    pub(super) fn is_full(&self) -> bool {
        self.waiting.len() >= WAITING_MAX
    }

    /// Whether none waits.
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}

impl Volume {
    /// Keeps a clean block, whatever else waits.
    pub(super) fn keep(&mut self, unit: UnitId, content: CleanBlock) {
        let CleanBlock { data, at, crc } = content;
        let install = self.slots.load(unit, data.clone(), at);
        self.slots.pin(unit);
        self.installs.waiting.push_back(InstallItem { unit, install, data, at, crc });
    }

    /// Has written what waits, as far as it is still wanted.
    pub(super) fn start_installs(&mut self) {
        while self.installs.jobs < JOBS_MAX && !self.installs.waiting.is_empty() {
            let count = self.installs.waiting.len().min(JOB_BLOCKS_MAX);
            let taken: Vec<InstallItem> = self.installs.waiting.drain(..count).collect();
            let (mut items, outdated): (Vec<_>, Vec<_>) =
                taken.into_iter().partition(|item| self.is_current(item));
            outdated.iter().for_each(|item| self.slots.unpin(item.unit));
            if items.is_empty() {
                continue;
            }
            // Neighbours go in one write.
            items.sort_unstable_by_key(|item| item.unit);
            self.installs.jobs += 1;
            self.jobs.push(JobWork::Install { items });
        }
    }

    fn is_current(&self, item: &InstallItem) -> bool {
        self.slots.loaded(item.unit).is_some_and(|loaded| loaded.install == item.install)
    }

    /// Blocks were written into their slots, or not.
    pub(super) fn installed(&mut self, items: &[InstallItem], is_written: bool) {
        self.installs.jobs -= 1;
        for item in items {
            let is_current = self.is_current(item);
            if is_current && is_written {
                self.slots.set_clean(item.unit, item.crc);
                self.upkeep.changed(self.now);
            } else if is_current {
                self.counters.slot_errors += 1;
                self.drop_cached(item.unit);
            }
            self.slots.unpin(item.unit);
        }
    }
}

/// Above this a block is copied out of the bytes of others.
const COMPACT_BYTES_MAX: usize = 16 << 10;
/// Blocks that may wait before destaged ones are dropped: 32 MiB.
const WAITING_MAX: usize = 8_192;
/// Most blocks of one job: 1 MiB.
const JOB_BLOCKS_MAX: usize = 256;
/// Jobs at a time. More would only queue at the device, before the log's writes.
const JOBS_MAX: usize = 2;
