//! `destage-bench growth`: memory, starts and costs at sizes that grow tenfold, with the exponent of each curve.

mod cli;
mod clients;
mod curve;
mod rows;
mod starts;

use std::path::{Path, PathBuf};
use std::time::Duration;

use self::cli::Case;
pub(crate) use self::cli::GrowthArgs;
use self::curve::{Bound, Curve, Measure};
use crate::Result;
use crate::machine::{Machine, output};
use crate::place;
use crate::report::Report;
use crate::servers::{Destage, DestageConfig, Transport, postgres_version};

/// What a run works with.
struct Growth {
    bin: PathBuf,
    dir: PathBuf,
    time: Duration,
    seed: u64,
    extra: Vec<String>,
}

/// One curve at sizes up to the given one.
type Measured = fn(&Growth, u64) -> Result<Vec<Curve>>;

/// Each case: its largest size, that of --quick, and what measures it.
const CASES: [(Case, u64, u64, Measured); 7] = [
    (Case::Rows, 1_000_000, 10_000, rows::cached),
    (Case::Undecided, 1_000_000, 1_000, rows::undecided),
    (Case::Connections, 10_000, 100, clients::connections),
    (Case::Tables, 2_000, 200, starts::tables),
    (Case::Members, 100_000, 100, clients::members),
    (Case::Journal, 4_096, 16, starts::journal),
    (Case::Volume, 4_096, 16, starts::volume),
];

/// A start reads what there is once.
const LINEAR: Bound = Bound::AtMost(1.1);
/// What one thing costs stays as it is, but for the caches of the processor: 1.6 times as much in a decade at most.
const FLAT: Bound = Bound::AtMost(0.2);
/// Memory for one thing: tables double when they are full, so twice as much in a decade at most.
const EACH: Bound = Bound::AtMost(0.3);
const FREE: Bound = Bound::None;
/// Nothing is destaged before the dirty limit or a drain.
const KEPT: [&str; 2] = ["--when", "pressure"];
const MIB: f64 = 1_048_576.0;

/// Measures each case that is wanted.
///
/// # Errors
///
/// A case could not be measured; the report of the others is written all the same.
pub(crate) fn run(arguments: &GrowthArgs) -> Result<()> {
    // Each client and each connection is a file of this process.
    destage_runtime::descriptors::raise();
    let folder = place::run_folder(arguments.run.dir.as_deref())?;
    let dir = folder.path().to_owned();
    if arguments.run.keep {
        eprintln!("the data and the logs are kept in {}", folder.keep().display());
    }
    let seconds = arguments.seconds.unwrap_or(if arguments.quick { 0.2 } else { 2.0 });
    let growth = Growth {
        bin: place::program(arguments.run.destage_bin.as_deref())?,
        dir,
        time: Duration::try_from_secs_f64(seconds)?,
        seed: arguments.seed,
        extra: arguments.run.destage_arg.clone(),
    };
    if growth.time.is_zero() {
        return Err("--seconds takes more than 0".into());
    }
    let mut report = new_report(arguments, &growth)?;
    for (case, full, quick, measure) in CASES {
        if !arguments.cases.is_empty() && !arguments.cases.contains(&case) {
            continue;
        }
        let named = arguments.largest.iter().rev().find(|largest| largest.case == case);
        let default = if arguments.quick { quick } else { full };
        let largest = named.map_or(default, |largest| largest.size);
        eprintln!("{case:?} up to {largest}");
        match measure(&growth, largest) {
            Ok(curves) => {
                for curve in curves {
                    let table = curve.table();
                    eprintln!("{}", table.markdown());
                    report.tables.push(table);
                }
            }
            Err(error) => report.failures.push(format!("{case:?}: {error}")),
        }
    }
    report.publish(arguments.run.json.as_deref(), arguments.run.output.as_deref())
}

impl Growth {
    /// A server with this origin, d = 1s.
    fn config(&self, origin: String, flags: &[&str]) -> DestageConfig {
        let flags = flags.iter().map(|flag| (*flag).to_owned());
        DestageConfig {
            bin: self.bin.clone(),
            origin,
            commit: "1s".into(),
            staleness: "1d".into(),
            transport: Transport::Tcp,
            extra: flags.chain(self.extra.iter().cloned()).collect(),
        }
    }

    fn start(&self, config: &DestageConfig) -> Result<Destage> {
        Destage::start(&self.dir, config)
    }
}

const fn measure(name: &'static str, digits: usize, bound: Bound) -> Measure {
    Measure { name, digits, bound }
}

fn new_report(arguments: &GrowthArgs, growth: &Growth) -> Result<Report> {
    let mut machine = Machine::look(&growth.dir)?;
    let version = output(&growth.bin.to_string_lossy(), &["--version"]);
    machine.versions.extend([
        ("Destage".to_owned(), version.unwrap_or_else(|| "not installed".to_owned())),
        ("PostgreSQL".to_owned(), postgres_version()),
    ]);
    let memory = "what the kernel counts as the process's own (RssAnon), beyond what it had before";
    let report = Report {
        front_end: "growth",
        command: place::command_line(),
        seed: arguments.seed,
        seconds: growth.time.as_secs_f64(),
        pairs: 1,
        machine,
        settings: vec![
            ("memory".into(), memory.into()),
            (
                "starts".into(),
                "from the start of the process to its ready line, after a kill -9".into(),
            ),
        ],
        ..Report::default()
    };
    eprintln!("{}", report.markdown());
    Ok(report)
}

/// Bytes of a folder's files.
fn folder_bytes(folder: &Path) -> Result<u64> {
    let mut bytes = 0;
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let metadata = entry.metadata()?;
        bytes += if metadata.is_dir() { folder_bytes(&entry.path())? } else { metadata.len() };
    }
    Ok(bytes)
}
