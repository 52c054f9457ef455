//! `destage-bench bg`: social actions at the origin itself and under the policies of `destage serve`, and how many of them a
//! second each side bears while 95 % are answered within 100 ms (SoAR).
//!
//! *Source:* Ghandeharizadeh and Nguyen, write-back with cache augmented data stores, section 4.2.

mod cli;
mod graph;
mod link;
mod lists;
mod measure;
mod origin;
mod tables;

pub(crate) use self::cli::BgArgs;
use crate::Result;
use crate::behind::{Behind, count};
use crate::figure::{Figure, Target};
use crate::machine::{Machine, output};
use crate::place;
use crate::report::Report;
use crate::servers::{Destage, DestageConfig, Transport};
use graph::{Graph, MIXES};
use measure::{Bench, Rated, Side};
use std::cell::RefCell;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

/// The agreement: so many of all actions within this time.
const AGREED_SHARE: f64 = 0.95;
const AGREED: Duration = Duration::from_millis(100);

/// Who answers, and the words of `DESTAGE POLICY`.
const SIDES: [(&str, Option<&[&str]>); 4] = [
    ("the origin directly", None),
    ("write-through", Some(&["POLICY", "write-through"])),
    ("write-back, d = 0", Some(&["POLICY", "write-back", "commit=0"])),
    ("write-back, d = 1s", Some(&["POLICY", "write-back", "commit=1s"])),
];

/// Rates every side under every mix, checks the origin after each, and kills the last one under load.
///
/// # Errors
/// A side could not be measured, or the origin does not hold what was acknowledged.
pub(crate) fn run(arguments: &BgArgs) -> Result<()> {
    let settings = Settings::of(arguments)?;
    let folder = place::run_folder(arguments.run.dir.as_deref())?;
    let path = folder.path().to_owned();
    if arguments.run.keep {
        eprintln!("the origin's data and the logs are kept in {}", folder.keep().display());
    }
    let bin = place::program(arguments.run.destage_bin.as_deref())?;
    let mut report = new_report(arguments, &settings, &bin, &path)?;
    let scale = (settings.members, settings.friends, settings.pending);
    let graph = Graph::new(scale)?;
    let origin = Behind::start(&arguments.behind, &path, Transport::Tcp)?;
    eprintln!("filling {} members with {} friends each", settings.members, settings.friends);
    origin::fill(&origin, &graph, scale)?;
    let first = graph.clone();
    let mut bench = Bench {
        origin,
        graph: Rc::new(RefCell::new(graph)),
        time: settings.time,
        seed: arguments.seed,
        staleness_seconds: STALENESS_SECONDS,
    };
    let config = path.join("destage.toml");
    std::fs::write(&config, origin::settings(&bench.origin))?;
    let mut extra = arguments.run.destage_arg.clone();
    extra.extend(["--config".to_owned(), config.display().to_string()]);
    let config = DestageConfig {
        bin,
        origin: bench.origin.url(bench.origin.address(), lists::DATABASE),
        commit: "0".into(),
        staleness: format!("{STALENESS_SECONDS}s"),
        transport: Transport::Tcp,
        extra,
    };
    let mut rated = rate(&mut bench, &[(SIDES[0].0, None)], &settings)?;
    let mut server = Destage::start(&path, &config)?;
    measure::warm(&server, settings.members, arguments.behind.is_sql())?;
    if !arguments.behind.is_sql() {
        // The documents behind it are still as they were at first.
        bench.graph = Rc::new(RefCell::new(first));
    }
    let served = |(name, words): &(_, Option<_>)| (*name, Some(&server).zip(*words));
    let sides: Vec<Side<'_>> = SIDES[1..].iter().map(served).collect();
    rated.extend(rate(&mut bench, &sides, &settings)?);
    for kill in 1..=settings.kills {
        eprintln!("kill {kill} of {}", settings.kills);
        server = measure::kill(&mut bench, server, &path, &config, kill)?;
    }
    drop(server);
    report.figures = if arguments.behind.is_sql() { figures(&rated) } else { Vec::new() };
    report.tables = tables::tables(&rated, &settings);
    report.publish(arguments.run.json.as_deref(), arguments.run.output.as_deref())
}

const STALENESS_SECONDS: u64 = 30;
/// Below PostgreSQL's usual limit of connections.
const CLIENTS_MAX: usize = 90;

