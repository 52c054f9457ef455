//! The arguments of `destage-bench ycsb`.

use clap::Args;

use super::workload::Workload;
use crate::args::RunArgs;
use crate::behind::BehindArgs;
use crate::keys::Shape;
use crate::servers::Transport;

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

impl YcsbArgs {
    pub(crate) fn transport(&self) -> Transport {
        if self.unix { Transport::Unix } else { Transport::Tcp }
    }
}

fn random_shape(text: &str) -> Result<Shape, String> {
    match text.parse()? {
        Shape::Each => Err("use uniform or zipfian".to_owned()),
        shape => Ok(shape),
    }
}
