//! What the core asks of the engine.

use super::asking::{Answer, PREFETCH_CLIENT};
use super::{Engine, Io};
use destage_core::{
    Access, BatchId, ClientId, Core, DomainId, Effect, Halt, Lsn, Mode, Outcome, Refusal,
    RequestId, StopReason, Time, UnitId,
};
use destage_engine::{Drive, FrontEnd, Park};
use destage_record::RecordedCore;

impl FrontEnd for Engine {
    fn execute(&mut self, request: RequestId, access: Access, observed: Lsn) {
        // Where another request looks for its answer, this one is in no session.
        if self.asking.lay_down(request, Answer::Now(access, observed)).is_err() {
            self.execute_waiting(request, access, observed);
        }
    }

    fn refuse(&mut self, request: RequestId, refusal: Refusal) {
        if self.asking.lay_down(request, Answer::Refused(refusal)).is_err() {
            self.refuse_waiting(request, refusal);
        }
    }

    fn send_replies(&mut self, client: ClientId) {
        self.sessions.release(client);
    }

    fn wait_ended(&mut self, request: RequestId, outcome: Outcome) {
        self.waited(request, outcome);
    }

    fn make_durable(&mut self, upto: Lsn) {
        self.jobs.push(Io::Sync { upto });
    }

    fn fetch_unit(&mut self, unit: UnitId) {
        self.fetch(unit);
    }

    fn send_batch(&mut self, batch: BatchId, domain: DomainId) {
        self.destage(batch, domain);
    }

    fn park_group(&mut self, park: Park) {
        self.park(park.lsn, park.domain, park.depends_on, park.keep);
    }

    fn write_settled(&mut self, lsn: Lsn, applied: bool) {
        self.settled(lsn, applied);
    }

    fn forget_groups(&mut self, upto: Lsn) {
        self.forget(upto);
    }

    fn evict_unit(&mut self, unit: UnitId) {
        self.evict(unit);
    }

    fn mode_changed(&mut self, mode: Mode) {
        self.measured.mode_changed(self.now, mode);
    }

    fn domain_halted(&mut self, domain: DomainId, halt: Halt) {
        self.tell_halted(domain, halt);
    }

    fn stop_serving(&mut self, reason: StopReason) {
        self.jobs.push(Io::Stop(reason));
    }
}

impl Drive for Engine {
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
        self.asking.request_id(PREFETCH_CLIENT)
    }

    /// Nothing while a request has been answered that has not come for its answer: what it was answered for holds until
    /// then, and the next effect might take it away.
    fn next_effect(&mut self) -> Option<Effect> {
        if self.asking.is_answered() { None } else { self.core.poll_effect() }
    }

    fn settle(&mut self) {
        self.pump();
        self.run_ready();
    }

    fn recovered_upto(&mut self, upto: Lsn) {
        self.overlay.skip_to(upto.next(), self.now);
        self.recovered_tokens();
    }
}
