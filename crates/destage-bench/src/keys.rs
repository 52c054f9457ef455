//! Which row a request touches: uniform, zipfian, or each row exactly once.
//!
//! Streams are seeded, so that both sides of a pair see the same keys in the same order.

use std::str::FromStr;

/// A small seeded generator (SplitMix64): a few cycles per number, no state to share.
#[derive(Clone, Debug)]
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// Uniform in `0..n` by the multiply-shift reduction; its bias is below n / 2^64.
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(n)) >> 64) as u64
    }

    /// Uniform in `[0, 1)`.
    pub(crate) fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The shape of the key stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// Each key equally likely.
    Uniform,
    /// Zipfian with constant 0.99, hot keys scattered over the space.
    Zipfian,
    /// Each key once, in a scattered order, then again from the start.
    Each,
}

impl FromStr for Shape {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "uniform" => Ok(Self::Uniform),
            "zipfian" => Ok(Self::Zipfian),
            "each" => Ok(Self::Each),
            _ => Err(format!("unknown key shape {text:?}: use uniform, zipfian or each")),
        }
    }
}

/// One connection's stream of keys in `0..n`.
#[derive(Clone, Debug)]
pub(crate) enum Keys {
    Uniform { rng: Rng, n: u64 },
    Zipfian { rng: Rng, zipf: Zipf },
    Each { next: u64, step: u64, n: u64, stride: u64 },
}

impl Keys {
    /// The stream of connection `lane` of `lanes`.
    pub(crate) fn new(shape: Shape, n: u64, seed: u64, lane: u64, lanes: u64) -> Self {
        assert!(n > 0 && lanes > 0, "a key space and its readers are not empty");
        let rng = Rng::new(mix(seed ^ lane.wrapping_mul(0xa076_1d64_78bd_642f)));
        match shape {
            Shape::Uniform => Self::Uniform { rng, n },
            Shape::Zipfian => Self::Zipfian { rng, zipf: Zipf::new(n) },
            Shape::Each => Self::Each { next: lane, step: lanes, n, stride: coprime_stride(n) },
        }
    }

    pub(crate) fn next(&mut self) -> u64 {
        match self {
            Self::Uniform { rng, n } => rng.below(*n),
            Self::Zipfian { rng, zipf } => zipf.draw(rng),
            Self::Each { next, step, n, stride } => {
                let at = *next % *n;
                *next += *step;
                ((u128::from(at) * u128::from(*stride)) % u128::from(*n)) as u64
            }
        }
    }
}

/// A stride without a common factor with `n` visits every key once per round.
fn coprime_stride(n: u64) -> u64 {
    let gcd = |mut a: u64, mut b: u64| {
        while b != 0 {
            (a, b) = (b, a % b);
        }
        a
    };
    let mut stride = (0x9e37_79b9 % n.max(2)) | 1;
    while gcd(stride, n) != 1 {
        stride += 2;
    }
    stride
}

/// Zipfian ranks by Gray's method ("Quickly generating billion-record synthetic databases",
/// SIGMOD'94), as YCSB draws them.
#[derive(Clone, Debug)]
pub(crate) struct Zipf {
    n: u64,
    zeta_n: f64,
    alpha: f64,
    eta: f64,
}

const THETA: f64 = 0.99;

impl Zipf {
    pub(crate) fn new(n: u64) -> Self {
        let zeta = |n: u64| (1..=n).map(|i| (i as f64).powf(-THETA)).sum::<f64>();
        let (zeta_2, zeta_n) = (zeta(2.min(n)), zeta(n));
        let eta = (1.0 - (2.0 / n as f64).powf(1.0 - THETA)) / (1.0 - zeta_2 / zeta_n);
        Self { n, zeta_n, alpha: 1.0 / (1.0 - THETA), eta }
    }

    fn draw(&self, rng: &mut Rng) -> u64 {
        let u = rng.unit();
        let uz = u * self.zeta_n;
        let rank = if uz < 1.0 {
            0
        } else if uz < 1.0 + 0.5f64.powf(THETA) {
            1
        } else {
            (self.n as f64 * (self.eta * u - self.eta + 1.0).powf(self.alpha)) as u64
        };
        // Ranks are scattered so that hot rows do not share pages.
        mix(rank.min(self.n - 1)) % self.n
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_visits_every_key_once_over_all_lanes() {
        for n in [1, 2, 10, 1000, 4096, 99_991] {
            let mut seen = vec![0u32; n as usize];
            for lane in 0..3 {
                let mut keys = Keys::new(Shape::Each, n, 1, lane, 3);
                for _ in (lane..n).step_by(3) {
                    seen[keys.next() as usize] += 1;
                }
            }
            assert!(seen.iter().all(|&count| count == 1), "n = {n}");
        }
    }

    #[test]
    fn uniform_is_flat_and_repeats_with_its_seed() {
        let mut a = Keys::new(Shape::Uniform, 100, 7, 0, 1);
        let mut b = Keys::new(Shape::Uniform, 100, 7, 0, 1);
        let mut counts = [0u32; 100];
        for _ in 0..100_000 {
            let key = a.next();
            assert_eq!(key, b.next());
            counts[key as usize] += 1;
        }
        assert!(counts.iter().all(|&c| (800..1200).contains(&c)), "{counts:?}");
    }

    #[test]
    fn lanes_draw_different_keys() {
        let mut a = Keys::new(Shape::Uniform, 1 << 40, 7, 0, 2);
        let mut b = Keys::new(Shape::Uniform, 1 << 40, 7, 1, 2);
        assert!((0..100).all(|_| a.next() != b.next()));
    }

    #[test]
    fn zipfian_hottest_key_gets_its_share() {
        let n = 10_000;
        let mut keys = Keys::new(Shape::Zipfian, n, 3, 0, 1);
        let mut counts = vec![0u32; n as usize];
        for _ in 0..200_000 {
            counts[keys.next() as usize] += 1;
        }
        let zeta: f64 = (1..=n).map(|i| (i as f64).powf(-THETA)).sum();
        let hottest = f64::from(*counts.iter().max().expect("not empty")) / 200_000.0;
        assert!((hottest * zeta - 1.0).abs() < 0.1, "share {hottest}, expected {}", 1.0 / zeta);
    }
}
