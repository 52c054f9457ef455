//! The arguments of `destage-bench peers`.

use std::path::PathBuf;

use clap::Args;

use crate::args::RunArgs;

/// A part of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Part {
    /// The same load on every side, counted until the database holds it
    Rates,
    /// What the database lacks after kills, refused rows, shutdowns, deletions and a restart of its own
    Losses,
    /// bcache and dm-writecache beside `destage block`, in a virtual machine
    Volumes,
}

/// Whom to compare with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub(crate) enum Peer {
    /// Hazelcast in the program's own process
    Hazelcast,
    /// Hazelcast by its client over TCP
    HazelcastClient,
    /// Redisson over redis-server
    Redisson,
}

impl Peer {
    pub(super) const ALL: [Self; 3] = [Self::Hazelcast, Self::HazelcastClient, Self::Redisson];
}

#[derive(Debug, Args)]
pub(crate) struct PeersArgs {
    /// Few records, short runs, once each: shows that it works, not how fast
    #[arg(long)]
    pub(crate) quick: bool,
    /// Run only this part; may be repeated
    #[arg(long, value_enum, value_name = "NAME")]
    pub(crate) only: Vec<Part>,
    /// Compare with these only [default: all of them]
    #[arg(long, value_enum, value_delimiter = ',', value_name = "NAMES")]
    pub(crate) peers: Vec<Peer>,
    /// Records that the rates are measured on [default: 50000, with --quick 2000]
    #[arg(long, value_name = "COUNT")]
    pub(crate) records: Option<u64>,
    /// Threads of the load
    #[arg(long, default_value_t = 16, value_name = "COUNT")]
    pub(crate) threads: u64,
    /// Rows that the peers write in one batch at most
    #[arg(long, default_value_t = 1000, value_name = "COUNT")]
    pub(crate) batch: u64,
    /// Time of a run, without its drain, seconds [default: 3, with --quick 0.3]
    #[arg(long, value_name = "SECONDS")]
    pub(crate) seconds: Option<f64>,
    /// Rounds of runs [default: 3, with --quick 1]
    #[arg(long, value_name = "COUNT")]
    pub(crate) pairs: Option<usize>,
    /// Seed of the streams of keys and actions
    #[arg(long, default_value_t = 1, value_name = "NUMBER")]
    pub(crate) seed: u64,
    /// Folder of the compiled Java programs with their libraries; `cargo xtask bench` makes it
    #[arg(long, env = "DESTAGE_TEST_PEERS", hide_env = true, value_name = "PATH")]
    pub(crate) programs: Option<PathBuf>,
    /// Folder of the kernel and the packages of the virtual machine; `cargo xtask bench` makes it
    #[arg(long, env = "DESTAGE_TEST_GUEST", hide_env = true, value_name = "PATH")]
    pub(crate) guest: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) run: RunArgs,
}

impl PeersArgs {
    pub(super) fn wants(&self, part: Part) -> bool {
        self.only.is_empty() || self.only.contains(&part)
    }
}
