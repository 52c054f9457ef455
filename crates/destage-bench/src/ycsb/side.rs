//! One side, run once: the clients, the drain, the check of what the origin holds.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use destage_runtime::sockets::Listen;

use super::check;
use super::link::Link;
use super::origin::{self, DATABASE};
use super::workload::{Generator, INSERT, KINDS, READ, SCAN, Stream, UPDATE, Workload};
use crate::Result;
use crate::behind::{Behind, driver, runtime};
use crate::bench::{cpu_us, watching};
use crate::control::Value;
use crate::drive::{Actor, Tally, drive};
use crate::figure::Run;
use crate::keys::Shape;
use crate::servers::{Destage, Redis};

/// The tables are alike, so that neither side's versions and vacuums burden the other.
pub(super) const OURS: &str = "usertable";
pub(super) const DIRECT: &str = "direct";
/// Keys that one run may insert.
const NEW_KEYS: u64 = 1_000_000_000;

/// Who answers, under what policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Direct,
    Around,
    Through,
    /// With this d.
    Back(&'static str),
    Redis,
}

impl Side {
    /// In the order of the tables' columns.
    pub(super) const ALL: [Self; 6] =
        [Self::Direct, Self::Around, Self::Through, Self::Back("0"), Self::Back("1s"), Self::Redis];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Direct => "the origin directly",
            Self::Around => "write-around",
            Self::Through => "write-through",
            Self::Back("0") => "write-back, d = 0",
            Self::Back(_) => "write-back, d = 1s",
            Self::Redis => "redis-server",
        }
    }

    /// The words of `DESTAGE POLICY`.
    fn policy(self) -> Option<Vec<&'static str>> {
        match self {
            Self::Direct | Self::Redis => None,
            Self::Around => Some(vec!["POLICY", "write-around"]),
            Self::Through => Some(vec!["POLICY", "write-through"]),
            Self::Back("0") => Some(vec!["POLICY", "write-back", "commit=0"]),
            Self::Back(_) => Some(vec!["POLICY", "write-back", "commit=1s"]),
        }
    }
}

/// What each side of a comparison is given.
#[derive(Clone, Copy, Debug)]
pub(super) struct Case {
    pub(super) workload: Workload,
    pub(super) shape: Shape,
    pub(super) clients: usize,
    /// The origin is 1 ms away each way.
    pub(super) is_far: bool,
}

impl Case {
    pub(super) fn keys(&self) -> &'static str {
        if self.shape == Shape::Zipfian { "zipfian" } else { "uniform" }
    }
}

/// Where requests go: the servers of one distance.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) server: Destage,
    pub(super) redis: Redis,
    /// Where the origin is reached.
    pub(super) via: Listen,
}

