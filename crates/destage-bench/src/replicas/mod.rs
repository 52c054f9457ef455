//! `destage-bench replicas`: what it costs to have the buffered writes on other servers, and how long a take-over takes.

mod cli;
mod cost;
mod take_over;

use self::cli::Part;
pub(crate) use self::cli::ReplicasArgs;
use crate::Result;
use crate::figure::thousands;
use crate::machine::{Machine, output};
use crate::place;
use crate::report::Report;
use crate::servers::{Fsync, POSTGRES_SETTINGS, Redis, Transport, postgres_version};
use crate::ycsb::copies::{Nine, figure_nine};
use std::path::Path;
use std::time::Duration;

/// So many servers hold the log, and so many of them each write.
const SERVERS: usize = 3;
const COPIES: usize = 2;

/// Servers of a log.
struct Servers(Vec<Redis>);

impl Servers {
    fn start(dir: &Path) -> Result<Self> {
        let start = |_| Redis::start(dir, Fsync::Off, Transport::Tcp);
        (0..SERVERS).map(start).collect::<Result<_>>().map(Self)
    }

    /// As `--replicas` takes them.
    fn urls(&self) -> Vec<String> {
        self.0.iter().map(|server| format!("redis://{}", server.address)).collect()
    }
}

/// Runs the parts.
///
/// # Errors
/// A server does not start, or a side could not be measured.
pub(crate) fn run(arguments: &ReplicasArgs) -> Result<()> {
    let folder = place::run_folder(arguments.run.dir.as_deref())?;
    let dir = folder.path().to_owned();
    if arguments.run.keep {
        eprintln!("the origin's data and the logs are kept in {}", folder.keep().display());
    }
    let bin = place::program(arguments.run.destage_bin.as_deref())?;
    let quick = arguments.quick;
    let time = arguments.seconds.unwrap_or(if quick { 0.3 } else { 4.0 });
    let time = Duration::try_from_secs_f64(time)?;
    let rounds = arguments.pairs.unwrap_or(if quick { 1 } else { 3 });
    let records = arguments.records.unwrap_or(if quick { 3_000 } else { 100_000 });
    if time.is_zero() || rounds == 0 || records < 1_000 {
        return Err("--seconds and --pairs take more than 0, --records at least 1000".into());
    }
    let is_wanted = |part| arguments.only.is_empty() || arguments.only.contains(&part);
    let mut report = new_report(arguments, &bin, &dir, (time, rounds, records))?;
    let extra = &arguments.run.destage_arg;
    if is_wanted(Part::Cost) {
        let cost =
            cost::Cost { bin: &bin, dir: &dir, records, time, rounds, extra, seed: arguments.seed };
        let measured = cost.run()?;
        report.figures.extend(measured.figures);
        report.tables.push(measured.round_trips);
        report.failures.extend(measured.failures);
    }
    if is_wanted(Part::Ycsb) {
        let servers = Servers::start(&dir)?;
        let (seed, replicas) = (arguments.seed, servers.urls());
        let nine = Nine {
            bin: bin.clone(),
            dir: &dir,
            records,
            time,
            rounds,
            seed,
            extra,
            replicas: &replicas,
        };
        let (table, failures) = figure_nine(&nine)?;
        report.tables.push(table);
        report.failures.extend(failures);
    }
    if is_wanted(Part::TakeOver) {
        let default: &[u64] = if quick { &[10, 1_000] } else { &[10, 100_000, 1_000_000] };
        let groups = if arguments.groups.is_empty() { default } else { &arguments.groups };
        report.tables.push(take_over::table(&bin, &dir, groups, rounds)?);
    }
    report.publish(arguments.run.json.as_deref(), arguments.run.output.as_deref())
}

fn new_report(
    arguments: &ReplicasArgs,
    bin: &Path,
    dir: &Path,
    (time, pairs, records): (Duration, usize, u64),
) -> Result<Report> {
    let mut machine = Machine::look(dir)?;
    let version = |program: &str| output(program, &["--version"]);
    let missing = || "not installed".to_owned();
    machine.versions.extend([
        ("Destage".to_owned(), version(&bin.to_string_lossy()).unwrap_or_else(missing)),
        ("redis-server".to_owned(), version("redis-server").unwrap_or_else(missing)),
        ("PostgreSQL".to_owned(), postgres_version()),
    ]);
    let postgres: Vec<String> =
        POSTGRES_SETTINGS.iter().map(|(name, value)| format!("{name}={value}")).collect();
    let lines = [
        ("connections", "TCP over loopback".to_owned()),
        (
            "records",
            format!(
                "{} of 10 x 100 bytes, all of them cached at the start",
                thousands(records as f64)
            ),
        ),
        (
            "the log's servers",
            format!("{SERVERS} of redis-server on this machine, {}", Fsync::Off.settings()),
        ),
        (
            "a sync of 2 ms",
            "a model of ours: `fdatasync` of the server sleeps for 2 ms before it does its work; `--journal-depth 0`, so that \
             it is called"
                .to_owned(),
        ),
        ("PostgreSQL's settings", format!("{}; otherwise defaults", postgres.join(", "))),
    ];
    Ok(Report {
        front_end: "replicas",
        command: place::command_line(),
        seed: arguments.seed,
        seconds: time.as_secs_f64(),
        pairs,
        machine,
        settings: lines.into_iter().map(|(name, value)| (name.to_owned(), value)).collect(),
        ..Report::default()
    })
}
