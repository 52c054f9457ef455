//! `destage sim`: the product's own policies on I/O traces.

mod advise;
mod convert;
mod curve;
mod figure;
mod generate;
mod inspect;
mod machine;
mod replay;
mod report;
mod run;
mod sweep;
mod trace;

use crate::error::CliError;

/// The subcommands of `destage sim`.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum SimCommand {
    /// Simulate the policies of a front end on a load and say which one to choose, why, and how to start it.
    #[command(after_long_help = destage_runtime::exit::help())]
    Advise(Box<advise::AdviseArgs>),
    /// Write a trace or a recording in another format, all of it or a part, to the standard output.
    #[command(after_long_help = destage_runtime::exit::help())]
    Convert(convert::ConvertArgs),
    /// Show what a cache of each size would miss: exact, or estimated from a sample of the blocks.
    #[command(after_long_help = destage_runtime::exit::help())]
    Curve(curve::CurveArgs),
    /// Generate a trace from a seed: working sets, YCSB, TPC-C, PostMark, file and mail servers, the loads of papers.
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
    /// Run caches over a trace: count what they would have held, or with devices measure how long requests take.
    #[command(after_long_help = destage_runtime::exit::help())]
    Run(Box<run::RunArgs>),
    /// Run every combination of a grid on all cores; what is done is kept, so that a sweep can be interrupted.
    #[command(after_long_help = destage_runtime::exit::help())]
    Sweep(sweep::SweepArgs),
}

/// Runs a subcommand.
pub(crate) fn run(command: &SimCommand) -> Result<(), CliError> {
    match command {
        SimCommand::Advise(args) => advise::run(args),
        SimCommand::Convert(args) => convert::run(args),
        SimCommand::Curve(args) => curve::run(args),
        SimCommand::Figure(args) => figure::run(args),
        SimCommand::Generate(args) => generate::run(args),
        SimCommand::Inspect(args) => inspect::run(args),
        SimCommand::Replay(args) => replay::run(args),
        SimCommand::Run(args) => run::run(args),
        SimCommand::Sweep(args) => sweep::run(args),
    }
}
