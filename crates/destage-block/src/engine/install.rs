//! Clean blocks on their way into their slots.
//!
//! They are only a cache of what the origin holds, so they never come before what a client waits for: they are written in
//! bounded batches, few at a time, and what is outdated meanwhile is not written at all. Until a slot holds its block,
//! reads come from memory.

use super::Volume;
use super::job::{InstallItem, Work as JobWork};
use super::overlay::Shared;
use crate::block::BLOCK;
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
    pub(super) fn push(&mut self, item: InstallItem) {
        self.waiting.push_back(item);
    }

    /// Takes what a job may write now, in the order in which it came; `None` if nothing waits, or enough jobs run.
    pub(super) fn take(&mut self) -> Option<Vec<InstallItem>> {
        let count = self.waiting.len().min(JOB_BLOCKS_MAX);
        let may_start = self.jobs < JOBS_MAX && count > 0;
        may_start.then(|| self.waiting.drain(..count).collect())
    }

    /// A job begins.
    pub(super) fn started(&mut self) {
        self.jobs += 1;
    }

    /// A job has ended.
    pub(super) fn ended(&mut self) {
        self.jobs -= 1;
    }

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
    /// Has written what waits, as far as it is still wanted.
    pub(super) fn start_installs(&mut self) {
        while let Some(items) = self.slots.next_install() {
            self.jobs.push(JobWork::Install { items });
        }
    }

    /// Blocks were written into their slots, or not.
    pub(super) fn installed(&mut self, items: &[InstallItem], is_written: bool) {
        let current = self.slots.installed(items, is_written);
        if is_written && !current.is_empty() {
            self.upkeep.changed(self.now);
        } else if !is_written {
            self.counters.slot_errors += current.len() as u64;
            current.into_iter().for_each(|unit| self.drop_cached(unit));
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
