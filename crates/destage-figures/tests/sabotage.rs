//! Simulators that are wrong on purpose fail in every figure that they touch: the negative control of the bounds.
//!
//! An ordinary run has one test, and the ignored one is run by itself, since a process is wrong in one way at a time.

use destage_figures::{ALL, Figure, Line, ON_TRACES, Sabotage};
use destage_testkit::needs;
use rayon::prelude::*;
use std::collections::BTreeMap;

/// What each is to be noticed in: every figure of which it moves a number, as the ignored test finds. Mogul's experiments have no
/// cache that decides anything: their reads are of random blocks. Nothing ever leaves the caches of [`NOTHING_LEAVES`].
fn touches(sabotage: Sabotage, figure: &str) -> bool {
    match sabotage {
        Sabotage::OrderedAsWriteBack => ["host-12", "host-13", "host-15"].contains(&figure),
        Sabotage::JournaledAsWriteBack => {
            ["host-12", "host-13", "host-14", "host-15"].contains(&figure)
        }
        Sabotage::FifoEverywhere => {
            (figure.starts_with("host-") || figure.starts_with("flash-"))
                && !NOTHING_LEAVES.contains(&figure)
        }
        Sabotage::NoReadPriority => ["purp", "ipu-best"].contains(&figure),
        Sabotage::HalfTheCache => figure.starts_with("host-") || figure.starts_with("flash-"),
        Sabotage::IntervalAsPeriodic => UNDER_INTERVAL.contains(&figure),
    }
}

/// Figures with an update policy that writes what has reached an age.
const UNDER_INTERVAL: [&str; 12] = [
    "figure-4-1",
    "figure-4-2",
    "figure-4-3",
    "figure-4-4",
    "figure-4-5",
    "figure-4-6",
    "figure-4-7",
    "dirty-age",
    "table-4-2",
    "table-4-3",
    "ipu-best",
    "purp",
];

/// Figures of a small set before large caches or none: whichever block would leave first, the numbers are the same.
const NOTHING_LEAVES: [&str; 2] = ["flash-6", "flash-sensitivity"];

fn outside(lines: Vec<Line>) -> Vec<Line> {
    lines.into_iter().filter(|line| !line.holds).collect()
}

/// In how many parts of a figure something is outside, and how many numbers: it is looked for no longer than until it is found.
fn noticed(figure: &Figure) -> Option<(usize, usize)> {
    let parts = figure.parts(1).map(|lines| outside(lines).len()).enumerate();
    parts.map(|(part, numbers)| (part + 1, numbers)).find(|&(_, numbers)| numbers > 0)
}

#[test]
fn simulators_that_are_wrong_on_purpose_fail_in_every_figure_that_they_touch() {
    // Of each figure so many parts are needed to notice every wrong simulator.
    let mut needed: BTreeMap<&str, usize> = BTreeMap::new();
    let mut unnoticed = Vec::new();
    for sabotage in Sabotage::ALL {
        Sabotage::set(Some(sabotage));
        let touched: Vec<&Figure> =
            ALL.iter().filter(|figure| touches(sabotage, figure.name)).collect();
        let found: Vec<_> = touched.par_iter().map(|figure| noticed(figure)).collect();
        for (figure, found) in touched.into_iter().zip(found) {
            println!("{sabotage:?} in {}: parts and numbers outside: {found:?}", figure.name);
            match found {
                Some((parts, _)) => {
                    let most = needed.entry(figure.name).or_default();
                    *most = parts.max(*most);
                }
                None => unnoticed.push((sabotage, figure.name)),
            }
        }
    }
    Sabotage::set(Some(Sabotage::NoReadPriority));
    for figure in ON_TRACES {
        let Some(trace) = needs::trace(figure.file) else { continue };
        let folder = trace.parent().expect("a file is in a folder");
        let lines = figure.run(folder).expect("the trace is as it should be");
        if outside(lines).is_empty() {
            unnoticed.push((Sabotage::NoReadPriority, figure.name));
        }
    }
    let nothing_leaves = || {
        let figures = NOTHING_LEAVES.map(|name| Figure::find(name).expect("there is one"));
        figures.map(|figure| figure.run(1))
    };
    Sabotage::set(Some(Sabotage::FifoEverywhere));
    let fifo = nothing_leaves();
    Sabotage::set(None);
    assert_eq!(fifo, nothing_leaves(), "something leaves: it is to be noticed");
    let as_it_is = |figure: &Figure| {
        let parts = needed.get(figure.name).copied().unwrap_or(0);
        figure.parts(1).take(parts).flat_map(outside).collect::<Vec<_>>()
    };
    let wrong: Vec<Line> = ALL.par_iter().flat_map_iter(as_it_is).collect();
    assert_eq!(wrong, [], "outside as it is");
    assert!(unnoticed.is_empty(), "nothing is outside its bound: {unnoticed:?}");
}

/// The list of [`touches`] is complete: whatever a wrong simulator moves at all, it also puts outside.
#[test]
#[ignore = "takes minutes: `cargo xtask soak` runs it"]
fn simulators_that_are_wrong_on_purpose_move_no_figure_without_being_noticed() {
    let run = || ALL.par_iter().map(|figure| figure.run(1)).collect::<Vec<_>>();
    let as_it_is = run();
    for sabotage in Sabotage::ALL {
        Sabotage::set(Some(sabotage));
        for ((figure, right), wrong) in ALL.iter().zip(&as_it_is).zip(run()) {
            let is_moved = *right != wrong;
            let name = figure.name;
            assert_eq!(
                is_moved,
                touches(sabotage, name),
                "{sabotage:?} in {name}: moved, and listed"
            );
            assert_eq!(
                is_moved,
                !outside(wrong).is_empty(),
                "{sabotage:?} in {name}: moved, and noticed"
            );
        }
    }
}
