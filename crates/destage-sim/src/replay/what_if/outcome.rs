//! What came of it.

use crate::machine;
use crate::replay::Tally;
use destage_core::Span;
use serde::Serialize;

/// What a policy would have come to.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// Counts, as of a recorded run.
    pub tally: Tally,
    /// Requests that read, and how long until each was answered.
    pub reads: Latency,
    /// Requests that wrote.
    pub writes: Latency,
    /// The same with their quantiles.
    #[serde(skip)]
    pub read_times: machine::Latency,
    /// Likewise.
    #[serde(skip)]
    pub write_times: machine::Latency,
    /// Requests that were not answered when the recording ended: with more than a few the load was too much.
    pub unanswered: u64,
}

/// How long requests took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Latency {
    /// How many were answered.
    pub answered: u64,
    /// The mean, seconds.
    pub mean: f64,
    /// What 99 % of them took at most, seconds; 0 until all are known.
    pub p99: f64,
    /// The longest, seconds.
    pub max: f64,
    #[serde(skip)]
    sum: f64,
}

impl From<&machine::Latency> for Latency {
    fn from(all: &machine::Latency) -> Self {
        let sum = all.mean * all.count as f64;
        Self { answered: all.count, mean: all.mean, p99: all.p99, max: all.max, sum }
    }
}

impl Latency {
    /// With what all of them tell.
    pub(super) fn with(self, all: &machine::Latency) -> Self {
        Self { p99: all.p99, ..self }
    }

    pub(super) fn add(&mut self, span: Span) {
        self.answered += 1;
        self.sum += span.as_secs_f64();
        self.mean = self.sum / self.answered as f64;
        self.max = self.max.max(span.as_secs_f64());
    }
}
