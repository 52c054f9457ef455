//! Writing the log before anybody waits for it.
//!
//! What the log holds in memory is written once there is a fair amount of it, so that a flush finds little left to write and
//! the memory can be used for something else; and, if the client's habit is to flush now, as soon as nothing else is to be
//! done: while the client hears of its write, the disk is writing it already. Neither makes anything durable, so neither
//! changes what a crash may take back.

use super::Volume;
use super::effects::LOG_FULL_PAUSE;
use super::job::{Job, Work as JobWork};
use destage_journal::{ErrorKind, Flush};

impl Volume {
    /// A job that is better done now than later, although nobody waits for it. To be asked for when there is nothing else to
    /// do; counts as one of [`Volume::poll_job`]. With `is_idle`, no client waits for anything.
    pub fn poll_ahead(&mut self, is_idle: bool) -> Option<Job> {
        let buffered = self.journal.buffered_bytes();
        let is_foreseen = is_idle && buffered > 0 && self.rhythm.expects_flush();
        let is_next = self.is_log_syncing && buffered >= BESIDE_SYNC_BYTES;
        let is_due = is_foreseen || is_next || buffered >= WRITE_AHEAD_BYTES;
        if is_due { self.write_ahead() } else { None }
    }

    /// Has the log written now, unless something stands in the way.
    pub(super) fn write_ahead(&mut self) -> Option<Job> {
        if self.is_log_busy || self.sync_due.is_some() || !self.may_write_ahead() {
            return None;
        }
        self.is_log_busy = true;
        self.jobs_running += 1;
        Some(Job(JobWork::WriteAhead(self.journal.take())))
    }

    /// Whether nothing speaks against writing to the log without making it durable.
    fn may_write_ahead(&self) -> bool {
        let is_full = self.upkeep.sync_again.is_some() || self.now < self.upkeep.ahead_not_before;
        // Many short batches take more of the log's room than few long ones.
        self.stopped.is_none() && !is_full && !self.upkeep.is_log_short
    }

    /// The log was written, or not. What was not comes with the next sync, which meets the same trouble.
    pub(super) fn written_ahead(
        &mut self,
        flush: Flush,
        result: Result<u64, destage_journal::Error>,
    ) {
        self.log_returned(flush);
        if let Err(error) = result {
            tracing::debug!(%error, "the log could not be written ahead");
            if error.kind() == ErrorKind::Full {
                self.counters.log_full += 1;
            }
            self.upkeep.ahead_not_before = self.now + LOG_FULL_PAUSE;
        }
    }
}

/// Written while a sync is under way, so that the next one finds it written.
const BESIDE_SYNC_BYTES: usize = 32 << 10;
/// Written at once.
const WRITE_AHEAD_BYTES: usize = 256 << 10;
