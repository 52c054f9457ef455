//! What comes of jobs, and the core's lesser effects.

use super::job::{Done, FetchPurpose, Job, JobDone, Work as JobWork};
use super::{Volume, Wait};
use crate::request::{Reply, RequestError};
use destage_core::{Fault, Input, Lsn, Span, StopReason, Time, UnitId, WaitFor};
use destage_journal::{ErrorKind, Flush, Sync};

impl Volume {
    /// A job has been carried out.
    pub fn finished(&mut self, now: Time, done: JobDone) {
        self.now = self.now.max(now);
        self.jobs_running -= 1;
        match done.0 {
            Done::Sync { flush, asked, result } => self.sync_done(flush, asked, result),
            Done::SyncWritten { sync, asked, result } => self.written_synced(&sync, asked, result),
            Done::WriteAhead { flush, result } => self.written_ahead(flush, result),
            Done::Read { gather, items, blocks } => self.blocks_read(gather, &items, blocks),
            Done::Fetch { purpose: FetchPurpose::Cache(units), result } => {
                self.fetch_done(&units, result);
            }
            Done::Fetch { purpose: FetchPurpose::Around { gather }, result } => {
                self.read_around_done(gather, result);
            }
            Done::Install { items, is_written } => self.installed(&items, is_written),
            Done::Destage { batch, sent, before, pins, result } => {
                self.counters.before_cached_blocks += before.cached;
                self.counters.before_fetched_blocks += before.fetched;
                pins.into_iter().for_each(|lsn| self.unpin_log(lsn));
                self.destage_done(batch, &sent, result);
            }
            Done::Through { job, result, is_cached, losses } => {
                self.through_done(job, result, is_cached, losses);
            }
            Done::OriginFlush { asked, result, losses } => self.flush_done(asked, result, losses),
            Done::Status { asked, parts } => self.status_done(asked, parts),
            Done::Checkpoint { result } => self.checkpoint_done(result),
        }
        self.pump();
    }

    /// The core wants the log durable. What is written until someone takes the job goes with it, so that requests which
    /// came together share one sync.
    pub(super) fn start_sync(&mut self, upto: Lsn) {
        self.sync_due = Some(upto);
    }

    /// The sync that is due, which writes first what is not written yet.
    pub(super) fn take_sync(&mut self) -> Option<Job> {
        let asked = self.sync_due.filter(|_| !self.is_log_busy && !self.is_log_syncing)?;
        self.sync_due = None;
        let written = self.journal.written() >= asked.0;
        if let Some(sync) = self.journal.sync().filter(|_| written) {
            self.is_log_syncing = true;
            self.measured.sync_began(self.now);
            return Some(Job(JobWork::SyncWritten { sync, asked }));
        }
        self.is_log_busy = true;
        self.measured.sync_began(self.now);
        Some(Job(JobWork::Sync { flush: self.journal.take(), asked }))
    }

    /// The log takes further batches again; their blocks may be read there.
    pub(super) fn log_returned(&mut self, flush: Flush) {
        self.is_log_busy = false;
        self.journal.give_back(flush);
        let written = self.journal.written_batches().to_vec();
        self.overlay.written(&written);
        self.look_at_log();
    }

    fn written_synced(
        &mut self,
        sync: &Sync,
        asked: Lsn,
        result: Result<u64, destage_journal::Error>,
    ) {
        self.is_log_syncing = false;
        self.measured.sync_ended(self.now);
        self.journal.synced(sync);
        match result {
            Ok(upto) => self.became_durable(asked, Lsn(upto)),
            Err(error) => self.tell_synced(Err(log_failed(error))),
        }
    }

    fn sync_done(&mut self, flush: Flush, asked: Lsn, result: Result<u64, destage_journal::Error>) {
        self.measured.sync_ended(self.now);
        self.log_returned(flush);
        match result {
            Ok(upto) => self.became_durable(asked, Lsn(upto)),
            Err(error) if error.kind() == ErrorKind::Full => {
                self.counters.log_full += 1;
                // What fitted may go to the origin, and so make room for the rest.
                self.became_durable(asked, Lsn(self.journal.status().durable_lsn));
            }
            Err(error) => self.tell_synced(Err(log_failed(error))),
        }
    }