/// The state of a run.
#[derive(Debug)]
pub(super) struct Bench {
    pub(super) dir: PathBuf,
    pub(super) origin: Behind,
    pub(super) records: u64,
    pub(super) time: Duration,
    pub(super) seed: u64,
    pub(super) staleness_seconds: u64,
    runs: u64,
    /// Mean times of actions in milliseconds, by distance, side and kind.
    pub(super) times: BTreeMap<(bool, &'static str, usize), Vec<f64>>,
    /// Round trips and actions of each side's clients.
    pub(super) trips: BTreeMap<&'static str, (u64, u64)>,
}

impl Bench {
    pub(super) fn new(
        dir: PathBuf,
        origin: Behind,
        records: u64,
        time: Duration,
        seed: u64,
    ) -> Self {
        let (times, trips) = (BTreeMap::new(), BTreeMap::new());
        Self { dir, origin, records, time, seed, staleness_seconds: 30, runs: 0, times, trips }
    }
}

/// A client of some side.
struct Client {
    generator: Generator,
    link: Link,
    written: Vec<(u64, u64)>,
}

impl Actor for Client {
    async fn act(&mut self) -> Result<usize> {
        let action = self.generator.next();
        self.link.perform(action).await?;
        self.written.extend(action.written());
        Ok(action.kind())
    }
}

/// Runs a side once.
///
/// # Errors
///
/// A request failed, the staleness passed its bound, or the origin does not hold what was acknowledged.
pub(super) fn run(bench: &mut Bench, place: &Place, side: Side, case: &Case) -> Result<Run> {
    bench.runs += 1;
    let tag = format!("run{:05}.", bench.runs);
    if let Some(words) = side.policy() {
        let changed = place.server.control(&words)?;
        if !matches!(changed, Value::Text(_)) {
            return Err(format!("the policy was not changed: {changed:?}").into());
        }
    }
    let runtime = runtime()?;
    let clients = runtime.block_on(clients(bench, place, side, case, &tag))?;
    let (cpu, origin_cpu) = (server_cpu(bench, place, side)?, bench.origin.cpu()?);
    let start = Instant::now();
    let work = || -> Result<_> {
        let (clients, tally) = runtime.block_on(drive(clients, KINDS, bench.time))?;
        if side.policy().is_some() {
            place.server.drain()?;
        }
        Ok((clients, tally, start.elapsed()))
    };
    let ((clients, tally, elapsed), staleness) = match side.policy() {
        Some(_) => watching(&place.server, work).map(|(done, worst)| (done, Some(worst)))?,
        None => (work()?, None),
    };
    let mut run = summary(&tally, elapsed);
    run.cpu_us = cpu_us(cpu, server_cpu(bench, place, side)?, run.requests);
    if side.policy().is_some() {
        run.origin_cpu_us = Some(cpu_us(origin_cpu, bench.origin.cpu()?, run.requests));
    }
    run.staleness_max_seconds = staleness;
    if let Some(worst) = staleness.filter(|worst| *worst > bench.staleness_seconds as f64) {
        return Err(format!("the staleness reached {worst:.1} s, above its bound").into());
    }
    note(bench, side, case, &tally, &clients);
    if case.workload.writes() && side != Side::Redis {
        let written: Vec<_> = clients.into_iter().map(|client| client.written).collect();
        let table = if side == Side::Direct { DIRECT } else { OURS };
        check::check(&written, &origin::found(&bench.origin, table, &tag)?)?;
    }
    Ok(run)
}

async fn clients(
    bench: &Bench,
    place: &Place,
    side: Side,
    case: &Case,
    tag: &str,
) -> Result<Vec<Client>> {
    let stream = Stream {
        workload: case.workload,
        shape: case.shape,
        records: bench.records,
        first_new: bench.runs * NEW_KEYS,
        seed: bench.seed,
        clients: case.clients as u64,
    };
    let driver = match (side, &bench.origin, &place.via) {
        (Side::Direct, Behind::Mongodb(_), Listen::Tcp(via)) => Some(driver(*via).await?),
        _ => None,
    };
    let mut clients = Vec::with_capacity(case.clients);
    for lane in 0..stream.clients {
        let link = match (side, &driver) {
            (Side::Direct, Some(driver)) => Link::documents(driver, DATABASE, DIRECT, tag),
            (Side::Direct, None) => Link::postgres(&place.via, DIRECT, tag).await?,
            (Side::Redis, _) => Link::keys(&place.redis.address, OURS, tag).await?,
            _ => Link::keys(&place.server.address, OURS, tag).await?,
        };
        clients.push(Client { generator: Generator::new(stream, lane), link, written: Vec::new() });
    }
    Ok(clients)
}

fn server_cpu(bench: &Bench, place: &Place, side: Side) -> Result<Duration> {
    match side {
        Side::Direct => bench.origin.cpu(),
        Side::Redis => place.redis.cpu(),
        _ => place.server.cpu(),
    }
}

fn summary(tally: &Tally, elapsed: Duration) -> Run {
    let all = tally.all();
    Run {
        requests: tally.actions(),
        per_second: tally.actions() as f64 / elapsed.as_secs_f64(),
        p50_us: all.value_at_quantile(0.5) as f64,
        p99_us: all.value_at_quantile(0.99) as f64,
        ..Run::default()
    }
}

/// Keeps what the tables of response times and round trips show.
fn note(bench: &mut Bench, side: Side, case: &Case, tally: &Tally, clients: &[Client]) {
    let (trips, actions) = bench.trips.entry(side.name()).or_default();
    *trips += clients.iter().map(|client| client.link.trips()).sum::<u64>();
    *actions += tally.actions();
    if case.shape != Shape::Uniform {
        return;
    }
    for kind in [READ, SCAN, UPDATE, INSERT] {
        // Of the mixes with many of its kind.
        let is_shown = match kind {
            READ => case.workload == Workload::B,
            SCAN => case.workload == Workload::S,
            UPDATE => case.workload == Workload::A,
            _ => true,
        };
        if let Some(mean) = tally.mean_ms(kind).filter(|_| is_shown && case.clients <= 4) {
            bench.times.entry((case.is_far, side.name(), kind)).or_default().push(mean);
        }
    }
}
