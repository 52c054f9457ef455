//! What Carson and Setia found by analysis, as Mogul's section 2.1 and 2.2 tell it: when periodic update pays off, and that
//! interval periodic update is never worse. By formula, and by the core before a disk with exponential services.
//!
//! Mean times of reads under Poisson arrivals of reads and writes. `S` is the mean service, `r` and `w` are the loads of reads
//! and of writes before the cache, `h` is the share of writes that hit a dirty block, `T` the period.
//!
//! - Write-through: all arrive at random, so `S / (1 - r - w)` (M/M/1).
//! - IPU delays each write by the same time, which leaves Poisson arrivals as they are: the same with `w (1 - h)` for `w`.
//! - PU: a batch of `n = w (1 - h) T / S` writes on average every `T`. The work `V` that an arriving read finds follows from the
//!   conservation of the mean of its square: `2 V (1 - r) = 2 r S + (2 V0 B + B2) / T`, with `B = n S` and `B2 = 2 n S^2 + n^2 S^2`
//!   the batch's work and its mean square, and `V0 = r S / (1 - r)` what there is before the batch. Reads take `V + S`.
//! - PURP: a read waits for the service under way, whatever it is, and for the reads before it: `(r + w (1 - h)) S / (1 - r) + S`.

use super::{Found, fast};
use crate::Table;
use crate::table::Of;
use crate::update::{Experiment, Open};
use destage_core::{Span, When};
use destage_sim::event::Discipline;

/// A disk between those of 1983 and 1993 in table 2-1; the paper does not say which one Carson and Setia had.
const SERVICE: Span = Span::from_millis(30);
const S: f64 = 0.03;
const T: f64 = 30.0;
const PU: When = super::PU;
/// As near to the pure policy as a step below the disk's service.
const IPU: When = When::Interval { age: super::PERIOD, check: Span::from_millis(20) };
const READ_FIRST: Discipline = Discipline::ReadPriority { starvation: Span::MAX };
/// Reads of a simulation.
const READS: u64 = 12_000;

/// Reads and writes as shares of what the disk can do.
#[derive(Clone, Copy, Debug)]
struct Load {
    reads: f64,
    writes: f64,
}

impl Load {
    fn write_through(self) -> f64 {
        S / (1.0 - self.reads - self.writes)
    }

    fn after_hits(self, hits: f64) -> Self {
        Self { writes: self.writes * (1.0 - hits), ..self }
    }

    fn interval(self, hits: f64) -> f64 {
        self.after_hits(hits).write_through()
    }

    fn periodic(self, hits: f64) -> f64 {
        let reads = self.reads;
        let count = self.after_hits(hits).writes * T / S;
        let (batch, square) = (count * S, 2.0 * count * S * S + count * count * S * S);
        let before = reads * S / (1.0 - reads);
        let work = 2.0 * reads * S + (2.0 * before * batch + square) / T;
        work / (2.0 * (1.0 - reads)) + S
    }

    fn read_first(self, hits: f64) -> f64 {
        let writes = self.after_hits(hits).writes;
        (self.reads + writes) * S / (1.0 - self.reads) + S
    }

    /// The share of hits at which periodic update reads as fast as write-through.
    fn break_even(self) -> f64 {
        let (mut low, mut high) = (0.0, 1.0);
        for _ in 0..50 {
            let middle = f64::midpoint(low, high);
            if self.periodic(middle) > self.write_through() { low = middle } else { high = middle }
        }
        low
    }

    /// The mean time of reads, by the core.
    fn simulated(self, when: When, hits: f64, discipline: Discipline, seed: u64) -> f64 {
        let every = |load: f64| Span((S / load * 1e9) as u64);
        let open = Open {
            read_every: every(self.reads),
            write_every: every(self.writes),
            hits_per_million: (hits * 1e6) as u64,
        };
        let measured = Experiment {
            discipline,
            access: SERVICE,
            open: Some(open),
            file_blocks: 1 << 39,
            reads: READS,
            seed,
            ..fast(when)
        };
        let reads = measured.run().reads;
        reads.iter().map(|span| span.as_secs_f64()).sum::<f64>() / reads.len() as f64
    }
}

/// Loads under which the disk is not overloaded.
fn loads() -> impl Iterator<Item = Load> {
    let shares = [0.1, 0.2, 0.3, 0.4];
    let pairs =
        shares.into_iter().flat_map(move |reads| shares.map(|writes| Load { reads, writes }));
    pairs.filter(|load| load.reads + load.writes < 0.85)
}

/// Those of them that are simulated.
const SIMULATED: [Load; 3] = [
    Load { reads: 0.1, writes: 0.3 },
    Load { reads: 0.3, writes: 0.3 },
    Load { reads: 0.4, writes: 0.1 },
];

