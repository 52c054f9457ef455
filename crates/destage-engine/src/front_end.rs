//! The one place where what the core asks for is told apart.

use destage_core::{
    Access, BatchId, ClientId, DomainId, Effect, Halt, Lsn, Mode, Outcome, Refusal, RequestId,
    StopReason, UnitId,
};

/// Whoever carries out what the core asks for. [`Effect`] says what each call must do and what the core is told at its end;
/// a call may tell the core at once, or after any time.
pub trait FrontEnd {
    /// [`Effect::Execute`]: before anything else is asked for.
    fn execute(&mut self, request: RequestId, access: Access, observed: Lsn);

    /// [`Effect::Refuse`].
    fn refuse(&mut self, request: RequestId, refusal: Refusal);

    /// [`Effect::Send`].
    fn send_replies(&mut self, client: ClientId);

    /// [`Effect::Waited`].
    fn wait_ended(&mut self, request: RequestId, outcome: Outcome);

    /// [`Effect::Sync`].
    fn make_durable(&mut self, upto: Lsn);

    /// [`Effect::Fetch`].
    fn fetch_unit(&mut self, unit: UnitId);

    /// [`Effect::Destage`].
    fn send_batch(&mut self, batch: BatchId, domain: DomainId);

    /// [`Effect::Park`]: only where a batch was reported as [`destage_core::Fault::Rejected`].
    fn park_group(&mut self, park: Park) {
        unreachable!("no batch was rejected: {park:?}")
    }

    /// [`Effect::Settled`].
    fn write_settled(&mut self, lsn: Lsn, applied: bool);

    /// [`Effect::Forget`].
    fn forget_groups(&mut self, upto: Lsn);

    /// [`Effect::Evict`].
    fn evict_unit(&mut self, unit: UnitId);

    /// [`Effect::Mode`].
    fn mode_changed(&mut self, mode: Mode);

    /// [`Effect::Halted`]: only where a batch was reported as [`destage_core::Fault::Rejected`].
    fn domain_halted(&mut self, domain: DomainId, halt: Halt) {
        unreachable!("no batch was rejected: {domain:?}, {halt:?}")
    }

    /// [`Effect::Stop`].
    fn stop_serving(&mut self, reason: StopReason);
}

/// What [`Effect::Park`] asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Park {
    /// The group.
    pub lsn: Lsn,
    /// Its domain.
    pub domain: DomainId,
    /// The parked group whose fate it shares, if it was not itself rejected.
    pub depends_on: Option<Lsn>,
    /// False for a group whose client is told of the rejection instead.
    pub keep: bool,
}

/// Has the front end carry out an effect.
#[inline]
pub fn carry_out(front: &mut (impl FrontEnd + ?Sized), effect: Effect) {
    match effect {
        Effect::Execute { request, access, observed } => front.execute(request, access, observed),
        Effect::Refuse { request, refusal } => front.refuse(request, refusal),
        Effect::Send { client } => front.send_replies(client),
        Effect::Waited { request, outcome } => front.wait_ended(request, outcome),
        Effect::Sync { upto } => front.make_durable(upto),
        Effect::Fetch { unit } => front.fetch_unit(unit),
        Effect::Destage { batch, domain } => front.send_batch(batch, domain),
        Effect::Park { lsn, domain, depends_on, keep } => {
            front.park_group(Park { lsn, domain, depends_on, keep });
        }
        Effect::Settled { lsn, applied } => front.write_settled(lsn, applied),
        Effect::Forget { upto } => front.forget_groups(upto),
        Effect::Evict { unit } => front.evict_unit(unit),
        Effect::Mode(mode) => front.mode_changed(mode),
        Effect::Halted { domain, halt } => front.domain_halted(domain, halt),
        Effect::Stop(reason) => front.stop_serving(reason),
    }
}