/// The sides under every mix: by side, then by mix.
fn rate(bench: &mut Bench, sides: &[Side<'_>], settings: &Settings) -> Result<Vec<Vec<Rated>>> {
    let mut rated: Vec<Vec<Rated>> = sides.iter().map(|_| Vec::new()).collect();
    for (name, mix) in &MIXES {
        let done = measure::rate(bench, sides, (name, mix), &settings.clients, settings.pairs);
        let done = done.map_err(|error| format!("{name}: {error}"))?;
        rated.iter_mut().zip(done).for_each(|(side, it)| side.push(it));
    }
    Ok(rated)
}

/// Write-back against write-through, with each number of clients that both bore.
fn figures(rated: &[Vec<Rated>]) -> Vec<Figure> {
    let [_, through, backs @ ..] = rated else { return Vec::new() };
    let mut figures = Vec::new();
    for (mix, (mix_name, _)) in MIXES.iter().enumerate() {
        for (back, (name, _)) in backs.iter().zip(&SIDES[2..]) {
            for ((clients, ours), (_, theirs)) in back[mix].runs.iter().zip(&through[mix].runs) {
                figures.push(Figure {
                    group: "BG: write-back against write-through",
                    case: format!("{mix_name}, {clients} clients: {name}"),
                    peer: SIDES[1].0.to_owned(),
                    ours: ours.clone(),
                    theirs: theirs.clone(),
                    target: Target::ratio(1.0),
                });
            }
        }
    }
    figures
}

/// What is to be done.
#[derive(Debug)]
struct Settings {
    members: u64,
    friends: u64,
    pending: u64,
    clients: Vec<usize>,
    time: Duration,
    pairs: usize,
    kills: u64,
}

impl Settings {
    fn of(arguments: &BgArgs) -> Result<Self> {
        let (quick, is_sql) = (arguments.quick, arguments.behind.is_sql());
        let default = |sql: [u64; 2], documents: [u64; 2]| {
            if is_sql { sql[usize::from(quick)] } else { documents[usize::from(quick)] }
        };
        let clients = if !arguments.clients.is_empty() {
            arguments.clients.clone()
        } else if quick {
            vec![1, 4]
        } else {
            vec![1, 4, 16, 64]
        };
        let seconds = arguments.seconds.unwrap_or(if quick { 0.2 } else { 2.0 });
        let time = Duration::try_from_secs_f64(seconds)?;
        let pairs = arguments.pairs.unwrap_or(if quick || !is_sql { 1 } else { 3 });
        if clients.iter().any(|count| !(1..=CLIENTS_MAX).contains(count))
            || time.is_zero()
            || pairs == 0
        {
            let text =
                format!("--clients takes 1 to {CLIENTS_MAX}, --seconds and --pairs more than 0");
            return Err(text.into());
        }
        Ok(Self {
            members: arguments.members.unwrap_or_else(|| default([10_000, 300], [300, 60])),
            friends: arguments.friends.unwrap_or_else(|| default([100, 20], [20, 10])),
            pending: arguments.pending.unwrap_or_else(|| default([10, 5], [5, 5])),
            clients,
            time,
            pairs,
            // FerretDB may take longer over a backlog than a start waits for it.
            kills: match (is_sql, quick) {
                (false, _) => 0,
                (true, true) => 1,
                (true, false) => 3,
            },
        })
    }
}

fn new_report(arguments: &BgArgs, settings: &Settings, bin: &Path, dir: &Path) -> Result<Report> {
    let mut machine = Machine::look(dir)?;
    let version = output(&bin.to_string_lossy(), &["--version"]);
    machine.versions.extend([
        ("Destage".to_owned(), version.unwrap_or_else(|| "not installed".to_owned())),
        arguments.behind.version(),
    ]);
    let clients: Vec<String> = settings.clients.iter().map(ToString::to_string).collect();
    let lines = [
        (
            "graph",
            format!(
                "{} members, {} friends and {} invitations each, all cached at the start",
                count(settings.members),
                count(settings.friends),
                count(settings.pending)
            ),
        ),
        ("clients", format!("{}, in a closed loop without think times", clients.join(", "))),
        (
            "Destage's settings",
            format!("`--staleness {STALENESS_SECONDS}s`, otherwise as for `data`"),
        ),
    ];
    let lines = lines.map(|(name, value)| (name.to_owned(), value));
    Ok(Report {
        front_end: arguments.behind.front_end("bg", "bg mongodb"),
        command: place::command_line(),
        seed: arguments.seed,
        seconds: settings.time.as_secs_f64(),
        pairs: settings.pairs,
        machine,
        settings: lines.into_iter().chain(arguments.behind.settings()).collect(),
        ..Report::default()
    })
}
