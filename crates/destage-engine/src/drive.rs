//! The life of a core in a front end, from the groups that an earlier run left to the end: what is asked of every front end
//! in the same way, whatever it serves.

use crate::decide::Decide;
use crate::front_end::{FrontEnd, carry_out};
use crate::group::{Recovered, recovered};
use destage_core::{Core, Effect, Input, Lsn, Policy, RequestId, Time, WaitFor};

/// A front end together with the core that it drives.
pub trait Drive: FrontEnd {
    /// What is told of things: the core, or a recording around it.
    type Core: Decide;

    /// The core, to be asked.
    fn core(&self) -> &Core;

    /// The core, to be told. Whoever tells it something calls [`Drive::pump`] afterwards.
    fn core_mut(&mut self) -> &mut Self::Core;

    /// Time has come so far. Returns the time that counts, which never goes backwards.
    fn advance(&mut self, now: Time) -> Time;

    /// A number for a wait whose end nobody hears of.
    fn unheard(&mut self) -> RequestId;

    /// What is to be carried out next.
    #[inline]
    fn next_effect(&mut self) -> Option<Effect> {
        self.core_mut().poll_effect()
    }

    /// Does what became possible once everything was carried out. True if the core may ask for something again.
    #[inline]
    fn after_effects(&mut self) -> bool {
        false
    }

    /// Carries out everything that the core asks for, and whatever became possible by it.
    #[inline]
    fn pump(&mut self) {
        loop {
            while let Some(effect) = self.next_effect() {
                carry_out(self, effect);
            }
            if !self.after_effects() {
                return;
            }
        }
    }

    /// Does everything that can be done now, after someone from outside has asked for something.
    fn settle(&mut self) {
        self.pump();
    }

    /// Tells the core what someone from outside asks for, and does what follows.
    fn control(&mut self, now: Time, input: Input<'_>) {
        let now = self.advance(now);
        self.core_mut().handle(now, input);
        self.core_mut().handle(now, Input::Tick);
        self.settle();
    }

    /// Stops destaging until [`Drive::resume`]. The staleness bound stays in force.
    fn pause(&mut self, now: Time) {
        self.control(now, Input::Pause);
    }

    /// Destages again.
    fn resume(&mut self, now: Time) {
        self.control(now, Input::Resume);
    }

    /// Destages everything from now on, as before a shutdown.
    fn drain(&mut self, now: Time) {
        self.control(now, Input::Drain);
    }

    /// Uses another policy from now on.
    ///
    /// # Errors
    /// Why it cannot; nothing has changed.
    fn set_policy(&mut self, now: Time, policy: &Policy) -> Result<(), &'static str> {
        policy.validate().map_err(|error| error.0)?;
        self.control(now, Input::SetPolicy(policy));
        Ok(())
    }

    /// Makes what is written so far durable in the journal as soon as it can be.
    fn commit_soon(&mut self, now: Time) {
        self.reach(now, WaitFor::Committed);
    }

    /// Destages what is dirty now, whatever the policy says.
    fn hurry(&mut self, now: Time) {
        self.reach(now, WaitFor::AllDecided);
    }

    /// Has the core see to it that what is written so far comes so far.
    fn reach(&mut self, now: Time, until: WaitFor) {
        let (now, request, lsn) = (self.advance(now), self.unheard(), self.last());
        self.core_mut().handle(now, Input::Wait { request, lsn, until });
        self.settle();
    }

    /// The newest group.
    fn last(&self) -> Lsn {
        self.core().last()
    }

    /// Everything up to here is decided.
    fn decided(&self) -> Lsn {
        self.core().decided()
    }

    /// The journal is durable up to here.
    fn committed(&self) -> Lsn {
        self.core().committed()
    }

    /// Groups that are not decided, and later ones that are.
    fn undecided(&self) -> u64 {
        self.core().undecided()
    }

    /// The policy in force.
    fn policy(&self) -> &Policy {
        self.core().policy()
    }

    /// Tells the core of a group that the journal held at a start. From within [`recover`], oldest first.
    ///
    /// # Panics
    /// If one of them comes after a later one.
    fn tell_recovered(&mut self, now: Time, group: &Recovered<'_>) {
        let last = self.last();
        assert!(group.lsn > last, "{:?} is recovered after {last:?}", group.lsn);
        recovered(self.core_mut(), now, group);
    }

    /// The core has been told of everything that a start found: numbers up to this one have been used.
    fn recovered_upto(&mut self, _upto: Lsn) {}
}

/// Takes up what an earlier run left. `next` reads one group of the journal after the other, from the first that the origin
/// has not decided, and hands what is undecided to [`Drive::tell_recovered`]; it returns false behind the last. Numbers up to
/// `upto` have been used, by the journal or at the origin, whatever was read of them. Requests come afterwards: the core knows
/// everything then that they could overtake or overwrite.
///
/// # Errors
/// Those of `next`; the front end is not to be used then.
///
/// # Panics
/// If a group is behind `upto`.
pub fn recover<F: Drive, E>(
    front: &mut F,
    now: Time,
    upto: Lsn,
    mut next: impl FnMut(&mut F) -> Result<bool, E>,
) -> Result<(), E> {
    let now = front.advance(now);
    while next(front)? {
        front.pump();
    }
    assert!(front.last() <= upto, "{:?} was recovered, but {upto:?} is the last", front.last());
    front.core_mut().handle(now, Input::RecoveredUpto { lsn: upto });
    front.recovered_upto(upto);
    front.pump();
    Ok(())
}

#[cfg(test)]
mod tests;
