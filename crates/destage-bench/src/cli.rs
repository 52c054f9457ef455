//! The command line.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};

use crate::behind::BehindArgs;
use crate::block::BlockArgs;
use crate::device::DeviceArgs;
use crate::keys::Shape;
use crate::mount::MountArgs;
use crate::servers::Transport;
use crate::sim::SimArgs;
use crate::ycsb::workload::Workload;

/// Side-by-side benchmarks of Destage and its peers.
#[derive(Debug, Parser)]
#[command(name = "destage-bench", version)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Compare `destage serve` with redis-server, PostgreSQL and SQLite
    Data(DataArgs),
    /// Compare `destage block` with the cache's own disk, with qemu-nbd, and its policies with each other
    Block(BlockArgs),
    /// Compare `destage mount` with ceph-fuse and with a local folder
    Mount(MountArgs),
    /// Compare TPC-C on the library with TPC-C at PostgreSQL itself
    Tpcc(TpccArgs),
    /// Compare the mixes of YCSB at the origin itself, under every policy, and at Redis
    Ycsb(YcsbArgs),
    /// Compare the social actions of BG at the origin itself and under the policies
    Bg(BgArgs),
    /// Measure buffered writes on other servers: what copies cost, and how long a take-over takes
    Replicas(ReplicasArgs),
    /// Compare how fast `destage sim` and libCacheSim simulate the same accesses
    Sim(SimArgs),
    /// Serve an NBD export that takes as long as a modelled disk
    #[command(hide = true)]
    Device(DeviceArgs),
    /// Send one command over and over to a server that speaks the Redis protocol
    Load(LoadArgs),
    /// Forward TCP connections, each byte later by a fixed delay
    Proxy(ProxyArgs),
}

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

#[derive(Debug, Args)]
pub(crate) struct TpccArgs {
    /// A small database and short runs: shows that it works, not how fast
    #[arg(long)]
    pub(crate) quick: bool,
    /// Warehouses [default: 2, with --quick 1]
    #[arg(long, value_name = "COUNT")]
    pub(crate) warehouses: Option<i64>,
    /// Items; the standard has 100000 [default: 100000, with --quick 1000]
    #[arg(long, value_name = "COUNT")]
    pub(crate) items: Option<i64>,
    /// Customers of each district; the standard has 3000 [default: 3000, with --quick 100]
    #[arg(long, value_name = "COUNT")]
    pub(crate) customers: Option<i64>,
    /// Clients [default: one per warehouse]
    #[arg(long, value_name = "COUNT")]
    pub(crate) threads: Option<usize>,
    /// Time of each side that is measured, in seconds [default: 20, with --quick 1]
    #[arg(long, value_name = "SECONDS")]
    pub(crate) seconds: Option<f64>,
    /// Before a SQLite file; then there is no side without Destage
    #[arg(long)]
    pub(crate) sqlite: bool,
    /// Leave out the origin 1 ms away
    #[arg(long)]
    pub(crate) near: bool,
    /// Seed of the population and the inputs
    #[arg(long, default_value_t = 1, value_name = "NUMBER")]
    pub(crate) seed: u64,
    /// Perform transactions at this origin until killed
    #[arg(long, hide = true, value_name = "URL", requires = "worker_data")]
    pub(crate) worker: Option<String>,
    /// The worker's journal
    #[arg(long, hide = true, value_name = "PATH")]
    pub(crate) worker_data: Option<PathBuf>,
    /// The worker's origin is divided into a domain per warehouse
    #[arg(long, hide = true)]
    pub(crate) worker_domains: bool,
    #[command(flatten)]
    pub(crate) run: RunArgs,
}

