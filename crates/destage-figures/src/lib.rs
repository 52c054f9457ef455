//! The papers' figures and tables, reproduced: ours beside theirs, each with the bound that it must keep.
//!
//! They are experiments on the simulator and no part of it: nothing of the product depends on this crate but the command
//! `destage sim figure`.

mod expected;
mod flash;
mod host_side;
mod hp_trace;
mod sabotage;
mod table;
mod update;
mod update_policy;

use serde::Serialize;
use std::path::Path;
use std::sync::LazyLock;

pub use expected::{Bound, Expected, Says};
pub use sabotage::Sabotage;
pub use table::{Table, Told};

/// A figure or table that can be reproduced.
#[derive(Clone, Copy, Debug)]
pub struct Figure {
    /// Its name on the command line.
    pub name: &'static str,
    /// What it shows and where it is from.
    pub title: &'static str,
    /// Each measures some of its numbers, the quickest first.
    parts: &'static [fn(seed: u64) -> Found],
}

/// Draws a figure with the random streams of a seed.
type Draw = fn(seed: u64) -> Vec<Table>;

/// What a figure measured, by name.
type Found = Vec<(&'static str, f64)>;

/// A figure that is drawn from a trace, which is not part of the program.
#[derive(Clone, Copy, Debug)]
pub struct TraceFigure {
    /// Its name on the command line.
    pub name: &'static str,
    /// What it shows and where it is from.
    pub title: &'static str,
    /// The trace's file.
    pub file: &'static str,
    run: fn(trace: &Path) -> Result<Found, String>,
}

/// One number of a figure.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Line {
    /// The figure.
    pub figure: &'static str,
    /// What the number is.
    pub what: &'static str,
    /// Its unit.
    pub unit: &'static str,
    /// What the paper says of it, if anything: `paper: 32`, `fitted to the paper's 3,280`, `against the paper's 0.8`.
    pub says: String,
    /// The least that fits what the paper says, if it says it by a number; the same as the most where it has one number.
    pub paper_low: Option<f64>,
    /// The most that fits it.
    pub paper_high: Option<f64>,
    /// Where the number must lie. By what runs with twenty seeds came to, not by the paper.
    pub bound: String,
    /// What was measured.
    pub ours: f64,
    /// Whether it keeps the bound.
    pub holds: bool,
}

/// Every figure.
pub static ALL: LazyLock<Vec<Figure>> =
    LazyLock::new(|| [update_policy::FIGURES, flash::FIGURES, host_side::FIGURES].concat());

/// Every figure that needs a trace.
pub const ON_TRACES: &[TraceFigure] = &[hp_trace::FIGURE];

impl TraceFigure {
    /// The figure of that name.
    pub fn find(name: &str) -> Option<Self> {
        ON_TRACES.iter().copied().find(|figure| figure.name == name)
    }

    /// Draws it from the trace in this folder.
    ///
    /// # Errors
    /// The trace is not there, or is not what it should be.
    pub fn run(&self, folder: &Path) -> Result<Vec<Line>, String> {
        Ok(lines(self.name, &(self.run)(&folder.join(self.file))?))
    }
}

impl Figure {
    /// The figure of that name.
    pub fn find(name: &str) -> Option<Self> {
        ALL.iter().copied().find(|figure| figure.name == name)
    }

    /// Reproduces it.
    pub fn run(&self, seed: u64) -> Vec<Line> {
        let found: Found = self.parts.iter().flat_map(|part| part(seed)).collect();
        lines(self.name, &found)
    }

    /// Reproduces it part by part, each when it is asked for: the numbers of the part alone.
    pub fn parts(&self, seed: u64) -> impl Iterator<Item = Vec<Line>> {
        self.parts.iter().map(move |part| {
            let found = part(seed);
            let mut lines = lines(self.name, &found);
            lines.retain(|line| found.iter().any(|(what, _)| *what == line.what));
            lines
        })
    }

    /// What it draws, beside the numbers that have bounds; most draw nothing.
    pub fn tables(&self, seed: u64) -> Vec<Table> {
        let all = [update_policy::TABLES, flash::TABLES, host_side::TABLES].concat();
        let drawn = all.into_iter().filter(|(name, _)| *name == self.name);
        drawn.flat_map(|(_, draw)| draw(seed)).collect()
    }
}

/// What was found beside what is expected.
fn lines(figure: &'static str, found: &[(&'static str, f64)]) -> Vec<Line> {
    let expected = expected::all().filter(|expected| expected.figure == figure);
    expected
        .map(|expected| {
            let bound = expected.bound();
            let value = found.iter().find(|(what, _)| *what == expected.what);
            let paper = expected.says.numbers();
            let ours = value.map_or(f64::NAN, |(_, value)| *value);
            Line {
                figure,
                what: expected.what,
                unit: expected.unit,
                says: expected.says.to_string(),
                paper_low: paper.and_then(|numbers| numbers.low),
                paper_high: paper.and_then(|numbers| numbers.high),
                bound: bound.to_string(),
                ours,
                holds: bound.holds(ours),
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_figure_keeps_its_bounds() {
        let mut outside = Vec::new();
        for figure in ALL.iter() {
            let lines = figure.run(1);
            assert!(!lines.is_empty(), "{}", figure.name);
            outside.extend(lines.into_iter().filter(|line| !line.holds));
        }
        assert!(outside.is_empty(), "{outside:#?}");
    }

    #[test]
    fn every_figure_on_a_trace_keeps_its_bounds() {
        for figure in ON_TRACES {
            let Some(trace) = destage_testkit::needs::trace(figure.file) else { continue };
            let lines = figure.run(trace.parent().unwrap()).unwrap();
            assert!(!lines.is_empty(), "{}", figure.name);
            for line in lines {
                assert!(line.holds, "{line:?}");
            }
        }
    }

    #[test]
    fn every_bound_belongs_to_a_figure_that_measures_it() {
        let on_traces = ON_TRACES.iter().map(|figure| figure.name);
        let known: BTreeSet<_> = ALL.iter().map(|figure| figure.name).chain(on_traces).collect();
        assert_eq!(known.len(), ALL.len() + ON_TRACES.len());
        assert!(expected::all().all(|expected| known.contains(expected.figure)));
    }

    #[test]
    fn bounds_are_kept_or_not() {
        assert!(Bound::Near(100.0, 5.0).holds(104.9) && !Bound::Near(100.0, 5.0).holds(94.0));
        assert!(Bound::Between(1.0, 2.0).holds(1.5) && !Bound::Between(1.0, 2.0).holds(f64::NAN));
        assert!(Bound::AtMost(1.0).holds(1.0) && !Bound::AtMost(1.0).holds(1.1));
        assert!(Bound::AtLeast(1.0).holds(1.0) && !Bound::AtLeast(1.0).holds(0.9));
        assert_eq!(Bound::Near(32.0, 15.0).to_string(), "32 (+-15 %)");
    }
}
