//! The same load on every side, counted until the database holds all of it.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use super::cli::Peer;
use super::judge::judge;
use super::program::{BYTES, Programs, member, number};
use crate::Result;
use crate::bench::{cpu_us, in_turn};
use crate::cpu;
use crate::figure::{Figure, Run, Target, thousands};
use crate::report::Table;
use crate::servers::{
    Destage, DestageConfig, Fsync, Java, Postgres, Redis, Transport, free_address,
};
use crate::stats::Spread;

const GROUP: &str = "Peers: write-behind maps, counted to the end of the drain";
/// The mixes, by their shares of updates in percent.
const MIXES: [(&str, u64); 2] = [("YCSB A", 50), ("updates only", 100)];

/// What is measured, and how long.
pub(super) struct Rates<'a> {
    pub(super) programs: Programs<'a>,
    pub(super) bin: &'a Path,
    pub(super) peers: &'a [Peer],
    pub(super) time: Duration,
    pub(super) rounds: usize,
    pub(super) seed: u64,
    pub(super) extra: &'a [String],
}

/// What came of it.
#[derive(Debug, Default)]
pub(super) struct Measured {
    pub(super) figures: Vec<Figure>,
    pub(super) tables: Vec<Table>,
    pub(super) failures: Vec<String>,
}

/// Who answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Side {
    /// With this d.
    Destage(&'static str),
    Peer(Peer),
}

impl Side {
    const ALL: [Self; 5] = [
        Self::Destage("1s"),
        Self::Destage("0"),
        Self::Peer(Peer::Hazelcast),
        Self::Peer(Peer::HazelcastClient),
        Self::Peer(Peer::Redisson),
    ];

    fn name(self) -> String {
        match self {
            Self::Destage(commit) => format!("Destage, d = {commit}"),
            Self::Peer(Peer::Hazelcast) => "Hazelcast, embedded".into(),
            Self::Peer(Peer::HazelcastClient) => "Hazelcast, client over TCP".into(),
            Self::Peer(Peer::Redisson) => "Redisson".into(),
        }
    }

    fn table(self) -> &'static str {
        match self {
            Self::Destage(_) => "destaged",
            Self::Peer(Peer::Hazelcast) => "embedded",
            Self::Peer(Peer::HazelcastClient) => "clients",
            Self::Peer(Peer::Redisson) => "redisson",
        }
    }

    /// Calls another process by a socket.
    fn is_remote(self) -> bool {
        self != Self::Peer(Peer::Hazelcast)
    }
}

/// A program with the servers that it needs.
struct Stand {
    java: Java,
    member: Option<Java>,
    redis: Option<Redis>,
    destage: Option<Destage>,
}

impl Stand {
    fn start(rates: &Rates<'_>, origin: &Postgres, side: Side) -> Result<Self> {
        let (programs, table) = (&rates.programs, side.table());
        let start = |name: &str, words: &[String]| programs.start(name, origin, table, words);
        let (mut member_of, mut redis, mut destage) = (None, None, None);
        let java = match side {
            Side::Peer(Peer::Hazelcast) => start("hazelcast", &member(free_address()?, &[]))?,
            Side::Peer(Peer::HazelcastClient) => {
                let address = free_address()?;
                member_of = Some(start("hazelcast", &member(address, &[]))?);
                start("hazelcast-client", &[format!("members={address}")])?
            }
            Side::Peer(Peer::Redisson) => {
                let server = Redis::start(programs.dir, Fsync::Off, Transport::Tcp)?;
                let words = [format!("server={}", server.address)];
                redis = Some(server);
                start("redisson", &words)?
            }
            Side::Destage(commit) => {
                let config = DestageConfig {
                    bin: rates.bin.to_owned(),
                    origin: Postgres::url(origin.address),
                    commit: commit.to_owned(),
                    staleness: "30s".into(),
                    transport: Transport::Tcp,
                    extra: rates.extra.to_vec(),
                };
                let server = Destage::start(programs.dir, &config)?;
                let words = [format!("server={}", server.address)];
                destage = Some(server);
                start("destage", &words)?
            }
        };
        Ok(Self { java, member: member_of, redis, destage })
    }

    /// CPU time of the program and its servers, without the database.
    fn cpu(&self) -> Result<Duration> {
        let pids = [
            Some(self.java.pid()),
            self.member.as_ref().map(Java::pid),
            self.redis.as_ref().map(Redis::pid),
            self.destage.as_ref().map(Destage::pid),
        ];
        pids.into_iter().flatten().map(cpu::tree_cpu).sum()
    }
}

