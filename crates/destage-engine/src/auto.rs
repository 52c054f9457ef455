//! Settings that are not of the contract, tried out while a server runs.
//!
//! Two settings decide how much of what is written twice reaches the origin once, and no promise rests on either: `linger` and
//! the groups of a batch. [`Auto`] is told at each look what the server has counted, and answers with another value of one of
//! them, or with nothing. It works in periods. One period measures what is in force. The next one tries one step: twice one
//! setting, or half of it, and further after a step that did nothing. What the step was to make less must have become less by a
//! margin, under the same load and without a new limit reached; then it is kept, else it is taken back. Whoever changes the
//! policy by hand is right: the trial ends, and what the user set is what [`Auto`] returns to from then on.
//!
//! - *The contract.* A change is the policy in force with one of the two settings replaced, so nothing else can change. `linger`
//!   stays within its range, and below a quarter of `D` whatever the range says; the core hurries what is about to miss `D`
//!   anyway, whatever `linger` is.
//! - *No oscillation.* A direction in which a step was kept closes the other one, and [`ATTEMPTS`] steps that were not kept close
//!   their own, until the load has changed for good. So a steady load sees each setting go up and down its few values at most
//!   once: never more than [`Auto::changes_max`] changes, whatever is measured.
//! - *Advice.* [`Auto::advise`] names settings that somebody else thinks better. They are tried as one step, as far as the ranges
//!   let them and no kept step is undone, before any other. So they are judged as any step is. The same settings are
//!   tried once, and [`ATTEMPTS`] of all that are advised at most, until the load has changed for good.
//! - *Another load.* When the rate or what is measured under the same settings is another one for two periods, the user's
//!   settings come back at once, since what was found for one load is not known to be good for the next. Then all is open again,
//!   but no sooner than [`SPACING_MIN`] periods after the last time, and later the more often it happens.
//!
//! It does no I/O, reads no clock and draws no random numbers: the same observations give the same changes.

mod knobs;
mod measure;
#[cfg(test)]
mod tests;

pub use knobs::{Direction, Knob, Knobs, Ranges};
pub use measure::{Counts, Goal};

use core::cmp::Ordering;
use destage_core::{Acknowledge, Policy, Span, Time, When};
use measure::Measure;

/// So many steps of one direction that were not kept close it. So many advices are tried.
pub const ATTEMPTS: u8 = 3;
/// All is open again no sooner than so many periods after the last time.
pub const SPACING_MIN: u64 = 32;
/// Nor later than so many.
const SPACING_MAX: u64 = 512;
/// A step goes so many times as far, and the next attempt after one that was not kept twice that.
const FACTOR: u64 = 2;
/// A look comes so often within a period.
const LOOKS: u64 = 5;
/// A period without enough writes goes on for at most so many of its lengths.
const STRETCH: u64 = 8;

/// What the user allows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AutoSettings {
    /// What is to become less.
    pub goal: Goal,
    /// The values that may be tried.
    pub ranges: Ranges,
    /// How long one setting is measured; 1 s to 1 h.
    pub period: Span,
}

/// The period unless told.
pub const PERIOD: Span = Span::from_secs(10);

/// What has been done.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Told {
    /// What it is.
    pub verdict: Verdict,
    /// The settings before.
    pub from: Knobs,
    /// The settings now.
    pub to: Knobs,
    /// Why.
    pub reason: Reason,
}

/// What was done with a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is being tried.
    Tried,
    /// It stays.
    Kept,
    /// What was before is in force again.
    WentBack,
}

/// Why. Numbers are what the goal measures, see [`Goal`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Reason {
    /// A step is tried from this on.
    Measured(f64),
    /// What was advised is tried from this on.
    Advised(f64),
    /// The step made it less.
    Better(f64, f64),
    /// The step did not make it less by the margin.
    NotBetter(f64, f64),
    /// Acknowledgements took longer: mean seconds before and during the trial.
    Slower(f64, f64),
    /// A limit or `D` was reached, as it was not before.
    Limit,
    /// The origin went away, or destaging was paused.
    Disturbed,
    /// Writes came faster or slower than before the step: each second, before and during the trial.
    OtherLoad(f64, f64),
    /// Too few writes to tell.
    TooFew,
    /// The load has changed for good.
    LoadChanged,
    /// The policy was changed by hand.
    ByHand,
    /// It was switched off.
    Off,
}

