//! The settings that may change, and how far.

use core::cmp::Ordering;
use destage_core::{Policy, Span};

/// A setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Knob {
    /// How long a lone write waits for company.
    Linger,
    /// Most groups of a batch.
    Batch,
}

impl Knob {
    /// Each once, in their order.
    pub const ALL: [Self; 2] = [Self::Linger, Self::Batch];
}

/// A direction of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// To more.
    Up,
    /// To less.
    Down,
}

/// The settings, all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Knobs {
    /// How long a lone write waits for company.
    pub linger: Span,
    /// Most groups of a batch.
    pub batch: u32,
}

impl Knobs {
    /// Those of a policy.
    pub fn of(policy: &Policy) -> Self {
        Self { linger: policy.limits.linger, batch: policy.limits.batch_groups_max }
    }

    /// Puts them in force. Nothing else of the policy changes.
    pub fn apply(self, policy: &mut Policy) {
        policy.limits.linger = self.linger;
        policy.limits.batch_groups_max = self.batch;
    }

    /// One of them: nanoseconds, or groups.
    pub(super) fn get(self, knob: Knob) -> u64 {
        match knob {
            Knob::Linger => self.linger.0,
            Knob::Batch => u64::from(self.batch),
        }
    }

    /// The same with one of them replaced.
    pub(super) fn with(self, knob: Knob, value: u64) -> Self {
        match knob {
            Knob::Linger => Self { linger: Span(value), ..self },
            Knob::Batch => Self { batch: u32::try_from(value).unwrap_or(u32::MAX), ..self },
        }
    }
}

/// The values that may be tried, both ends included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ranges {
    /// Of `linger`; by default 1 ms to 1 s. A quarter of `D` bounds it in any case.
    pub linger: Option<(Span, Span)>,
    /// Of the groups of a batch; by default a quarter of what the user has set to four times that.
    pub batch: Option<(u32, u32)>,
}

/// The ends of the ranges, in numbers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds([(u64, u64); Knob::ALL.len()]);

/// A wait that is none begins at this.
const LINGER_FIRST: u64 = Span::from_millis(1).0;
/// The most that the policy takes.
const LINGER_MAX: u64 = Span::from_secs(1).0;
const BATCH_MAX: u64 = 65_536;
/// `linger` takes at most this share of `D`.
const STALENESS_DIVISOR: u64 = 4;

impl Ranges {
    /// What they allow under this policy, where the user has set `base`.
    pub(super) fn within(&self, policy: &Policy, base: Knobs) -> Bounds {
        let most = LINGER_MAX.min(policy.staleness.0 / STALENESS_DIVISOR);
        let (low, high) =
            self.linger.map_or((LINGER_FIRST, LINGER_MAX), |(low, high)| (low.0, high.0));
        let batch = u64::from(base.batch);
        let (few, many) = self.batch.map_or_else(
            || ((batch / 4).max(1), batch.saturating_mul(4)),
            |ends| (u64::from(ends.0), u64::from(ends.1)),
        );
        Bounds([(low.min(most), high.min(most)), (few.min(BATCH_MAX), many.min(BATCH_MAX))])
    }
}

impl Bounds {
    /// On by this factor, or to the end of the range; nothing at the end.
    pub(super) fn step(
        &self,
        from: Knobs,
        (knob, direction): (Knob, Direction),
        factor: u64,
    ) -> Option<Knobs> {
        let (low, high) = self.0[knob as usize];
        let value = from.get(knob);
        let next = match direction {
            Direction::Up => value.saturating_mul(factor).max(low.max(1)).min(high),
            Direction::Down => (value / factor).min(high).max(low),
        };
        let is_on = match direction {
            Direction::Up => next > value,
            Direction::Down => next < value,
        };
        is_on.then(|| from.with(knob, next))
    }

    /// The value of one setting on the way to another one, as far as the range goes and never away from it.
    pub(super) fn toward(&self, from: Knobs, to: Knobs, knob: Knob) -> u64 {
        let (low, high) = self.0[knob as usize];
        let (from, to) = (from.get(knob), to.get(knob));
        let within = to.min(high).max(low);
        match to.cmp(&from) {
            Ordering::Greater => within.max(from),
            Ordering::Equal => from,
            Ordering::Less => within.min(from),
        }
    }
}
