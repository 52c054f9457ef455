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
    /// Requests that read, and how long until each was answered, seconds: mean and longest.
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
    /// The longest, seconds.
    pub max: f64,
    #[serde(skip)]
    sum: f64,
}

impl Latency {
    pub(super) fn add(&mut self, span: Span) {
        self.answered += 1;
        self.sum += span.as_secs_f64();
        self.mean = self.sum / self.answered as f64;
        self.max = self.max.max(span.as_secs_f64());
    }
}