/// How often what was done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Done {
    /// Changes of a setting.
    pub changes: u64,
    /// Steps that were kept.
    pub kept: u64,
    /// Times that what was before came back.
    pub went_back: u64,
}

/// The machine: see the module.
#[derive(Clone, Debug)]
pub struct Auto {
    settings: AutoSettings,
    /// What the user has set.
    base: Knobs,
    /// The policy as it was left by the last look.
    seen: Policy,
    /// The user has named a setting since then, whether or not its value was another one.
    is_named: bool,
    /// Of each knob: what is known of its directions.
    directions: [Directions; Knob::ALL.len()],
    /// What was advised and is to be tried.
    advice: Option<Knobs>,
    /// What was advised and tried since all was open.
    advised: Advised,
    trial: Option<Trial>,
    /// What a steady load measures under what is in force.
    reference: Option<Measure>,
    /// The measurement under way: since when, from which counts, and whether a limit was met in it.
    since: Option<(Time, Counts)>,
    limited: bool,
    /// What was written under other settings has left by then.
    settled_at: Time,
    next_look: Time,
    /// Periods until a step may be tried.
    wait: u64,
    /// Periods in a row that speak of another load.
    strange: u8,
    /// Periods since all was open, and how many have to pass.
    opened: u64,
    spacing: u64,
    done: Done,
}

/// What is known of the two directions of a knob.
#[derive(Clone, Copy, Debug, Default)]
struct Directions {
    failed: [u8; 2],
    kept: Option<Direction>,
}

impl Directions {
    fn is_open(&self, direction: Direction) -> bool {
        self.failed[direction as usize] < ATTEMPTS && self.kept.is_none_or(|kept| kept == direction)
    }
}

/// Advices that were tried.
#[derive(Clone, Copy, Debug, Default)]
struct Advised {
    tried: [Option<Knobs>; ATTEMPTS as usize],
    count: u8,
}

impl Advised {
    /// Whether settings may be tried that were advised.
    fn is_open(&self, to: Knobs) -> bool {
        self.count < ATTEMPTS && !self.tried.contains(&Some(to))
    }

    fn note(&mut self, to: Knobs) {
        if let Some(place) = self.tried.get_mut(usize::from(self.count)) {
            *place = Some(to);
            self.count += 1;
        }
    }
}

/// A step under trial.
#[derive(Clone, Copy, Debug)]
struct Trial {
    /// Which one; `None` for what was advised.
    step: Option<(Knob, Direction)>,
    from: Knobs,
    before: Measure,
}

impl Auto {
    /// A machine for a server whose user has set `policy`.
    pub fn new(now: Time, settings: AutoSettings, policy: &Policy) -> Self {
        Self {
            settings,
            base: Knobs::of(policy),
            seen: policy.clone(),
            is_named: false,
            directions: [Directions::default(); Knob::ALL.len()],
            advice: None,
            advised: Advised::default(),
            trial: None,
            reference: None,
            since: None,
            limited: false,
            settled_at: now,
            next_look: now,
            wait: 0,
            strange: 0,
            opened: 0,
            spacing: SPACING_MIN,
            done: Done::default(),
        }
    }

    /// When to call [`Auto::look`] next.
    pub fn due(&self) -> Time {
        self.next_look
    }

    /// What it may do.
    pub fn settings(&self) -> AutoSettings {
        self.settings
    }

    /// What the user has set, and what it returns to.
    pub fn base(&self) -> Knobs {
        self.base
    }

    /// What was done so far.
    pub fn done(&self) -> Done {
        self.done
    }

