//! What the papers say, and where our numbers must lie. The only place where bounds stand.
//!
//! The two are apart. What a paper says is in words of its own where it has no number. A bound is what runs with the seeds 1 to 20
//! came to, with half of their spread and a hundredth more on either side, within what the paper says where it says enough: so it
//! fails for a simulator that does something else, also where the paper is vague. Where a run with one of the seeds 21 to 40 came
//! out beyond, the bound is made from all forty. Where a number is there to tell the replacement
//! from FIFO, the bound ends halfway between what FIFO gives and the run that comes closest to it. The example `spread` shows what
//! runs come to.

mod flash;
mod host_side;
mod mogul;
mod said;
#[cfg(test)]
mod tests;

use std::fmt;

pub(super) use mogul::KERNEL_BUILD;

/// A number of a figure.
#[derive(Clone, Copy, Debug)]
pub struct Expected {
    /// The figure's name.
    pub figure: &'static str,
    /// What the number is.
    pub what: &'static str,
    /// Its unit.
    pub unit: &'static str,
    /// What the paper says of it.
    pub says: Says,
    bound: Bound,
    /// In its place where the figure is simulated smaller, as its tests do.
    small: Option<Bound>,
}

/// What a paper says of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Says {
    /// This, and so do we.
    Paper(&'static str),
    /// This, and what the paper leaves open was chosen so that we come to it.
    Fitted(&'static str),
    /// This, and we come to something else, for a reason in `docs/SIMULATION.md`.
    Against(&'static str),
    /// The trace has it measured so.
    Trace(&'static str),
    /// Nothing: the number is ours.
    Ours,
}

/// Where a number must lie.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Bound {
    /// A value, and by how many percent it may be missed.
    Near(f64, f64),
    /// Two values.
    Between(f64, f64),
    /// At most so much.
    AtMost(f64),
    /// At least so much.
    AtLeast(f64),
}

impl Expected {
    /// Where the number must lie.
    pub fn bound(&self) -> Bound {
        self.small.filter(|_| cfg!(test)).unwrap_or(self.bound)
    }

    const fn small(self, bound: Bound) -> Self {
        Self { small: Some(bound), ..self }
    }
}

impl Bound {
    /// Whether a measured value keeps the bound.
    pub fn holds(self, value: f64) -> bool {
        match self {
            Self::Near(middle, percent) => (value - middle).abs() <= middle * percent / 100.0,
            Self::Between(low, high) => (low..=high).contains(&value),
            Self::AtMost(high) => value <= high,
            Self::AtLeast(low) => value >= low,
        }
    }
}

#[cfg(test)]
impl Bound {
    fn ends(self) -> (f64, f64) {
        match self {
            Self::Near(middle, percent) => {
                (middle * (1.0 - percent / 100.0), middle * (1.0 + percent / 100.0))
            }
            Self::Between(low, high) => (low, high),
            Self::AtMost(high) => (f64::NEG_INFINITY, high),
            Self::AtLeast(low) => (low, f64::INFINITY),
        }
    }
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Near(middle, percent) => write!(f, "{middle} (+-{percent} %)"),
            Self::Between(low, high) => write!(f, "{low} to {high}"),
            Self::AtMost(high) => write!(f, "at most {high}"),
            Self::AtLeast(low) => write!(f, "at least {low}"),
        }
    }
}

impl fmt::Display for Says {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Paper(text) => write!(f, "paper: {text}"),
            Self::Fitted(text) => write!(f, "fitted to the paper: {text}"),
            Self::Against(text) => write!(f, "against the paper, which has: {text}"),
            Self::Trace(text) => write!(f, "trace: {text}"),
            Self::Ours => f.write_str("ours"),
        }
    }
}

const fn row(
    figure: &'static str,
    what: &'static str,
    unit: &'static str,
    says: Says,
    bound: Bound,
) -> Expected {
    Expected { figure, what, unit, says, bound, small: None }
}

/// Every number of every figure.
pub(super) fn all() -> impl Iterator<Item = &'static Expected> {
    [mogul::ROWS, host_side::ROWS, flash::ROWS].into_iter().flatten()
}
