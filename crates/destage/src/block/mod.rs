//! `destage block`: NBD clients in front of a slow disk.

pub(crate) mod args;
mod check;
mod commands;
mod file;
mod offline;
mod resize;

use crate::cli::Cli;
use crate::error::CliError;
use crate::reload;
use crate::server::{refuse_controls, warn_of_controls};
use crate::status::{self, StatusArgs};
use args::BlockServeArgs;
use check::CheckArgs;
use clap::{ArgMatches, CommandFactory, FromArgMatches};
use commands::{CheckpointArgs, PolicyArgs, VolumesArgs, WaitingArgs};
use destage_block::settings::Settings;
use destage_runtime::reload::Reread;
use offline::{InspectArgs, ReplayArgs};
use resize::ResizeArgs;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// The subcommands of `destage block`.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum BlockCommand {
    /// Export volumes to NBD clients, cached in front of a slow disk.
    #[command(after_long_help = destage_runtime::exit::help())]
    Serve(Box<BlockServeArgs>),
    /// Show what a running server does: staleness now and at worst, dirty bytes, hit ratio, destage rate of each volume.
    Status(StatusArgs),
    /// Show or change the policy of volumes.
    Policy(PolicyArgs),
    /// Note that the application is consistent at this point: the origin will stop here on its way.
    Mark(VolumesArgs),
    /// As 'mark', and destage up to there now.
    Checkpoint(CheckpointArgs),
    /// Let writes under way end and no other begin, until 'thaw'; the point is marked.
    Freeze(VolumesArgs),
    /// Let writes begin again.
    Thaw(VolumesArgs),
    /// Stop destaging until 'resume'; the staleness bound stays in force.
    Pause(VolumesArgs),
    /// Destage again.
    Resume(VolumesArgs),
    /// Make the log of the cache durable now.
    Flush(WaitingArgs),
    /// Destage everything that is dirty and wait until the origin has it, for as long as it needs.
    Drain(WaitingArgs),
    /// Destage everything, give the origins back and end the server; it goes on if the wait for that is ended.
    Detach(WaitingArgs),
    /// Make volumes as large as their origins have become, while they are served.
    Grow(VolumesArgs),
    /// Show what a cache says of itself; changes nothing, works beside a running server.
    Inspect(InspectArgs),
    /// Check everything in a cache that is not in use, and compare it with its origin; exit code 13 if something is broken, 14
    /// if clean blocks differ from the origin. Changes nothing.
    Check(CheckArgs),
    /// Give a cache that is not in use and holds nothing dirty another size; its clean blocks are kept. For volumes see
    /// 'grow'.
    Resize(ResizeArgs),
    /// Complete or drop the last atomic group at an origin whose host is lost, so that it is a state that really existed.
    Replay(ReplayArgs),
}

/// The default of `--admin` for what asks a block server: beside a `destage serve` there is room for it.
const ADMIN: &str = "127.0.0.1:6382";

/// Has the subcommands look for a block server where one listens unless told.
pub(crate) fn with_its_own_admin_port(command: clap::Command) -> clap::Command {
    let own = |arg: clap::Arg| if arg.get_id() == "admin" { arg.default_value(ADMIN) } else { arg };
    command.mut_subcommand("block", |block| block.mut_subcommands(|command| command.mut_args(own)))
}

/// Runs a subcommand.
pub(crate) fn run(command: &BlockCommand, matches: &ArgMatches) -> Result<(), CliError> {
    match command {
        BlockCommand::Serve(_) => {
            let own = matches.subcommand_matches("serve").expect("the subcommand was matched");
            let config = own.get_one::<PathBuf>("config").map(PathBuf::as_path);
            let reread = reload::rereading(config, own, file::texts);
            serve(settings(own)?, reread)
        }
        BlockCommand::Status(args) => status::run(args),
        BlockCommand::Policy(args) => commands::policy(args),
        BlockCommand::Mark(args) => commands::plain("mark", args),
        BlockCommand::Checkpoint(args) => commands::checkpoint(args),
        BlockCommand::Freeze(args) => commands::plain("freeze", args),
        BlockCommand::Thaw(args) => commands::plain("thaw", args),
        BlockCommand::Pause(args) => commands::plain("pause", args),
        BlockCommand::Resume(args) => commands::plain("resume", args),
        BlockCommand::Flush(args) => commands::waiting("flush", args),
        BlockCommand::Drain(args) => commands::waiting("drain", args),
        BlockCommand::Detach(args) => commands::detach(args),
        BlockCommand::Grow(args) => commands::plain("grow", args),
        BlockCommand::Inspect(args) => offline::inspect(args),
        BlockCommand::Check(args) => check::run(args),
        BlockCommand::Resize(args) => resize::run(args),
        BlockCommand::Replay(args) => offline::replay(args),
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

/// The settings that a file gives by itself, with the environment.
pub(crate) fn of_file(path: &Path) -> Result<Settings, CliError> {
    let words = ["destage", "block", "serve", "--config"].map(OsStr::new);
    let line = Cli::command().try_get_matches_from(words.into_iter().chain([path.as_ref()]));
    let line = line.map_err(CliError::usage)?;
    let block = line.subcommand_matches("block").expect("the subcommand was given");
    settings(block.subcommand_matches("serve").expect("the subcommand was given"))
}

/// Whether a start takes a settings file of this text, as far as that can be told without a look at what it names.
pub(crate) fn check_text(text: &str) -> Result<(), CliError> {
    let line = Cli::command().try_get_matches_from(["destage", "block", "serve"]);
    let line = line.map_err(CliError::usage)?;
    let block = line.subcommand_matches("block").expect("the subcommand was given");
    let line = block.subcommand_matches("serve").expect("the subcommand was given");
    let file = file::parse(text).map_err(CliError::usage)?;
    let settings = file.merged(line)?.into_settings(file.volumes)?;
    destage_block::serve::check_together(&settings)
        .map_err(|error| CliError::new(error.exit_code(), error))
}

fn serve(settings: Settings, reread: Reread) -> Result<(), CliError> {
    for volume in &settings.volumes {
        let flags = volume.unsafe_flags;
        refuse_controls(flags.any())?;
        warn_of_controls(&[
            (flags.no_fsync, "--unsafe-no-fsync", "a crash loses what was flushed"),
            (
                flags.reclaim_past_checkpoint,
                "--unsafe-reclaim-past-checkpoint",
                "a crash brings old blocks back",
            ),
        ]);
    }
    destage_block::serve::run(settings, reread)
        .map_err(|error| CliError::new(error.exit_code(), error))
}
