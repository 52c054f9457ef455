//! `destage-bench sim`: `destage sim` and libCacheSim on the same accesses, on one processor, in turn.
//!
//! Both read the same file of single blocks, and what counts is the processor time of the whole program, reading included: a
//! machine that others use takes longer by the clock, but hardly longer by that. Miss ratios are compared, so that both have
//! simulated the same.

mod loads;
mod programs;

use std::path::{Path, PathBuf};

use clap::Args;

use self::loads::{LOADS, Load, Trace};
use self::programs::{Programs, Side, Used};
use crate::Result;
use crate::args::RunArgs;
use crate::figure::thousands;
use crate::machine::{Machine, output};
use crate::place;
use crate::report::{Report, Table};
use crate::stats::Spread;

#[derive(Debug, Args)]
pub(crate) struct SimArgs {
    /// The generated load alone, a short one, one round: shows that it works, not how fast
    #[arg(long)]
    quick: bool,
    /// Rounds, each with both sides in turn [default: 5, with --quick 1]
    #[arg(long, value_name = "COUNT")]
    pairs: Option<usize>,
    /// The processor that both sides are pinned to, counted from 0
    #[arg(long, default_value_t = 0, value_name = "NUMBER")]
    core: usize,
    /// Seed of the generated load
    #[arg(long, default_value_t = 1, value_name = "NUMBER")]
    seed: u64,
    /// A folder with P3.lis.zst and cloudphysics.vscsi.zst; what is not there is left out
    #[arg(long, env = "DESTAGE_TRACES", value_name = "PATH")]
    traces: Option<PathBuf>,
    /// The program cachesim of libCacheSim; without it only Destage is measured
    #[arg(long, env = "DESTAGE_TEST_CACHESIM", value_name = "PATH")]
    cachesim: Option<PathBuf>,
    /// What it was built from, for the report
    #[arg(long, env = "DESTAGE_TEST_CACHESIM_VERSION", hide = true, value_name = "TEXT")]
    cachesim_version: Option<String>,
    #[command(flatten)]
    run: RunArgs,
}

/// Ours and libCacheSim's names of the policies. Those whose rules leave nothing open must miss equally often.
const POLICIES: [Policy; 4] = [
    Policy { name: "lru", theirs: "lru", is_exact: true },
    Policy { name: "arc", theirs: "arc", is_exact: false },
    Policy { name: "s3-fifo", theirs: "s3fifo", is_exact: false },
    Policy { name: "sieve", theirs: "sieve", is_exact: true },
];

#[derive(Clone, Copy)]
struct Policy {
    name: &'static str,
    theirs: &'static str,
    is_exact: bool,
}

/// So many times as fast as libCacheSim.
const TARGET: f64 = 1.5;
/// libCacheSim prints four digits.
const SAME: f64 = 0.000_051;
/// Sizes of the curve, each a twentieth of the largest one further.
const SIZES: u64 = 20;
/// A curve takes libCacheSim as long as all else together, and the ratio is far from the target.
const CURVE_ROUNDS_MAX: usize = 2;

/// Measures every load that there is.
///
/// # Errors
///
/// A load could not be measured, or the two sides disagree; the report of the others is written all the same.
pub(crate) fn run(arguments: &SimArgs) -> Result<()> {
    let folder = place::run_folder(arguments.run.dir.as_deref())?;
    let dir = folder.path().to_owned();
    if arguments.run.keep {
        eprintln!("the traces are kept in {}", folder.keep().display());
    }
    let programs = Programs {
        destage: place::program(arguments.run.destage_bin.as_deref())?,
        cachesim: arguments.cachesim.clone(),
        core: arguments.core,
        dir: dir.clone(),
    };
    let pairs = arguments.pairs.unwrap_or(if arguments.quick { 1 } else { 5 });
    if pairs == 0 {
        return Err("--pairs must be above 0".into());
    }
    let mut report = new_report(arguments, &programs, pairs, &dir)?;
    if programs.cachesim.is_none() {
        let said = "libCacheSim: its program is not there, so Destage is measured alone";
        eprintln!("{said}");
        report.settings.push(("left out".into(), said.into()));
    }
    for load in &LOADS {
        if arguments.quick && !load.is_generated() {
            continue;
        }
        let trace =
            load.prepare(&programs, arguments.traces.as_deref(), arguments.seed, arguments.quick);
        let measured = trace.and_then(|trace| match trace {
            Ok(trace) => tables(&programs, load, &trace, pairs).map(Ok),
            Err(missing) => Ok(Err(missing)),
        });
        match measured {
            Ok(Ok((tables, different))) => {
                report.tables.extend(tables);
                report.failures.extend(different);
            }
            Ok(Err(missing)) => {
                eprintln!("left out: {missing}");
                report.settings.push(("left out".into(), missing));
            }
            Err(error) => report.failures.push(format!("{}: {error}", load.name)),
        }
    }
    report.publish(arguments.run.json.as_deref(), arguments.run.output.as_deref())
}

