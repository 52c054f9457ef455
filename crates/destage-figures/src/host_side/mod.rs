//! Koller and others, "Write policies for host-side flash caches", FAST 2013: figures 12 to 15.
//!
//! The policies are the core's, the disks are of its table 1, and everything is in the paper's proportions, but some
//! hundredths of its size. Rates are of the second half of each stream. What is assumed is in `docs/SIMULATION.md`.

mod load;
mod rows;
mod setup;

pub(super) use rows::TABLES;

use self::load::{FileSystem, Stream, Workload};
use self::setup::{Policy, Sample, Setup};
use super::{Figure, Found};
use destage_core::Span;
use destage_sim::generate::Ycsb;
use destage_sim::hits::Replacements;
use rayon::prelude::*;

pub(super) const FIGURES: &[Figure] = &[
    Figure {
        name: "host-3",
        title: "TPC-C under write-back and write-through (Koller et al. 2013)",
        parts: &[by_transaction, by_terminals],
    },
    Figure {
        name: "host-12",
        title: "throughput of the write policies by workload (Koller et al. 2013)",
        parts: &[by_workload, best_of_journaled],
    },
    Figure {
        name: "host-13",
        title: "the file server by size of the cache (Koller et al. 2013)",
        parts: &[replacement_by_cache, by_cache],
    },
    Figure {
        name: "host-14",
        title: "PostMark by size of the journal (Koller et al. 2013)",
        parts: &[replacement_by_journal, by_journal],
    },
    Figure {
        name: "host-15",
        title: "PostMark by file system and size of the cache (Koller et al. 2013)",
        parts: &[replacement_on_copies, by_file_system],
    },
];

/// Of figure 12 and 14: the cache holds three quarters of the set, 1.5 of 2 GB.
const CACHE_PERCENT: u64 = 75;
/// The journal of 100 MB before a set of 2 GB.
const JOURNAL_PERCENT: u64 = 5;
/// Of figure 13: 100 MB before 2.5 GB.
const FIGURE_13_JOURNAL_PERCENT: u64 = 4;

