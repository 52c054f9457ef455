//! `destage-bench ycsb`: the paper's mixes of reads, scans and updates of records, at the origin itself, under each
//! policy of `destage serve`, and at Redis.
//!
//! *Source:* Ghandeharizadeh and Nguyen, write-back with cache augmented data stores, section 4.1.

mod check;
mod cli;
pub(crate) mod copies;
mod link;
mod origin;
mod side;
mod tables;
pub(crate) mod workload;

pub(crate) use self::cli::YcsbArgs;
use crate::Result;
use crate::behind::{Behind, count};
use crate::bench::{in_turn, warm};
use crate::cases::proxy;
use crate::figure::{Figure, Run, Target};
use crate::keys::Shape;
use crate::machine::{Machine, output};
use crate::place;
use crate::report::Report;
use crate::servers::{Destage, DestageConfig, Fsync, Redis, Transport};
use side::{Bench, Case, DIRECT, OURS, Place, Side};
use std::path::Path;
use std::time::Duration;
use workload::{SCANNED, Workload};

/// Below PostgreSQL's usual limit of connections.
const CLIENTS_MAX: usize = 90;

/// A case and what its sides did.
type Compared = (Case, Vec<(Side, Vec<Run>)>);

/// Runs every case, with the origin near and 1 ms away each way.
///
/// # Errors
/// A side could not be measured, or the origin does not hold what was acknowledged.
pub(crate) fn run(arguments: &YcsbArgs) -> Result<()> {
    let settings = Settings::of(arguments)?;
    let folder = place::run_folder(arguments.run.dir.as_deref())?;
    let path = folder.path().to_owned();
    if arguments.run.keep {
        eprintln!("the origin's data and the logs are kept in {}", folder.keep().display());
    }
    let bin = place::program(arguments.run.destage_bin.as_deref())?;
    let mut report = new_report(arguments, &settings, &bin, &path)?;
    let origin = Behind::start(&arguments.behind, &path, arguments.transport())?;
    for table in [OURS, DIRECT] {
        origin::fill(&origin, table, settings.records)?;
    }
    let mut bench = Bench::new(path, origin, settings.records, settings.time, arguments.seed);
    bench.staleness_seconds = arguments.staleness_seconds;
    let mut compared = Vec::new();
    let redis = Redis::start(&bench.dir, Fsync::Off, arguments.transport())?;
    let values: Vec<_> =
        (0..crate::origins::FIELDS).map(|field| (format!("f{field}"), "x".repeat(100))).collect();
    redis.preload(OURS, settings.records, &values)?;
    let server = start(&bench, arguments, &bin, bench.origin.near_url(origin::DATABASE))?;
    let near = Place { server, redis, via: bench.origin.near()? };
    for case in &settings.near {
        compare(&mut bench, &near, case, &settings, &mut compared, &mut report);
    }
    if !settings.far.is_empty() {
        let Place { server, redis, .. } = near;
        drop(server);
        let (_proxy, via) = proxy(bench.origin.address(), "1ms")?;
        let url = bench.origin.url(via, origin::DATABASE);
        let far = Place { server: start(&bench, arguments, &bin, url)?, redis, via: via.into() };
        for case in &settings.far {
            compare(&mut bench, &far, case, &settings, &mut compared, &mut report);
        }
    }
    report.figures = if arguments.behind.is_sql() { figures(&compared) } else { Vec::new() };
    report.tables = tables::tables(&compared, &bench);
    drop(bench);
    report.publish(arguments.run.json.as_deref(), arguments.run.output.as_deref())
}

/// What is to be done.
#[derive(Debug)]
struct Settings {
    records: u64,
    time: Duration,
    pairs: usize,
    near: Vec<Case>,
    far: Vec<Case>,
}

