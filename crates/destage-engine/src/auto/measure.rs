//! What a period measures, and how two of them compare.

use super::Reason;
use super::knobs::{Direction, Knob, Knobs};
use destage_core::{Mode, Span, Status};

/// What is to become less.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Goal {
    /// What the origin writes for each change: rows, or blocks. Acknowledgements must not take longer for it.
    Writes,
    /// What an acknowledgement takes, in the mean, seconds.
    Latency,
}

/// What a server has counted since its start, and how it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Groups written.
    pub written: u64,
    /// Changes that left in batches which the origin has.
    pub changes: u64,
    /// Rows or blocks that the origin wrote for them.
    pub sent: u64,
    /// Groups of those batches.
    pub groups: u64,
    /// Those batches.
    pub batches: u64,
    /// Acknowledgements that were measured.
    pub answers: u64,
    /// What they took together, nanoseconds.
    pub answers_nanos: u128,
    /// A limit or `D` is reached now.
    pub is_limited: bool,
    /// The origin is away, destaging is paused, or nothing is served: nothing that is measured says anything.
    pub is_disturbed: bool,
}

impl Counts {
    /// What the core knows: without `changes`, `sent` and the acknowledgements.
    pub fn of(status: &Status) -> Self {
        Self {
            written: status.writes,
            groups: status.destaged,
            batches: status.batches,
            is_limited: !matches!(status.mode, Mode::Normal | Mode::Stopped),
            is_disturbed: status.paused || status.origin_down || status.mode == Mode::Stopped,
            ..Self::default()
        }
    }
}

/// What a period has measured.
#[derive(Clone, Copy, Debug)]
pub(super) struct Measure {
    /// What the goal measures.
    pub(super) score: f64,
    /// Groups written each second.
    rate: f64,
    /// What an acknowledgement took, mean seconds; 0 where none was measured.
    answer: f64,
    /// Groups of a batch, mean.
    batch: f64,
    /// Whether a limit was met.
    pub(super) limited: bool,
}

/// Fewer changes say nothing.
const CHANGES_MIN: u64 = 50;
/// Nor fewer acknowledgements.
const ANSWERS_MIN: u64 = 20;
/// A step must make writes, or latencies, less by this share.
const WRITES_MARGIN: f64 = 0.05;
const LATENCY_MARGIN: f64 = 0.1;
/// Two periods compare if their rates differ by at most this factor.
const SAME_RATE: f64 = 1.25;
/// A load is another one if the rate, or what is measured, differs by this factor.
const OTHER_RATE: f64 = 1.6;
/// Acknowledgements take longer if they take so many times as long, and that much more.
const SLOWER: f64 = 2.0;
const SLOWER_SECONDS: f64 = 0.005;
/// The size of batches is felt once they are filled to this share.
const FILLED: f64 = 0.5;

impl Goal {
    /// What is worth a trial, the most promising first.
    pub(super) const fn steps(self) -> &'static [(Knob, Direction)] {
        match self {
            Self::Writes => &[(Knob::Linger, Direction::Up), (Knob::Batch, Direction::Up)],
            Self::Latency => &[
                (Knob::Linger, Direction::Up),
                (Knob::Linger, Direction::Down),
                (Knob::Batch, Direction::Down),
                (Knob::Batch, Direction::Up),
            ],
        }
    }
}

impl Measure {
    /// What happened between two looks; nothing where that was too little.
    pub(super) fn between(
        from: &Counts,
        to: &Counts,
        took: Span,
        limited: bool,
        goal: Goal,
    ) -> Option<Self> {
        let changes = to.changes.saturating_sub(from.changes);
        let answers = to.answers.saturating_sub(from.answers);
        if changes < CHANGES_MIN || (goal == Goal::Latency && answers < ANSWERS_MIN) {
            return None;
        }
        let nanos = to.answers_nanos.saturating_sub(from.answers_nanos);
        let answer = nanos as f64 / 1e9 / answers.max(1) as f64;
        let sent = to.sent.saturating_sub(from.sent) as f64;
        let batches = to.batches.saturating_sub(from.batches).max(1) as f64;
        Some(Self {
            score: match goal {
                Goal::Writes => sent / changes as f64,
                Goal::Latency => answer,
            },
            rate: to.written.saturating_sub(from.written) as f64 / took.as_secs_f64(),
            answer,
            batch: to.groups.saturating_sub(from.groups) as f64 / batches,
            limited,
        })
    }

    /// Whether this is not what `reference` measured.
    pub(super) fn is_of_another_load(&self, reference: &Self) -> bool {
        differ(self.rate, reference.rate, OTHER_RATE)
            || differ(self.score, reference.score, OTHER_RATE)
    }

    /// Whether a step of this setting could show.
    pub(super) fn is_felt(&self, knob: Knob, knobs: Knobs) -> bool {
        knob != Knob::Batch || self.batch >= FILLED * f64::from(knobs.batch)
    }

    /// What a trial has come to, beside what was before it.
    pub(super) fn verdict(&self, before: &Self, goal: Goal) -> Reason {
        let margin = match goal {
            Goal::Writes => WRITES_MARGIN,
            Goal::Latency => LATENCY_MARGIN,
        };
        if differ(self.rate, before.rate, SAME_RATE) {
            return Reason::OtherLoad(before.rate, self.rate);
        }
        if self.limited && !before.limited {
            return Reason::Limit;
        }
        if self.answer > before.answer * SLOWER && self.answer - before.answer > SLOWER_SECONDS {
            return Reason::Slower(before.answer, self.answer);
        }
        if self.score < before.score * (1.0 - margin) {
            return Reason::Better(before.score, self.score);
        }
        Reason::NotBetter(before.score, self.score)
    }
}

fn differ(one: f64, other: f64, factor: f64) -> bool {
    one > other * factor || other > one * factor
}