/// The rounds of one trace as tables, and where the sides disagree.
fn tables(
    programs: &Programs,
    load: &Load,
    trace: &Trace,
    pairs: usize,
) -> Result<(Vec<Table>, Vec<String>)> {
    let mut rows = Vec::new();
    let mut different = Vec::new();
    for policy in POLICIES {
        let what = format!("{} on {}", policy.name, load.name);
        eprintln!("{what}");
        let rounds = rounds(programs, pairs, |side| match side {
            Side::Ours => programs.ours(trace, policy.name, trace.blocks),
            Side::Theirs => programs.theirs(trace, policy.theirs, &[trace.blocks]),
        })?;
        let Round { ours, theirs } = &rounds[0];
        if let Some(theirs) = theirs
            && policy.is_exact
            && (ours.miss_ratio - theirs.miss_ratio).abs() > SAME
        {
            different.push(format!(
                "{what}: {} of the accesses miss here, {} in libCacheSim",
                ours.miss_ratio, theirs.miss_ratio
            ));
        }
        rows.push(row(policy.name, &rounds, trace.accesses));
    }
    let blocks: Vec<u64> = (1..=SIZES).map(|part| trace.blocks * part / SIZES).collect();
    eprintln!("a curve on {}", load.name);
    let curve = rounds(programs, pairs.min(CURVE_ROUNDS_MAX), |side| match side {
        Side::Ours => programs.our_curve(trace, &blocks),
        Side::Theirs => programs.theirs(trace, "lru", &blocks),
    })?;
    if let Round { ours, theirs: Some(theirs) } = &curve[0]
        && (ours.miss_ratio - theirs.miss_ratio).abs() > SAME
    {
        different.push(format!("the curve on {}: its ends differ", load.name));
    }
    rows.push(row(&format!("lru, {SIZES} sizes"), &curve, trace.accesses));
    let note = format!(
        "{}: {} accesses to {} blocks, {} places. Rates are accesses over the processor time of the whole program; of a \
         curve of {SIZES} sizes they count once.",
        load.what,
        thousands(trace.accesses as f64),
        thousands(trace.distinct as f64),
        thousands(trace.blocks as f64),
    );
    let columns = COLUMNS.map(str::to_owned).to_vec();
    Ok((vec![Table { title: format!("Simulator: {}", load.name), note, columns, rows }], different))
}

const COLUMNS: [&str; 9] = [
    "policy",
    "ours, million/s",
    "libCacheSim, million/s",
    "ratio, median [min, max]",
    "target",
    "reached",
    "memory, MiB, ours / libCacheSim",
    "misses, ours",
    "misses, libCacheSim",
];

/// Both sides once, one after the other.
struct Round {
    ours: Used,
    theirs: Option<Used>,
}

/// Which side goes first changes from round to round.
fn rounds(
    programs: &Programs,
    pairs: usize,
    mut measure: impl FnMut(Side) -> Result<Used>,
) -> Result<Vec<Round>> {
    let one = |round: usize| {
        if programs.cachesim.is_none() {
            return Ok(Round { ours: measure(Side::Ours)?, theirs: None });
        }
        Ok(if round.is_multiple_of(2) {
            let ours = measure(Side::Ours)?;
            Round { ours, theirs: Some(measure(Side::Theirs)?) }
        } else {
            let theirs = Some(measure(Side::Theirs)?);
            Round { ours: measure(Side::Ours)?, theirs }
        })
    };
    (0..pairs).map(one).collect()
}

