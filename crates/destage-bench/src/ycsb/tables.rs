//! The tables of a run, with the paper's figures beside them.

use super::Compared;
use super::side::{Bench, Side};
use super::workload::{INSERT, READ, SCAN, UPDATE};
use crate::figure::{Run, thousands};
use crate::report::Table;
use crate::stats::Spread;

pub(super) fn tables(compared: &[Compared], bench: &Bench) -> Vec<Table> {
    let mut tables = Vec::new();
    for is_far in [false, true] {
        let cases: Vec<_> = compared.iter().filter(|(case, _)| case.is_far == is_far).collect();
        if !cases.is_empty() {
            tables.push(rates(&cases, is_far));
            tables.push(times(bench, is_far));
        }
    }
    tables
}

/// The sides that a table has columns for.
fn sides(is_far: bool) -> impl Iterator<Item = Side> {
    Side::ALL.into_iter().filter(move |side| !is_far || *side != Side::Redis)
}

fn columns(first: &[&str], is_far: bool) -> Vec<String> {
    let first = first.iter().map(|name| (*name).to_owned());
    first.chain(sides(is_far).map(|side| side.name().to_owned())).collect()
}

fn distance(is_far: bool) -> &'static str {
    if is_far { ", the origin 1 ms away each way" } else { "" }
}

fn rates(cases: &[&Compared], is_far: bool) -> Table {
    let rows = cases.iter().map(|(case, found)| {
        let runs = |side: Side| found.iter().find(|(it, _)| *it == side).map(|(_, runs)| runs);
        let direct = runs(Side::Direct);
        let cells = sides(is_far).map(|side| match (runs(side), direct) {
            (Some(runs), Some(direct)) => cell(runs, direct, side),
            _ => "-".to_owned(),
        });
        let first = [case.workload.to_string(), case.keys().to_owned(), case.clients.to_string()];
        first.into_iter().chain(cells).collect()
    });
    Table {
        title: format!("YCSB: actions per second{}", distance(is_far)),
        note: "Counted to the end of the drain; in parentheses the median of the ratios to the origin directly. After each \
               side that writes, every record acknowledged was found at the origin as its last writer left it."
            .into(),
        columns: columns(&["workload", "keys", "clients"], is_far),
        rows: rows.collect(),
    }
}

fn cell(runs: &[Run], direct: &[Run], side: Side) -> String {
    let Some(rate) = Spread::of(runs.iter().map(|run| run.per_second)) else { return "-".into() };
    let pairs = runs.iter().zip(direct);
    let ratio = Spread::of(pairs.map(|(ours, theirs)| ours.per_second / theirs.per_second));
    match ratio.filter(|_| side != Side::Direct) {
        Some(ratio) => format!("{} ({:.1}x)", thousands(rate.median), ratio.median),
        None => thousands(rate.median),
    }
}

/// Table 4 of the paper, without what it does not have: directly, write-around, write-through, write-back; round trips in
/// parentheses.
const PAPER: [(usize, [&str; 4]); 3] = [
    (READ, ["0.20 (1)", "0.08 (1)", "0.08 (1)", "0.08 (1)"]),
    (SCAN, ["0.36 (1)", "0.15 (1)", "0.15 (1)", "0.15 (1)"]),
    (UPDATE, ["0.55 (1)", "0.88 (3)", "0.92 (4)", "0.44 (5)"]),
];
const NAMES: [&str; 4] = ["Read", "Scan", "Update", "Insert"];

fn times(bench: &Bench, is_far: bool) -> Table {
    let mut rows = Vec::new();
    for kind in [READ, SCAN, UPDATE, INSERT] {
        let cells: Vec<String> =
            sides(is_far).map(|side| time(bench, is_far, side, kind)).collect();
        if cells.iter().all(|cell| cell == "-") {
            continue;
        }
        rows.push([vec![NAMES[kind].to_owned()], cells].concat());
        let paper = PAPER.iter().find(|(it, _)| *it == kind && !is_far);
        if let Some((_, [direct, around, through, back])) = paper {
            let cells = [*direct, around, through, back, back, "-"];
            rows.push(Table::paper(NAMES[kind], cells));
        }
    }
    Table {
        title: format!("YCSB: mean response times, ms{}", distance(is_far)),
        note: "With uniform keys and the fewest clients; reads under workload B, scans under S, updates under A. In \
               parentheses the client's round trips per action, as counted by it."
            .into(),
        columns: columns(&["action"], is_far),
        rows,
    }
}

fn time(bench: &Bench, is_far: bool, side: Side, kind: usize) -> String {
    let means = bench.times.get(&(is_far, side.name(), kind));
    let trips = bench.trips.get(side.name()).copied().unwrap_or_default();
    match Spread::of(means.into_iter().flatten().copied()) {
        Some(mean) => {
            let per_action = trips.0 as f64 / trips.1.max(1) as f64;
            // In hundredths, since a whole number of trips is what is to be seen.
            let shown = format!("{per_action:.2}");
            let shown = shown.strip_suffix(".00").unwrap_or(&shown);
            format!("{:.3} ({shown})", mean.median)
        }
        None => "-".to_owned(),
    }
}
