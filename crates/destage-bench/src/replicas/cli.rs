//! The arguments of `destage-bench replicas`.

use clap::Args;

use crate::args::RunArgs;

/// A part of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Part {
    /// YCSB by number of copies
    Ycsb,
    /// Acknowledged writes against the journal on the disk
    Cost,
    /// From kill -9 to the first acknowledged write
    TakeOver,
}

#[derive(Debug, Args)]
pub(crate) struct ReplicasArgs {
    /// Few records, short runs, once each: shows that it works, not how fast
    #[arg(long)]
    pub(crate) quick: bool,
    /// Run only this part; may be repeated
    #[arg(long, value_enum, value_name = "NAME")]
    pub(crate) only: Vec<Part>,
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
