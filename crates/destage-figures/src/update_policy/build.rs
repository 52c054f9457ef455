//! Tables 4-2 and 4-3 and figure 4-7: what the update policy makes of the compilation of a kernel.

use super::{AIPU, AIPU_30, PERIOD, PU};
use crate::Table;
use crate::update::{Build, Built};
use destage_core::{Span, When};

/// The faster system of the paper. Its tables tell how long the build takes, how much it writes and how often it waits; how
/// that spreads over blocks and time is assumed: see `docs/SIMULATION.md`.
fn run(when: When, delays_full: bool, seed: u64) -> Built {
    let look = match when {
        When::Interval { check, .. } => check,
        _ => PERIOD,
    };
    let build = Build {
        when,
        delays_full,
        look,
        disk: [Span::from_millis(18), Span::from_millis(14), Span::from_micros(11_111)],
        files: 270,
        compute: Span::from_millis(10_800),
        data_blocks: 19,
        partial_blocks: 20,
        shared_blocks: 2,
        waited_writes: 20,
        reads: 10,
        seed,
    };
    build.run()
}

/// A build with asynchronous writes of full blocks, and one with delayed writes.
fn both(when: When, seed: u64) -> [Built; 2] {
    [false, true].map(|delays_full| run(when, delays_full, seed))
}

fn charged(built: &Built) -> f64 {
    built.charged as f64
}

fn seconds(built: &Built) -> f64 {
    built.duration.as_secs_f64()
}

fn written(built: &Built) -> f64 {
    built.written.blocks as f64
}

pub(super) fn table_4_2(seed: u64) -> Vec<(&'static str, f64)> {
    let [[periodic, delayed_periodic], [interval, delayed_interval]] =
        [PU, AIPU].map(|when| both(when, seed));
    vec![
        ("async writes, PU: elapsed", seconds(&periodic)),
        ("async writes, PU: writes", charged(&periodic)),
        ("async writes: writes AIPU / PU", charged(&interval) / charged(&periodic)),
        (
            "delayed writes: writes AIPU / PU",
            charged(&delayed_interval) / charged(&delayed_periodic),
        ),
        ("PU: writes delayed / async", charged(&delayed_periodic) / charged(&periodic)),
        ("AIPU: writes delayed / async", charged(&delayed_interval) / charged(&interval)),
        ("writes delayed, AIPU / async, PU", charged(&delayed_interval) / charged(&periodic)),
        ("async writes: elapsed AIPU / PU", seconds(&interval) / seconds(&periodic)),
        (
            "delayed writes: elapsed AIPU / PU",
            seconds(&delayed_interval) / seconds(&delayed_periodic),
        ),
        ("PU: elapsed delayed / async", seconds(&delayed_periodic) / seconds(&periodic)),
    ]
}

pub(super) fn table_4_3(seed: u64) -> Vec<(&'static str, f64)> {
    let [[periodic, delayed_periodic], [interval, delayed_interval], [rare, delayed_rare]] =
        [PU, AIPU, AIPU_30].map(|when| both(when, seed));
    let looks = |built: &Built| built.scanned as f64 / written(built);
    let hits = |built: &Built| built.written.on_dirty as f64;
    vec![
        ("async writes, PU: blocks written by the update", written(&periodic)),
        ("delayed writes, PU: blocks written by the update", written(&delayed_periodic)),
        ("async writes: written AIPU-1 / PU", written(&interval) / written(&periodic)),
        (
            "delayed writes: written AIPU-1 / PU",
            written(&delayed_interval) / written(&delayed_periodic),
        ),
        ("async writes: written AIPU-30 / AIPU-1", written(&rare) / written(&interval)),
        (
            "delayed writes: written AIPU-30 / AIPU-1",
            written(&delayed_rare) / written(&delayed_interval),
        ),
        ("PU: looks for each block written", looks(&delayed_periodic)),
        ("async writes, AIPU-1: looks for each block written", looks(&interval)),
        ("delayed writes, AIPU-1: looks for each block written", looks(&delayed_interval)),
        ("async writes, AIPU-30: looks for each block written", looks(&rare)),
        ("delayed writes, AIPU-30: looks for each block written", looks(&delayed_rare)),
        (
            "delayed writes: more hits / fewer writes, AIPU-1 against PU",
            (hits(&delayed_interval) - hits(&delayed_periodic))
                / (charged(&delayed_periodic) - charged(&delayed_interval)),
        ),
    ]
}