impl Settings {
    fn of(arguments: &YcsbArgs) -> Result<Self> {
        let (quick, is_sql) = (arguments.quick, arguments.behind.is_sql());
        let default = match (quick, is_sql) {
            (false, true) => 1_000_000,
            (true, true) => 10_000,
            (false, false) => 1_000,
            (true, false) => 200,
        };
        let records = arguments.records.unwrap_or(default);
        let seconds = arguments.seconds.unwrap_or(if quick { 0.3 } else { 3.0 });
        let pairs = arguments.pairs.unwrap_or(if quick { 1 } else { 2 });
        let time = Duration::try_from_secs_f64(seconds)?;
        let fits = (SCANNED..1_000_000_000).contains(&records) && pairs > 0 && !time.is_zero();
        if !fits || arguments.clients.iter().any(|count| !(1..=CLIENTS_MAX).contains(count)) {
            return Err(format!(
                "--records takes {SCANNED} to 999999999, --clients 1 to {CLIENTS_MAX}, --seconds and --pairs more than 0"
            )
            .into());
        }
        let (mut near, mut far) = (Vec::new(), Vec::new());
        for case in cases(arguments, is_sql) {
            if case.is_far { far.push(case) } else { near.push(case) }
        }
        Ok(Self { records, time, pairs, near, far })
    }
}

/// Every mix with every number of clients; new records, and what is far, with the smallest.
fn cases(arguments: &YcsbArgs, is_sql: bool) -> Vec<Case> {
    let least = arguments.clients.iter().copied().min().unwrap_or(1);
    let mut cases = Vec::new();
    for &workload in &arguments.workloads {
        // FerretDB looks through the whole collection for a range.
        if workload == Workload::S && !is_sql {
            eprintln!("workload S is left out: FerretDB reads whole collections for a range");
            continue;
        }
        for (shape, &clients) in arguments
            .keys
            .iter()
            .flat_map(|shape| arguments.clients.iter().map(move |c| (*shape, c)))
        {
            let is_plain = matches!(workload, Workload::C | Workload::Load);
            let is_once = shape == Shape::Uniform && clients == least;
            if workload != Workload::Load || is_once {
                cases.push(Case { workload, shape, clients, is_far: false });
            }
            if is_once && !is_plain && !arguments.near {
                cases.push(Case { workload, shape, clients, is_far: true });
            }
        }
    }
    cases
}

/// Starts `destage serve` before the origin at this URL, its cache full.
fn start(bench: &Bench, arguments: &YcsbArgs, bin: &Path, url: String) -> Result<Destage> {
    let mut extra = arguments.run.destage_arg.clone();
    if let Some(settings) = origin::settings(&bench.origin, &[OURS]) {
        let file = bench.dir.join("destage.toml");
        std::fs::write(&file, settings)?;
        extra.extend(["--config".to_owned(), file.display().to_string()]);
    }
    let config = DestageConfig {
        bin: bin.to_owned(),
        origin: url,
        commit: "0".into(),
        staleness: format!("{}s", bench.staleness_seconds),
        transport: arguments.transport(),
        extra,
    };
    let server = Destage::start(&bench.dir, &config)?;
    warm(&server.address, OURS, bench.records)?;
    Ok(server)
}