#[derive(Debug, Args)]
pub(crate) struct YcsbArgs {
    /// Few records, short runs, once each: shows that it works, not how fast
    #[arg(long)]
    pub(crate) quick: bool,
    /// Records [default: 1000000, with --quick 10000; before MongoDB 1000 and 200]
    #[arg(long, value_name = "COUNT")]
    pub(crate) records: Option<u64>,
    /// Clients in a closed loop; several numbers are compared one by one
    #[arg(long, value_delimiter = ',', default_value = "4,16", value_name = "COUNTS")]
    pub(crate) clients: Vec<usize>,
    /// The mixes: load, A, B, C, S
    #[arg(long, value_delimiter = ',', default_value = "load,A,B,C,S", value_name = "NAMES")]
    pub(crate) workloads: Vec<Workload>,
    /// Which records: uniform, zipfian
    #[arg(long, value_delimiter = ',', value_parser = random_shape, default_value = "uniform,zipfian", value_name = "SHAPES")]
    pub(crate) keys: Vec<Shape>,
    /// Leave out the origin 1 ms away
    #[arg(long)]
    pub(crate) near: bool,
    /// Connect to all servers through unix sockets instead of TCP, but for the origin 1 ms away
    #[arg(long)]
    pub(crate) unix: bool,
    /// Time of a run, without its drain, seconds [default: 3, with --quick 0.3]
    #[arg(long, value_name = "SECONDS")]
    pub(crate) seconds: Option<f64>,
    /// Rounds of runs per case [default: 2, with --quick 1]
    #[arg(long, value_name = "COUNT")]
    pub(crate) pairs: Option<usize>,
    /// Seed of the streams of actions
    #[arg(long, default_value_t = 1, value_name = "NUMBER")]
    pub(crate) seed: u64,
    /// The staleness bound D that Destage is given and held to, seconds
    #[arg(long, default_value_t = 30, value_name = "SECONDS")]
    pub(crate) staleness_seconds: u64,
    #[command(flatten)]
    pub(crate) behind: BehindArgs,
    #[command(flatten)]
    pub(crate) run: RunArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ReplicasArgs {
    /// Few records, short runs, once each: shows that it works, not how fast
    #[arg(long)]
    pub(crate) quick: bool,
    /// Run only this part; may be repeated
    #[arg(long, value_enum, value_name = "NAME")]
    pub(crate) only: Vec<crate::replicas::Part>,
    /// Records [default: 100000, with --quick 3000]
    #[arg(long, value_name = "COUNT")]
    pub(crate) records: Option<u64>,
    /// Undecided groups at a take-over; several numbers are measured one by one [default: 10,100000,1000000, with --quick
    /// 10,1000]
    #[arg(long, value_delimiter = ',', value_name = "COUNTS")]
    pub(crate) groups: Vec<u64>,
    /// Time of a run, without its drain, seconds [default: 4, with --quick 0.3]
    #[arg(long, value_name = "SECONDS")]
    pub(crate) seconds: Option<f64>,
    /// Rounds of runs [default: 3, with --quick 1]
    #[arg(long, value_name = "COUNT")]
    pub(crate) pairs: Option<usize>,
    /// Seed of the streams of keys and actions
    #[arg(long, default_value_t = 1, value_name = "NUMBER")]
    pub(crate) seed: u64,
    #[command(flatten)]
    pub(crate) run: RunArgs,
}

#[derive(Debug, Args)]
pub(crate) struct BgArgs {
    /// Few members, short runs, one kill: shows that it works, not how fast
    #[arg(long)]
    pub(crate) quick: bool,
    /// Members [default: 10000, with --quick 300; before MongoDB 300 and 60]
    #[arg(long, value_name = "COUNT")]
    pub(crate) members: Option<u64>,
    /// Friends of each member at first; even [default: 100, with --quick 20; before MongoDB 20 and 10]
    #[arg(long, value_name = "COUNT")]
    pub(crate) friends: Option<u64>,
    /// Invitations that each member has at first [default: 10, with --quick 5]
    #[arg(long, value_name = "COUNT")]
    pub(crate) pending: Option<u64>,
    /// Clients in a closed loop, from few to many: how far the search goes [default: 1,4,16,64, with --quick 1,4]
    #[arg(long, value_delimiter = ',', value_name = "COUNTS")]
    pub(crate) clients: Vec<usize>,
    /// Time of a run, without its drain, seconds [default: 2, with --quick 0.2]
    #[arg(long, value_name = "SECONDS")]
    pub(crate) seconds: Option<f64>,
    /// Rounds of runs per mix and number of clients [default: 3, with --quick or before MongoDB 1]
    #[arg(long, value_name = "COUNT")]
    pub(crate) pairs: Option<usize>,
    /// Seed of the streams of actions
    #[arg(long, default_value_t = 1, value_name = "NUMBER")]
    pub(crate) seed: u64,
    #[command(flatten)]
    pub(crate) behind: BehindArgs,
    #[command(flatten)]
    pub(crate) run: RunArgs,
}

impl YcsbArgs {
    pub(crate) fn transport(&self) -> Transport {
        if self.unix { Transport::Unix } else { Transport::Tcp }
    }
}

/// What every comparison asks: the program, the place, where the figures go.
#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// The program to measure [default: `destage` beside this program]
    #[arg(long, env = "DESTAGE_BIN", hide_env = true, value_name = "PATH")]
    pub(crate) destage_bin: Option<PathBuf>,
    /// A further argument for the server that is measured; may be repeated
    #[arg(long, value_name = "ARGUMENT", allow_hyphen_values = true)]
    pub(crate) destage_arg: Vec<String>,
    /// Folder for the servers' and the caches' data, on the disk to be measured; removed afterwards [default: the build's
    /// target folder]
    #[arg(long, value_name = "PATH")]
    pub(crate) dir: Option<PathBuf>,
    /// Keep the data and the logs
    #[arg(long)]
    pub(crate) keep: bool,
    /// Write every run's figures to this file
    #[arg(long, value_name = "PATH")]
    pub(crate) json: Option<PathBuf>,
    /// Put the tables between the markers of this document
    #[arg(long, value_name = "PATH")]
    pub(crate) output: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct LoadArgs {
    /// The server
    #[arg(long, default_value = "127.0.0.1:6380", value_name = "ADDRESS")]
    pub(crate) address: SocketAddr,
    #[arg(long, default_value_t = 50, value_name = "COUNT")]
    /// Connections
    pub(crate) connections: usize,
    /// Requests in flight per connection
    #[arg(long, default_value_t = 1, value_name = "COUNT")]
    pub(crate) pipeline: usize,
    /// Threads that drive the connections
    #[arg(long, default_value_t = 1, value_name = "COUNT")]
    pub(crate) threads: usize,
    /// Stop after this many requests
    #[arg(long, conflicts_with = "seconds", value_name = "COUNT")]
    pub(crate) requests: Option<u64>,
    /// Stop after this time
    #[arg(long, default_value_t = 5.0)]
    pub(crate) seconds: f64,
    /// uniform, zipfian, or each (every key once)
    #[arg(long, default_value = "uniform", value_name = "SHAPE")]
    pub(crate) keys: Shape,
    /// Keys are 0 to this minus one
    #[arg(long, default_value_t = 100_000, value_name = "COUNT")]
    pub(crate) key_space: u64,
    /// Length of `__data__`, bytes
    #[arg(long, default_value_t = 100, value_name = "BYTES")]
    pub(crate) data_size: usize,
    /// Seed of the key streams
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// The command; `__rand_int__` becomes the key in 12 digits, `__data__` a payload that differs
    /// each time
    #[arg(required = true, trailing_var_arg = true)]
    pub(crate) command: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct ProxyArgs {
    /// Where to accept connections
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) listen: SocketAddr,
    /// Where to forward them
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) to: SocketAddr,
    /// Delay of each direction, such as 500us, 1ms, 2s
    #[arg(long, value_parser = delay, value_name = "DURATION")]
    pub(crate) delay: Duration,
}