    /// The log is durable up to here; it was asked for up to there. A full log may have taken a part of a request only, which
    /// is nothing to the core: it destages requests as a whole.
    fn became_durable(&mut self, asked: Lsn, durable: Lsn) {
        let upto = self.overlay.whole_upto(durable);
        if upto < asked && upto <= self.core.committed() {
            // Nothing is lost; there is room as soon as the origin or the checkpoint has come further.
            self.upkeep.sync_again = Some((self.now + LOG_FULL_PAUSE, asked));
            return;
        }
        self.tell_synced(Ok(upto));
    }

    fn tell_synced(&mut self, result: Result<Lsn, Fault>) {
        let upto = result.unwrap_or(Lsn::ZERO);
        self.measured.committed(self.now, self.core.committed(), upto, &self.overlay);
        self.core.handle(self.now, Input::Synced { upto, result: result.map(drop) });
    }

    /// Who waited for a group need not wait any more.
    pub(super) fn waited(&mut self, id: u64) {
        match self.waits.remove(&id) {
            Some(Wait::Asked(asked)) => self.durable(asked),
            Some(Wait::Caller(tag)) => self.reply(tag, Reply::Done),
            Some(Wait::Policy) => {
                // Where nothing is undecided it is tried again whenever something ends.
                if !self.try_next_policy() && self.core.decided() < self.last() {
                    self.wait_for(Wait::Policy, self.last(), WaitFor::Decided);
                }
            }
            Some(Wait::Nobody) | None => {}
        }
    }

    /// Groups are decided and no fetch needs them.
    pub(super) fn forget(&mut self, upto: Lsn) {
        self.overlay.forget(upto);
        self.upkeep.forgotten = self.upkeep.forgotten.max(upto);
    }

    /// A block leaves the cache.
    pub(super) fn evict(&mut self, unit: UnitId) {
        let identity = self.slots.identity(unit);
        self.slots.evict(unit);
        self.upkeep.changed(self.now);
        self.core.handle(self.now, Input::Evicted { identity });
    }

    /// Nothing may be acknowledged any more: the log's content is unknown, or the origin is another host's. Reads go on
    /// at the origin, as far as it is known to hold the newest bytes.
    pub(super) fn stop(&mut self, reason: StopReason) {
        tracing::error!(
            ?reason,
            "the volume stopped: no write is taken, reads of dirty blocks fail"
        );
        self.stopped = Some(reason);
        for id in self.line.drain() {
            self.abandon(id, RequestError::Io);
        }
        // What was on its way to the core goes around it.
        for id in std::mem::take(&mut self.starts) {
            match self.pieces.get(&id).is_some_and(|piece| piece.is_write()) {
                true => self.abandon(id, RequestError::Io),
                false => self.read_around(id),
            }
        }
        for asked in std::mem::take(&mut self.rests) {
            self.piece_done(asked, Err(RequestError::Io));
        }
        let mut settling: Vec<u64> = std::mem::take(&mut self.settling).into_values().collect();
        settling.sort_unstable();
        settling.into_iter().for_each(|id| self.abandon(id, RequestError::Io));
        let mut waits: Vec<_> = std::mem::take(&mut self.waits).into_iter().collect();
        waits.sort_unstable_by_key(|&(id, _)| id);
        for (_, wait) in waits {
            if let Wait::Caller(tag) = wait {
                self.fail(tag, RequestError::Io);
            }
        }
        for tag in std::mem::take(&mut self.freezing) {
            self.fail(tag, RequestError::Io);
        }
        self.fail_waiting();
    }
}

fn log_failed(error: destage_journal::Error) -> Fault {
    tracing::error!(%error, "the log failed");
    Fault::Failed
}

/// How long a full log is left alone before it is tried again.
pub(super) const LOG_FULL_PAUSE: Span = Span::from_millis(50);