fn row(name: &str, rounds: &[Round], accesses: u64) -> Vec<String> {
    let rate = |used: &Used| accesses as f64 / used.cpu.as_secs_f64() / 1e6;
    let none = || "-".to_owned();
    let spread = |values: Vec<f64>| Spread::of(values);
    let ours = spread(rounds.iter().map(|round| rate(&round.ours)).collect());
    let peers: Vec<&Used> = rounds.iter().filter_map(|round| round.theirs.as_ref()).collect();
    let theirs = spread(peers.iter().map(|used| rate(used)).collect());
    let ratio = spread(
        rounds
            .iter()
            .filter_map(|round| Some(rate(&round.ours) / rate(round.theirs.as_ref()?)))
            .collect(),
    );
    let mib = |used: &Used| format!("{:.0}", used.memory_bytes as f64 / 1024.0 / 1024.0);
    let percent = |used: &Used| format!("{:.2} %", used.miss_ratio * 100.0);
    let rate = |rates: Option<Spread>| rates.map_or_else(none, |all| format!("{:.1}", all.median));
    vec![
        name.to_owned(),
        rate(ours),
        rate(theirs),
        ratio
            .map_or_else(none, |all| format!("{:.2} [{:.2}, {:.2}]", all.median, all.min, all.max)),
        format!("≥ {TARGET}"),
        ratio.map_or_else(none, |all| {
            if all.median >= TARGET { "yes".to_owned() } else { "**no**".to_owned() }
        }),
        format!("{} / {}", mib(&rounds[0].ours), peers.first().map_or_else(none, |used| mib(used))),
        percent(&rounds[0].ours),
        peers.first().map_or_else(none, |used| percent(used)),
    ]
}

fn new_report(
    arguments: &SimArgs,
    programs: &Programs,
    pairs: usize,
    dir: &Path,
) -> Result<Report> {
    let mut machine = Machine::look(dir)?;
    let missing = || "not there".to_owned();
    let version = output(&programs.destage.to_string_lossy(), &["--version"]);
    machine.versions.push(("Destage".into(), version.unwrap_or_else(missing)));
    let cachesim = arguments.cachesim.as_ref().map(|_| {
        arguments.cachesim_version.clone().unwrap_or_else(|| "a build of your own".to_owned())
    });
    machine.versions.push(("libCacheSim".into(), cachesim.unwrap_or_else(missing)));
    let report = Report {
        front_end: "sim",
        command: place::command_line(),
        seed: arguments.seed,
        seconds: 1.0,
        pairs,
        machine,
        settings: vec![(
            "both sides".into(),
            format!("one thread on processor {}, user and system time", arguments.core),
        )],
        ..Report::default()
    };
    eprintln!("{}", report.markdown());
    Ok(report)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn used(milliseconds: u64) -> Used {
        Used { cpu: Duration::from_millis(milliseconds), memory_bytes: 3 << 20, miss_ratio: 0.25 }
    }

    #[test]
    fn a_target_that_is_missed_is_shown_as_such_and_one_side_alone_has_none() {
        let both = |ours, theirs| Round { ours: used(ours), theirs: Some(used(theirs)) };
        let fast = row("lru", &[both(100, 300), both(100, 150), both(100, 160)], 1_000_000);
        assert_eq!(fast[1..6], ["10.0", "6.2", "1.60 [1.50, 3.00]", "≥ 1.5", "yes"]);
        let slow = row("lru", &[both(100, 140)], 1_000_000);
        assert_eq!(slow[5..], ["**no**", "3 / 3", "25.00 %", "25.00 %"]);
        let alone = row("lru", &[Round { ours: used(100), theirs: None }], 1_000_000);
        assert_eq!(alone[2..7], ["-", "-", "≥ 1.5", "-", "3 / -"]);
    }
}
