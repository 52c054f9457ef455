//! Distributions over the last minutes, cheap enough to record on every request.

use crate::status::{Latencies, Sizes};
use destage_core::{Span, Time};
use hdrhistogram::Histogram;

/// The length of time that [`Latency`] and [`SizeWindow`] look back unless told otherwise: between one and two minutes.
pub const WINDOW: Span = Span::from_secs(120);

/// Upper ends of the buckets that are counted since the start, nanoseconds; one more bucket holds what is longer. They are the same
/// everywhere, so that the counts of several servers can be added.
pub const BUCKET_ENDS: [u64; BUCKETS - 1] = [
    50_000,
    100_000,
    250_000,
    500_000,
    1_000_000,
    2_500_000,
    5_000_000,
    10_000_000,
    25_000_000,
    50_000_000,
    100_000_000,
    250_000_000,
    500_000_000,
    1_000_000_000,
    2_500_000_000,
    5_000_000_000,
    10_000_000_000,
    30_000_000_000,
    60_000_000_000,
];
/// How many buckets there are.
pub const BUCKETS: usize = 20;

/// Latencies of the last minutes. Resolution 1 us up to 1 h, two significant digits. Recording costs some 10 ns and no
/// memory; each holds about 35 KiB.
#[derive(Clone, Debug)]
pub struct Latency {
    window: Window,
    count: u64,
    /// Since the start: in each bucket alone, and all together.
    buckets: [u64; BUCKETS],
    sum: u128,
}

/// Sizes (groups in a batch, commands in a pipeline) of the last minutes, up to 2^32, two significant digits.
#[derive(Clone, Debug)]
pub struct SizeWindow(Window);

impl Latency {
    /// Latencies over the last [`WINDOW`], starting at `now`.
    pub fn new(now: Time) -> Self {
        Self::over(now, WINDOW)
    }

    /// Latencies of the last `window`, at least half of it.
    pub fn over(now: Time, window: Span) -> Self {
        Self {
            window: Window::new(now, window, 1_000, 3_600_000_000_000),
            count: 0,
            buckets: [0; BUCKETS],
            sum: 0,
        }
    }

    /// Records one latency.
    #[inline]
    pub fn record(&mut self, now: Time, latency: Span) {
        self.record_n(now, latency, 1);
    }

    /// Records the same latency `n` times, as for the groups of a batch.
    #[inline]
    pub fn record_n(&mut self, now: Time, latency: Span, n: u32) {
        self.count += u64::from(n);
        let nanos = latency.as_nanos();
        self.buckets[BUCKET_ENDS.partition_point(|&end| end < nanos)] += u64::from(n);
        self.sum += u128::from(nanos) * u128::from(n);
        self.window.record(now, latency.as_nanos(), n);
    }

    /// Since the start: how many there were, and what they took together, nanoseconds.
    pub fn totals(&self) -> (u64, u128) {
        (self.count, self.sum)
    }

    /// The distribution as of `now`.
    pub fn summary(&mut self, now: Time) -> Latencies {
        let recent = self.window.merged(now);
        let sum_seconds = self.sum as f64 / 1e9;
        let since_start = Latencies {
            count: self.count,
            buckets: self.buckets,
            sum_seconds,
            ..Latencies::default()
        };
        if recent.is_empty() {
            return since_start;
        }
        let seconds = |nanos: u64| nanos as f64 / 1e9;
        let at = |quantile| seconds(recent.value_at_quantile(quantile).min(recent.max()));
        Latencies {
            mean_seconds: recent.mean() / 1e9,
            p50_seconds: at(0.5),
            p99_seconds: at(0.99),
            p999_seconds: at(0.999),
            max_seconds: seconds(recent.max()),
            ..since_start
        }
    }
}

impl SizeWindow {
    /// Sizes over the last [`WINDOW`], starting at `now`.
    pub fn new(now: Time) -> Self {
        Self(Window::new(now, WINDOW, 1, 1 << 32))
    }

    /// Records one size.
    #[inline]
    pub fn record(&mut self, now: Time, size: u64) {
        self.0.record(now, size, 1);
    }

    /// The distribution as of `now`.
    pub fn summary(&mut self, now: Time) -> Sizes {
        let recent = self.0.merged(now);
        if recent.is_empty() {
            return Sizes::default();
        }
        Sizes {
            mean: recent.mean(),
            p50: recent.value_at_quantile(0.5).min(recent.max()),
            max: recent.max(),
        }
    }
}

