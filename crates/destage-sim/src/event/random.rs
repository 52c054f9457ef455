//! Random streams by counter: one per seed and component, so that a change in one leaves the others as they are.

use crate::blocks::mix;
use destage_core::Span;

/// Numbers that look random and depend on the seed, the component and how many were taken before.
#[derive(Clone, Debug)]
pub struct Stream {
    key: u64,
    counter: u64,
}

impl Stream {
    /// The stream of a component, by its name.
    pub fn new(seed: u64, component: &str) -> Self {
        let key = component.bytes().fold(mix(seed), |key, byte| mix(key ^ u64::from(byte)));
        Self { key, counter: 0 }
    }

    /// The next number.
    pub fn next_number(&mut self) -> u64 {
        self.counter += 1;
        mix(self.key ^ mix(self.counter))
    }

    /// A number below `limit`, all equally likely; 0 if `limit` is 0.
    pub fn below(&mut self, limit: u64) -> u64 {
        ((u128::from(self.next_number()) * u128::from(limit)) >> 64) as u64
    }

    /// A number from 0 to below 1, all equally likely.
    pub fn share(&mut self) -> f64 {
        (self.next_number() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// A span from zero to twice `mean`, all equally likely.
    pub fn around(&mut self, mean: Span) -> Span {
        Span(self.below(2 * mean.0 + 1))
    }

    /// An exponential span, by comparisons of even numbers alone, so that it is the same on every machine. Source: von Neumann,
    /// "Various techniques used in connection with random digits", 1951.
    pub fn exponential(&mut self, mean: Span) -> Span {
        let mut whole = 0u64;
        loop {
            let first = self.next_number();
            let (mut last, mut run) = (first, 1);
            loop {
                let number = self.next_number();
                if number > last {
                    break;
                }
                (last, run) = (number, run + 1);
            }
            if run % 2 == 1 {
                let part = (u128::from(first) * u128::from(mean.0)) >> 64;
                return Span(whole.saturating_mul(mean.0).saturating_add(part as u64));
            }
            whole += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_are_even_and_their_own() {
        let take = |seed, component| {
            let mut stream = Stream::new(seed, component);
            (0..10_000).map(|_| stream.below(1_000)).collect::<Vec<_>>()
        };
        let numbers = take(1, "disk");
        assert_eq!(numbers, take(1, "disk"));
        let same = |other: Vec<u64>| numbers.iter().zip(other).filter(|&(a, b)| *a == b).count();
        assert!(same(take(2, "disk")) < 50 && same(take(1, "reader")) < 50);
        let mean = numbers.iter().sum::<u64>() / 10_000;
        assert!((480..520).contains(&mean), "{mean}");
        assert!(numbers.iter().all(|&number| number < 1_000));
        assert_eq!(Stream::new(1, "x").below(0), 0);
    }

    #[test]
    fn exponential_spans_have_the_tail_of_an_exponential() {
        let mut stream = Stream::new(1, "device");
        let is_long = |_: &u32| stream.exponential(Span(1_000)) > Span(3_000);
        let long = (0..100_000).filter(is_long).count();
        // exp(-3) is 4.98 %.
        assert!((4_700..5_300).contains(&long), "{long}");
    }
}
