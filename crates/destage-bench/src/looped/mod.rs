//! `destage-bench loop`: a load is recorded under a server's defaults and advised on; the advice is applied, and the load comes
//! again.
//!
//! A load comes in bursts on a schedule, the same operations in both runs. Its own client measures how long they take. What
//! was predicted stands beside what the second run's own recording says.

mod advice;
mod cli;
mod pace;
mod rows;
mod tables;
mod volume;

use std::path::{Path, PathBuf};
use std::time::Duration;

use tempfile::TempDir;

use self::advice::Advice;
pub(crate) use self::cli::LoopArgs;
use crate::Result;
use crate::machine::{Machine, output};
use crate::place;
use crate::report::Report;

/// A load, and what is asked for it.
struct Case {
    name: &'static str,
    what: &'static str,
    front: Front,
}

/// Which server is in front.
#[derive(Clone, Copy)]
enum Front {
    /// `destage block serve` with this load of files on ext4.
    Volume { load: &'static str },
    /// `destage serve` before PostgreSQL.
    Rows,
}

const CASES: [Case; 3] = [
    Case {
        name: "mail",
        what: "a mail server on ext4: delete a mail, write one of 16 KiB and sync it, read one, append 4 KiB to one and sync it",
        front: Front::Volume { load: "mail server" },
    },
    Case {
        name: "database",
        what: "SQLite on ext4, WAL, synchronous=FULL: a transaction reads 4 rows, changes 4 zipfian ones and adds one",
        front: Front::Volume { load: "OLTP" },
    },
    Case {
        name: "rows",
        what: "zipfian updates of one field of rows before PostgreSQL, every fourth request a read of a row",
        front: Front::Rows,
    },
];

/// What may be lost with host and cache. The defaults allow 30 s.
const RPO: &str = "10s";
/// What of rows may be lost at a crash that the journal survives. The defaults allow nothing.
const RPO_CRASH: &str = "1s";
/// The cache of a volume, the same before and after.
const FLASH: &str = "128M";
/// The memory for rows under the defaults.
const RAM: &str = "2G";

impl Front {
    /// What is set under the defaults: the size of the cache that one has.
    fn default_words(self) -> Vec<String> {
        match self {
            Self::Volume { .. } => vec!["--cache-size".into(), FLASH.into()],
            Self::Rows => Vec::new(),
        }
    }

    /// What `sim advise` is told of it.
    fn asked(self) -> &'static [&'static str] {
        match self {
            Self::Volume { .. } => &["--flash", FLASH],
            Self::Rows => &["--front", "data", "--ram", RAM, "--rpo-crash", RPO_CRASH],
        }
    }
}

/// How much to measure, and with what.
#[derive(Clone)]
struct Bench {
    bin: PathBuf,
    dir: PathBuf,
    time: Duration,
    seed: u64,
    /// Further settings of the server, the same in both runs.
    extra: Vec<String>,
    /// Bytes of the files, and the number of rows.
    file_bytes: u64,
    rows: u64,
    /// Operations of one burst.
    burst: u64,
}

impl Bench {
    fn with(&self, seed: u64) -> Self {
        Self { seed, ..self.clone() }
    }
}

/// One run of a load.
struct Measured {
    operations: u64,
    mean_ms: f64,
    p99_ms: f64,
    /// Of the blocks read, or the rows used, those in the cache, and all.
    hits: (u64, u64),
    recording: PathBuf,
    /// The load begins so long after the recording.
    warmup: Duration,
    /// Where the recording is.
    _folder: TempDir,
}

/// A load before and after, once or several times.
struct Closed {
    case: &'static Case,
    /// Each with a seed of its own; at least one.
    rounds: Vec<Round>,
}

/// Once round.
struct Round {
    seed: u64,
    default: Measured,
    /// The defaults, but for the loss that the question allows.
    allowed: Option<Measured>,
    advised: Measured,
    advice: Advice,
    /// Of the advised run, as it was recorded.
    after: Advice,
}

