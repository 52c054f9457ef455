//! The arguments of `destage-bench tpcc`.

use std::path::PathBuf;

use clap::Args;

use crate::args::RunArgs;

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