    /// Whether a step is being tried.
    pub fn is_trying(&self) -> bool {
        self.trial.is_some()
    }

    /// Whether it can do anything under this policy: only where writes are acknowledged before the origin has them, and leave as
    /// soon as they may. Elsewhere neither setting counts.
    pub fn is_of_use(policy: &Policy) -> bool {
        policy.acknowledge == Acknowledge::Journal && policy.when == When::Async
    }

    /// The most changes that a steady load can see, from the user's settings on: each kept step once in one direction of each
    /// knob, a way there and back for each step that was not kept and for each advice, and one way back where a limit is met.
    pub fn changes_max(&self) -> u64 {
        let ranges = self.settings.ranges.within(&self.seen, self.base);
        let steps = |&step: &(Knob, Direction)| {
            let mut knobs = self.base;
            let next = |knobs: &mut Knobs| {
                *knobs = ranges.step(*knobs, step, FACTOR)?;
                Some(())
            };
            core::iter::from_fn(|| next(&mut knobs)).count() as u64
        };
        let there_and_back = 2 * u64::from(ATTEMPTS);
        let each = |step| steps(step) + there_and_back;
        1 + there_and_back + self.settings.goal.steps().iter().map(each).sum::<u64>()
    }

    /// Looks at what the server has counted since its start, with `policy` in force. What is told has happened: the policy that
    /// is to be in force is in `policy` afterwards. To be called at [`Auto::due`]; earlier calls do nothing.
    pub fn look(&mut self, now: Time, policy: &mut Policy, counts: &Counts) -> Option<Told> {
        if now < self.next_look {
            return None;
        }
        self.next_look = now + Span(self.settings.period.0 / LOOKS);
        if *policy != self.seen || self.is_named {
            return self.changed_by_hand(now, policy);
        }
        if !Self::is_of_use(policy) {
            self.since = None;
            return None;
        }
        if counts.is_disturbed {
            self.since = None;
            return self.end_trial(now, policy, Reason::Disturbed);
        }
        self.limited |= counts.is_limited;
        let is_new_limit = |before: &Measure| counts.is_limited && !before.limited;
        if let Some(trial) = &self.trial {
            if is_new_limit(&trial.before) {
                return self.end_trial(now, policy, Reason::Limit);
            }
        } else if self.reference.as_ref().is_some_and(is_new_limit) {
            return self.limit_met(now, policy);
        }
        let (since, from) = match self.since {
            Some(since) => since,
            // What is measured begins once nothing of other settings is left.
            None if now < self.settled_at => return None,
            None => return self.begin(now, counts),
        };
        let took = now.since(since);
        if took < self.settings.period {
            return None;
        }
        let Some(measure) = Measure::between(&from, counts, took, self.limited, self.settings.goal)
        else {
            if took.0 > self.settings.period.0.saturating_mul(STRETCH) {
                self.since = None;
                return self.end_trial(now, policy, Reason::TooFew);
            }
            return None;
        };
        let _ = self.begin(now, counts);
        self.opened += 1;
        if self.trial.is_some() {
            self.judge(now, policy, measure)
        } else {
            self.at_rest(now, policy, measure)
        }
    }

    /// The user has named a setting, with `policy` then in force: it is the user's, although it may be what is being tried.
    pub fn name(&mut self, knob: Knob, policy: &Policy) {
        self.base = self.base.with(knob, Knobs::of(policy).get(knob));
        self.is_named = true;
    }

    /// Somebody advises these settings: they are tried once nothing else is. Only the newest advice is.
    pub fn advise(&mut self, to: Knobs) {
        self.advice = Some(to);
    }

    /// It is switched off: what the user has set is in force again.
    pub fn stop(&mut self, now: Time, policy: &mut Policy) -> Option<Told> {
        if *policy != self.seen {
            // What was changed by hand since the last look is the user's.
            self.take_base(policy);
        }
        self.back_to_base(now, policy, Reason::Off)
    }

