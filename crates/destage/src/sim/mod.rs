//! `destage sim`: the product's own policies on I/O traces.

mod figure;
mod generate;
mod inspect;
mod replay;
mod report;
mod run;
mod trace;

use crate::error::CliError;

/// The subcommands of `destage sim`.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum SimCommand {
    /// Generate a trace from a seed: working sets as in the flash paper, YCSB.
    #[command(after_long_help = destage_runtime::exit::help())]
    Generate(Box<generate::GenerateArgs>),
    /// Show what a trace holds: its format, requests, blocks, duration.
    #[command(after_long_help = destage_runtime::exit::help())]
    Inspect(inspect::InspectArgs),
    /// Reproduce a figure or table of a paper, ours beside theirs; without a name they are listed.
    #[command(after_long_help = destage_runtime::exit::help())]
    Figure(figure::FigureArgs),
    /// Replay what `--record` recorded of a live run, check that the policy answers the same, and ask what another policy would
    /// have done.
    #[command(after_long_help = destage_runtime::exit::help())]
    Replay(Box<replay::ReplayArgs>),
    /// Run caches over a trace and count what they would have held.
    #[command(after_long_help = destage_runtime::exit::help())]
    Run(run::RunArgs),
}

/// Runs a subcommand.
pub(crate) fn run(command: &SimCommand) -> Result<(), CliError> {
    match command {
        SimCommand::Figure(args) => figure::run(args),
        SimCommand::Generate(args) => generate::run(args),
        SimCommand::Inspect(args) => inspect::run(args),
        SimCommand::Replay(args) => replay::run(args),
        SimCommand::Run(args) => run::run(args),
    }
}
