//! `destage-bench data`: the cases in their order, then the report.

use std::path::Path;
use std::time::Duration;

use clap::Args;

use crate::Result;
use crate::args::{RunArgs, one_of};
use crate::bench::{Bench, Options};
use crate::cases::CASES;
use crate::machine::{Machine, output};
use crate::place;
use crate::report::Report;
use crate::servers::{POSTGRES_SETTINGS, postgres_version};

/// Cases that a control run can show: those whose peer is Redis.
const CONTROLLABLE: [&str; 2] = ["hits", "hset"];

#[derive(Debug, Args)]
pub(crate) struct DataArgs {
    /// Small tables, short runs, few pairs: shows that it works, not how fast
    #[arg(long)]
    pub(crate) quick: bool,
    /// Run only this case; may be repeated
    #[arg(long, value_name = "NAME", value_parser = case_name)]
    pub(crate) only: Vec<String>,
    /// Rows of the large tables [default: 1000000, with --quick 50000]
    #[arg(long, value_name = "COUNT")]
    pub(crate) rows: Option<u64>,
    /// Rows of the tables that redis-benchmark works on [default: 100000, with --quick 10000]
    #[arg(long, value_name = "COUNT")]
    pub(crate) hot_rows: Option<u64>,
    /// Length of one run, seconds [default: 5, with --quick 1]
    #[arg(long, value_name = "SECONDS")]
    pub(crate) seconds: Option<f64>,
    /// Pairs of runs per case [default: 5, with --quick 2]
    #[arg(long, value_name = "COUNT")]
    pub(crate) pairs: Option<usize>,
    /// Seed of the key streams
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// The staleness bound D that Destage is given and held to, seconds
    #[arg(long, default_value_t = 30, value_name = "SECONDS")]
    pub(crate) staleness_seconds: u64,
    /// Put a second redis-server in Destage's place: a sound method shows ratios of 1
    #[arg(long)]
    pub(crate) control: bool,
    #[command(flatten)]
    pub(crate) run: RunArgs,
}

/// Runs the chosen cases.
///
/// # Errors
///
/// The machine cannot be read, or at least one case could not be measured; the report of the
/// others is written all the same.
pub(crate) fn run(arguments: &DataArgs) -> Result<()> {
    let folder = place::run_folder(arguments.run.dir.as_deref())?;
    let path = folder.path().to_owned();
    if arguments.run.keep {
        eprintln!("the origins' data and the logs are kept in {}", folder.keep().display());
    }
    let options = options(arguments)?;
    let mut report = new_report(arguments, &options, &path)?;
    let mut bench = Bench::new(options, &path);
    for (name, body) in CASES {
        let chosen = arguments.only.is_empty() || arguments.only.iter().any(|only| only == name);
        if !chosen || (arguments.control && !CONTROLLABLE.contains(&name)) {
            continue;
        }
        if let Err(error) = body(&mut bench) {
            bench.fail(&format!("{name}: {error}"));
        }
    }
    report.figures = std::mem::take(&mut bench.figures);
    report.memory = std::mem::take(&mut bench.memory);
    report.failures = std::mem::take(&mut bench.failures);
    drop(bench);
    report.publish(arguments.run.json.as_deref(), arguments.run.output.as_deref())
}

fn options(arguments: &DataArgs) -> Result<Options> {
    let quick = arguments.quick;
    let bin = if arguments.control {
        arguments.run.destage_bin.clone().unwrap_or_default()
    } else {
        place::program(arguments.run.destage_bin.as_deref())?
    };
    let seconds = arguments.seconds.unwrap_or(if quick { 1.0 } else { 5.0 });
    let options = Options {
        bin,
        rows: arguments.rows.unwrap_or(if quick { 50_000 } else { 1_000_000 }),
        hot_rows: arguments.hot_rows.unwrap_or(if quick { 10_000 } else { 100_000 }),
        time: Duration::try_from_secs_f64(seconds)?,
        pairs: arguments.pairs.unwrap_or(if quick { 2 } else { 5 }),
        seed: arguments.seed,
        staleness_seconds: arguments.staleness_seconds,
        control: arguments.control,
        extra: arguments.run.destage_arg.clone(),
    };
    if options.rows == 0 || options.hot_rows == 0 || options.pairs == 0 || seconds <= 0.0 {
        return Err("--rows, --hot-rows, --pairs and --seconds must be above 0".into());
    }
    Ok(options)
}

fn new_report(arguments: &DataArgs, options: &Options, dir: &Path) -> Result<Report> {
    let mut machine = Machine::look(dir)?;
    let version = |program: &str| output(program, &["--version"]);
    let bin = options.bin.to_string_lossy().into_owned();
    let destage =
        if arguments.control { Some("a second redis-server".into()) } else { version(&bin) };
    for (name, found) in [
        ("Destage", destage),
        ("redis-server", version("redis-server")),
        ("redis-benchmark", version("redis-benchmark")),
        ("PostgreSQL", Some(postgres_version())),
        ("SQLite", Some(rusqlite::version().to_owned())),
    ] {
        machine.versions.push((name.into(), found.unwrap_or_else(|| "not installed".into())));
    }
    let postgres: Vec<String> =
        POSTGRES_SETTINGS.iter().map(|(name, value)| format!("{name}={value}")).collect();
    let staleness = options.staleness_seconds;
    let serve = format!(
        "--policy write-back --staleness {staleness}s --dirty-limit 4G --cache-size 4G {}",
        options.extra.join(" ")
    );
    let rows = crate::figure::thousands(options.rows as f64);
    let settings = [
        ("large table", format!("{rows} rows of 10 x 100 bytes")),
        ("Destage's settings", format!("`{}`, d as each case says", serve.trim())),
        ("PostgreSQL's settings", format!("{}; otherwise defaults", postgres.join(", "))),
        ("Redis's settings", "save \"\", no rewrites of the append-only file".into()),
    ];
    let report = Report {
        front_end: "data",
        command: place::command_line(),
        seed: options.seed,
        seconds: options.time.as_secs_f64(),
        pairs: options.pairs,
        machine,
        settings: settings.map(|(name, value)| (name.to_owned(), value)).into(),
        ..Report::default()
    };
    eprintln!("{}", report.markdown());
    Ok(report)
}

fn case_name(text: &str) -> std::result::Result<String, String> {
    one_of(text, CASES.iter().map(|(name, _)| *name))
}
