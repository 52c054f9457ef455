//! A curve: what was measured at several sizes, and how fast it grows.

use crate::figure::thousands;
use crate::report::Table;

/// What a measure may do as its size grows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Bound {
    /// Its exponent is this at most.
    AtMost(f64),
    /// It is shown, and free to grow.
    None,
}

/// One thing that was measured at each size.
#[derive(Clone, Copy, Debug)]
pub(super) struct Measure {
    pub(super) name: &'static str,
    /// Digits behind the point.
    pub(super) digits: usize,
    pub(super) bound: Bound,
}

/// What was measured at one size.
#[derive(Clone, Debug)]
pub(super) struct Point {
    /// The size.
    pub(super) size: f64,
    /// The size as the table shows it.
    pub(super) shown: String,
    /// One value for each measure.
    pub(super) values: Vec<f64>,
}

impl Point {
    pub(super) fn new(size: u64, values: Vec<f64>) -> Self {
        Self { size: size as f64, shown: thousands(size as f64), values }
    }
}

/// Points of growing size.
#[derive(Clone, Debug)]
pub(super) struct Curve {
    pub(super) title: &'static str,
    pub(super) note: String,
    /// What the sizes count.
    pub(super) axis: &'static str,
    pub(super) measures: Vec<Measure>,
    pub(super) points: Vec<Point>,
}

/// A decade, and a little for sizes that were rounded.
const DECADE: f64 = 10.01;
/// Less than this in a measure's last digit is noise: its logarithm says nothing.
const LEAST: f64 = 1e-9;

impl Curve {
    /// The points, then the exponents, the bound, and whether it holds.
    pub(super) fn table(&self) -> Table {
        let mut rows: Vec<Vec<String>> = self.points.iter().map(|point| self.row(point)).collect();
        let shown = |exponent: Option<f64>| exponent.map_or_else(none, |e| format!("{e:.2}"));
        let all = |of: &dyn Fn(usize) -> String| (0..self.measures.len()).map(of).collect();
        let line = |name: &str, cells: Vec<String>| [vec![name.to_owned()], cells].concat();
        rows.push(line("exponent", all(&|at| shown(self.exponent(at)))));
        rows.push(line("exponent, last decade", all(&|at| shown(self.last_exponent(at)))));
        rows.push(line("bound", all(&|at| bound_cell(self.measures[at].bound))));
        rows.push(line("within", all(&|at| within_cell(self.is_within(at)))));
        let names = self.measures.iter().map(|measure| measure.name.to_owned());
        Table {
            title: format!("Growth: {}", self.title),
            note: self.note.clone(),
            columns: std::iter::once(self.axis.to_owned()).chain(names).collect(),
            rows,
        }
    }

    fn row(&self, point: &Point) -> Vec<String> {
        let digits = self.measures.iter().map(|measure| measure.digits);
        let cells = point.values.iter().zip(digits).map(|(value, digits)| number(*value, digits));
        std::iter::once(point.shown.clone()).chain(cells).collect()
    }

    /// The exponent of a measure over all sizes.
    fn exponent(&self, measure: usize) -> Option<f64> {
        slope(self.points.iter().map(|point| (point.size, point.values[measure])))
    }

    /// The same over the last decade alone, where constants weigh least.
    fn last_exponent(&self, measure: usize) -> Option<f64> {
        let largest = self.points.last()?.size;
        let is_within = |point: &&Point| point.size * DECADE >= largest;
        // A larger step is a decade, too.
        let count = self.points.iter().filter(is_within).count().max(2);
        let last = self.points.iter().rev().take(count);
        slope(last.map(|point| (point.size, point.values[measure])))
    }

    /// Whether the last decade keeps the bound; `None` if there is none, or nothing to judge by.
    fn is_within(&self, measure: usize) -> Option<bool> {
        let Bound::AtMost(most) = self.measures[measure].bound else { return None };
        Some(self.last_exponent(measure)? <= most)
    }
}

/// The sizes of a curve: the largest, and each `factor` times smaller than the next, down to the smallest.
pub(super) fn sizes(smallest: u64, largest: u64, factor: u64) -> Vec<u64> {
    let step = |size: &u64| Some(size / factor).filter(|size| *size >= smallest.max(1));
    let mut sizes: Vec<u64> = std::iter::successors(Some(largest), step).collect();
    sizes.reverse();
    sizes
}

