//! A case's runs as a table.

use super::cases::{Case, Run};
use super::sides::Side;
use crate::figure::thousands;
use crate::report::Table;
use crate::stats::Spread;

const COLUMNS: [&str; 9] = [
    "side",
    "ops/s",
    "ops/s, drained",
    "to the origin alone, median [min, max]",
    "the same, drained",
    "median, µs",
    "OSDs, KiB/op",
    "OSDs, KiB/op, drained",
    "OSDs, ops/op, drained",
];

fn rate(run: &Run) -> f64 {
    run.done.operations / run.done.seconds
}

fn drained(run: &Run) -> f64 {
    run.done.operations / (run.done.seconds + run.drain_seconds)
}

/// A row for each side; ratios are of the runs of one round.
pub(super) fn table(case: &Case, runs: &[(Side, Vec<Run>)]) -> Table {
    let rows = runs.iter().map(|(side, of_side)| {
        let peer = runs.iter().find(|(other, _)| *other == side.peer()).map(|(_, runs)| runs);
        let ratio = |measure: fn(&Run) -> f64| {
            let pairs = of_side.iter().zip(peer.into_iter().flatten());
            let ratios = Spread::of(pairs.map(|(ours, theirs)| measure(ours) / measure(theirs)));
            ratios.filter(|_| side.peer() != *side).map_or_else(
                || "-".to_owned(),
                |all| format!("{:.2} [{:.2}, {:.2}]", all.median, all.min, all.max),
            )
        };
        let median = |measure: &dyn Fn(&Run) -> Option<f64>| {
            Spread::of(of_side.iter().filter_map(measure)).map(|all| all.median)
        };
        let kib = |moment: usize| {
            let per_op =
                |run: &Run| Some(run.received?[moment].bytes / 1024.0 / run.done.operations);
            median(&per_op).map_or_else(|| "-".to_owned(), |kib| format!("{kib:.1}"))
        };
        let ops = |run: &Run| Some(run.received?[1].operations / run.done.operations);
        vec![
            side.name().to_owned(),
            median(&|run| Some(rate(run))).map_or_else(String::new, thousands),
            median(&|run| Some(drained(run))).map_or_else(String::new, thousands),
            ratio(rate),
            ratio(drained),
            median(&|run| run.done.median_us).map_or_else(|| "-".to_owned(), thousands),
            kib(0),
            kib(1),
            median(&ops).map_or_else(|| "-".to_owned(), |ops| format!("{ops:.2}")),
        ]
    });
    Table {
        title: case.name.to_owned(),
        note: case.what.to_owned(),
        columns: COLUMNS.map(str::to_owned).to_vec(),
        rows: rows.collect(),
    }
}
