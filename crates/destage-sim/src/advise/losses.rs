//! What many crashes would lose, summed up.

use crate::event::Stream;
use crate::machine::Crash;
use destage_core::Span;
use destage_runtime::units::Interval;
use serde::Serialize;

/// Crashes at random times, all equally likely, within so long; in order.
pub fn random_times(count: u32, within: Span, seed: u64) -> Vec<Interval> {
    let mut random = Stream::new(seed, "crashes");
    let mut times: Vec<_> =
        (0..count).map(|_| Interval(Span(random.below(within.0.saturating_add(1))))).collect();
    times.sort_unstable();
    times
}

/// What crashes would lose.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Losses {
    /// How many crashes.
    pub crashes: u64,
    /// Whether the caches are lost as well as the hosts.
    pub lose_cache: bool,
    /// Acknowledged writes that are lost.
    pub lost_writes: Amounts,
    /// How far the origin is behind, seconds; 0 if the caches survive, which destage on.
    pub staleness_seconds: Amounts,
    /// Writes that the origin holds although one that completed before they were issued is lost.
    pub order_violations: Violations,
    /// The same across flushes: what no disk that keeps its flushes does.
    pub epoch_violations: Violations,
    /// Writes of which the origin holds a part.
    pub torn_writes: Violations,
}

/// An amount over all crashes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Amounts {
    /// On average.
    pub mean: f64,
    /// In half of the crashes it was at most so much.
    pub p50: f64,
    /// In 90 %.
    pub p90: f64,
    /// In 99 %.
    pub p99: f64,
    /// The most.
    pub max: f64,
}

/// Something that must not be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Violations {
    /// Crashes with any of it.
    pub crashes: u64,
    /// The most in one crash.
    pub max: u64,
    /// In all crashes.
    pub total: u64,
}

impl Losses {
    /// Sums up; `lose_cache` tells whether the caches are lost with their hosts.
    pub fn of(crashes: &[Crash], lose_cache: bool) -> Self {
        let amounts = |value: fn(&Crash) -> f64| Amounts::of(crashes.iter().map(value).collect());
        let violations = |value: fn(&Crash) -> u64| {
            if lose_cache {
                Violations::of(crashes.iter().map(value))
            } else {
                // The caches destage what is missing after the restart.
                Violations::default()
            }
        };
        Self {
            crashes: crashes.len() as u64,
            lose_cache,
            lost_writes: if lose_cache {
                amounts(|crash| crash.lost_writes_with_cache as f64)
            } else {
                amounts(|crash| crash.lost_writes as f64)
            },
            staleness_seconds: if lose_cache {
                amounts(|crash| crash.staleness_seconds)
            } else {
                Amounts::default()
            },
            order_violations: violations(|crash| crash.order_violations),
            epoch_violations: violations(|crash| crash.epoch_violations),
            torn_writes: violations(|crash| crash.torn_writes),
        }
    }
}

impl Amounts {
    fn of(mut values: Vec<f64>) -> Self {
        values.sort_unstable_by(f64::total_cmp);
        let Some(&max) = values.last() else { return Self::default() };
        let at = |percent: usize| values[(values.len() * percent).div_ceil(100).max(1) - 1];
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        Self { mean, p50: at(50), p90: at(90), p99: at(99), max }
    }
}

impl Violations {
    fn of(counts: impl Iterator<Item = u64>) -> Self {
        counts.fold(Self::default(), |all, count| Self {
            crashes: all.crashes + u64::from(count > 0),
            max: all.max.max(count),
            total: all.total + count,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crashes_are_summed_up_as_defined() {
        let crash = |n: u64| Crash {
            at_seconds: n as f64,
            lost_writes: n / 10,
            lost_writes_with_cache: n,
            lost_blocks_with_cache: 2 * n,
            staleness_seconds: n as f64 / 100.0,
            order_violations: n.saturating_sub(98),
            epoch_violations: 0,
            torn_writes: u64::from(n == 1),
        };
        let crashes: Vec<Crash> = (1..=100).map(crash).collect();
        let losses = Losses::of(&crashes, true);
        let Amounts { mean, p50, p90, p99, max } = losses.lost_writes;
        assert_eq!([mean, p50, p90, p99, max], [50.5, 50.0, 90.0, 99.0, 100.0]);
        assert_eq!(losses.order_violations, Violations { crashes: 2, max: 2, total: 3 });
        assert_eq!(losses.torn_writes, Violations { crashes: 1, max: 1, total: 1 });
        let survived = Losses::of(&crashes, false);
        assert_eq!((survived.lost_writes.max, survived.staleness_seconds.max), (10.0, 0.0));
        assert_eq!(survived.order_violations, Violations::default());
        assert_eq!(Losses::of(&[], true).lost_writes, Amounts::default());
    }

    #[test]
    fn random_times_are_spread_and_repeat() {
        let times = random_times(1_000, Span::from_secs(100), 7);
        assert_eq!(times, random_times(1_000, Span::from_secs(100), 7));
        assert_ne!(times, random_times(1_000, Span::from_secs(100), 8));
        assert!(times.windows(2).all(|pair| pair[0] <= pair[1]));
        let seconds: Vec<f64> = times.iter().map(|time| time.span().as_secs_f64()).collect();
        let mean = seconds.iter().sum::<f64>() / 1_000.0;
        assert!((45.0..55.0).contains(&mean) && seconds[999] <= 100.0, "{mean}");
    }
}