/// A ratio of rates, and of what.
type Ratio = (&'static str, Policy, Policy);

/// A stream under some policies, all at once; in their order.
fn measure(all: &[Setup<'_>]) -> Vec<Sample> {
    all.par_iter().map(Setup::measure).collect()
}

/// A stream in figure 12's sizes.
fn usual(stream: &Stream, policy: Policy, seed: u64) -> Setup<'_> {
    let (cache_percent, journal_percent) = (CACHE_PERCENT, JOURNAL_PERCENT);
    Setup {
        stream,
        cache_percent,
        journal_percent,
        policy,
        replacement: Replacements::Arc,
        think: Span::ZERO,
        seed,
    }
}

/// The names of the three ratios that figure 12 has for each workload.
macro_rules! over_write_through {
    ($workload:literal) => {
        [
            (concat!($workload, ": write-back / write-through"), Policy::Back, Policy::Through),
            (concat!($workload, ": ordered / write-through"), Policy::Ordered, Policy::Through),
            (concat!($workload, ": journaled / write-through"), Policy::Journaled, Policy::Through),
        ]
    };
}

const BY_WORKLOAD: [(Workload, [Ratio; 3]); 7] = [
    (Workload::FileServer, over_write_through!("file server")),
    (Workload::MailServer, over_write_through!("mail server")),
    (Workload::PostMark, over_write_through!("PostMark")),
    (Workload::TpcC, over_write_through!("TPC-C")),
    (Workload::Ycsb(Ycsb::A), over_write_through!("YCSB-A")),
    (Workload::Ycsb(Ycsb::B), over_write_through!("YCSB-B")),
    (Workload::Ycsb(Ycsb::F), over_write_through!("YCSB-F")),
];

fn by_workload(seed: u64) -> Found {
    let mut found = Found::new();
    for (workload, ratios) in BY_WORKLOAD {
        let stream = workload.stream(seed);
        found.extend(ratios_of(&stream, &ratios, seed));
        match workload {
            Workload::FileServer => found.push(larger_journal(&stream, seed)),
            Workload::PostMark => found.push((
                "PostMark: blocks in the redo store for each in place, journaled",
                usual(&stream, Policy::Journaled, seed).measure().redo,
            )),
            Workload::Ycsb(Ycsb::A) => found.push(over_fifo(&stream, seed)),
            Workload::TpcC => found.extend(terminals(&stream, seed)),
            Workload::Ycsb(Ycsb::F) => found.extend(best_of_ycsb_f(&stream, seed)),
            _ => {}
        }
    }
    found
}

fn ratios_of(stream: &Stream, ratios: &[Ratio], seed: u64) -> Found {
    let mut policies: Vec<Policy> = Vec::new();
    for &(_, of, over) in ratios {
        for policy in [of, over] {
            if !policies.contains(&policy) {
                policies.push(policy);
            }
        }
    }
    let setups: Vec<_> = policies.iter().map(|&policy| usual(stream, policy, seed)).collect();
    let samples = measure(&setups);
    let rate = |policy| {
        let at = policies.iter().position(|&known| known == policy);
        samples[at.expect("every policy was measured")].rate
    };
    ratios.iter().map(|&(what, of, over)| (what, rate(of) / rate(over))).collect()
}

/// What the paper's policy of replacement is worth.
fn over_fifo(stream: &Stream, seed: u64) -> (&'static str, f64) {
    let arc = usual(stream, Policy::Through, seed);
    let samples = measure(&[arc, Setup { replacement: Replacements::Fifo, ..arc }]);
    ("YCSB-A: blocks read that hit, ARC / FIFO", samples[0].hits / samples[1].hits)
}

/// Blocks read that hit under each setup, and with FIFO in the place of its replacement, percent.
fn beside_fifo(setups: &[Setup<'_>]) -> Vec<(f64, f64)> {
    let fifo = setups.iter().map(|setup| Setup { replacement: Replacements::Fifo, ..*setup });
    let samples = measure(&[setups, &fifo.collect::<Vec<_>>()].concat());
    let (as_is, fifo) = samples.split_at(setups.len());
    as_is.iter().zip(fifo).map(|(as_is, fifo)| (as_is.hits, fifo.hits)).collect()
}

/// How far the two are apart on average. Where any file is as likely as another, neither is ahead with every seed, but they
/// never keep the same blocks.
fn apart(hits: &[(f64, f64)]) -> f64 {
    hits.iter().map(|(as_is, fifo)| (as_is - fifo).abs()).sum::<f64>() / hits.len() as f64
}

/// The file server writes whole files, of which the journal holds few.
fn larger_journal(stream: &Stream, seed: u64) -> (&'static str, f64) {
    let through = usual(stream, Policy::Through, seed);
    let journaled =
        Setup { journal_percent: 4 * JOURNAL_PERCENT, ..usual(stream, Policy::Journaled, seed) };
    let samples = measure(&[through, journaled]);
    (
        "file server, a journal four times as large: journaled / write-through",
        samples[0].over(samples[1]),
    )
}

/// Terminals beside one another hide what a write through costs.
fn terminals(stream: &Stream, seed: u64) -> Found {
    let ratios = [
        ("TPC-C, 16 terminals: write-back / write-through", Policy::Back, Policy::Through),
        ("TPC-C, 16 terminals: ordered / write-through", Policy::Ordered, Policy::Through),
    ];
    ratios_of(&stream.with_threads(16), &ratios, seed)
}

/// The paper has its journal small beside this set: a fifth of what it is beside the others.
const SMALL_JOURNAL_PERCENT: u64 = JOURNAL_PERCENT / 5;

fn best_of_ycsb_f(stream: &Stream, seed: u64) -> Found {
    let ratios = [
        ("YCSB-F: ordered / write-back on demand", Policy::Ordered, Policy::OnDemand),
        ("YCSB-F: ordered / journaled", Policy::Ordered, Policy::Journaled),
    ];
    let mut found = ratios_of(stream, &ratios, seed);
    let small =
        Setup { journal_percent: SMALL_JOURNAL_PERCENT, ..usual(stream, Policy::Journaled, seed) };
    let samples = measure(&[small, usual(stream, Policy::Ordered, seed)]);
    found.push((
        "YCSB-F, a journal a fifth as large: ordered / journaled",
        samples[0].over(samples[1]),
    ));
    found
}

/// The most that checkpoints of groups gain over destaging on demand.
fn best_of_journaled(seed: u64) -> Found {
    let gain = |(workload, _): &(Workload, [Ratio; 3])| {
        let stream = workload.stream(seed);
        let setups =
            [Policy::OnDemand, Policy::Journaled].map(|policy| usual(&stream, policy, seed));
        let samples = measure(&setups);
        samples[0].over(samples[1])
    };
    let most = BY_WORKLOAD.iter().map(gain).fold(0.0, f64::max);
    vec![("any of them: journaled / write-back on demand, most", most)]
}

/// What a transaction waits for are its writes.
fn by_transaction(seed: u64) -> Found {
    let stream = Workload::TpcC.stream(seed);
    let setups = [Policy::Through, Policy::Back].map(|policy| usual(&stream, policy, seed));
    let samples = measure(&setups);
    let (through, back) = (samples[0], samples[1]);
    vec![
        ("median write, write-through / write-back", through.median_write / back.median_write),
        ("throughput, write-back / write-through", through.over(back)),
        ("blocks read that hit, write-back", back.hits),
    ]
}

/// Terminals that wait before they ask again, so that the disks keep up only under write-back. The paper says neither how many
/// there are nor how long they wait: both are fitted to what write-back gains there.
const THINKING: u16 = 256;
const THINKS: Span = Span::from_millis(75);
/// A cache from which nothing dirty needs to leave: the paper names no size here.
const ROOMY_PERCENT: u64 = 150;

fn by_terminals(seed: u64) -> Found {
    let stream = Workload::TpcC.stream(seed).with_threads(THINKING);
    let setup = |policy| Setup {
        think: THINKS,
        cache_percent: ROOMY_PERCENT,
        ..usual(&stream, policy, seed)
    };
    let samples = measure(&[Policy::Through, Policy::Back].map(setup));
    let (through, back) = (samples[0], samples[1]);
    vec![
        ("terminals that think: throughput, write-back / write-through", through.over(back)),
        (
            "terminals that think: mean request, write-through / write-back",
            through.mean / back.mean,
        ),
    ]
}

/// The sizes of the cache in figure 13, percent of the set of 2.5 GB: 0.5 to 2.5 GB.
const SIZES: [u64; 5] = [20, 40, 60, 80, 100];

/// A stream in figure 13's sizes.
fn of_size(stream: &Stream, cache_percent: u64, policy: Policy, seed: u64) -> Setup<'_> {
    let journal_percent = FIGURE_13_JOURNAL_PERCENT;
    Setup { cache_percent, journal_percent, ..usual(stream, policy, seed) }
}

fn replacement_by_cache(seed: u64) -> Found {
    let stream = Workload::FileServer.stream(seed);
    // The largest cache holds everything.
    let sizes = &SIZES[..SIZES.len() - 1];
    let through = sizes.iter().map(|&size| of_size(&stream, size, Policy::Through, seed));
    let hits = beside_fifo(&through.collect::<Vec<_>>());
    vec![("write-through, below 2.5 GB: blocks read that hit, ARC and FIFO apart", apart(&hits))]
}

fn by_cache(seed: u64) -> Found {
    let stream = Workload::FileServer.stream(seed);
    let at = |stream, cache_percent, policy| of_size(stream, cache_percent, policy, seed);
    let of = |policy| measure(&SIZES.map(|size| at(&stream, size, policy)));
    let (through, demand) = (of(Policy::Through), of(Policy::OnDemand));
    let (ordered, journaled) = (of(Policy::Ordered), of(Policy::Journaled));
    let [largest, half] = [SIZES.len() - 1, 0];
    let few = stream.with_threads(16);
    let extra = measure(&[
        at(&stream, 100, Policy::Strict),
        at(&few, 20, Policy::Strict),
        at(&few, 20, Policy::Through),
        at(&stream, 80, Policy::JournaledWhole),
        at(&stream, 100, Policy::JournaledWhole),
        at(&stream, 20, Policy::Back),
    ]);
    let rate = |over: &[Sample], of: &[Sample], size: usize| over[size].over(of[size]);
    vec![
        ("0.5 GB: write-through / write-back on demand", rate(&demand, &through, half)),
        ("0.5 GB: journaled / write-back on demand", rate(&demand, &journaled, half)),
        ("0.5 GB: journaled / ordered", rate(&ordered, &journaled, half)),
        ("1 GB: journaled / write-back on demand", rate(&demand, &journaled, 1)),
        ("1 GB: write-through / write-back on demand", rate(&demand, &through, 1)),
        ("1 GB: ordered / write-through", rate(&through, &ordered, 1)),
        ("write-through, 2.5 GB / 0.5 GB", through[half].over(through[largest])),
        ("1.5 GB: write-back on demand / write-through", rate(&through, &demand, 2)),
        ("2 GB: write-back on demand / write-through", rate(&through, &demand, 3)),
        ("2 GB: ordered / write-through", rate(&through, &ordered, 3)),
        ("2 GB: journaled / write-through", rate(&through, &journaled, 3)),
        ("2.5 GB: write-back on demand / write-through", rate(&through, &demand, largest)),
        ("2.5 GB: ordered / write-through", rate(&through, &ordered, largest)),
        ("2.5 GB: journaled / write-through", rate(&through, &journaled, largest)),
        ("2 GB: journaled, groups taken whole / write-through", through[3].over(extra[3])),
        ("2.5 GB: journaled, groups taken whole / write-through", through[largest].over(extra[4])),
        ("2.5 GB: ordered / write-back on demand", rate(&demand, &ordered, largest)),
        ("2.5 GB: strict / write-back on demand", demand[largest].over(extra[0])),
        ("0.5 GB: ordered / write-through", rate(&through, &ordered, half)),
        ("0.5 GB, 16 threads: strict / write-through", extra[2].over(extra[1])),
        ("0.5 GB: write-back in batches / on demand", demand[half].over(extra[5])),
        ("2.5 GB: blocks at the disks for each written, write-through", through[largest].written),
        ("2.5 GB: the same, write-back on demand", demand[largest].written),
        ("2.5 GB: the same, ordered", ordered[largest].written),
        ("2.5 GB: the same, journaled, redo store included", journaled[largest].written),
        ("2.5 GB: the same, journaled, groups taken whole", extra[4].written),
        ("0.5 GB: write allocations, write-back on demand", demand[half].allocated),
        ("2.5 GB: write allocations, write-back on demand", demand[largest].allocated),
        ("0.5 GB: write allocations, ordered", ordered[half].allocated),
        ("2.5 GB: write allocations, ordered", ordered[largest].allocated),
    ]
}

/// The sizes of the journal in figure 14, percent of a set of 2 GB: 25, 50, 100, 250 and 500 MB.
const JOURNALS: [u64; 5] = [1, 2, 5, 12, 24];

fn replacement_by_journal(seed: u64) -> Found {
    let stream = Workload::PostMark.stream(seed);
    let journaled = JOURNALS.map(|journal_percent| Setup {
        journal_percent,
        ..usual(&stream, Policy::Journaled, seed)
    });
    let hits = beside_fifo(&journaled);
    vec![("any journal: blocks read that hit, ARC and FIFO apart", apart(&hits))]
}

fn by_journal(seed: u64) -> Found {
    let stream = Workload::PostMark.stream(seed);
    let journaled = JOURNALS.map(|journal_percent| Setup {
        journal_percent,
        ..usual(&stream, Policy::Journaled, seed)
    });
    let ends = [Policy::Through, Policy::OnDemand].map(|policy| usual(&stream, policy, seed));
    let samples = measure(&[&ends[..], &journaled[..]].concat());
    let (through, demand, journaled) = (samples[0], samples[1], &samples[2..]);
    let climbs = journaled.windows(2).map(|pair| pair[0].over(pair[1])).fold(f64::MAX, f64::min);
    vec![
        ("25 MB: journaled / write-through", through.over(journaled[0])),
        ("100 MB: journaled / write-through", through.over(journaled[2])),
        ("500 MB: journaled / write-through", through.over(journaled[4])),
        ("25 MB: journaled / write-back on demand", demand.over(journaled[0])),
        ("500 MB: journaled / write-back on demand", demand.over(journaled[4])),
        ("500 MB / 25 MB: journaled", journaled[0].over(journaled[4])),
        ("each journal / the next smaller one, least", climbs),
        (
            "500 MB / 25 MB: blocks at the disks, journaled",
            journaled[4].written / journaled[0].written,
        ),
    ]
}

/// The names of figure 15's ratios, of the larger cache and of the smaller one.
macro_rules! on_file_system {
    ($name:literal) => {
        [
            concat!($name, ", 2 GB: write-back on demand / write-through"),
            concat!($name, ", 2 GB: ordered / write-through"),
            concat!($name, ", 2 GB: journaled / write-through"),
            concat!($name, ", 1 GB: journaled / write-through"),
            concat!($name, ", 0.5 GB: ordered / write-through"),
        ]
    };
}

const BY_FILE_SYSTEM: [(FileSystem, [&str; 5]); 4] = [
    (FileSystem::Plain, on_file_system!("ext2")),
    (FileSystem::Metadata, on_file_system!("ext3, ext4")),
    (FileSystem::Data, on_file_system!("ext3, ext4, data journaled")),
    (FileSystem::CopyOnWrite, on_file_system!("btrfs")),
];

/// What btrfs has written elsewhere is not read again where it was, so there the replacement has something to choose.
fn replacement_on_copies(seed: u64) -> Found {
    let stream = Workload::PostMark.stream(seed).on(FileSystem::CopyOnWrite);
    let policies = [Policy::Through, Policy::Journaled];
    let setups =
        policies.map(|policy| Setup { cache_percent: 100, ..usual(&stream, policy, seed) });
    let hits = beside_fifo(&setups);
    let sum = |of: fn(&(f64, f64)) -> f64| hits.iter().map(of).sum::<f64>();
    vec![("btrfs, 2 GB: blocks read that hit, ARC / FIFO", sum(|hits| hits.0) / sum(|hits| hits.1))]
}

fn by_file_system(seed: u64) -> Found {
    let files = Workload::PostMark.stream(seed);
    let mut found = Found::new();
    for (file_system, names) in BY_FILE_SYSTEM {
        let stream = files.on(file_system);
        let at = |cache_percent, policy| Setup { cache_percent, ..usual(&stream, policy, seed) };
        let large = [Policy::Through, Policy::OnDemand, Policy::Ordered, Policy::Journaled];
        let small = [Policy::Through, Policy::Journaled].map(|policy| at(50, policy));
        let least = [Policy::Through, Policy::Ordered].map(|policy| at(25, policy));
        let large = large.map(|policy| at(100, policy));
        let samples = measure(&[&large[..], &small[..], &least[..]].concat());
        let ratios = [(0, 1), (0, 2), (0, 3), (4, 5), (6, 7)];
        let ratio = |(over, of): (usize, usize)| samples[over].over(samples[of]);
        found.extend(names.into_iter().zip(ratios.map(ratio)));
        if file_system == FileSystem::Plain {
            found.push((
                "ext2, 2 GB: blocks in the redo store for each in place, journaled",
                samples[3].redo,
            ));
        }
    }
    found
}
