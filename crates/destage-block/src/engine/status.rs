//! What a volume tells of itself.

use super::Volume;
use destage_core::{Lsn, Mode, Span, Status, StopReason};
use destage_journal::JournalStatus;

/// What is counted beside the core.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) hit_blocks: u64,
    pub(super) miss_blocks: u64,
    pub(super) fetches: u64,
    pub(super) fetched_blocks: u64,
    pub(super) passed_blocks: u64,
    pub(super) bypassed_blocks: u64,
    pub(super) sent_blocks: u64,
    pub(super) before_cached_blocks: u64,
    pub(super) before_fetched_blocks: u64,
    pub(super) slot_errors: u64,
    pub(super) log_read_errors: u64,
    pub(super) log_full: u64,
    pub(super) origin_errors: u64,
    pub(super) origin_error: String,
}

impl Counters {
    /// The origin did not do what it was asked.
    pub(super) fn note_origin_error(&mut self, message: &str) {
        self.origin_errors += 1;
        message.clone_into(&mut self.origin_error);
    }
}

/// What a volume does with requests now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VolumeMode {
    /// As the core's mode says.
    Serving(Mode),
    /// Reads only; writes wait until [`Volume::thaw`].
    Frozen,
    /// Writes wait until everything undecided is at the origin, since the next policy writes through.
    ChangingPolicy,
    /// No write is taken; reads of blocks without undecided changes are served by the origin, others fail.
    Stopped(StopReason),
    /// No write and no flush is taken, since the cache's file is not what it was; what it holds is sent to the origin.
    CacheLost,
    /// Requests are refused.
    Closing,
}

/// A snapshot. Counters count from the volume's opening.
#[derive(Clone, Debug)]
pub struct VolumeStatus {
    /// What it does with requests.
    pub mode: VolumeMode,
    /// What the core knows. Its `dirty_bytes` counts undecided writes; `dirty_units` are blocks.
    pub core: Status,
    /// What the log holds.
    pub log: JournalStatus,
    /// Room of the log, bytes.
    pub log_bytes: u64,
    /// Bytes of the volume.
    pub volume_bytes: u64,
    /// Slots of the cache device.
    pub slots: u32,
    /// Slots that stand for a block, clean or dirty.
    pub slots_used: u32,
    /// Blocks read that were cached.
    pub hit_blocks: u64,
    /// Blocks read that were not.
    pub miss_blocks: u64,
    /// Requests to the origin for blocks that were not cached.
    pub fetches: u64,
    /// Blocks that they brought.
    pub fetched_blocks: u64,
    /// Blocks read from the origin past the cache.
    pub passed_blocks: u64,
    /// Blocks written by long sequential writes, which the cache does not keep.
    pub bypassed_blocks: u64,
    /// Blocks sent to the origin; fewer than were written, where newer versions replaced older ones.
    pub sent_blocks: u64,
    /// Blocks of atomic groups whose contents before were known from the cache.
    pub before_cached_blocks: u64,
    /// Blocks of atomic groups whose contents before were read from the origin.
    pub before_fetched_blocks: u64,
    /// Blocks of undecided zeros; they take no slots.
    pub zeroed_blocks: u64,
    /// Undecided writes in memory, bytes.
    pub memory_bytes: u64,
    /// The level of the next write.
    pub level: u64,
    /// Up to where the cache device says that the origin has come.
    pub marked: Lsn,
    /// The Lsn of the index checkpoint in force.
    pub checkpoint: Lsn,
    /// Age of that checkpoint.
    pub checkpoint_age: Span,
    /// Checkpoints that could not be written.
    pub checkpoint_failures: u64,
    /// Points at which an application was consistent and which the origin has not passed.
    pub marks_ahead: usize,
    /// Slots that could not be read or written, or held something else than was written there.
    pub slot_errors: u64,
    /// Blocks that could not be read back from the log.
    pub log_read_errors: u64,
    /// How often the log had no room.
    pub log_full: u64,
    /// How often the origin did not do what it was asked.
    pub origin_errors: u64,
    /// What it said last.
    pub origin_error: String,
    /// Requests under way.
    pub requests: usize,
    /// Writes that wait for others to the same blocks.
    pub writes_waiting: usize,
}

impl VolumeStatus {
    /// The share of blocks read that were cached; `None` before the first read.
    pub fn hit_ratio(&self) -> Option<f64> {
        let all = self.hit_blocks + self.miss_blocks;
        (all > 0).then(|| self.hit_blocks as f64 / all as f64)
    }
}

impl Volume {
    /// What it does and holds now.
    pub fn status(&self) -> VolumeStatus {
        let (counters, upkeep, index) = (&self.counters, &self.upkeep, self.slots.index());
        let core = self.core.status();
        let (checkpoint, checkpointed_at) = upkeep.checkpoint();
        VolumeStatus {
            mode: self.service.mode(core.mode),
            core,
            log: self.log.journal.status(),
            log_bytes: self.shape.log_bytes,
            volume_bytes: self.shape.size,
            slots: index.slots(),
            slots_used: index.used(),
            hit_blocks: counters.hit_blocks,
            miss_blocks: counters.miss_blocks,
            fetches: counters.fetches,
            fetched_blocks: counters.fetched_blocks,
            passed_blocks: counters.passed_blocks,
            bypassed_blocks: counters.bypassed_blocks,
            sent_blocks: counters.sent_blocks,
            before_cached_blocks: counters.before_cached_blocks,
            before_fetched_blocks: counters.before_fetched_blocks,
            zeroed_blocks: self.overlay.zeroed_blocks(),
            memory_bytes: self.overlay.memory_bytes(),
            level: self.core.level(),
            marked: upkeep.marked(),
            checkpoint,
            checkpoint_age: self.now.since(checkpointed_at),
            checkpoint_failures: upkeep.failures(),
            marks_ahead: self.batches.cuts_len(),
            slot_errors: counters.slot_errors,
            log_read_errors: counters.log_read_errors,
            log_full: counters.log_full,
            origin_errors: counters.origin_errors,
            origin_error: counters.origin_error.clone(),
            requests: self.requests.len(),
            writes_waiting: self.fragments.writes_waiting(),
        }
    }
}
