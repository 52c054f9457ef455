//! The command line.

use std::net::SocketAddr;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};

use crate::bg::BgArgs;
use crate::block::BlockArgs;
use crate::data::DataArgs;
use crate::device::DeviceArgs;
use crate::growth::GrowthArgs;
use crate::keys::Shape;
use crate::looped::LoopArgs;
use crate::mount::MountArgs;
use crate::peers::{NumberedArgs, PeersArgs};
use crate::replicas::ReplicasArgs;
use crate::sim::SimArgs;
use crate::tpcc::TpccArgs;
use crate::ycsb::YcsbArgs;

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
    /// Compare with what buffers writes elsewhere, rates and losses: Hazelcast and Redisson, bcache and dm-writecache
    Peers(PeersArgs),
    /// Compare how fast `destage sim` and libCacheSim simulate the same accesses
    Sim(SimArgs),
    /// Record loads, advise on them, apply the advice, and measure again: predicted beside measured
    Loop(LoopArgs),
    /// Measure memory, starts and costs at sizes that grow, and how fast they grow
    Growth(GrowthArgs),
    /// Serve an NBD export that takes as long as a modelled disk
    #[command(hide = true)]
    Device(DeviceArgs),
    /// Write numbered blocks to a device until somebody ends it
    #[command(hide = true)]
    Numbered(NumberedArgs),
    /// Send one command over and over to a server that speaks the Redis protocol
    Load(LoadArgs),
    /// Forward TCP connections, each byte later by a fixed delay
    Proxy(ProxyArgs),
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