fn extremes(values: impl Iterator<Item = f64>) -> (f64, f64) {
    values.fold((f64::MAX, f64::MIN), |(low, high), value| (low.min(value), high.max(value)))
}

/// The share of hits at which the simulated policies read alike: between two on both sides of the formula's.
fn simulated_break_even(load: Load, seed: u64) -> f64 {
    let through = load.simulated(When::Async, 0.0, Discipline::Fifo, seed);
    let [below, above] = [-0.03, 0.03].map(|off| load.break_even() + off);
    let [slower, faster] =
        [below, above].map(|hits| load.simulated(PU, hits, Discipline::Fifo, seed));
    below + (above - below) * (slower - through) / (slower - faster)
}

pub(super) fn break_even(seed: u64) -> Found {
    let (low, high) = extremes(loads().map(Load::break_even));
    let simulated: Vec<_> =
        SIMULATED.iter().map(|&load| (load, simulated_break_even(load, seed))).collect();
    let (simulated_low, simulated_high) = extremes(simulated.iter().map(|&(_, hits)| hits));
    let apart = simulated.iter().map(|(load, hits)| (hits - load.break_even()).abs());
    let overloaded = Load { reads: 0.5, writes: 0.45 };
    let saturated = Load { reads: 0.4, writes: 0.7 };
    let through = saturated.simulated(When::Async, 0.0, Discipline::Fifo, seed);
    let periodic = saturated.simulated(PU, 0.8, Discipline::Fifo, seed);
    vec![
        ("lowest, by formula", low),
        ("highest, by formula", high),
        ("lowest, simulated", simulated_low),
        ("highest, simulated", simulated_high),
        ("simulated against formula, farthest", apart.fold(0.0, f64::max)),
        ("reads 0.5, writes 0.45, by formula", overloaded.break_even()),
        ("reads 0.4, writes 0.7, 0.8 hit: mean read PU / WT, simulated", periodic / through),
    ]
}

pub(super) fn interval(seed: u64) -> Found {
    let hits = [0.0, 0.25, 0.5, 0.75, 0.9, 0.95];
    let cases: Vec<_> = loads().flat_map(|load| hits.map(|hits| (load, hits))).collect();
    let over_cases =
        |ratio: fn(Load, f64) -> f64| extremes(cases.iter().map(|&(load, hits)| ratio(load, hits)));
    let (mut to_through, mut to_periodic, mut read_first, mut apart) =
        (0.0_f64, 0.0_f64, f64::MAX, 0.0_f64);
    for load in &SIMULATED[..2] {
        let through = load.simulated(When::Async, 0.0, Discipline::Fifo, seed);
        apart = apart.max((through / load.write_through() - 1.0).abs());
        for hits in [0.5, 0.9] {
            let run = |when, discipline| load.simulated(when, hits, discipline, seed);
            let (interval, periodic) = (run(IPU, Discipline::Fifo), run(PU, Discipline::Fifo));
            let first = run(PU, READ_FIRST);
            to_through = to_through.max(interval / through);
            to_periodic = to_periodic.max(interval / periodic);
            read_first = read_first.min(first / interval);
            let pairs = [
                (interval, load.interval(hits)),
                (periodic, load.periodic(hits)),
                (first, load.read_first(hits)),
            ];
            apart = pairs
                .iter()
                .fold(apart, |far, (ours, formula)| far.max((ours / formula - 1.0).abs()));
        }
    }
    vec![
        (
            "IPU / WT, worst, by formula",
            over_cases(|load, hits| load.interval(hits) / load.write_through()).1,
        ),
        (
            "IPU / PU, worst, by formula",
            over_cases(|load, hits| load.interval(hits) / load.periodic(hits)).1,
        ),
        (
            "PURP / IPU, best, by formula",
            over_cases(|load, hits| load.read_first(hits) / load.interval(hits)).0,
        ),
        ("IPU / WT, worst, simulated", to_through),
        ("IPU / PU, worst, simulated", to_periodic),
        ("PURP / IPU, best, simulated", read_first),
        ("simulated against formula, farthest", 100.0 * apart),
    ]
}

pub(super) fn break_even_rows() -> Vec<Table> {
    let shares = [0.1, 0.2, 0.3, 0.4];
    let header = ["load of reads", "writes 0.1", "writes 0.2", "writes 0.3", "writes 0.4"];
    let title = "share of write hits from which PU reads faster than WT, by formula";
    let mut table = Table::new("break-even", title, &header);
    for reads in shares {
        let cells = shares.map(|writes| format!("{:.3}", Load { reads, writes }.break_even()));
        table.row(&reads.to_string(), cells);
    }
    // The paper does not tell at which loads its extremes are: they stand at ours.
    table.tell("lowest, by formula", ("0.4", "writes 0.1"), Of::Itself);
    table.tell("highest, by formula", ("0.1", "writes 0.4"), Of::Itself);
    vec![table]
}
