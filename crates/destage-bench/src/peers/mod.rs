//! `destage-bench peers`: write-behind maps and caches of block devices that are used today, under the same load, and what each of
//! them loses.

mod cli;
mod judge;
mod losses;
mod program;
mod rates;
mod stage;
mod volumes;

pub(crate) use self::cli::PeersArgs;
use self::cli::{Part, Peer};
use self::program::{BYTES, DELAY_MS, Programs};
pub(crate) use self::volumes::{NumberedArgs, write_numbered};
use crate::Result;
use crate::figure::thousands;
use crate::machine::{Machine, output};
use crate::place;
use crate::report::{Report, publish};
use crate::servers::{Fsync, POSTGRES_SETTINGS, postgres_version};
use std::path::Path;
use std::time::Duration;

/// Above this, PostgreSQL has no sessions left for the maps' writers.
const THREADS_MAX: u64 = 64;

/// Runs the parts.
///
/// # Errors
/// A server does not start, a side could not be measured, or Destage lost what it may not lose.
pub(crate) fn run(arguments: &PeersArgs) -> Result<()> {
    let folder = place::run_folder(arguments.run.dir.as_deref())?;
    let dir = folder.path().to_owned();
    if arguments.run.keep {
        eprintln!("the origin's data and the logs are kept in {}", folder.keep().display());
    }
    let bin = place::program(arguments.run.destage_bin.as_deref())?;
    let time = arguments.seconds.unwrap_or(if arguments.quick { 0.3 } else { 3.0 });
    let time = Duration::try_from_secs_f64(time)?;
    let rounds = arguments.pairs.unwrap_or(if arguments.quick { 1 } else { 3 });
    if time.is_zero() || rounds == 0 {
        return Err("--seconds and --pairs take more than 0".into());
    }
    let mut reports = Vec::new();
    if arguments.wants(Part::Rates) || arguments.wants(Part::Losses) {
        reports.push(maps(arguments, &dir, &bin, (time, rounds))?);
    }
    if arguments.wants(Part::Volumes) {
        let missing =
            "name the folder of the guest's packages by --guest: cargo xtask bench peers makes it";
        let volumes = volumes::Volumes {
            packages: arguments.guest.as_deref().ok_or(missing)?,
            dir: &dir,
            bin: &bin,
            is_quick: arguments.quick,
            time,
            rounds,
            seed: arguments.seed,
            extra: &arguments.run.destage_arg,
        };
        reports.push(volumes.run()?);
    }
    publish(&reports, arguments.run.json.as_deref(), arguments.run.output.as_deref())
}

/// Those that write to a database.
fn maps(
    arguments: &PeersArgs,
    dir: &Path,
    bin: &Path,
    (time, rounds): (Duration, usize),
) -> Result<Report> {
    let missing = "name the folder of the compiled Java programs by --programs: cargo xtask bench peers makes it";
    let (quick, threads) = (arguments.quick, arguments.threads);
    let programs = Programs {
        folder: arguments.programs.as_deref().ok_or(missing)?,
        dir,
        records: arguments.records.unwrap_or(if quick { 2_000 } else { 50_000 }),
        threads,
        batch: arguments.batch,
    };
    let is_right = (1..=THREADS_MAX).contains(&threads) && programs.records.is_multiple_of(threads);
    if arguments.batch == 0 || !is_right || programs.records == 0 {
        return Err(format!(
            "--threads takes 1 to {THREADS_MAX}, --records a multiple of that, --batch more than 0"
        )
        .into());
    }
    let peers = if arguments.peers.is_empty() { &Peer::ALL[..] } else { &arguments.peers };
    let mut report = new_report(arguments, bin, &programs, (time, rounds))?;
    let (seed, extra) = (arguments.seed, &arguments.run.destage_arg[..]);
    if arguments.wants(Part::Rates) {
        let rates = rates::Rates { programs, bin, peers, time, rounds, seed, extra };
        let measured = rates.run()?;
        report.figures = measured.figures;
        report.tables = measured.tables;
        report.failures = measured.failures;
    }
    if arguments.wants(Part::Losses) {
        let losses = losses::Losses { programs, bin, peers, is_quick: quick, seed, extra };
        let (table, failures) = losses.run()?;
        report.tables.push(table);
        report.failures.extend(failures);
    }
    Ok(report)
}

fn new_report(
    arguments: &PeersArgs,
    bin: &Path,
    programs: &Programs<'_>,
    (time, pairs): (Duration, usize),
) -> Result<Report> {
    let mut machine = Machine::look(programs.dir)?;
    let version = |program: &str| output(program, &["--version"]);
    let missing = || "not installed".to_owned();
    machine
        .versions
        .push(("Destage".to_owned(), version(&bin.to_string_lossy()).unwrap_or_else(missing)));
    machine.versions.extend(programs.versions()?);
    machine.versions.extend([
        ("Java".to_owned(), version("java").unwrap_or_else(missing)),
        ("redis-server".to_owned(), version("redis-server").unwrap_or_else(missing)),
        ("PostgreSQL".to_owned(), postgres_version()),
    ]);
    let postgres: Vec<String> =
        POSTGRES_SETTINGS.iter().map(|(name, value)| format!("{name}={value}")).collect();
    let (records, batch) = (thousands(programs.records as f64), programs.batch);
    let lines = [
        (
            "records",
            format!("{records} of one value of {BYTES} bytes, all of them cached at the start"),
        ),
        ("threads", format!("{} in a closed loop, each with records of its own", programs.threads)),
        (
            "Hazelcast's settings",
            format!(
                "`write-delay-seconds` {}, `write-batch-size` {batch}, `write-coalescing` true, otherwise defaults; `IMap.set`, `get`, \
                 `delete`",
                DELAY_MS / 1000
            ),
        ),
        (
            "Redisson's settings",
            format!(
                "`WRITE_BEHIND`, `writeBehindDelay` {DELAY_MS}, `writeBehindBatchSize` {batch}, otherwise defaults; `RMap.fastPut`, \
                 `get`, `fastRemove`"
            ),
        ),
        ("redis-server's settings", Fsync::Off.settings().to_owned()),
        (
            "the maps' writer",
            "JDBC, a batch is one transaction, `reWriteBatchedInserts`, `INSERT ... ON CONFLICT DO UPDATE`".to_owned(),
        ),
        ("Destage's settings", "`--staleness 30s`, otherwise as for `data`; Jedis over TCP, a connection for each thread".to_owned()),
        ("PostgreSQL's settings", format!("{}; otherwise defaults", postgres.join(", "))),
    ];
    Ok(Report {
        front_end: "peers",
        command: place::command_line(),
        seed: arguments.seed,
        seconds: time.as_secs_f64(),
        pairs,
        machine,
        settings: lines.into_iter().map(|(name, value)| (name.to_owned(), value)).collect(),
        ..Report::default()
    })
}