    fn begin(&mut self, now: Time, counts: &Counts) -> Option<Told> {
        self.since = Some((now, *counts));
        self.limited = counts.is_limited;
        None
    }

    /// A period under what is kept is over.
    fn at_rest(&mut self, now: Time, policy: &mut Policy, measure: Measure) -> Option<Told> {
        let reference = *self.reference.get_or_insert(measure);
        if measure.is_of_another_load(&reference) {
            self.strange += 1;
            if self.strange >= 2 {
                return self.load_changed(now, policy, measure);
            }
            return None;
        }
        self.strange = 0;
        if self.wait > 0 {
            self.wait -= 1;
            return None;
        }
        if let Some(to) = self.advice.take().and_then(|to| self.reach(policy, to, &measure)) {
            self.advised.note(to);
            return Some(self.try_out(now, policy, None, to, measure));
        }
        let ranges = self.settings.ranges.within(policy, self.base);
        let from = Knobs::of(policy);
        let (step, to) = self.settings.goal.steps().iter().find_map(|&step| {
            let (knob, direction) = step;
            let known = &self.directions[knob as usize];
            // What did nothing may do so because it was too little.
            let factor = FACTOR << known.failed[direction as usize];
            let to = ranges.step(from, step, factor)?;
            (known.is_open(direction) && measure.is_felt(knob, from)).then_some((step, to))
        })?;
        Some(self.try_out(now, policy, Some(step), to, measure))
    }

    fn try_out(
        &mut self,
        now: Time,
        policy: &mut Policy,
        step: Option<(Knob, Direction)>,
        to: Knobs,
        before: Measure,
    ) -> Told {
        let reason = match step {
            Some(_) => Reason::Measured(before.score),
            None => Reason::Advised(before.score),
        };
        self.trial = Some(Trial { step, from: Knobs::of(policy), before });
        self.set(now, policy, to, Verdict::Tried, reason)
    }

    /// How far it may go to what was advised: nothing if that is nowhere, or where it was by an advice before.
    fn reach(&self, policy: &Policy, to: Knobs, measure: &Measure) -> Option<Knobs> {
        let ranges = self.settings.ranges.within(policy, self.base);
        let from = Knobs::of(policy);
        let mut reached = from;
        for knob in Knob::ALL {
            let value = ranges.toward(from, to, knob);
            let kept = self.directions[knob as usize].kept;
            // Against what was kept there is no way back: it would go to and fro.
            let is_open = direction(from.get(knob), value)
                .is_some_and(|direction| kept.is_none_or(|kept| kept == direction));
            if is_open && measure.is_felt(knob, from) {
                reached = reached.with(knob, value);
            }
        }
        (reached != from && self.advised.is_open(reached)).then_some(reached)
    }

    /// A period under trial is over.
    fn judge(&mut self, now: Time, policy: &mut Policy, after: Measure) -> Option<Told> {
        let Trial { from, before, .. } = self.trial?;
        let verdict = after.verdict(&before, self.settings.goal);
        if let Reason::Better(..) = verdict {
            let to = Knobs::of(policy);
            for knob in Knob::ALL {
                let kept = &mut self.directions[knob as usize].kept;
                *kept = direction(from.get(knob), to.get(knob)).or(*kept);
            }
            self.trial = None;
            self.reference = Some(after);
            self.done.kept += 1;
            return Some(Told { verdict: Verdict::Kept, from, to, reason: verdict });
        }
        self.end_trial(now, policy, verdict)
    }

    /// A step under trial, if there is one, is taken back. The next one waits the longer the more of them there were.
    fn end_trial(&mut self, now: Time, policy: &mut Policy, reason: Reason) -> Option<Told> {
        let Trial { step, from, .. } = self.trial.take()?;
        let times = match step {
            Some((knob, direction)) => {
                let failed = &mut self.directions[knob as usize].failed[direction as usize];
                *failed = failed.saturating_add(1);
                *failed
            }
            None => self.advised.count,
        };
        self.wait = 1 << times;
        self.strange = 0;
        Some(self.set(now, policy, from, Verdict::WentBack, reason))
    }