/// Least squares through the logarithms; `None` where they tell nothing.
fn slope(points: impl Iterator<Item = (f64, f64)>) -> Option<f64> {
    let logarithms: Vec<(f64, f64)> = points
        .filter(|(size, value)| *size > 0.0 && *value > LEAST)
        .map(|(size, value)| (size.ln(), value.ln()))
        .collect();
    let count = logarithms.len() as f64;
    let mean = |of: fn(&(f64, f64)) -> f64| logarithms.iter().map(of).sum::<f64>() / count;
    let (x, y) = (mean(|point| point.0), mean(|point| point.1));
    let spread: f64 = logarithms.iter().map(|point| (point.0 - x).powi(2)).sum();
    let common: f64 = logarithms.iter().map(|point| (point.0 - x) * (point.1 - y)).sum();
    (logarithms.len() > 1 && spread > LEAST).then(|| common / spread)
}

fn none() -> String {
    "-".to_owned()
}

fn bound_cell(bound: Bound) -> String {
    match bound {
        Bound::AtMost(most) => format!("≤ {most}"),
        Bound::None => none(),
    }
}

fn within_cell(is_within: Option<bool>) -> String {
    is_within.map_or_else(none, |is| if is { "yes".to_owned() } else { "**no**".to_owned() })
}

fn number(value: f64, digits: usize) -> String {
    if digits == 0 { thousands(value) } else { format!("{value:.digits$}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn curve(values: &[(f64, f64)], bound: Bound) -> Curve {
        let point = |&(size, value): &(f64, f64)| Point {
            size,
            shown: number(size, 0),
            values: vec![value],
        };
        Curve {
            title: "test",
            note: String::new(),
            axis: "things",
            measures: vec![Measure { name: "time, s", digits: 2, bound }],
            points: values.iter().map(point).collect(),
        }
    }

    #[test]
    fn an_exponent_is_the_power_of_the_size() {
        let power = |exponent: f64| {
            let values: Vec<_> =
                [10.0, 100.0, 1_000.0].map(|size: f64| (size, 3.0 * size.powf(exponent))).into();
            curve(&values, Bound::None).exponent(0).expect("three points")
        };
        for exponent in [0.0, 0.5, 1.0, 2.0, -1.0] {
            assert!((power(exponent) - exponent).abs() < 1e-9, "{exponent}");
        }
        assert_eq!(curve(&[(10.0, 1.0)], Bound::None).exponent(0), None);
        assert_eq!(curve(&[(10.0, 0.0), (100.0, 0.0)], Bound::None).exponent(0), None);
    }

    #[test]
    fn a_constant_does_not_hide_growth_in_the_last_decade() {
        // Half a second for anything, and a square beside it.
        let values: Vec<_> =
            [1.0, 10.0, 100.0, 1_000.0].map(|size: f64| (size, 0.5 + size * size / 1e4)).into();
        let hidden = curve(&values, Bound::AtMost(1.1));
        assert!(hidden.exponent(0).expect("four points") < 1.1, "the constant hides it");
        assert!(hidden.last_exponent(0).expect("two points") > 1.5);
        assert_eq!(hidden.is_within(0), Some(false));
        let table = hidden.table();
        let names: Vec<_> = table.rows.iter().map(|row| row[0].as_str()).collect();
        let expected =
            ["1", "10", "100", "1,000", "exponent", "exponent, last decade", "bound", "within"];
        assert_eq!(names, expected);
        assert_eq!(table.rows[7][1], "**no**");
        assert_eq!(curve(&values[..2], Bound::AtMost(1.1)).is_within(0), Some(true));
        assert_eq!(curve(&values, Bound::None).is_within(0), None);
    }

    #[test]
    fn sizes_are_counted_from_the_largest() {
        assert_eq!(sizes(10, 2_000, 10), [20, 200, 2_000]);
        assert_eq!(sizes(10_000, 1_000_000, 10), [10_000, 100_000, 1_000_000]);
        assert_eq!(sizes(1_000, 500, 10), [500]);
        assert_eq!(sizes(1 << 30, 4 << 40, 16), [1 << 30, 16 << 30, 256 << 30, 4 << 40]);
    }
}