/// What a figure has no room for.
#[derive(Clone, Copy, Debug, Default)]
struct Beside {
    acknowledged_per_second: f64,
    drain_seconds: f64,
    wrong_rows: u64,
    wrong_reads: f64,
}

/// The state of a run.
struct Bench<'a> {
    rates: &'a Rates<'a>,
    origin: Postgres,
    stands: BTreeMap<&'static str, Stand>,
    beside: BTreeMap<(u64, Side), Vec<Beside>>,
}

impl Rates<'_> {
    pub(super) fn run(&self) -> Result<Measured> {
        let origin = Postgres::start(self.programs.dir, Transport::Tcp)?;
        let mut bench =
            Bench { rates: self, origin, stands: BTreeMap::new(), beside: BTreeMap::new() };
        for side in self.sides() {
            bench.prepare(side)?;
        }
        let mut measured = Measured::default();
        for (name, updates) in MIXES {
            let mut sides = Side::ALL.map(|side| {
                move |bench: &mut Bench<'_>| -> Result<Run> {
                    if bench.rates.sides().any(|wanted| wanted == side) {
                        let run = bench.run(side, updates);
                        run.map_err(|error| format!("{}: {error}", side.name()).into())
                    } else {
                        Ok(Run::default())
                    }
                }
            });
            let sides = sides.each_mut().map(|side| side as crate::bench::Side<'_, Bench<'_>>);
            let (runs, ended) = in_turn(&mut bench, name, self.rounds, sides);
            measured.failures.extend(ended.err().map(|error| format!("{name}: {error}")));
            let wanted: Vec<(Side, Vec<Run>)> = Side::ALL
                .into_iter()
                .zip(runs)
                .filter(|(side, _)| self.sides().any(|wanted| wanted == *side))
                .collect();
            measured.figures.extend(figures(name, &wanted));
            measured.tables.push(bench.table(name, updates, &wanted));
        }
        Ok(measured)
    }

    fn sides(&self) -> impl Iterator<Item = Side> {
        Side::ALL.into_iter().filter(|side| match side {
            Side::Destage(_) => true,
            Side::Peer(peer) => self.peers.contains(peer),
        })
    }
}

