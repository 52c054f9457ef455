//! The cache device's bookkeeping: checkpoints of the index, and letting go of the log.
//!
//! The log keeps every record after the newest checkpoint's Lsn, since only they tell a start which clean blocks of that
//! checkpoint are out of date. A write that goes past the log leaves no such record: while the policy writes through, the
//! checkpoints in both areas list nothing, and a whole one is written when the volume is closed.

use super::job::{Checkpointed, Work as JobWork};
use super::{Volume, VolumeOptions};
use crate::cache::index::ENTRY_BYTES;
use crate::cache::record::GroupKind;
use crate::cache::{CacheDevice, CacheError, CheckpointWriter};
use destage_core::{Lsn, Span, Time};
use std::sync::Arc;

/// What the bookkeeping knows.
#[derive(Debug)]
pub(super) struct Upkeep {
    cache: Arc<CacheDevice>,
    /// The log keeps what comes after this, for the checkpoint that is in force.
    pub(super) checkpoint: Lsn,
    /// When the checkpoint in force was begun.
    checkpointed_at: Time,
    /// Since when the index differs from it.
    changed_since: Option<Time>,
    /// What is being written, if anything is.
    running: Option<Running>,
    /// Checkpoints in a row that list no block.
    voids: u32,
    /// Not before this time, after a failure.
    not_before: Time,
    failures: u64,
    /// How many there were when the volume began to close.
    failures_before_close: u64,
    /// The newest group with blocks.
    logged: Lsn,
    /// Groups up to here are needed by nobody.
    pub(super) forgotten: Lsn,
    reclaimed: Lsn,
    /// How often the index is checkpointed while it changes.
    checkpoint_every: Span,
    /// Negative control of the tests: the log is let go without regard to the checkpoint.
    reclaims_past_checkpoint: bool,
    /// More than half of the log's room is taken.
    is_log_short: bool,
    /// Whether the last checkpoint of a volume that is being closed has been written.
    is_closed: bool,
}

#[derive(Clone, Copy, Debug)]
struct Running {
    lsn: Lsn,
    began: Time,
    is_void: bool,
    is_last: bool,
    next_chunk: u32,
}

impl Upkeep {
    pub(super) fn new(
        cache: Arc<CacheDevice>,
        now: Time,
        checkpoint: Lsn,
        options: &VolumeOptions,
    ) -> Self {
        Self {
            cache,
            checkpoint,
            checkpointed_at: now,
            changed_since: None,
            running: None,
            voids: 0,
            not_before: Time::ZERO,
            failures: 0,
            failures_before_close: 0,
            logged: Lsn::ZERO,
            forgotten: Lsn::ZERO,
            reclaimed: Lsn::ZERO,
            checkpoint_every: options.checkpoint_every,
            reclaims_past_checkpoint: options.unsafe_reclaim_past_checkpoint,
            is_log_short: false,
            is_closed: false,
        }
    }

    /// Whether neither area's checkpoint lists a block: if the newest one is damaged, a start uses the other.
    fn is_void(&self) -> bool {
        self.voids >= CHECKPOINT_AREAS
    }

    /// A group is in the log, or was found there. A mark has no blocks: sent once more, it changes nothing.
    pub(super) fn logged(&mut self, lsn: Lsn, kind: GroupKind) {
        if kind != GroupKind::Mark {
            self.logged = lsn;
        }
    }

    /// Groups up to here are needed by nobody.
    pub(super) fn forget(&mut self, upto: Lsn) {
        self.forgotten = self.forgotten.max(upto);
    }

    /// Whether more than half of the log's room is taken.
    pub(super) fn is_log_short(&self) -> bool {
        self.is_log_short
    }

    /// The volume begins to close.
    pub(super) fn close(&mut self) {
        self.failures_before_close = self.failures;
    }

    /// Whether the last checkpoint of a volume that is being closed has been written, or cannot be: that only makes the next
    /// start a cold one.
    pub(super) fn is_closed(&self) -> bool {
        self.is_closed || self.failures > self.failures_before_close
    }

    /// Up to where the cache device says that the origin has come.
    pub(super) fn marked(&self) -> Lsn {
        Lsn(self.cache.decided())
    }

    /// The checkpoint in force, and when it was begun.
    pub(super) fn checkpoint(&self) -> (Lsn, Time) {
        (self.checkpoint, self.checkpointed_at)
    }

    /// Checkpoints that could not be written.
    pub(super) fn failures(&self) -> u64 {
        self.failures
    }

    /// The index differs from its checkpoint.
    pub(super) fn changed(&mut self, now: Time) {
        self.changed_since.get_or_insert(now);
    }
}

impl Volume {
    /// Whatever is due. True if another policy is in force, or has begun to wait for what is dirty.
    pub(super) fn upkeep(&mut self) -> bool {
        self.reclaim();
        if self.service.is_stopped() {
            return false;
        }
        self.finish_freezing();
        let moved = self.service.next_policy().is_some() && {
            let waited = self.waits.is_policy_waiting();
            self.try_next_policy() || (!waited && self.waits.is_policy_waiting())
        };
        if self.checkpoint_due().is_some_and(|at| at <= self.now) {
            self.begin_checkpoint();
        }
        moved
    }

    /// When [`Volume::upkeep`] has something to do by the passing of time alone.
    pub(super) fn upkeep_at(&self) -> Option<Time> {
        if self.service.is_stopped() {
            return None;
        }
        // One that has passed waits for something else.
        let next_try = self.service.next_try().filter(|&at| at > self.now);
        [self.log.next_timeout(), self.checkpoint_due(), next_try].into_iter().flatten().min()
    }

