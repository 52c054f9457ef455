//! `destage mount`: a host-side journal in front of a directory of a shared file system.

mod args;
mod commands;
mod conflicts;
mod offline;

use crate::error::CliError;
use args::ServeArgs;
use commands::{MountPolicyArgs, MountStatusArgs, MountWaitArgs, Mounted};
use conflicts::ConflictsCommand;
use offline::{CheckArgs, ReplayArgs};

/// `destage mount ORIGIN MOUNTPOINT` and what a mount is asked.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct MountArgs {
    #[command(flatten)]
    serve: ServeArgs,

    #[command(subcommand)]
    command: Option<MountCommand>,
}

/// What a mount is asked.
#[derive(Debug, clap::Subcommand)]
enum MountCommand {
    /// Show what a mount does: what a crash would lose now, how old the origin is, what waits for it.
    Status(MountStatusArgs),
    /// Make everything so far durable in the journal, as an fsync of everything.
    #[command(visible_alias = "flush")]
    Sync(MountWaitArgs),
    /// Destage everything so far and wait until the origin has it, for as long as it needs.
    Drain(MountWaitArgs),
    /// Show or change the policy.
    Policy(MountPolicyArgs),
    /// Stop destaging until 'resume'; the staleness bound stays in force. Other hosts wait for what is changed here.
    Pause(Mounted),
    /// Destage again; also ends the back-off after a failure.
    Resume(Mounted),
    /// Let no change begin until 'thaw'. Other hosts wait for the files of changes that wait here.
    Freeze(Mounted),
    /// Let changes begin again.
    Thaw(Mounted),
    /// Show what could not be written since others had changed the origin, and decide on it.
    Conflicts {
        #[command(subcommand)]
        command: ConflictsCommand,
    },
    /// Read a journal that is not in use: whether all of it can be read, and what of it the origin does not have.
    Check(CheckArgs),
    /// Destage everything and unmount.
    Unmount(Mounted),
    /// Bring what a journal holds to its origin without mounting it, as on a host that only has the lost one's disk.
    Replay(ReplayArgs),
}

/// The default of `--admin` for what asks a mount: beside the other servers there is room for it.
pub(crate) const ADMIN: &str = "127.0.0.1:6383";

/// Has the subcommands look for a mount where one listens unless told.
pub(crate) fn with_its_own_admin_port(command: clap::Command) -> clap::Command {
    let own = |arg: clap::Arg| if arg.get_id() == "admin" { arg.default_value(ADMIN) } else { arg };
    command.mut_subcommand("mount", |mount| {
        mount.mut_subcommands(|command| {
            if command.has_subcommands() {
                command.mut_subcommands(|command| command.mut_args(own))
            } else {
                command.mut_args(own)
            }
        })
    })
}

/// Mounts, or asks a mount.
pub(crate) fn run(args: MountArgs) -> Result<(), CliError> {
    let Some(command) = args.command else {
        let settings = args.serve.into_settings()?;
        return destage_mount::serve::run(settings)
            .map_err(|error| CliError::new(error.exit_code(), error));
    };
    match command {
        MountCommand::Status(args) => args.run(),
        MountCommand::Sync(args) => args.run("sync"),
        MountCommand::Drain(args) => args.run("drain"),
        MountCommand::Policy(args) => args.run(),
        MountCommand::Pause(args) => args.plain("pause"),
        MountCommand::Resume(args) => args.plain("resume"),
        MountCommand::Freeze(args) => args.plain("freeze"),
        MountCommand::Thaw(args) => args.plain("thaw"),
        MountCommand::Conflicts { command } => command.run(),
        MountCommand::Check(args) => args.run(),
        MountCommand::Unmount(args) => args.plain("unmount"),
        MountCommand::Replay(args) => args.run(),
    }
}
