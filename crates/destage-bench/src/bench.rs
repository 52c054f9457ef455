//! One run of `destage-bench data`: options, shared servers, and what has been measured so far.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use destage_runtime::sockets::Listen;

use crate::Result;
use crate::control::Client;
use crate::figure::{Figure, Memory, Run, Target};
use crate::keys::Shape;
use crate::load::{Bound, Load};
use crate::origins;
use crate::servers::{Destage, DestageConfig, Fsync, Postgres, Redis, Transport, status};

/// How much to measure, and with what.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) bin: PathBuf,
    /// Rows of the large tables.
    pub(crate) rows: u64,
    /// Rows of the tables that `redis-benchmark` works on.
    pub(crate) hot_rows: u64,
    pub(crate) time: Duration,
    pub(crate) pairs: usize,
    pub(crate) seed: u64,
    pub(crate) staleness_seconds: u64,
    /// A second `redis-server` takes Destage's place: its ratios must be 1.
    pub(crate) control: bool,
    pub(crate) extra: Vec<String>,
}

/// The state of a run.
#[derive(Debug)]
pub(crate) struct Bench {
    pub(crate) options: Options,
    pub(crate) dir: PathBuf,
    pub(crate) figures: Vec<Figure>,
    pub(crate) memory: Vec<Memory>,
    pub(crate) failures: Vec<String>,
    postgres: Option<Postgres>,
    tags: u32,
}

/// One side of a comparison, run once.
pub(crate) type Side<'a, B> = &'a mut dyn FnMut(&mut B) -> Result<Run>;

