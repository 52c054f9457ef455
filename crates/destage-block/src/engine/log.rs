//! The log: what is appended to it, when it is written and made durable, and who still reads it.
//!
//! When, is [`GroupCommit`]'s to say. What the log holds in memory is written once there is a fair amount of it, so that a
//! flush finds little left to write and the memory can be used for something else; and, if the client's habit is to flush now,
//! as soon as nothing else is to be done: while the client hears of its write, the disk is writing it already.

use super::Volume;
use super::job::{Job, Work as JobWork};
use destage_core::{Fault, FlushRhythm, Input, Lsn, Time};
use destage_engine::{CommitSettings, Ended, GroupCommit, LogFault, News, Step};
use destage_journal::{Error, ErrorKind, Flush, Journal, Sync};
use std::collections::BTreeMap;

/// The journal, and all that concerns it alone.
#[derive(Debug)]
pub(super) struct VolumeLog {
    pub(super) journal: Journal,
    commit: GroupCommit,
    /// A sync that has ended and does not count yet.
    ended: Option<Sync>,
    /// When the client flushes.
    pub(super) rhythm: FlushRhythm,
    /// Memory for a record.
    pub(super) payload: Vec<u8>,
    /// Groups whose records are being read, and by how many.
    pins: BTreeMap<Lsn, u32>,
}

impl VolumeLog {
    pub(super) fn new(journal: Journal, now: Time) -> Self {
        let commit = GroupCommit::new(COMMIT, now);
        let (rhythm, payload) = (FlushRhythm::default(), Vec::new());
        Self { journal, commit, ended: None, rhythm, payload, pins: BTreeMap::new() }
    }

    /// Whether the core waits for the log.
    pub(super) fn is_wanted(&self) -> bool {
        self.commit.is_wanted()
    }

    /// When a full log is tried again.
    pub(super) fn next_timeout(&self) -> Option<Time> {
        self.commit.next_timeout(self.state())
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

    fn state(&self) -> destage_engine::Log {
        destage_engine::Log {
            buffered_bytes: self.journal.buffered_bytes(),
            written: Lsn(self.journal.written()),
            is_light: false,
            is_mark_due: false,
        }
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
        while let Some(step) = self.log.commit.next_due(self.now, self.log.state(), load) {
            if let Some(job) = self.log_job(step) {
                return Some(job);
            }
        }
        None
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
        let step = self.log.commit.next_ahead(self.now, self.log.state(), load)?;
        let job = self.log_job(step)?;
        self.jobs.started();
        Some(job)
    }

    fn log_load(&self, is_sync_foreseen: bool) -> destage_engine::Load {
        let is_room_short = self.service.is_stopped() || self.upkeep.is_log_short();
        destage_engine::Load { is_sync_foreseen, is_room_short, ..destage_engine::Load::default() }
    }

    /// The job that a step is; `None` if there is nothing to do after all.
    fn log_job(&mut self, step: Step) -> Option<Job> {
        let log = &mut self.log;
        let work = match step {
            Step::Write { .. } => JobWork::WriteAhead(log.journal.take()),
            Step::WriteAndSync { .. } => JobWork::Sync(log.journal.take()),
            Step::Sync { lane } => match log.journal.sync() {
                Some(sync) => JobWork::SyncWritten(sync),
                None => {
                    log.commit.not_begun(self.now, lane);
                    return None;
                }
            },
        };
        if !matches!(step, Step::Write { .. }) {
            self.measured.sync_began(self.now);
        }
        Some(Job(work))
    }

    /// The log was written, or not. What was not comes with the next sync.
    pub(super) fn written_ahead(&mut self, flush: Flush, result: Result<u64, Error>) {
        self.log_returned(flush);
        self.log_ended(Ended::Wrote(result.map(drop).map_err(|error| self.log_fault(&error))));
    }

    /// The log was written and made durable, or not.
    pub(super) fn sync_done(&mut self, flush: Flush, result: Result<u64, Error>) {
        let took = self.measured.sync_ended(self.now);
        self.log_returned(flush);
        let result = result.map(Lsn).map_err(|error| self.log_fault(&error));
        self.log_ended(Ended::WroteAndSynced { result, took });
    }

    /// What was written to the log was made durable, or not.
    pub(super) fn written_synced(&mut self, sync: Sync, result: Result<u64, Error>) {
        let took = self.measured.sync_ended(self.now);
        self.log.ended = Some(sync);
        let result = result.map(Lsn).map_err(|error| self.log_fault(&error));
        self.log_ended(Ended::Synced { lane: 0, result, took });
    }

    /// The log takes further batches again; their blocks may be read there.
    fn log_returned(&mut self, flush: Flush) {
        self.log.journal.give_back(flush);
        let written = self.log.journal.written_batches().to_vec();
        self.overlay.written(&written);
        self.look_at_log();
    }

    fn log_fault(&self, error: &Error) -> LogFault {
        if error.kind() == ErrorKind::Full {
            return LogFault::Full { durable: Lsn(self.log.journal.status().durable_lsn) };
        }
        tracing::error!(%error, "the log failed");
        LogFault::Failed
    }

    fn log_ended(&mut self, ended: Ended) {
        self.log.commit.ended(self.now, ended);
        while let Some(news) = self.log.commit.poll_news() {
            match news {
                News::Synced { .. } => {
                    if let Some(sync) = self.log.ended.take() {
                        self.log.journal.synced(&sync);
                    }
                }
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
                News::HasSpace => {}
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
    here_max: None,
    write_ahead_bytes: 256 << 10,
    write_beside_bytes: 32 << 10,
    mark_after: None,
};
