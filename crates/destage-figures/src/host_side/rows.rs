//! The figures as the paper draws them, with what its text says at their places.

use super::load::{Stream, Workload};
use super::setup::{Policy, Sample, Setup};
use super::{BY_FILE_SYSTEM, BY_WORKLOAD, JOURNALS, SIZES, measure, of_size, usual};
use crate::table::Of;
use crate::{Draw, Table};

pub(crate) const TABLES: &[(&str, Draw)] = &[
    ("host-12", by_workload),
    ("host-13", by_cache),
    ("host-14", by_journal),
    ("host-15", by_file_system),
];

/// The names of the policies, as those of the numbers have them.
const THROUGH: &str = "write-through";
const DEMAND: &str = "write-back on demand";
const BACK: &str = "write-back";
const ORDERED: &str = "ordered";
const STRICT: &str = "strict";
const JOURNALED: &str = "journaled";
const WHOLE: &str = "journaled, groups taken whole";

/// What the paper's figures have.
const POLICIES: [(&str, Policy); 4] = [
    (THROUGH, Policy::Through),
    (DEMAND, Policy::OnDemand),
    (ORDERED, Policy::Ordered),
    (JOURNALED, Policy::Journaled),
];

/// A number, its row and its policy, and the row and the policy that it is over.
type Ratio<'a> = (&'static str, (&'a str, &'a str), (&'a str, &'a str));

