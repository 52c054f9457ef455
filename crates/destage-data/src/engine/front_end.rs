//! What the core asks of the engine.

use super::asking::Answer;
use super::{Engine, Io};
use destage_core::{
    Access, BatchId, ClientId, DomainId, Halt, Lsn, Mode, Outcome, Refusal, RequestId, StopReason,
    UnitId,
};
use destage_engine::{FrontEnd, Park};

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
