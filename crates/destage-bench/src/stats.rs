//! Medians and spreads of a few paired runs.

use serde::Serialize;

/// Median with the smallest and the largest value.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Default)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
}

impl Spread {
    /// `None` if there is no value.
    pub(crate) fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut sorted: Vec<f64> = values.into_iter().collect();
        sorted.sort_by(f64::total_cmp);
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        let upper = sorted[sorted.len() / 2];
        let lower = sorted[(sorted.len() - 1) / 2];
        Some(Self { median: f64::midpoint(lower, upper), min, max })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn odd_and_even_counts_have_their_median() {
        let odd = Spread::of([3.0, 1.0, 2.0]).expect("three values");
        assert_eq!((odd.median, odd.min, odd.max), (2.0, 1.0, 3.0));
        assert_eq!(Spread::of([4.0, 1.0]).expect("two values").median, 2.5);
        assert_eq!(Spread::of([]), None);
    }
}