fn tell_ratios(table: &mut Table, ratios: &[Ratio<'_>]) {
    for &(number, cell, over) in ratios {
        table.tell(number, cell, Of::Over(over));
    }
}

fn header<'a>(first: &'a str, policies: &[(&'a str, Policy)]) -> Vec<&'a str> {
    std::iter::once(first).chain(policies.iter().map(|(name, _)| *name)).collect()
}

/// Figure 12: bars by workload, over those of write-through.
fn by_workload(seed: u64) -> Vec<Table> {
    let policies = [
        (DEMAND, Policy::OnDemand),
        (BACK, Policy::Back),
        (ORDERED, Policy::Ordered),
        (JOURNALED, Policy::Journaled),
    ];
    let title = "operations a second over those of write-through, by workload";
    let mut table = Table::new("host-12", title, &header("workload", &policies));
    for (workload, ratios) in BY_WORKLOAD {
        let stream = workload.stream(seed);
        let setup = |policy| usual(&stream, policy, seed);
        let setups = policies.map(|(_, policy)| setup(policy));
        let samples = measure(&[&[setup(Policy::Through)], &setups[..]].concat());
        let name = ratios[0].0.split(':').next().unwrap_or_default();
        table.row(name, samples[1..].iter().map(|of| format!("{:.3}", samples[0].over(*of))));
        for ((number, ..), policy) in ratios.into_iter().zip([BACK, ORDERED, JOURNALED]) {
            table.tell(number, (name, policy), Of::Itself);
        }
    }
    let ordered = ("YCSB-F", ORDERED);
    let on_demand = "YCSB-F: ordered / write-back on demand";
    tell_ratios(
        &mut table,
        &[
            (on_demand, ordered, ("YCSB-F", DEMAND)),
            ("YCSB-F: ordered / journaled", ordered, ("YCSB-F", JOURNALED)),
        ],
    );
    vec![table]
}

/// Figure 13: the rate, what reaches the disks, and what takes room, by size of the cache.
fn by_cache(seed: u64) -> Vec<Table> {
    let stream = Workload::FileServer.stream(seed);
    let extra = [(STRICT, Policy::Strict), (WHOLE, Policy::JournaledWhole)];
    let policies = [&POLICIES[..], &extra].concat();
    let at = |size| policies.iter().map(move |(_, policy)| (size, *policy));
    let setups = SIZES.into_iter().flat_map(at);
    let setups = setups.map(|(size, policy)| of_size(&stream, size, policy, seed));
    let samples = measure(&setups.collect::<Vec<_>>());
    let header = header("cache, GB", &policies);
    let table = |title: &str, of: fn(&Sample) -> f64| {
        let mut table = Table::new("host-13", title, &header);
        for (percent, samples) in SIZES.iter().zip(samples.chunks(policies.len())) {
            let cells = samples.iter().map(|sample| format!("{:.3}", of(sample)));
            table.row(&format!("{}", *percent as f64 / 40.0), cells);
        }
        table
    };
    let mut rates = table("operations a second, by size of the cache", |sample| sample.rate);
    let title = "blocks at the disks for each written, by size of the cache";
    let mut written = table(title, |sample| sample.written);
    let title = "write allocations for each block written, by size of the cache";
    let mut allocated = table(title, |sample| sample.allocated);
    let ratio = |number, size, of, over| (number, (size, of), (size, over));
    let ratios = [
        ratio("0.5 GB: write-through / write-back on demand", "0.5", THROUGH, DEMAND),
        ratio("0.5 GB: journaled / write-back on demand", "0.5", JOURNALED, DEMAND),
        ratio("0.5 GB: journaled / ordered", "0.5", JOURNALED, ORDERED),
        ratio("0.5 GB: ordered / write-through", "0.5", ORDERED, THROUGH),
        ratio("1 GB: journaled / write-back on demand", "1", JOURNALED, DEMAND),
        ratio("1 GB: write-through / write-back on demand", "1", THROUGH, DEMAND),
        ratio("1 GB: ordered / write-through", "1", ORDERED, THROUGH),
        ratio("1.5 GB: write-back on demand / write-through", "1.5", DEMAND, THROUGH),
        ratio("2 GB: write-back on demand / write-through", "2", DEMAND, THROUGH),
        ratio("2 GB: ordered / write-through", "2", ORDERED, THROUGH),
        ratio("2 GB: journaled / write-through", "2", JOURNALED, THROUGH),
        ratio("2 GB: journaled, groups taken whole / write-through", "2", WHOLE, THROUGH),
        ratio("2.5 GB: write-back on demand / write-through", "2.5", DEMAND, THROUGH),
        ratio("2.5 GB: ordered / write-through", "2.5", ORDERED, THROUGH),
        ratio("2.5 GB: ordered / write-back on demand", "2.5", ORDERED, DEMAND),
        ratio("2.5 GB: strict / write-back on demand", "2.5", STRICT, DEMAND),
        ratio("2.5 GB: journaled / write-through", "2.5", JOURNALED, THROUGH),
        ratio("2.5 GB: journaled, groups taken whole / write-through", "2.5", WHOLE, THROUGH),
        ("write-through, 2.5 GB / 0.5 GB", ("2.5", THROUGH), ("0.5", THROUGH)),
    ];
    tell_ratios(&mut rates, &ratios);
    for (number, policy) in [
        ("2.5 GB: blocks at the disks for each written, write-through", THROUGH),
        ("2.5 GB: the same, write-back on demand", DEMAND),
        ("2.5 GB: the same, ordered", ORDERED),
        ("2.5 GB: the same, journaled, redo store included", JOURNALED),
        ("2.5 GB: the same, journaled, groups taken whole", WHOLE),
    ] {
        written.tell(number, ("2.5", policy), Of::Itself);
    }
    for (number, size, policy) in [
        ("0.5 GB: write allocations, write-back on demand", "0.5", DEMAND),
        ("2.5 GB: write allocations, write-back on demand", "2.5", DEMAND),
        ("0.5 GB: write allocations, ordered", "0.5", ORDERED),
        ("2.5 GB: write allocations, ordered", "2.5", ORDERED),
    ] {
        allocated.tell(number, (size, policy), Of::Itself);
    }
    vec![rates, written, allocated]
}

/// Figure 14, between what write-through and write-back on demand come to with any journal. And what reaches the disks.
fn by_journal(seed: u64) -> Vec<Table> {
    let stream = Workload::PostMark.stream(seed);
    let journaled = JOURNALS.map(|journal_percent| Setup {
        journal_percent,
        ..usual(&stream, Policy::Journaled, seed)
    });
    let ends = [Policy::Through, Policy::OnDemand].map(|policy| usual(&stream, policy, seed));
    let (samples, ends) = (measure(&journaled), measure(&ends));
    let header = ["journal, MB", JOURNALED, THROUGH, DEMAND];
    let table = |title: &str, of: fn(&Sample) -> f64| {
        let mut table = Table::new("host-14", title, &header);
        for (sample, megabytes) in samples.iter().zip([25, 50, 100, 250, 500]) {
            let cells = [sample, &ends[0], &ends[1]].map(|sample| format!("{:.3}", of(sample)));
            table.row(&megabytes.to_string(), cells);
        }
        table
    };
    let mut rates = table("operations a second, by size of the journal", |sample| sample.rate);
    let title = "blocks at the disks for each written, by size of the journal";
    let mut written = table(title, |sample| sample.written);
    let ratios = [
        ("25 MB: journaled / write-through", ("25", JOURNALED), ("25", THROUGH)),
        ("100 MB: journaled / write-through", ("100", JOURNALED), ("100", THROUGH)),
        ("500 MB: journaled / write-through", ("500", JOURNALED), ("500", THROUGH)),
        ("25 MB: journaled / write-back on demand", ("25", JOURNALED), ("25", DEMAND)),
        ("500 MB: journaled / write-back on demand", ("500", JOURNALED), ("500", DEMAND)),
        ("500 MB / 25 MB: journaled", ("500", JOURNALED), ("25", JOURNALED)),
    ];
    tell_ratios(&mut rates, &ratios);
    let number = "500 MB / 25 MB: blocks at the disks, journaled";
    written.tell(number, ("500", JOURNALED), Of::Over(("25", JOURNALED)));
    vec![rates, written]
}

/// Figure 15: a table for each file system. Caches of 0.5 to 2 GB before files of 2 GB.
fn by_file_system(seed: u64) -> Vec<Table> {
    let files = Workload::PostMark.stream(seed);
    BY_FILE_SYSTEM
        .map(|(file_system, numbers)| of_stream(&files.on(file_system), numbers, seed))
        .into()
}

fn of_stream(stream: &Stream, numbers: [&'static str; 5], seed: u64) -> Table {
    let name = numbers[0].split(", 2 GB").next().unwrap_or_default();
    let title = format!("{name}: operations a second, by size of the cache");
    let mut table = Table::new("host-15", title, &header("cache, GB", &POLICIES));
    for (size, cache_percent) in [("0.5", 25), ("1", 50), ("1.5", 75), ("2", 100)] {
        let setup = |policy| Setup { cache_percent, ..usual(stream, policy, seed) };
        let samples = measure(&POLICIES.map(|(_, policy)| setup(policy)));
        table.row(size, samples.iter().map(|sample| format!("{:.3}", sample.rate)));
    }
    let places =
        [("2", DEMAND), ("2", ORDERED), ("2", JOURNALED), ("1", JOURNALED), ("0.5", ORDERED)];
    for (number, (size, policy)) in numbers.into_iter().zip(places) {
        table.tell(number, (size, policy), Of::Over((size, THROUGH)));
    }
    table
}
