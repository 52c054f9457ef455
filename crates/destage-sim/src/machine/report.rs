//! What a run measured.

use super::Settings;
use crate::hits::{Count, Counts};
use destage_core::Span;
use hdrhistogram::Histogram;
use serde::Serialize;

/// What a run measured, with everything that decided it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// The version of the program.
    pub version: &'static str,
    /// Every parameter, the seed among them.
    pub settings: Settings,
    /// Reads.
    pub reads: Kind,
    /// Writes.
    pub writes: Kind,
    /// Flushes, which are not in `reads` or `writes`.
    pub flushes: u64,
    /// Discards, which drop clean blocks.
    pub discards: u64,
    /// Requests that ended with an error.
    pub failed: u64,
    /// More came than the devices can do.
    pub overload: Option<Overload>,
    /// The run was ended early, and these requests were under way then. Everything is of what was before.
    pub interrupted: Option<u64>,
    /// Distinct blocks of the trace.
    pub distinct_blocks: u32,
    /// What reached the filer.
    pub origin: Origin,
    /// What left the last tier, or the only one, for the level below, the origin.
    pub destage: Destage,
    /// The same of the RAM where it stands before flash.
    pub ram_destage: Option<Destage>,
    /// Blocks written by one host, and how many of them another host had to drop.
    pub invalidated: Count,
    /// The same by write requests.
    pub invalidated_requests: Count,
    /// What a crash would have lost at the times asked for.
    pub crashes: Vec<Crash>,
    /// How busy the devices were.
    pub stations: Vec<StationLoad>,
    /// Virtual time from the first measured request to the end of the last one, seconds.
    pub duration_seconds: f64,
    /// Of every latency and count; the same for the same settings and requests, whatever the machine.
    pub hash: String,
}

/// Requests came faster than they could be answered, so that those at the end waited the longer the more there were: times say
/// how long the trace is, not how fast the devices are.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Overload {
    /// From the arrival of the last request until the last one was answered, seconds.
    pub behind_seconds: f64,
    /// Requests that waited when the last one came.
    pub waiting: u64,
    /// The device that was busiest.
    pub busiest: String,
}

/// Requests of one kind.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Kind {
    /// Requests, blocks and bytes, and how many of them were in the cache.
    pub counts: Counts,
    /// From arrival to completion.
    pub latency: Latency,
    /// The same for each block, seconds: the latency of all requests over their blocks.
    pub block_mean_seconds: f64,
}

/// How long requests took. All in seconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Latency {
    /// Requests measured.
    pub count: u64,
    /// Their mean.
    pub mean: f64,
    /// Their standard deviation.
    pub deviation: f64,
    /// Half of them took at most so long; this and the following to three digits.
    pub p50: f64,
    /// 90 %.
    pub p90: f64,
    /// 99 %.
    pub p99: f64,
    /// 99.9 %.
    pub p999: f64,
    /// 99.99 %.
    pub p9999: f64,
    /// The longest.
    pub max: f64,
    /// How many took how long.
    pub histogram: Vec<Bucket>,
}

/// Requests that took less than `below` seconds, and at least half of it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Bucket {
    /// The bound, seconds.
    pub below: f64,
    /// How many.
    pub count: u64,
}

/// What reached the filer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Origin {
    /// Read requests.
    pub read_requests: u64,
    /// Blocks read.
    pub read_blocks: u64,
    /// Write requests, those to a redo store among them.
    pub write_requests: u64,
    /// Blocks written in place.
    pub write_blocks: u64,
    /// Blocks written to a redo store.
    pub redo_blocks: u64,
}

/// How a tier destaged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Destage {
    /// Blocks that were written into the tier.
    pub written_blocks: u64,
    /// Those of them that were dirty already: what coalescing can save.
    pub written_on_dirty: u64,
    /// Blocks that a write took room for: of blocks that the tier did not hold, and beside versions that it still needs. Those
    /// written through are among them, though not among `written_blocks`.
    pub write_allocations: u64,
    /// Blocks that left for the level below.
    pub destaged_blocks: u64,
    /// Bursts: everything that left at one point in time.
    pub bursts: u64,
    /// Blocks of a burst, mean.
    pub burst_mean: f64,
    /// Blocks of the largest burst.
    pub burst_max: u64,
    /// How long a block had been dirty when it left, seconds, mean.
    pub dirty_age_mean: f64,
    /// The longest.
    pub dirty_age_max: f64,
    /// The oldest that an undecided write became, seconds.
    pub staleness_max: f64,
    /// Blocks that are dirty at the end.
    pub dirty_left: u64,
    /// Writes that were refused at a limit.
    pub refused: u64,
    /// Batches that were tried again.
    pub retries: u64,
    /// Clean blocks that made room for others.
    pub evictions: u64,
}

