//! The log: what is appended to it, when it is written and made durable, and who still reads it.
//!
//! When, is [`JournalCommit`]'s to say. What the log holds in memory is written once there is a fair amount of it, so that a
//! flush finds little left to write and the memory can be used for something else; and, if the client's habit is to flush now,
//! as soon as nothing else is to be done: while the client hears of its write, the disk is writing it already.

use super::Volume;
use super::job::{Job, Work as JobWork};
use destage_core::{Fault, FlushRhythm, Input, Lsn, Time};
use destage_engine::{CommitSettings, Load, News};
use destage_journal::Journal;
use destage_runtime::commit::{CommitDone, JournalCommit};
use std::collections::BTreeMap;

/// The journal, and all that concerns it alone.
#[derive(Debug)]
pub(super) struct VolumeLog {
    pub(super) journal: Journal,
    commit: JournalCommit,
    /// When the client flushes.
    pub(super) rhythm: FlushRhythm,
    /// Memory for a record.
    pub(super) payload: Vec<u8>,
    /// Groups whose records are being read, and by how many.
    pins: BTreeMap<Lsn, u32>,
}

impl VolumeLog {
    pub(super) fn new(journal: Journal, now: Time) -> Self {
        let commit = JournalCommit::new(COMMIT, 0, now);
        let (rhythm, payload) = (FlushRhythm::default(), Vec::new());
        Self { journal, commit, rhythm, payload, pins: BTreeMap::new() }
    }

    /// Whether the core waits for the log.
    pub(super) fn is_wanted(&self) -> bool {
        self.commit.is_wanted()
    }

    /// When a full log is tried again.
    pub(super) fn next_timeout(&self) -> Option<Time> {
        self.commit.next_timeout(&self.journal)
    }

    /// The record of this group is read until [`VolumeLog::unpin`].
    pub(super) fn pin(&mut self, lsn: Lsn) {
        *self.pins.entry(lsn).or_insert(0) += 1;
    }

    /// One reader of this group's record is done.
    pub(super) fn unpin(&mut self, lsn: Lsn) {
        if let Some(count) = self.pins.get_mut(&lsn) {
            *count -= 1;
            if *count == 0 {
                self.pins.remove(&lsn);
            }
        }
    }

    /// The oldest group whose record is being read.
    pub(super) fn pinned(&self) -> Option<Lsn> {
        self.pins.first_key_value().map(|(&lsn, _)| lsn)
    }
}

impl Volume {
    /// The core wants the log durable. What is written until someone takes the job goes with it, so that requests which
    /// came together share one sync.
    pub(super) fn start_sync(&mut self, upto: Lsn) {
        self.log.commit.want(upto);
    }

    /// What is due at the log.
    pub(super) fn take_sync(&mut self) -> Option<Job> {
        let load = self.log_load(false);
        let work = self.log.commit.next_due(self.now, &mut self.log.journal, load)?;
        Some(Job(JobWork::Log(work)))
    }

    /// A job that is better done now than later, although nobody waits for it. To be asked for when there is nothing else to
    /// do; counts as one of [`Volume::poll_job`]. With `is_idle`, no client waits for anything.
    pub fn poll_ahead(&mut self, is_idle: bool) -> Option<Job> {
        let is_foreseen = is_idle && self.log.rhythm.expects_flush();
        self.write_ahead(is_foreseen)
    }

    /// Has the log written now, if that is of use or a flush is foreseen, unless something stands in the way.
    pub(super) fn write_ahead(&mut self, is_flush_foreseen: bool) -> Option<Job> {
        let load = self.log_load(is_flush_foreseen);
        let work = self.log.commit.next_ahead(self.now, &mut self.log.journal, load)?;
        self.jobs.started();
        Some(Job(JobWork::Log(work)))
    }

    fn log_load(&self, is_sync_foreseen: bool) -> Load {
        let is_room_short = self.service.is_stopped() || self.upkeep.is_log_short();
        Load { is_sync_foreseen, is_room_short, ..Load::default() }
    }

    /// Something was done with the log, or not. What was not comes with the next sync.
    pub(super) fn log_ended(&mut self, done: CommitDone) {
        if let Some(error) = done.failure() {
            tracing::error!(%error, "the log failed");
        }
        let done = done.until(self.now);
        if done.is_sync() {
            self.measured.synced(self.now, done.took());
        }
        let is_flush = done.is_flush();
        self.log.commit.ended(self.now, &mut self.log.journal, done);
        if is_flush {
            // The log takes further batches again; their blocks may be read there.
            let written = self.log.journal.written_batches().to_vec();
            self.overlay.written(&written);
            self.look_at_log();
        }
        self.tell_of_log();
    }

    fn tell_of_log(&mut self) {
        while let Some(news) = self.log.commit.poll_news(&mut self.log.journal) {
            match news {
                News::Durable { upto, .. } => {
                    // A full log may have taken a part of a request only, which is nothing to the core: it destages
                    // requests as a whole.
                    let upto = self.overlay.whole_upto(upto);
                    if upto > self.core.committed() {
                        self.tell_synced(Ok(upto));
                    }
                }
                // There is room as soon as the origin or the checkpoint has come further.
                News::Full { .. } => self.counters.log_full += 1,
                News::HasSpace | News::Synced { .. } => {}
                News::Failed => self.tell_synced(Err(Fault::Failed)),
            }
        }
    }

    fn tell_synced(&mut self, result: Result<Lsn, Fault>) {
        let upto = result.unwrap_or(Lsn::ZERO);
        self.measured.committed(self.now, self.core.committed(), upto, &self.overlay);
        self.core.handle(self.now, Input::Synced { upto, result: result.map(drop) });
    }
}

/// One sync at a time, by the threads that carry out all jobs; further records are written beside it.
const COMMIT: CommitSettings = CommitSettings {
    lanes: 1,
    durable_writes: 0,
    here_max: None,
    write_ahead_bytes: 256 << 10,
    write_beside_bytes: 32 << 10,
    mark_after: None,
};