/// Runs the chosen loads.
///
/// # Errors
///
/// At least one could not be measured; the report of the others is written all the same.
pub(crate) fn run(arguments: &LoopArgs) -> Result<()> {
    let folder = place::run_folder(arguments.run.dir.as_deref())?;
    let dir = folder.path().to_owned();
    if arguments.run.keep {
        eprintln!("the logs are kept in {}", folder.keep().display());
    }
    let bench = arguments.bench(&dir)?;
    let mut report = new_report(&bench, arguments, &dir)?;
    let mut closed = Vec::new();
    for case in &CASES {
        if !arguments.cases.is_empty() && !arguments.cases.iter().any(|it| it == case.name) {
            continue;
        }
        let seeds = (bench.seed..).take(arguments.pairs.into());
        let rounds: Result<Vec<Round>> = seeds.map(|seed| close(&bench.with(seed), case)).collect();
        match rounds {
            Ok(rounds) => closed.push(Closed { case, rounds }),
            Err(error) => {
                eprintln!("error: {}: {error}", case.name);
                report.failures.push(format!("{}: {error}", case.name));
            }
        }
    }
    report.tables = tables::tables(&closed);
    report.publish(arguments.run.json.as_deref(), arguments.run.output.as_deref())
}

/// Once round: recorded, advised on, applied, measured again.
fn close(bench: &Bench, case: &Case) -> Result<Round> {
    let measure = |words: &[String]| {
        let words = [words, &bench.extra].concat();
        match case.front {
            Front::Volume { load } => volume::measure(bench, load, &words),
            Front::Rows => rows::measure(bench, &words),
        }
    };
    eprintln!("{}, seed {}: with the defaults", case.name, bench.seed);
    let default = measure(&case.front.default_words())?;
    let advice = Advice::on(bench, &default, case.front.asked())?;
    eprintln!("{}: {}", case.name, advice.command);
    let advised = measure(&advice.settings()?)?;
    let allowed = match case.front {
        Front::Volume { .. } => None,
        Front::Rows => Some(measure(&["--commit".to_owned(), RPO_CRASH.to_owned()])?),
    };
    // What it recorded is counted in the same way.
    let after = Advice::on(bench, &advised, case.front.asked())?;
    Ok(Round { seed: bench.seed, default, allowed, advised, advice, after })
}

fn new_report(bench: &Bench, arguments: &LoopArgs, dir: &Path) -> Result<Report> {
    let mut machine = Machine::look(dir)?;
    let version = output(&bench.bin.to_string_lossy(), &["--version"]);
    machine.versions.push(("Destage".into(), version.unwrap_or_else(|| "not there".into())));
    machine.versions.push(("PostgreSQL".into(), crate::servers::postgres_version()));
    let settings = [
        ("asked for", format!("the shortest requests; at most {RPO} lost with host and cache")),
        (
            "volumes",
            format!(
                "`--cache-size {FLASH}`, otherwise the defaults, before the modelled disk raid"
            ),
        ),
        (
            "rows",
            format!(
                "the defaults, which take {RAM} of memory, before PostgreSQL; at most {RPO_CRASH} lost at a crash that the journal \
                 survives"
            ),
        ),
        ("files", format!("{} MiB", bench.file_bytes >> 20)),
        ("caches of volumes", "filled by one reading of all files".into()),
        (
            "a burst",
            format!(
                "{} operations of all clients, every {} s",
                bench.burst,
                pace::EVERY.as_secs_f64()
            ),
        ),
    ];
    let settings = settings.map(|(name, value)| (name.to_owned(), value));
    Ok(Report {
        front_end: "loop",
        command: place::command_line(),
        seed: arguments.seed,
        seconds: bench.time.as_secs_f64(),
        pairs: arguments.pairs.into(),
        machine,
        settings: settings.to_vec(),
        ..Report::default()
    })
}