pub(super) fn table_4_3_rows(seed: u64) -> Vec<Table> {
    let header = [
        "",
        "PU async",
        "PU delayed",
        "AIPU-1 async",
        "AIPU-1 delayed",
        "AIPU-30 async",
        "AIPU-30 delayed",
    ];
    let mut table = Table::new("table-4-3", "ours, and theirs in brackets", &header);
    let builds: Vec<_> =
        [PU, AIPU, AIPU_30].into_iter().flat_map(|when| both(when, seed)).collect();
    let mut row = |name, of: fn(&Built) -> u64, theirs: [&str; 6]| {
        let pairs = builds.iter().zip(theirs);
        table.row(name, pairs.map(|(built, theirs)| format!("{} ({theirs})", of(built))));
    };
    row("elapsed, s", |b| b.duration.0 / 1_000_000_000, ["3280", "3298", "3234", "3206", "-", "-"]);
    row("writes", |b| b.charged, ["40548", "31523", "37854", "25966", "-", "-"]);
    row("blocks scanned", |b| b.scanned, ["9531", "16749", "290214", "508448", "14593", "25847"]);
    row("blocks written", |b| b.written.blocks, ["9531", "16749", "5375", "10023", "5266", "9519"]);
    row(
        "dirty blocks modified",
        |b| b.written.on_dirty,
        ["391K", "419K", "393K", "426K", "405K", "426K"],
    );
    row("waits for the disk", |b| b.waits, ["8234", "8274", "7607", "8121", "7496", "7751"]);
    vec![table]
}

/// Of all blocks the percentage written in bursts of so many or fewer.
fn in_bursts_upto(built: &Built, size: u64) -> f64 {
    let within = built.written.bursts.iter().filter(|&&burst| burst <= size);
    100.0 * within.sum::<u64>() as f64 / written(built)
}

fn largest(built: &Built) -> f64 {
    built.written.bursts.iter().copied().max().unwrap_or(0) as f64
}

pub(super) fn figure_4_7(seed: u64) -> Vec<(&'static str, f64)> {
    let [periodic, interval] = [PU, AIPU].map(|when| run(when, true, seed));
    vec![
        ("AIPU-1, blocks in bursts of 40 or fewer", in_bursts_upto(&interval, 40)),
        ("AIPU-1, largest burst", largest(&interval)),
        ("PU, blocks in bursts of more than 62", 100.0 - in_bursts_upto(&periodic, 62)),
        ("PU, blocks in bursts of more than 182", 100.0 - in_bursts_upto(&periodic, 182)),
        ("PU, largest burst", largest(&periodic)),
        ("largest burst PU / AIPU-1", largest(&periodic) / largest(&interval)),
    ]
}

pub(super) fn figure_4_7_rows(seed: u64) -> Vec<Table> {
    let header = ["bursts of at most", "PU", "AIPU-1", "AIPU-30"];
    let mut table = Table::new("figure-4-7", "blocks written in bursts up to a size", &header);
    let builds = [PU, AIPU, AIPU_30].map(|when| run(when, true, seed));
    for size in [1, 2, 5, 10, 20, 40, 62, 80, 104, 130, 182, 250, 344, 500] {
        let upto = |built: &Built| {
            let within = built.written.bursts.iter().filter(|&&burst| burst <= size);
            within.sum::<u64>().to_string()
        };
        table.row(&size.to_string(), builds.iter().map(upto));
    }
    vec![table]
}