/// Runs the sides of a case in turn; one that fails ends it, and is reported.
fn compare(
    bench: &mut Bench,
    place: &Place,
    case: &Case,
    settings: &Settings,
    compared: &mut Vec<Compared>,
    report: &mut Report,
) {
    let distance = if case.is_far { ", 1 ms away" } else { "" };
    let name = format!(
        "workload {}, {} keys, {} clients{distance}",
        case.workload,
        case.keys(),
        case.clients
    );
    let mut sides = Side::ALL.map(|side| {
        move |bench: &mut Bench| -> Result<Run> {
            // Redis has no origin that could be far.
            if case.is_far && side == Side::Redis {
                Ok(Run::default())
            } else {
                side::run(bench, place, side, case)
                    .map_err(|error| format!("{}: {error}", side.name()).into())
            }
        }
    });
    let sides = sides.each_mut().map(|side| side as crate::bench::Side<'_, Bench>);
    let (runs, ended) = in_turn(bench, &name, settings.pairs, sides);
    if let Err(error) = ended {
        eprintln!("error: {name}: {error}");
        report.failures.push(format!("{name}: {error}"));
    }
    let of_sides = Side::ALL.into_iter().zip(runs);
    compared.push((*case, of_sides.filter(|(_, runs)| !runs.is_empty()).collect()));
}

/// What is to be reached, before PostgreSQL.
fn figures(compared: &[Compared]) -> Vec<Figure> {
    let mut figures = Vec::new();
    for (case, sides) in compared {
        let runs = |side: Side| sides.iter().find(|(it, _)| *it == side).map(|(_, runs)| runs);
        for ours in [Side::Back("0"), Side::Back("1s")] {
            for peer in [Side::Direct, Side::Through, Side::Redis] {
                let target = target(case, ours, peer);
                if let (Some(target), Some(mine), Some(theirs)) = (target, runs(ours), runs(peer)) {
                    figures.push(Figure {
                        group: if case.is_far { FAR } else { NEAR },
                        case: format!(
                            "{}, {} keys, {} clients: {}, against {}",
                            case.workload,
                            case.keys(),
                            case.clients,
                            ours.name(),
                            peer.name()
                        ),
                        peer: peer.name().to_owned(),
                        ours: mine.clone(),
                        theirs: theirs.clone(),
                        target: Target::ratio(target),
                    });
                }
            }
        }
    }
    figures
}

const NEAR: &str = "YCSB: write-back against the origin itself, write-through and Redis";
const FAR: &str = "YCSB: write-back against an origin 1 ms away each way";

/// The ratio to reach, if there is one.
fn target(case: &Case, ours: Side, peer: Side) -> Option<f64> {
    let is_update = matches!(case.workload, Workload::A | Workload::B);
    if !is_update || case.shape != Shape::Uniform {
        return None;
    }
    match (peer, case.is_far, case.workload, case.clients) {
        (Side::Through, ..) => Some(1.0),
        (Side::Direct, true, _, 4) => Some(if ours == Side::Back("0") { 10.0 } else { 20.0 }),
        (Side::Direct, false, Workload::A, 4) => Some(5.0),
        (Side::Direct, false, Workload::A, 16) => Some(3.5),
        (Side::Direct, false, Workload::B, _) => Some(2.5),
        (Side::Redis, false, ..) => Some(0.6),
        _ => None,
    }
}

fn new_report(arguments: &YcsbArgs, settings: &Settings, bin: &Path, dir: &Path) -> Result<Report> {
    let mut machine = Machine::look(dir)?;
    let version = |program: &str| output(program, &["--version"]);
    let missing = || "not installed".to_owned();
    machine.versions.extend([
        ("Destage".to_owned(), version(&bin.to_string_lossy()).unwrap_or_else(missing)),
        ("redis-server".to_owned(), version("redis-server").unwrap_or_else(missing)),
        arguments.behind.version(),
    ]);
    let (records, staleness) = (count(settings.records), arguments.staleness_seconds);
    let transport = match arguments.transport() {
        Transport::Tcp => "TCP over loopback",
        Transport::Unix => "unix sockets, but TCP to the origin 1 ms away",
    };
    let lines = [
        ("connections", transport.to_owned()),
        ("records", format!("{records} of 10 x 100 bytes, all of them cached at the start")),
        ("Destage's settings", format!("`--staleness {staleness}s`, otherwise as for `data`")),
        ("Redis's settings", Fsync::Off.settings().to_owned()),
    ];
    let lines = lines.map(|(name, value)| (name.to_owned(), value));
    Ok(Report {
        front_end: arguments.behind.front_end("ycsb", "ycsb mongodb"),
        command: place::command_line(),
        seed: arguments.seed,
        seconds: settings.time.as_secs_f64(),
        pairs: settings.pairs,
        machine,
        settings: lines.into_iter().chain(arguments.behind.settings()).collect(),
        ..Report::default()
    })
}
