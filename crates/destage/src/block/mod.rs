//! `destage block`: NBD clients before a slow disk.

pub(crate) mod args;
mod file;

use crate::error::CliError;
use args::BlockServeArgs;
use clap::{ArgMatches, FromArgMatches};
use destage_block::settings::Settings;

/// The subcommands of `destage block`.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum BlockCommand {
    /// Export volumes to NBD clients, cached before a slow disk.
    #[command(after_long_help = destage_runtime::exit::help())]
    Serve(Box<BlockServeArgs>),
}

/// Runs a subcommand.
pub(crate) fn run(command: &BlockCommand, matches: &ArgMatches) -> Result<(), CliError> {
    match command {
        BlockCommand::Serve(_) => {
            let own = matches.subcommand_matches("serve").expect("the subcommand was matched");
            serve(settings(own)?)
        }
    }
}

/// Flags over environment over file over defaults, parsed and checked.
fn settings(matches: &ArgMatches) -> Result<Settings, CliError> {
    let args = BlockServeArgs::from_arg_matches(matches).map_err(CliError::usage)?;
    match &args.config {
        None => args.into_settings(Vec::new()),
        Some(path) => {
            let file = file::read(path)?;
            file.merged(matches)?.into_settings(file.volumes)
        }
    }
}

fn serve(settings: Settings) -> Result<(), CliError> {
    for volume in &settings.volumes {
        let flags = volume.unsafe_flags;
        for (set, flag, loss) in [
            (flags.no_fsync, "--unsafe-no-fsync", "a crash loses what was flushed"),
            (
                flags.reclaim_past_checkpoint,
                "--unsafe-reclaim-past-checkpoint",
                "a crash brings old blocks back",
            ),
        ] {
            if set {
                eprintln!("WARNING: {flag}: {loss}; for tests only, never with data that matters");
            }
        }
    }
    destage_block::serve::run(settings).map_err(|error| CliError::new(error.exit_code(), error))
}
