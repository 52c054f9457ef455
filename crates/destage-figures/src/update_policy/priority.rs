//! Read priority with and without a bound on starvation, which Mogul's section 5 leaves as future work.

use super::{AIPU, Found, PU, Times, fast};
use crate::Table;
use crate::table::Of;
use crate::update::{Experiment, Measured, Yields};
use destage_core::{Span, When};
use destage_sim::event::Discipline;

/// The longest that reads pass a write, where that is bounded.
const BOUND: Span = Span::from_secs(5);
/// `D` where it is the core that lets reads go first.
const D: Span = Span::from_secs(60);
const READ_FIRST: Discipline = Discipline::ReadPriority { starvation: Span::MAX };
const BOUNDED: Discipline = Discipline::ReadPriority { starvation: BOUND };
/// Readers that keep the disk busy by themselves.
const MANY: u32 = 4;

/// One way to let reads go first, or none.
#[derive(Clone, Copy, Debug)]
struct Way {
    name: &'static str,
    when: When,
    discipline: Discipline,
    yields: Yields,
}

const fn way(name: &'static str, when: When, discipline: Discipline, yields: Yields) -> Way {
    Way { name, when, discipline, yields }
}

const WAYS: [Way; 10] = [
    way("PU", PU, Discipline::Fifo, Yields::Never),
    way("PU + RP", PU, READ_FIRST, Yields::Never),
    way("PU + RP, bound 5 s", PU, BOUNDED, Yields::Never),
    way("PU, --read-priority, D 60 s", PU, Discipline::Fifo, Yields::WhileFetching),
    way("PU, in turn", PU, Discipline::Fifo, Yields::InTurn),
    way("IPU", AIPU, Discipline::Fifo, Yields::Never),
    way("IPU + RP", AIPU, READ_FIRST, Yields::Never),
    way("IPU + RP, bound 5 s", AIPU, BOUNDED, Yields::Never),
    way("IPU, --read-priority, D 60 s", AIPU, Discipline::Fifo, Yields::WhileFetching),
    way("IPU, in turn", AIPU, Discipline::Fifo, Yields::InTurn),
];

impl Way {
    /// Before the faster system's disk: the paper's reader, or as many as keep the disk busy.
    fn run(&self, is_busy: bool, seed: u64) -> Measured {
        let usual = fast(self.when);
        let (readers, think) = if is_busy { (MANY, Span::ZERO) } else { (1, usual.think) };
        let Self { discipline, yields, .. } = *self;
        let staleness = if yields == Yields::WhileFetching { D } else { Span::MAX };
        Experiment { readers, think, discipline, yields, staleness, seed, ..usual }.run()
    }
}

/// What is told of a run.
struct RunReport {
    name: &'static str,
    reads: Times,
    measured: Measured,
}

impl RunReport {
    /// The longest that a write waited from its being due.
    fn longest_wait(&self) -> f64 {
        self.measured.written.waited_max.as_secs_f64()
    }

    /// Of the blocks that were due the percentage that the disk has written.
    fn arrived(&self) -> f64 {
        let written = &self.measured.written;
        100.0 * written.arrived as f64 / written.blocks.max(1) as f64
    }
}

fn tell(is_busy: bool, seed: u64) -> Vec<RunReport> {
    let told = |way: &Way| {
        let measured = way.run(is_busy, seed);
        let reads = Times::of(std::slice::from_ref(&measured));
        RunReport { name: way.name, reads, measured }
    };
    WAYS.iter().map(told).collect()
}