/// What a crash would lose.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Crash {
    /// When, seconds since the start of the run.
    pub at_seconds: f64,
    /// Acknowledged writes that are lost if the hosts crash and persistent flash survives.
    pub lost_writes: u64,
    /// Acknowledged writes that are lost if the caches are lost as well.
    pub lost_writes_with_cache: u64,
    /// The same in blocks.
    pub lost_blocks_with_cache: u64,
    /// How old the oldest of those is, seconds: how far the origin is behind.
    pub staleness_seconds: f64,
    /// Writes that the origin holds, wholly or in part, although one that completed before they were issued is lost.
    pub order_violations: u64,
    /// The same across flushes: the lost one was followed by a flush before they were issued.
    pub epoch_violations: u64,
    /// Writes of which the origin holds some blocks and misses others.
    pub torn_writes: u64,
}

/// How busy a device was.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StationLoad {
    /// Which one.
    pub name: String,
    /// Requests served.
    pub served: u64,
    /// The share of the time that its servers worked, on average.
    pub busy: f64,
}

/// Latencies while they are being gathered.
#[derive(Debug)]
pub(crate) struct Gathered {
    histogram: Histogram<u64>,
    buckets: [u64; 65],
    sum: u128,
    squares: u128,
    max: Span,
}

impl Default for Gathered {
    fn default() -> Self {
        let histogram = Histogram::new(3).expect("three digits are allowed");
        Self { histogram, buckets: [0; 65], sum: 0, squares: 0, max: Span::ZERO }
    }
}

impl Gathered {
    pub(crate) fn add(&mut self, latency: Span) {
        let nanos = latency.0;
        self.histogram.record(nanos).expect("it grows to what is recorded");
        self.max = self.max.max(latency);
        self.buckets[(64 - nanos.leading_zeros()) as usize] += 1;
        self.sum += u128::from(nanos);
        self.squares = self.squares.saturating_add(u128::from(nanos) * u128::from(nanos));
    }

    /// All latencies together, seconds.
    pub(super) fn total_seconds(&self) -> f64 {
        self.sum as f64 / 1e9
    }

    pub(crate) fn latency(&self) -> Latency {
        let count: u64 = self.buckets.iter().sum();
        if count == 0 {
            return Latency::default();
        }
        let mean = self.sum as f64 / count as f64;
        let variance = (self.squares as f64 / count as f64 - mean * mean).max(0.0);
        let at = |quantile| self.histogram.value_at_quantile(quantile) as f64 / 1e9;
        let used = self.buckets.iter().enumerate().filter(|&(_, &count)| count > 0);
        Latency {
            count,
            mean: mean / 1e9,
            deviation: variance.sqrt() / 1e9,
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p999: at(0.999),
            p9999: at(0.9999),
            max: self.max.as_secs_f64(),
            histogram: used
                .map(|(bits, &count)| Bucket { below: 2f64.powi(bits as i32) / 1e9, count })
                .collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latencies_are_summed_up_as_defined() {
        let mut gathered = Gathered::default();
        for micros in 1..=1_000 {
            gathered.add(Span::from_micros(micros));
        }
        let latency = gathered.latency();
        let near = |ours: f64, theirs: f64| (ours / theirs - 1.0).abs() < 0.002;
        assert!(near(latency.mean, 500.5e-6) && near(latency.deviation, 288.675e-6), "{latency:?}");
        assert!(near(latency.p50, 500e-6) && near(latency.p99, 990e-6), "{latency:?}");
        assert!(near(latency.p9999, 1e-3) && near(latency.max, 1e-3), "{latency:?}");
        assert_eq!(latency.histogram.iter().map(|bucket| bucket.count).sum::<u64>(), 1_000);
        assert!(latency.histogram.windows(2).all(|pair| pair[0].below < pair[1].below));
        assert!(near(gathered.total_seconds(), 0.5005));
        assert_eq!(Gathered::default().latency(), Latency::default());
    }
}
