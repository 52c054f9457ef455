//! Moving averages of measured rates and latencies.

use serde::{Deserialize, Serialize};

/// Weight of a new sample, as a divisor.
const WEIGHT: f64 = 0.2;

/// An exponentially weighted moving average; `None` before the first sample.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
pub(crate) struct Average(Option<f64>);

impl Average {
    pub(crate) fn add(&mut self, sample: f64) {
        self.0 = Some(self.0.map_or(sample, |mean| mean + (sample - mean) * WEIGHT));
    }

    pub(crate) fn get(self) -> Option<f64> {
        self.0
    }
}