/// Runs the sides in turn, A B C A B C, `rounds` times, or until one fails: the whole rounds, side by side, and why they
/// ended early.
pub(crate) fn in_turn<B, const SIDES: usize>(
    bench: &mut B,
    name: &str,
    rounds: usize,
    mut sides: [Side<'_, B>; SIDES],
) -> ([Vec<Run>; SIDES], Result<()>) {
    let mut runs = [const { Vec::new() }; SIDES];
    for round in 1..=rounds {
        let mut results = [Run::default(); SIDES];
        for (result, side) in results.iter_mut().zip(&mut sides) {
            match side(bench) {
                Ok(run) => *result = run,
                Err(error) => return (runs, Err(error)),
            }
        }
        let list = |of: fn(&Run) -> String| results.iter().map(of).collect::<Vec<_>>();
        let rates = list(|run| format!("{:.0}/s", run.per_second)).join(" against ");
        let cpu = list(|run| format!("{:.2}", run.cpu_us)).join(" and ");
        eprintln!("{name}: round {round}: {rates}, {cpu} µs CPU");
        runs.iter_mut().zip(results).for_each(|(runs, result)| runs.push(result));
    }
    (runs, Ok(()))
}

/// The server on our side of a comparison with Redis.
#[derive(Debug)]
pub(crate) enum Ours {
    Destage(Destage),
    Control(Redis),
}

impl Bench {
    pub(crate) fn new(options: Options, dir: &Path) -> Self {
        Self {
            options,
            dir: dir.to_owned(),
            figures: Vec::new(),
            memory: Vec::new(),
            failures: Vec::new(),
            postgres: None,
            tags: 0,
        }
    }

    /// Runs the two sides in turn, A B A B, and keeps the figure. A side that fails ends the case
    /// and is reported; other cases go on.
    pub(crate) fn pairs(
        &mut self,
        group: &'static str,
        case: &str,
        peer: &str,
        target: Target,
        mut ours: impl FnMut(&mut Self) -> Result<Run>,
        mut theirs: impl FnMut(&mut Self) -> Result<Run>,
    ) {
        let mut figure = Figure {
            group,
            case: case.to_owned(),
            peer: peer.to_owned(),
            ours: Vec::new(),
            theirs: Vec::new(),
            // A control has nothing to reach but a ratio of 1, which the reader sees.
            target: if self.options.control { Target::NONE } else { target },
        };
        let name = format!("{group}: {case}");
        let pairs = self.options.pairs;
        let ([a, b], ended) = in_turn(self, &name, pairs, [&mut ours, &mut theirs]);
        (figure.ours, figure.theirs) = (a, b);
        if let Err(error) = ended {
            self.fail(&format!("{name}: {error}"));
        }
        if !figure.ours.is_empty() {
            self.figures.push(figure);
        }
    }

    pub(crate) fn fail(&mut self, what: &str) {
        eprintln!("error: {what}");
        self.failures.push(what.to_owned());
    }

    /// The cluster of this run, started and filled at first use.
    pub(crate) fn postgres(&mut self) -> Result<&Postgres> {
        if self.postgres.is_none() {
            eprintln!("starting PostgreSQL");
            self.postgres = Some(Postgres::start(&self.dir, Transport::Tcp)?);
        }
        Ok(self.postgres.as_ref().expect("it was just started"))
    }

    /// Creates and fills `table` unless it is there.
    pub(crate) fn postgres_table(&mut self, table: &str, rows: u64, bytes: usize) -> Result<()> {
        let mut session = self.postgres()?.query()?;
        let exists = session.run(&format!("SELECT to_regclass('{table}') IS NOT NULL"))?;
        if exists.as_deref() == Some("t") {
            return Ok(());
        }
        eprintln!("filling {table} in PostgreSQL: {rows} rows of 10 x {bytes} bytes");
        origins::fill_postgres(&mut session, table, rows, bytes)
    }

    /// The path of a SQLite file of this run; `table` is created in it unless the file is there.
    pub(crate) fn sqlite_table(&self, table: &str, rows: u64, bytes: usize) -> Result<PathBuf> {
        let path = self.dir.join(format!("{table}.db"));
        if !path.exists() {
            eprintln!("filling {table} in SQLite: {rows} rows of 10 x {bytes} bytes");
            origins::fill_sqlite(&path, table, rows, bytes)?;
        }
        Ok(path)
    }

    /// Starts Destage before `origin` with `d` = `commit`.
    pub(crate) fn destage(&self, origin: &str, commit: &str) -> Result<Destage> {
        let config = DestageConfig {
            bin: self.options.bin.clone(),
            origin: origin.to_owned(),
            commit: commit.to_owned(),
            staleness: format!("{}s", self.options.staleness_seconds),
            transport: Transport::Tcp,
            extra: self.options.extra.clone(),
        };
        Destage::start(&self.dir, &config)
    }

    /// Destage, or a second Redis in a control run.
    pub(crate) fn ours(&self, origin: &str, commit: &str, control: Fsync) -> Result<Ours> {
        if self.options.control {
            return Ok(Ours::Control(Redis::start(&self.dir, control, Transport::Tcp)?));
        }
        Ok(Ours::Destage(self.destage(origin, commit)?))
    }

    /// A payload prefix that no earlier run used.
    pub(crate) fn next_tag(&mut self) -> String {
        self.tags += 1;
        format!("run{:05}.", self.tags)
    }
}

impl Ours {
    pub(crate) fn address(&self) -> &Listen {
        match self {
            Self::Destage(server) => &server.address,
            Self::Control(server) => &server.address,
        }
    }

    pub(crate) fn cpu(&self) -> Result<Duration> {
        match self {
            Self::Destage(server) => server.cpu(),
            Self::Control(server) => server.cpu(),
        }
    }

    /// Fills the cache by reading every row once; a control is given the rows instead.
    pub(crate) fn warm(&self, table: &str, rows: u64, bytes: usize) -> Result<()> {
        match self {
            Self::Destage(server) => warm(&server.address, table, rows),
            Self::Control(server) => server.preload(table, rows, &default_fields(bytes)),
        }
    }

    pub(crate) fn drain(&self) -> Result<()> {
        match self {
            Self::Destage(server) => server.drain(),
            Self::Control(_) => Ok(()),
        }
    }

    pub(crate) fn control(&self, word: &str) -> Result<()> {
        match self {
            Self::Destage(server) => server.control(&[word]).map(drop),
            Self::Control(_) => Ok(()),
        }
    }

    /// The fields of row 0 of `table`.
    pub(crate) fn fields(&self, table: &str) -> Result<Vec<(String, String)>> {
        use crate::control::Value;
        let key = format!("{table}:000000000000");
        let reply = Client::connect(self.address())?.call(&["HGETALL", &key])?;
        let Value::List(items) = reply else {
            return Err(format!("unexpected HGETALL of {key}: {reply:?}").into());
        };
        let text = |value: &Value| match value {
            Value::Text(text) => text.clone(),
            other => format!("{other:?}"),
        };
        let pairs: Vec<_> = items.chunks_exact(2).map(|p| (text(&p[0]), text(&p[1]))).collect();
        if pairs.len() < origins::FIELDS {
            return Err(format!("HGETALL of {key} has only {} fields", pairs.len()).into());
        }
        Ok(pairs)
    }
}

fn default_fields(bytes: usize) -> Vec<(String, String)> {
    (0..origins::FIELDS).map(|at| (format!("f{at}"), "x".repeat(bytes))).collect()
}

/// Reads every row of `table` once.
pub(crate) fn warm(address: &Listen, table: &str, rows: u64) -> Result<()> {
    let mut load = Load::resp(address.clone(), &["HGETALL", &format!("{table}:__rand_int__")], 0)?;
    (load.connections, load.pipeline) = (16, 16);
    (load.shape, load.key_space, load.bound) = (Shape::Each, rows, Bound::Requests(rows));
    let outcome = load.run()?.without_errors()?;
    eprintln!("warmed {rows} rows of {table} in {:.1} s", outcome.elapsed.as_secs_f64());
    Ok(())
}

/// Runs `work` while another thread asks for the staleness ten times a second; the largest seen.
pub(crate) fn watching<T>(server: &Destage, work: impl FnOnce() -> Result<T>) -> Result<(T, f64)> {
    let admin = server.admin();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let watcher = scope.spawn(|| -> std::result::Result<f64, String> {
            let mut largest = 0.0f64;
            while !done.load(Ordering::Relaxed) {
                let now = status(admin).map_err(|error| error.to_string())?;
                largest = largest.max(now.staleness_seconds);
                thread::sleep(Duration::from_millis(100));
            }
            Ok(largest)
        });
        let result = work();
        done.store(true, Ordering::Relaxed);
        let watched = watcher.join().map_err(|_| "the staleness watcher panicked")?;
        Ok((result?, watched.map_err(|error| format!("failed to watch the staleness: {error}"))?))
    })
}

/// CPU time per request, microseconds.
pub(crate) fn cpu_us(before: Duration, after: Duration, requests: u64) -> f64 {
    after.saturating_sub(before).as_secs_f64() * 1e6 / requests.max(1) as f64
}