/// Two histograms that take turns: one collects, the other holds the turn before.
#[derive(Clone, Debug)]
struct Window {
    current: Histogram<u32>,
    previous: Histogram<u32>,
    turn: Span,
    turn_ends: Time,
}

impl Window {
    fn new(now: Time, window: Span, low: u64, high: u64) -> Self {
        let current =
            Histogram::new_with_bounds(low, high, 2).expect("the bounds are constants in order");
        let turn = Span((window.as_nanos() / 2).max(1));
        Self { previous: current.clone(), current, turn, turn_ends: now + turn }
    }

    #[inline]
    fn record(&mut self, now: Time, value: u64, n: u32) {
        if now >= self.turn_ends {
            self.take_turns(now);
        }
        self.current.saturating_record_n(value, n);
    }

    #[cold]
    fn take_turns(&mut self, now: Time) {
        std::mem::swap(&mut self.current, &mut self.previous);
        self.current.reset();
        if now >= self.turn_ends + self.turn {
            self.previous.reset();
        }
        self.turn_ends = now + self.turn;
    }

    fn merged(&mut self, now: Time) -> Histogram<u32> {
        if now >= self.turn_ends {
            self.take_turns(now);
        }
        let mut merged = self.previous.clone();
        merged.add(&self.current).expect("both have the same bounds");
        merged
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_those_of_what_was_recorded() {
        let start = Time::from_secs(10);
        let mut latency = Latency::new(start);
        assert_eq!(latency.summary(start), Latencies::default());
        for ms in 1..=1_000 {
            latency.record(start, Span::from_millis(ms));
        }
        let summary = latency.summary(start);
        assert_eq!(summary.count, 1_000);
        for (shown, exact) in [
            (summary.mean_seconds, 0.5005),
            (summary.p50_seconds, 0.5),
            (summary.p99_seconds, 0.99),
            (summary.p999_seconds, 0.999),
            (summary.max_seconds, 1.0),
        ] {
            assert!((shown - exact).abs() / exact < 0.01, "{shown} instead of {exact}");
        }
    }

    #[test]
    fn buckets_count_since_the_start_and_hold_their_upper_end() {
        let mut latency = Latency::over(Time::ZERO, Span::from_secs(60));
        latency.record_n(Time::ZERO, Span(1_000_000), 3);
        latency.record(Time::ZERO, Span(1_000_001));
        latency.record(Time::ZERO, Span::from_secs(3_000));
        let summary = latency.summary(Time::from_secs(500));
        assert_eq!(
            (summary.buckets[4], summary.buckets[5], summary.buckets[BUCKETS - 1]),
            (3, 1, 1)
        );
        assert_eq!(summary.buckets.iter().sum::<u64>(), summary.count);
        assert!((summary.sum_seconds - 3_000.004).abs() < 1e-3, "{}", summary.sum_seconds);
        assert!(BUCKET_ENDS.is_sorted());
    }

    #[test]
    fn old_values_leave_after_at_most_the_window() {
        let mut latency = Latency::over(Time::ZERO, Span::from_secs(60));
        latency.record(Time::from_secs(1), Span::from_secs(9));
        latency.record(Time::from_secs(31), Span::from_millis(1));
        assert!(latency.summary(Time::from_secs(32)).max_seconds > 8.9);
        let later = latency.summary(Time::from_secs(62));
        assert!(later.max_seconds < 0.1 && later.max_seconds > 0.0);
        let idle = latency.summary(Time::from_secs(500));
        assert_eq!((idle.max_seconds, idle.count), (0.0, 2));
    }

    #[test]
    fn sizes_and_values_out_of_range_are_kept_within_bounds() {
        let mut sizes = SizeWindow::new(Time::ZERO);
        for size in [1, 1, 100] {
            sizes.record(Time::ZERO, size);
        }
        assert_eq!(sizes.summary(Time::ZERO), Sizes { mean: 34.0, p50: 1, max: 100 });
        let mut latency = Latency::new(Time::ZERO);
        latency.record(Time::ZERO, Span::MAX);
        assert!(latency.summary(Time::ZERO).max_seconds >= 3_600.0);
    }

    #[test]
    fn recording_is_cheap() {
        let mut latency = Latency::new(Time::ZERO);
        let begun = std::time::Instant::now();
        for i in 0..100_000u64 {
            latency.record(Time(i), Span(i * 7 % 5_000_000));
        }
        // Some 10 ns when optimised; the bound leaves room for unoptimised builds on busy machines.
        assert!(begun.elapsed().as_nanos() / 1_000_000 < 2_000);
    }
}