impl Bench<'_> {
    /// Fills the side's table, starts who stands there, and lets it read and write for a while.
    fn prepare(&mut self, side: Side) -> Result<()> {
        let (table, rates) = (side.table(), self.rates);
        if self.stands.contains_key(table) {
            return Ok(());
        }
        let records = rates.programs.records;
        let mut session = self.origin.query()?;
        session.run(&format!("CREATE TABLE {table} (id bigint PRIMARY KEY, v text NOT NULL)"))?;
        session.run(&format!(
            "INSERT INTO {table} SELECT g, rpad('000000000000', {BYTES}, '.') FROM generate_series(0, {records}::bigint - 1) g"
        ))?;
        session.run(&format!("VACUUM ANALYZE {table}"))?;
        session.run("CHECKPOINT")?;
        let mut stand = Stand::start(rates, &self.origin, side)?;
        let found = number(&stand.java.call("warm")?, "found")?;
        if found as u64 != records {
            return Err(format!("{} read {found} records of {records}", side.name()).into());
        }
        self.stands.insert(table, stand);
        // Java's compilers see the load before it is measured.
        self.load(side, 50, rates.time.min(Duration::from_secs(2))).map(drop)
    }

    /// A load and its drain: requests, the seconds of each, the latencies, and reads of something else than was written.
    fn load(&mut self, side: Side, updates: u64, time: Duration) -> Result<[f64; 6]> {
        let seed = self.rates.seed;
        let stand = self.stands.get_mut(side.table()).ok_or("the side was not started")?;
        if let (Side::Destage(commit), Some(server)) = (side, &stand.destage) {
            server.control(&["POLICY", "write-back", &format!("commit={commit}")])?;
        }
        let milliseconds = time.as_millis();
        let load = format!("load milliseconds={milliseconds} updates={updates} bytes={BYTES}");
        let answer = stand.java.call(&format!("{load} seed={seed}"))?;
        if number(&answer, "failures")? > 0.0 {
            return Err(format!("requests failed: {}", answer["failure"]).into());
        }
        let drained = number(&stand.java.call("drain")?, "seconds")?;
        let of = |name: &str| number(&answer, name);
        let (requests, seconds) = (of("requests")?, of("seconds")?);
        Ok([requests, seconds, drained, of("p50_us")?, of("p99_us")?, of("wrong_reads")?])
    }

    fn run(&mut self, side: Side, updates: u64) -> Result<Run> {
        let stand = |bench: &Self| bench.stands.get(side.table()).map(Stand::cpu);
        let cpu = stand(self).transpose()?.unwrap_or_default();
        let origin_cpu = self.origin.cpu()?;
        let time = self.rates.time;
        let [requests, seconds, drain_seconds, p50_us, p99_us, wrong_reads] =
            self.load(side, updates, time)?;
        let cpu_after = stand(self).transpose()?.unwrap_or_default();
        let origin_cpu = cpu_us(origin_cpu, self.origin.cpu()?, requests as u64);
        let file = self.rates.programs.acknowledged(side.table());
        let verdict = judge(&self.origin, side.table(), &file, None)?;
        if matches!(side, Side::Destage(_)) && !verdict.is_clean() || verdict.acknowledged == 0 {
            return Err(format!("the database lacks what was acknowledged: {verdict:?}").into());
        }
        self.beside.entry((updates, side)).or_default().push(Beside {
            acknowledged_per_second: requests / seconds,
            drain_seconds,
            wrong_rows: verdict.lost + verdict.back,
            wrong_reads,
        });
        Ok(Run {
            requests: requests as u64,
            per_second: requests / (seconds + drain_seconds),
            cpu_us: cpu_us(cpu, cpu_after, requests as u64),
            origin_cpu_us: Some(origin_cpu),
            p50_us,
            p99_us,
            ..Run::default()
        })
    }

    fn table(&self, name: &str, updates: u64, sides: &[(Side, Vec<Run>)]) -> Table {
        let rows = sides.iter().map(|(side, runs)| {
            let beside = self.beside.get(&(updates, *side)).map_or(&[][..], Vec::as_slice);
            let median = |of: fn(&Beside) -> f64| {
                Spread::of(beside.iter().map(of)).map_or(f64::NAN, |spread| spread.median)
            };
            let counted = Spread::of(runs.iter().map(|run| run.per_second));
            let sum = |of: fn(&Beside) -> f64| beside.iter().map(of).sum::<f64>();
            vec![
                side.name(),
                counted.map_or_else(|| "-".into(), |spread| thousands(spread.median)),
                thousands(median(|it| it.acknowledged_per_second)),
                format!("{:.2}", median(|it| it.drain_seconds)),
                thousands(sum(|it| it.wrong_rows as f64)),
                thousands(sum(|it| it.wrong_reads)),
            ]
        });
        Table {
            title: format!("Peers: {name}"),
            note: "Medians; the last two columns are sums over all rounds. `wrong rows` are records whose last acknowledged write \
                   the database does not hold after the drain, `wrong reads` those that showed something else than the reader's \
                   own last write."
                .into(),
            columns: ["side", "actions/s, drain included", "acknowledged/s", "drain, s", "wrong rows", "wrong reads"]
                .map(str::to_owned)
                .to_vec(),
            rows: rows.collect(),
        }
    }
}

/// Against each peer, and which of them is the better one.
fn figures(name: &str, sides: &[(Side, Vec<Run>)]) -> Vec<Figure> {
    let median = |runs: &[Run]| {
        Spread::of(runs.iter().map(|run| run.per_second)).map_or(0.0, |spread| spread.median)
    };
    let best = |is_wanted: fn(Side) -> bool| {
        let peers =
            sides.iter().filter(|(side, _)| matches!(side, Side::Peer(_)) && is_wanted(*side));
        peers.max_by(|(_, a), (_, b)| median(a).total_cmp(&median(b))).map(|(side, _)| *side)
    };
    let (best_remote, best_of_all) = (best(Side::is_remote), best(|_| true));
    let mut figures = Vec::new();
    for (ours, runs) in sides {
        let Side::Destage(commit) = ours else { continue };
        for (peer, theirs) in sides.iter().filter(|(side, _)| matches!(side, Side::Peer(_))) {
            let is_better = [best_remote, best_of_all].contains(&Some(*peer));
            let least = if *commit == "0" { 2.0 } else { 5.0 };
            figures.push(Figure {
                group: GROUP,
                case: format!("{name}: d = {commit}, against {}", peer.name()),
                peer: peer.name(),
                ours: runs.clone(),
                theirs: theirs.clone(),
                target: if is_better { Target::ratio(least) } else { Target::NONE },
            });
        }
    }
    figures
}
