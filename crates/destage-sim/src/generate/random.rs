//! Distributions over a random stream.

use crate::event::Stream;

/// The skew of YCSB's zipfian distribution.
const ZIPF: f64 = 0.99;
/// Numbers that a float tells apart.
const UNIT: u64 = 1 << 53;

/// One of two, the first with so many percent.
pub(super) fn chance<T>(random: &mut Stream, percent: u8, then: T, otherwise: T) -> T {
    if random.below(100) < u64::from(percent) { then } else { otherwise }
}

/// A number from 0 up to 1, all equally likely.
fn uniform(random: &mut Stream) -> f64 {
    random.below(UNIT) as f64 / UNIT as f64
}

/// A number of that mean, by the gamma distribution of shape 1.5, which Filebench has for sizes of files: an exponential one
/// and half the square of a normal one.
pub(super) fn gamma(random: &mut Stream, mean: u64) -> u64 {
    let exponential = |random: &mut Stream| -(1.0 - uniform(random)).ln();
    let cosine = (std::f64::consts::TAU * uniform(random)).cos();
    let sum = exponential(random) + exponential(random) * cosine * cosine;
    (mean as f64 * sum / 1.5) as u64
}

/// Zipfian numbers in constant time, spread over all by a hash. Source: Gray, Sundaresan, Englert, Baclawski, Weinberger,
/// "Quickly generating billion-record synthetic databases", SIGMOD 1994, as YCSB has it.
pub(super) struct Zipf {
    count: u64,
    zeta: f64,
    alpha: f64,
    eta: f64,
}

impl Zipf {
    pub(super) fn new(count: u64) -> Self {
        let term = |rank: u64| 1.0 / (rank as f64).powf(ZIPF);
        let zeta: f64 = (1..=count).map(term).sum();
        let two = term(1) + term(2);
        let eta = (1.0 - (2.0 / count as f64).powf(1.0 - ZIPF)) / (1.0 - two / zeta);
        Self { count, zeta, alpha: 1.0 / (1.0 - ZIPF), eta }
    }

    pub(super) fn next(&self, random: &mut Stream) -> u64 {
        let uniform = uniform(random);
        let scaled = uniform * self.zeta;
        let rank = match scaled {
            _ if scaled < 1.0 => 0,
            _ if scaled < 1.0 + 0.5f64.powf(ZIPF) => 1,
            _ => {
                let share = (self.eta * uniform - self.eta + 1.0).powf(self.alpha);
                (self.count as f64 * share) as u64
            }
        };
        crate::blocks::mix(rank.min(self.count - 1)) % self.count
    }
}
