//! What comes of jobs, and the core's lesser effects.

use super::Volume;
use super::job::{Done, FetchPurpose, JobDone};
use super::waits::Wait;
use crate::request::{Reply, RequestError};
use destage_core::{
    Access, BatchId, ClientId, Core, DomainId, Input, Lsn, Mode, Outcome, Policy, Refusal,
    RequestId, StopReason, Time, UnitId,
};
use destage_engine::{Drive, FrontEnd};
use destage_record::RecordedCore;

/// What the core asks of the volume. No batch is ever reported as rejected, so nothing is parked.
impl FrontEnd for Volume {
    fn execute(&mut self, request: RequestId, access: Access, observed: Lsn) {
        self.execute_fragment(request.0, access, observed);
    }

    fn refuse(&mut self, request: RequestId, refusal: Refusal) {
        self.refused(request.0, refusal);
    }

    fn send_replies(&mut self, client: ClientId) {
        self.reply_due(client.0);
    }

    fn wait_ended(&mut self, request: RequestId, _outcome: Outcome) {
        self.waited(request.0);
    }

    fn make_durable(&mut self, upto: Lsn) {
        self.start_sync(upto);
    }

    fn fetch_unit(&mut self, unit: UnitId) {
        self.fetch(unit);
    }

    fn send_batch(&mut self, batch: BatchId, _domain: DomainId) {
        self.destage(batch);
    }

    fn write_settled(&mut self, lsn: Lsn, applied: bool) {
        self.settled(lsn, applied);
    }

    fn forget_groups(&mut self, upto: Lsn) {
        self.overlay.forget(upto);
        self.upkeep.forget(upto);
    }

    /// A block leaves the cache.
    fn evict_unit(&mut self, unit: UnitId) {
        let identity = self.slots.identity(unit);
        self.slots.evict(unit);
        self.upkeep.changed(self.now);
        self.core.handle(self.now, Input::Evicted { identity });
    }

    fn mode_changed(&mut self, mode: Mode) {
        self.modes.changed(self.now, mode);
    }

    fn stop_serving(&mut self, reason: StopReason) {
        self.stop(reason);
    }
}

impl Drive for Volume {
    type Core = RecordedCore;

    fn core(&self) -> &Core {
        &self.core
    }

    fn core_mut(&mut self) -> &mut RecordedCore {
        &mut self.core
    }

    fn advance(&mut self, now: Time) -> Time {
        self.now = self.now.max(now);
        self.now
    }

    fn unheard(&mut self) -> RequestId {
        RequestId(self.id())
    }

    fn after_effects(&mut self) -> bool {
        let moved = self.start_fragments();
        self.start_fetches();
        self.start_installs();
        // Writes waited for another policy.
        self.upkeep() || moved
    }

    /// While the policy is being changed, it begins when that is done, since writes wait for it.
    fn pause(&mut self, now: Time) {
        if !self.service.defers_pause() {
            self.control(now, Input::Pause);
        }
    }

    fn resume(&mut self, now: Time) {
        self.service.cancel_pause();
        self.control(now, Input::Resume);
    }

    /// One that writes through takes effect once everything undecided is at the origin; until then writes wait, and so does a
    /// pause. Limits are cut to what the cache device holds.
    fn set_policy(&mut self, now: Time, policy: &Policy) -> Result<(), &'static str> {
        self.advance(now);
        self.change_policy(policy)?;
        self.pump();
        Ok(())
    }
}

impl Volume {
    /// A job has been carried out.
    pub fn finished(&mut self, now: Time, done: JobDone) {
        self.now = self.now.max(now);
        self.jobs.ended();
        match done.0 {
            Done::Log(done) => self.log_ended(done),
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
                pins.into_iter().for_each(|lsn| self.log.unpin(lsn));
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

    /// Who waited for a group need not wait any more.
    pub(super) fn waited(&mut self, id: u64) {
        match self.waits.end(id) {
            Some(Wait::Asked(asked)) => self.durable(asked),
            Some(Wait::Caller(tag)) => self.requests.reply(tag, Reply::Done),
            // Where nothing is undecided it is tried again whenever something ends.
            Some(Wait::Policy) => drop(self.try_next_policy()),
            Some(Wait::Nobody) | None => {}
        }
    }

    /// Nothing may be acknowledged any more: the log's content is unknown, or the origin is another host's. Reads go on
    /// at the origin, as far as it is known to hold the newest bytes.
    pub(super) fn stop(&mut self, reason: StopReason) {
        tracing::error!(
            ?reason,
            "the volume stopped: no write is taken, reads of dirty blocks fail"
        );
        self.service.stop(reason);
        for id in self.fragments.take_writes_waiting() {
            self.abandon(id, RequestError::Io);
        }
        // What was on its way to the core goes around it.
        for id in self.fragments.take_starts() {
            if self.fragments.get(id).is_some_and(|fragment| fragment.is_write()) {
                self.abandon(id, RequestError::Io)
            } else {
                self.read_around(id)
            }
        }
        for asked in self.requests.take_rests() {
            self.fragment_done(asked, Err(RequestError::Io));
        }
        for id in self.fragments.take_settling() {
            self.abandon(id, RequestError::Io);
        }
        for tag in self.waits.end_all() {
            self.requests.fail(tag, RequestError::Io);
        }
        for tag in self.service.take_freezing() {
            self.requests.fail(tag, RequestError::Io);
        }
        self.requests.fail_waiting();
    }
}
