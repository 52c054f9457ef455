//! What the papers say, and how far a reproduction may be from it. The only place where tolerances stand.

use std::fmt;

/// A number of a figure, as the paper has it.
#[derive(Clone, Copy, Debug)]
pub struct Expected {
    /// The figure's name.
    pub figure: &'static str,
    /// What the number is.
    pub what: &'static str,
    /// Its unit.
    pub unit: &'static str,
    /// The paper's value and what is tolerated.
    pub theirs: Bound,
}

/// A value of a paper with its tolerance, or what its text says of a value.
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

impl Bound {
    /// Whether a measured value keeps the bound.
    pub fn holds(self, value: f64) -> bool {
        match self {
            Self::Near(theirs, percent) => (value - theirs).abs() <= theirs * percent / 100.0,
            Self::Between(low, high) => (low..=high).contains(&value),
            Self::AtMost(high) => value <= high,
            Self::AtLeast(low) => value >= low,
        }
    }
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Near(theirs, percent) => write!(f, "{theirs} (+-{percent} %)"),
            Self::Between(low, high) => write!(f, "{low} to {high}"),
            Self::AtMost(high) => write!(f, "at most {high}"),
            Self::AtLeast(low) => write!(f, "at least {low}"),
        }
    }
}

const fn row(
    figure: &'static str,
    what: &'static str,
    unit: &'static str,
    theirs: Bound,
) -> Expected {
    Expected { figure, what, unit, theirs }
}

use Bound::{AtLeast, AtMost, Between, Near};

/// Mogul, "A better update policy", USENIX Summer 1994; see `docs/SIMULATION.md` for what its text leaves open.
pub(super) const ALL: &[Expected] = &[
    row("table-2-1", "1983", "s", Near(7.2, 5.0)),
    // The paper prints 26 s, its own figures (1638 buffers of 15 ms) give 24.6 s.
    row("table-2-1", "1993", "s", Near(26.0, 8.0)),
    row("table-2-1", "2003", "s", Near(39.0, 5.0)),
    // Printed with one digit.
    row("table-2-2", "1983", "s", Near(0.1, 10.0)),
    row("table-2-2", "1993", "s", Near(1.2, 5.0)),
    row("table-2-2", "2003", "s", Near(13.6, 5.0)),
    row("figure-4-1", "async writes, reads/s", "1/s", Near(32.0, 15.0)),
    row("figure-4-1", "PU, reads/s", "1/s", Near(38.0, 15.0)),
    row("figure-4-1", "AIPU, reads/s", "1/s", Near(38.0, 15.0)),
    row("figure-4-1", "sd PU / sd AIPU", "", AtLeast(3.0)),
    row("figure-4-1", "mean AIPU / mean PU", "", Between(0.85, 1.15)),
    row("figure-4-1", "mean PU / mean async writes", "", AtMost(1.0)),
    row("figure-4-2", "sd PU / sd AIPU", "", AtLeast(3.0)),
    row("figure-4-2", "mean AIPU / mean PU", "", Between(0.85, 1.15)),
    row("figure-4-2", "mean PU / mean async writes", "", AtMost(1.0)),
    // "Some reads will be delayed by up to 8 or 9 seconds", at six trials.
    row("figure-4-3", "PU, longest read", "s", Between(8.0, 9.5)),
    // "A significant number": at most one per burst, of which there are about fifty, since the reader waits for each read.
    row("figure-4-3", "PU, reads longer than 1 s, of 60,000", "", AtLeast(40.0)),
    row("figure-4-3", "AIPU, longest read", "s", AtMost(0.75)),
    row("figure-4-3", "AIPU, reads longer than 0.45 s, of 60,000", "", AtMost(10.0)),
    row("figure-4-3", "AIPU, longest wait behind a usual burst", "s", Near(0.3, 20.0)),
    row("figure-4-4", "PU, longest read / AIPU, longest read", "", AtLeast(5.0)),
    row("dirty-age", "PU, every 30 s", "s", Near(15.0, 5.0)),
    row("dirty-age", "AIPU-1, 30 s old, every 1 s", "s", Near(30.0, 5.0)),
    row("dirty-age", "AIPU-30, 30 s old, every 30 s", "s", Near(45.0, 5.0)),
    // What the trace itself measured. The waits under other disciplines are there to be told apart from it.
    row("hp-trace", "choices that C-SCAN by cylinder explains", "%", AtLeast(94.0)),
    row("hp-trace", "choices that first come, first served explains", "%", AtMost(30.0)),
    row("hp-trace", "choices that reads first, then C-SCAN explains", "%", AtMost(93.0)),
    row("hp-trace", "C-SCAN, open loop: wait of all", "ms", Near(91.6, 4.0)),
    // Not matched: where reads follow from reads, an open loop sends them while the head is elsewhere.
    row("hp-trace", "C-SCAN, open loop: wait of reads", "ms", AtLeast(8.6)),
    row("hp-trace", "C-SCAN: wait of reads", "ms", Near(8.6, 5.0)),
    row("hp-trace", "C-SCAN: wait of synchronous writes", "ms", Near(4.0, 5.0)),
    row("hp-trace", "C-SCAN: wait of asynchronous writes", "ms", Near(239.0, 15.0)),
    row("hp-trace", "C-SCAN: wait of all", "ms", Near(91.6, 15.0)),
    row("hp-trace", "first come, first served: wait of asynchronous writes", "ms", AtMost(210.0)),
    row("hp-trace", "first come, first served: wait of all", "ms", AtMost(80.0)),
    row("hp-trace", "reads first: wait of reads", "ms", AtMost(7.0)),
    row("hp-trace", "reads first: wait of asynchronous writes", "ms", AtLeast(290.0)),
    row("hp-trace", "by geometry: service of reads", "ms", Near(27.4, 12.0)),
    row("hp-trace", "by geometry: service of writes", "ms", Near(24.1, 5.0)),
    row("hp-trace", "by geometry: wait of reads", "ms", Near(8.6, 30.0)),
    row("hp-trace", "by geometry: wait of asynchronous writes", "ms", Near(239.0, 30.0)),
    row("hp-trace", "by geometry: wait of all", "ms", Near(91.6, 30.0)),
];
