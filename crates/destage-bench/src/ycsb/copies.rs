//! Figure 9 of the paper: what a mix costs with more copies of the buffered writes.

use super::origin::{self, DATABASE};
use super::side::{self, Bench, Case, OURS, Place, Side};
use super::workload::Workload;
use crate::Result;
use crate::behind::Behind;
use crate::bench::{in_turn, warm};
use crate::figure::{Run, thousands};
use crate::keys::Shape;
use crate::report::Table;
use crate::servers::{Destage, DestageConfig, Fsync, Postgres, Redis, Transport};
use crate::stats::Spread;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Copies of each side; none is the journal on this disk.
const COPIES: [usize; 4] = [0, 1, 2, 3];
const WORKLOADS: [Workload; 3] = [Workload::A, Workload::B, Workload::S];
const CLIENTS: usize = 16;

/// The paper's, with four servers and with eight: lost of the throughput with three copies.
const PAPER: [&str; 3] = ["-", "19 % and 6 %", "not noticeable"];

/// What is measured, and how long.
pub(crate) struct Nine<'a> {
    pub(crate) bin: PathBuf,
    pub(crate) dir: &'a Path,
    pub(crate) records: u64,
    pub(crate) time: Duration,
    pub(crate) rounds: usize,
    pub(crate) seed: u64,
    pub(crate) extra: &'a [String],
    /// The log's servers, each named by one.
    pub(crate) replicas: &'a [String],
}

/// The table, and what could not be measured.
///
/// # Errors
///
/// A server does not start.
pub(crate) fn figure_nine(nine: &Nine<'_>) -> Result<(Table, Vec<String>)> {
    let origin = Behind::Postgres(Postgres::start(nine.dir, Transport::Tcp)?);
    origin::fill(&origin, OURS, nine.records)?;
    let url = origin.near_url(DATABASE);
    let mut bench = Bench::new(nine.dir.to_owned(), origin, nine.records, nine.time, nine.seed);
    let mut failures = Vec::new();
    let mut rates: Vec<Vec<f64>> = vec![Vec::new(); WORKLOADS.len() * COPIES.len()];
    for round in 0..nine.rounds {
        for copies in COPIES {
            let redis = Redis::start(nine.dir, Fsync::Off, Transport::Tcp)?;
            let server = start(nine, &url, copies, round)?;
            warm(&server.address, OURS, nine.records)?;
            let place = Place { server, redis, via: bench.origin.near()? };
            for (row, workload) in WORKLOADS.into_iter().enumerate() {
                let case =
                    Case { workload, shape: Shape::Uniform, clients: CLIENTS, is_far: false };
                let name = format!("workload {workload}, {copies} copies");
                let mut run = |bench: &mut Bench| side::run(bench, &place, Side::Back("0"), &case);
                let ([runs], ended) = in_turn(&mut bench, &name, 1, [&mut run]);
                failures.extend(ended.err().map(|error| format!("{name}: {error}")));
                let rate = runs.iter().map(|run: &Run| run.per_second);
                rates[row * COPIES.len() + copies].extend(rate);
            }
        }
    }
    Ok((table(&rates), failures))
}

fn start(nine: &Nine<'_>, url: &str, copies: usize, round: usize) -> Result<Destage> {
    let mut extra = nine.extra.to_vec();
    if copies > 0 {
        let log = format!("nine-{copies}-{round}");
        let flags = [("--replicas", nine.replicas.join(",")), ("--replica-log", log)];
        let flags = flags.into_iter().chain([("--copies", copies.to_string())]);
        extra.extend(flags.flat_map(|(flag, value)| [flag.to_owned(), value]));
    }
    let config = DestageConfig {
        bin: nine.bin.clone(),
        origin: url.to_owned(),
        commit: "0".into(),
        staleness: "30s".into(),
        transport: Transport::Tcp,
        extra,
    };
    Destage::start_unforced(nine.dir, &config)
}

fn table(rates: &[Vec<f64>]) -> Table {
    let rows = WORKLOADS.into_iter().enumerate().map(|(row, workload)| {
        let of = |copies: usize| Spread::of(rates[row * COPIES.len() + copies].iter().copied());
        let cells =
            COPIES.map(|copies| of(copies).map_or_else(|| "-".into(), |s| thousands(s.median)));
        let lost = of(1).zip(of(3)).map(|(one, three)| 100.0 * (1.0 - three.median / one.median));
        let lost = lost.map_or_else(|| "-".into(), |lost| format!("{lost:.0} %"));
        let first = std::iter::once(workload.to_string()).chain(cells);
        first.chain([lost, PAPER[row].to_owned()]).collect()
    });
    Table {
        title: "Replicas: YCSB by number of copies (Figure 9), actions per second".into(),
        note: format!(
            "{CLIENTS} clients, uniform keys, d = 0, three servers on this machine, counted to the end of the drain. Each record \
             that was acknowledged was found at the origin as its last writer left it. The paper's servers are four and eight \
             machines of their own, each client commits there, and workload A is not in its figure."
        ),
        columns: ["workload", "the journal on this disk", "1 copy", "2 copies", "3 copies"]
            .into_iter()
            .chain(["lost with 3 of 1", "lost in the paper"])
            .map(str::to_owned)
            .collect(),
        rows: rows.collect(),
    }
}