    /// Lets go of the log as far as nobody needs it.
    fn reclaim(&mut self) {
        let mut upto = self.upkeep.forgotten;
        if !self.upkeep.reclaims_past_checkpoint {
            upto = upto.min(self.upkeep.checkpoint);
        }
        if let Some(pinned) = self.log.pinned() {
            upto = upto.min(Lsn(pinned.0 - 1));
        }
        if upto > self.upkeep.reclaimed {
            self.upkeep.reclaimed = upto;
            self.log.journal.reclaim(upto.0, self.now.0);
            self.look_at_log();
        }
    }

    /// Notes whether the log needs a checkpoint soon, so that it can be shortened.
    pub(super) fn look_at_log(&mut self) {
        let used = self.log.journal.status().segments as u64 * self.shape.segment_bytes;
        self.upkeep.is_log_short = used > self.shape.log_bytes / 2;
    }

    /// Whether writes may go to the origin past the log: only while no checkpoint lists a block that they make outdated, and while
    /// no start would send an older write of the log over them.
    pub(super) fn may_write_through(&self) -> bool {
        self.upkeep.is_void()
            && self.upkeep.running.is_none_or(|running| running.is_void)
            && self.is_marked()
    }

    /// Whether the cache device says that the origin has all blocks of the log.
    fn is_marked(&self) -> bool {
        self.upkeep.marked() >= self.upkeep.logged
    }

    fn checkpoint_due(&self) -> Option<Time> {
        let upkeep = &self.upkeep;
        if upkeep.running.is_some() {
            return None;
        }
        let at = if self.service.is_closing() && self.is_quiet_for_close() {
            (!upkeep.is_closed).then_some(self.now)
        } else if self.core.policy().waits_for_origin() {
            // With each checkpoint the cache device hears how far the origin is.
            let is_to_be_marked = self.core.decided() >= upkeep.logged && !self.is_marked();
            (!upkeep.is_void() || is_to_be_marked).then_some(self.now)
        } else {
            // A volume that is being closed may wait for room in the log, and gets it as at any other time.
            let by_time = upkeep.changed_since.filter(|_| !self.service.is_closing());
            let by_time = by_time.map(|at| at + upkeep.checkpoint_every);
            let is_useful = upkeep.is_log_short && upkeep.forgotten > upkeep.checkpoint;
            let by_room = is_useful.then(|| upkeep.checkpointed_at + CHECKPOINT_PAUSE);
            [by_time, by_room].into_iter().flatten().min()
        };
        at.map(|at| at.max(upkeep.not_before))
    }

    fn begin_checkpoint(&mut self) {
        let is_last = self.service.is_closing() && self.is_quiet_for_close();
        let running = Running {
            // Not the newest group: what a crash takes back must not count as seen.
            lsn: self.core.committed(),
            began: self.now,
            // Nor may one that is not known to be durable at the origin: the next start knows by that.
            is_void: if is_last {
                self.write_through.is_unflushed()
            } else {
                self.core.policy().waits_for_origin()
            },
            is_last,
            next_chunk: 0,
        };
        self.upkeep.changed_since = None;
        if !running.is_void {
            self.upkeep.voids = 0;
        }
        let mut writer = self.upkeep.cache.begin_checkpoint(running.lsn.0);
        if running.is_last {
            writer.closes(self.log.journal.incarnation());
        }
        self.upkeep.running = Some(running);
        self.next_chunk(writer);
    }

    /// Has the next part of the index written.
    fn next_chunk(&mut self, writer: CheckpointWriter) {
        let Some(running) = &mut self.upkeep.running else { return };
        let chunk = writer.next_chunk().map(|chunk| {
            running.next_chunk = chunk;
            let mut entries = self.slots.index().chunk(chunk);
            if running.is_void {
                entries.chunks_exact_mut(ENTRY_BYTES).for_each(|entry| {
                    entry.copy_from_slice(&[0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0]);
                });
            }
            entries
        });
        let decided = self.core.decided();
        self.jobs.push(JobWork::Checkpoint { writer, chunk, decided });
    }

    /// A part of a checkpoint, or all of it, has been written, or not.
    pub(super) fn checkpoint_done(&mut self, result: Result<Checkpointed, CacheError>) {
        match result {
            Ok(Checkpointed::Part(writer)) => self.next_chunk(writer),
            Ok(Checkpointed::InForce(lsn)) => {
                let Some(running) = self.upkeep.running.take() else { return };
                self.upkeep.checkpoint = lsn;
                self.upkeep.checkpointed_at = running.began;
                self.upkeep.voids += u32::from(running.is_void);
                self.upkeep.is_closed = running.is_last;
            }
            Err(error) => {
                tracing::warn!(%error, "failed to checkpoint the index; trying again");
                self.upkeep.running = None;
                self.upkeep.failures += 1;
                self.upkeep.changed(self.now);
                self.upkeep.not_before = self.now + CHECKPOINT_RETRY;
            }
        }
    }
}

/// Shortest time between two checkpoints that are to make room in the log.
const CHECKPOINT_PAUSE: Span = Span::from_secs(1);
/// Places of checkpoints on the device, written in turn.
const CHECKPOINT_AREAS: u32 = 2;
/// After a failure.
const CHECKPOINT_RETRY: Span = Span::from_secs(5);