fn case_name(text: &str) -> Result<String, String> {
    let names: Vec<&str> = crate::cases::CASES.iter().map(|(name, _)| *name).collect();
    if names.contains(&text) {
        return Ok(text.to_owned());
    }
    Err(format!("unknown case: use one of {}", names.join(", ")))
}

fn random_shape(text: &str) -> Result<Shape, String> {
    match text.parse()? {
        Shape::Each => Err("use uniform or zipfian".to_owned()),
        shape => Ok(shape),
    }
}

fn delay(text: &str) -> Result<Duration, String> {
    let split = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    let number: f64 = text[..split].parse().map_err(|_| format!("{text:?} has no number"))?;
    let seconds = match &text[split..] {
        "us" => number / 1e6,
        "ms" => number / 1e3,
        "s" => number,
        _ => return Err(format!("{text:?} needs a unit: us, ms or s")),
    };
    Duration::try_from_secs_f64(seconds).map_err(|error| format!("{text:?}: {error}"))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn delays_need_a_unit() {
        assert_eq!(delay("1ms"), Ok(Duration::from_millis(1)));
        assert_eq!(delay("250us"), Ok(Duration::from_micros(250)));
        assert!(delay("1").is_err() && delay("ms").is_err() && delay("-1s").is_err());
    }
}
