//! Response times: mean, deviation, extremes, histogram.

use crate::update::Measured;

/// Response times of several runs together, seconds.
pub(super) struct Times(Vec<f64>);

impl Times {
    pub(super) fn of(trials: &[Measured]) -> Self {
        let reads = trials.iter().flat_map(|trial| &trial.reads);
        Self(reads.map(|span| span.as_secs_f64()).collect())
    }

    pub(super) fn mean(&self) -> f64 {
        self.0.iter().sum::<f64>() / self.0.len() as f64
    }

    pub(super) fn deviation(&self) -> f64 {
        let mean = self.mean();
        let squares = self.0.iter().map(|time| (time - mean) * (time - mean));
        (squares.sum::<f64>() / self.0.len() as f64).sqrt()
    }

    pub(super) fn max(&self) -> f64 {
        self.0.iter().copied().fold(0.0, f64::max)
    }

    pub(super) fn longer_than(&self, seconds: f64) -> f64 {
        self.0.iter().filter(|&&time| time > seconds).count() as f64
    }

    /// How many are in `[low, high)`, seconds.
    pub(super) fn within(&self, low: f64, high: f64) -> usize {
        self.0.iter().filter(|&&time| low <= time && time < high).count()
    }

    /// The share of a bound below which all but so many are.
    pub(super) fn all_but(&self, count: usize) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        sorted[sorted.len().saturating_sub(count + 1)]
    }
}
