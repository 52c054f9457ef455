//! Somebody who looks at a host from time to time and may change its policy, as an operator or `--auto` does.

use super::run::{Event, Machine};
use super::{Meter, Report, RunError, Settings};
use crate::trace::Request;
use destage_core::{Input, Policy, Span, Status, Time};
use destage_engine::auto::Counts;

/// What there is to see, and to change.
#[derive(Debug)]
pub struct Look<'l> {
    /// The time.
    pub now: Time,
    /// The policy in force; what it is afterwards is in force from then on.
    pub policy: &'l mut Policy,
    /// What was counted since the start.
    pub counts: Counts,
    /// What the core says.
    pub status: &'l Status,
}

/// Who looks, and what only they want to know.
pub(super) struct Looks<'s> {
    every: Span,
    look: &'s mut dyn FnMut(Look<'_>),
    answers: u64,
    answers_nanos: u128,
}

impl Looks<'_> {
    /// A write was answered.
    pub(super) fn answered(&mut self, latency: Span) {
        self.answers += 1;
        self.answers_nanos += u128::from(latency.0);
    }
}

/// Runs the requests as [`super::run`] does, and looks at the last tier of the first host at each `every`.
///
/// # Errors
/// As [`super::run`].
pub fn run_looked<E>(
    requests: impl IntoIterator<Item = Result<Request, E>>,
    settings: &Settings,
    every: Span,
    look: &mut dyn FnMut(Look<'_>),
) -> Result<Report, RunError<E>> {
    settings.validate()?;
    let meter = Meter::default();
    let mut machine = Machine::new(settings, &meter);
    machine.looks = Some(Looks { every, look, answers: 0, answers_nanos: 0 });
    machine.run(requests.into_iter())
}

impl Machine<'_> {
    pub(super) fn plan_look(&mut self) {
        if let Some(looks) = &self.looks {
            self.events.plan(self.now + looks.every, Event::Look);
        }
    }

    pub(super) fn look(&mut self) {
        let Some(index) = self.tiers.iter().position(|tier| tier.below.is_none()) else { return };
        let Some(looks) = &mut self.looks else { return };
        let tier = &mut self.tiers[index];
        let status = tier.core.status();
        let counts = Counts {
            changes: status.destaged,
            sent: tier.sent(),
            answers: looks.answers,
            answers_nanos: looks.answers_nanos,
            ..Counts::of(&status)
        };
        let mut policy = tier.core.policy().clone();
        (looks.look)(Look { now: self.now, policy: &mut policy, counts, status: &status });
        if policy != *tier.core.policy() {
            tier.core.handle(self.now, Input::SetPolicy(&policy));
            tier.needs_tick = true;
            self.touched.push(index as u16);
        }
        self.plan_look();
    }
}