    /// A limit is met that was not met when what is in force was kept. It may have nothing to do with it; nobody knows.
    fn limit_met(&mut self, now: Time, policy: &mut Policy) -> Option<Told> {
        if Knobs::of(policy) == self.base {
            return None;
        }
        for directions in &mut self.directions {
            directions.failed = [ATTEMPTS; 2];
        }
        self.advised.count = ATTEMPTS;
        self.reference = None;
        self.back_to_base(now, policy, Reason::Limit)
    }

    /// What was found is not known to be good for this load.
    fn load_changed(&mut self, now: Time, policy: &mut Policy, measure: Measure) -> Option<Told> {
        let is_untried = |it: &Directions| it.failed == [0; 2] && it.kept.is_none();
        if self.directions.iter().all(is_untried) && self.advised.count == 0 {
            // Nothing was found for the load before either.
            (self.reference, self.strange) = (Some(measure), 0);
            return None;
        }
        let wait = self.spacing.saturating_sub(self.opened);
        self.spacing = if self.opened < 4 * self.spacing {
            (self.spacing * 2).min(SPACING_MAX)
        } else {
            SPACING_MIN
        };
        self.open();
        self.wait = wait;
        let is_at_base = Knobs::of(policy) == self.base;
        self.reference = is_at_base.then_some(measure);
        self.back_to_base(now, policy, Reason::LoadChanged)
    }

    /// Nothing is known of the load.
    fn open(&mut self) {
        self.directions = [Directions::default(); Knob::ALL.len()];
        (self.advice, self.advised) = (None, Advised::default());
        (self.trial, self.reference, self.strange) = (None, None, 0);
        (self.wait, self.opened) = (0, 0);
    }

    /// The user's word: what it sets is the base from now on; what it leaves alone comes back to what the user had set.
    fn changed_by_hand(&mut self, now: Time, policy: &mut Policy) -> Option<Told> {
        self.take_base(policy);
        self.is_named = false;
        self.open();
        self.spacing = SPACING_MIN;
        self.seen = policy.clone();
        self.since = None;
        self.settled_at = now + settling(policy, self.settings.period);
        self.back_to_base(now, policy, Reason::ByHand)
    }

    /// Takes over what the user has set of the knobs.
    fn take_base(&mut self, policy: &Policy) {
        let (before, now) = (Knobs::of(&self.seen), Knobs::of(policy));
        for knob in Knob::ALL {
            if now.get(knob) != before.get(knob) {
                self.base = self.base.with(knob, now.get(knob));
            }
        }
    }

    fn back_to_base(&mut self, now: Time, policy: &mut Policy, reason: Reason) -> Option<Told> {
        self.trial = None;
        let base = self.base;
        (Knobs::of(policy) != base).then(|| self.set(now, policy, base, Verdict::WentBack, reason))
    }

    fn set(
        &mut self,
        now: Time,
        policy: &mut Policy,
        to: Knobs,
        verdict: Verdict,
        reason: Reason,
    ) -> Told {
        let from = Knobs::of(policy);
        let before = settling(policy, self.settings.period);
        to.apply(policy);
        self.seen = policy.clone();
        self.since = None;
        self.settled_at = now + before.max(settling(policy, self.settings.period));
        self.done.changes += 1;
        self.done.went_back += u64::from(verdict == Verdict::WentBack);
        Told { verdict, from, to, reason }
    }
}

/// How long what was written under a policy may still be on its way.
fn settling(policy: &Policy, period: Span) -> Span {
    Span(policy.limits.linger.0.saturating_mul(2)).max(Span(period.0 / LOOKS))
}

/// From one value to the other; nothing where they are the same.
fn direction(from: u64, to: u64) -> Option<Direction> {
    match to.cmp(&from) {
        Ordering::Greater => Some(Direction::Up),
        Ordering::Less => Some(Direction::Down),
        Ordering::Equal => None,
    }
}
