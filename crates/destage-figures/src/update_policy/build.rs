//! Tables 4-2 and 4-3 and figure 4-7: what the update policy makes of the compilation of a kernel.

use super::{AIPU, AIPU_30, PERIOD, PU};
use crate::Table;
use crate::expected::KERNEL_BUILD;
use crate::table::Of;
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

/// The configurations of a policy, and of those after it.
const CONFIGURATIONS: [&str; 6] = [
    "PU async",
    "PU delayed",
    "AIPU-1 async",
    "AIPU-1 delayed",
    "AIPU-30 async",
    "AIPU-30 delayed",
];

/// A column, and what it tells of a build.
type Column = (&'static str, fn(&Built) -> u64);

/// A row for each configuration, with what the paper's tables have in it.
fn rows(figure: &'static str, whens: &[When], columns: &[Column], seed: u64) -> Table {
    let names = columns.iter().map(|(name, _)| *name);
    let header: Vec<&str> = std::iter::once("configuration").chain(names).collect();
    let mut table = Table::new(figure, "what each configuration comes to", &header);
    let builds: Vec<Built> = whens.iter().flat_map(|&when| both(when, seed)).collect();
    for (name, built) in CONFIGURATIONS.iter().zip(&builds) {
        table.row(name, columns.iter().map(|(_, of)| of(built).to_string()));
    }
    for (column, shown) in KERNEL_BUILD.iter().filter(|(column, _)| header.contains(column)) {
        let cells = CONFIGURATIONS.iter().zip(shown).take(builds.len());
        for (row, number) in cells.filter(|(_, number)| !number.is_empty()) {
            table.show((row, column), number);
        }
    }
    table
}

pub(super) fn table_4_2_rows(seed: u64) -> Vec<Table> {
    let columns: [Column; 2] = [
        ("elapsed, s", |built| built.duration.0 / 1_000_000_000),
        ("writes", |built| built.charged),
    ];
    let mut table = rows("table-4-2", &[PU, AIPU], &columns, seed);
    table.tell("async writes, PU: elapsed", ("PU async", "elapsed, s"), Of::Itself);
    table.tell("async writes, PU: writes", ("PU async", "writes"), Of::Itself);
    vec![table]
}

pub(super) fn table_4_3_rows(seed: u64) -> Vec<Table> {
    let columns: [Column; 4] = [
        ("blocks scanned", |built| built.scanned),
        ("blocks written", |built| built.written.blocks),
        ("dirty blocks modified", |built| built.written.on_dirty),
        ("waits for the disk", |built| built.waits),
    ];
    let mut table = rows("table-4-3", &[PU, AIPU, AIPU_30], &columns, seed);
    for (number, row) in [
        ("async writes, PU: blocks written by the update", "PU async"),
        ("delayed writes, PU: blocks written by the update", "PU delayed"),
    ] {
        table.tell(number, (row, "blocks written"), Of::Itself);
    }
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
    // No burst is larger than the last size: there are all blocks.
    let number = "AIPU-1, blocks in bursts of 40 or fewer";
    table.tell(number, ("40", "AIPU-1"), Of::Over(("500", "AIPU-1")));
    let all = ("500", "PU");
    table.tell("PU, blocks in bursts of more than 62", ("62", "PU"), Of::Rest(all));
    table.tell("PU, blocks in bursts of more than 182", ("182", "PU"), Of::Rest(all));
    let header = ["policy", "blocks of the largest burst"];
    let mut bursts = Table::new("figure-4-7", "the largest burst", &header);
    for (name, built) in ["PU", "AIPU-1", "AIPU-30"].iter().zip(&builds) {
        bursts.row(name, [largest(built).to_string()]);
    }
    bursts.tell("PU, largest burst", ("PU", header[1]), Of::Itself);
    bursts.tell("AIPU-1, largest burst", ("AIPU-1", header[1]), Of::Itself);
    vec![table, bursts]
}
