//! The arguments of `destage-bench bg`.

use clap::Args;

use crate::args::RunArgs;
use crate::behind::BehindArgs;

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