pub(super) fn purp(seed: u64) -> Found {
    let [quiet, busy] = [false, true].map(|is_busy| tell(is_busy, seed));
    let find = |told: &'_ [RunReport], name: &str| {
        let place = told.iter().position(|told| told.name == name);
        place.expect("it is one of the ways")
    };
    let one = |name| &quiet[find(&quiet, name)];
    let many = |name| &busy[find(&busy, name)];
    let dirty = |told: &RunReport| told.measured.written.dirty_max as f64;
    let age = |told: &RunReport| told.measured.written.age_max.as_secs_f64();
    vec![
        ("PU, longest read", one("PU").reads.max()),
        ("PU + RP, longest read", one("PU + RP").reads.max()),
        (
            "PU + RP / PU, longest wait of a write",
            one("PU + RP").longest_wait() / one("PU").longest_wait(),
        ),
        ("PU + RP, bound 5 s, longest read", one("PU + RP, bound 5 s").reads.max()),
        (
            "PU, --read-priority / PU, longest read",
            one("PU, --read-priority, D 60 s").reads.max() / one("PU").reads.max(),
        ),
        ("PU, in turn, longest read", one("PU, in turn").reads.max()),
        ("IPU, longest read", one("IPU").reads.max()),
        ("IPU + RP, bound 5 s, longest read", one("IPU + RP, bound 5 s").reads.max()),
        ("IPU + RP, bound 5 s, longest wait of a write", one("IPU + RP, bound 5 s").longest_wait()),
        ("IPU + RP / IPU, mean read", one("IPU + RP").reads.mean() / one("IPU").reads.mean()),
        ("busy disk: PU + RP, writes that arrive", many("PU + RP").arrived()),
        ("busy disk: IPU + RP, writes that arrive", many("IPU + RP").arrived()),
        ("busy disk: IPU + RP, dirty blocks, of 1,228 buffers", dirty(many("IPU + RP"))),
        ("busy disk: PU + RP, bound 5 s, longest read", many("PU + RP, bound 5 s").reads.max()),
        ("busy disk: IPU + RP, bound 5 s, longest read", many("IPU + RP, bound 5 s").reads.max()),
        ("busy disk: IPU + RP, bound 5 s, oldest dirty block", age(many("IPU + RP, bound 5 s"))),
        (
            "busy disk: IPU, --read-priority, D 60 s, oldest dirty block",
            age(many("IPU, --read-priority, D 60 s")),
        ),
        (
            "busy disk: IPU, --read-priority, D 60 s, longest read",
            many("IPU, --read-priority, D 60 s").reads.max(),
        ),
        ("busy disk: IPU, in turn, longest read", many("IPU, in turn").reads.max()),
        ("busy disk: IPU, in turn, writes that arrive", many("IPU, in turn").arrived()),
    ]
}

pub(super) fn purp_rows(seed: u64) -> Vec<Table> {
    let header = [
        "policy",
        "reads, 1/s",
        "mean read, ms",
        "deviation, ms",
        "longest read, s",
        "mean wait of writes, s",
        "longest wait, s",
        "oldest dirty, s",
        "most dirty, blocks",
        "written, %",
    ];
    let titles = [
        (false, "one reader, which thinks for 2 ms"),
        (true, "four readers that keep the disk busy"),
    ];
    let table = |(is_busy, title)| {
        let mut table = Table::new("purp", title, &header);
        for told in tell(is_busy, seed) {
            let (written, reads) = (&told.measured.written, &told.reads);
            let mean_wait = written.waited_sum.as_secs_f64() / written.arrived.max(1) as f64;
            let rate = told.measured.reads.len() as f64 / told.measured.duration.as_secs_f64();
            // Of what never arrives neither wait nor age is known.
            let known = |text: String| if written.arrived > 0 { text } else { "-".into() };
            let cells = [
                format!("{rate:.1}"),
                format!("{:.1}", 1e3 * reads.mean()),
                format!("{:.1}", 1e3 * reads.deviation()),
                format!("{:.2}", reads.max()),
                known(format!("{mean_wait:.2}")),
                known(format!("{:.2}", told.longest_wait())),
                known(format!("{:.1}", written.age_max.as_secs_f64())),
                written.dirty_max.to_string(),
                format!("{:.0}", told.arrived()),
            ];
            table.row(told.name, cells);
        }
        if is_busy {
            let [periodic, interval] = ["PU + RP", "IPU + RP"].map(|way| (way, "written, %"));
            table.tell("busy disk: PU + RP, writes that arrive", periodic, Of::Itself);
            table.tell("busy disk: IPU + RP, writes that arrive", interval, Of::Itself);
        } else {
            table.tell("PU, longest read", ("PU", "longest read, s"), Of::Itself);
        }
        table
    };
    titles.map(table).to_vec()
}
