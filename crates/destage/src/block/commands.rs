//! What a running block server is asked.

use crate::admin::{AdminArgs, WaitArgs};
use crate::commands::show;
use crate::draining;
use crate::error::CliError;
use crate::save::SaveArgs;
use serde_json::Value;
use std::time::Duration;

/// Which volumes of which server.
#[derive(Debug, clap::Args)]
pub(crate) struct VolumesArgs {
    #[command(flatten)]
    admin: AdminArgs,

    /// The volumes by their export names; all of them unless told. May be given several times.
    #[arg(long, value_name = "NAME")]
    volume: Vec<String>,
}

/// Flags of `policy`.
#[derive(Debug, clap::Args)]
pub(crate) struct PolicyArgs {
    #[command(flatten)]
    volumes: VolumesArgs,

    /// The new policy (write-through, write-back, ordered, journaled) and parts of it as PART=VALUE: order, commit, staleness,
    /// when, read-priority, at-limit, dirty-limit, linger, bypass-sequential, auto. Leaving write-back drains first. Without any, the
    /// policy in force is shown.
    #[arg(value_name = "CHANGE")]
    changes: Vec<String>,

    #[command(flatten)]
    save: SaveArgs,
}

/// Flags of `checkpoint`.
#[derive(Debug, clap::Args)]
pub(crate) struct CheckpointArgs {
    #[command(flatten)]
    volumes: VolumesArgs,

    /// Return once the origin holds everything up to this point.
    #[arg(long)]
    wait: bool,

    #[command(flatten)]
    limit: WaitArgs,
}

/// Flags of `flush`, `drain` and `detach`.
#[derive(Debug, clap::Args)]
pub(crate) struct WaitingArgs {
    #[command(flatten)]
    volumes: VolumesArgs,

    #[command(flatten)]
    limit: WaitArgs,
}

impl VolumesArgs {
    fn send(&self, command: &str, more: &[String]) -> Result<(), CliError> {
        show(&self.admin.command(command, &self.with_names(more))?)
    }

    fn send_within(
        &self,
        limit: Option<Duration>,
        command: &str,
        more: &[String],
    ) -> Result<(), CliError> {
        show(&self.admin.command_within(limit, command, &self.with_names(more))?)
    }

    /// The volumes whose policy is meant, with those of their groups; none where the server has one volume.
    fn meant(&self) -> Result<Vec<String>, CliError> {
        match self.admin.command("policy", &self.with_names(&[]))? {
            Value::Object(by_name) => Ok(by_name.into_iter().map(|(name, _)| name).collect()),
            _ => Ok(self.volume.clone()),
        }
    }

    /// The arguments behind the volumes' names.
    fn with_names(&self, more: &[String]) -> Vec<String> {
        let named = self.volume.iter().map(|name| format!("volume={name}"));
        named.chain(more.iter().cloned()).collect()
    }
}

/// A command without arguments of its own.
pub(crate) fn plain(command: &str, volumes: &VolumesArgs) -> Result<(), CliError> {
    volumes.send(command, &[])
}

/// A command that waits.
pub(crate) fn waiting(command: &str, args: &WaitingArgs) -> Result<(), CliError> {
    let VolumesArgs { admin, volume } = &args.volumes;
    let send = || args.volumes.send_within(args.limit.timeout.duration(), command, &[]);
    // A flush takes as long as the disk needs for it.
    if command == "flush" { send() } else { draining::shown(admin, volume, send) }
}

/// Ends a server. Whoever is told so can start another one there.
pub(crate) fn detach(args: &WaitingArgs) -> Result<(), CliError> {
    waiting("detach", args)?;
    args.volumes.admin.wait_until_gone();
    Ok(())
}

/// Shows or changes the policy.
pub(crate) fn policy(args: &PolicyArgs) -> Result<(), CliError> {
    let meant = || args.volumes.meant();
    let save = args.save.prepare(&args.changes, super::check_text, meant)?;
    args.volumes.send("policy", &args.changes)?;
    save.map_or(Ok(()), |save| save.write())
}

/// Ends a group here, and waits for it if asked.
pub(crate) fn checkpoint(args: &CheckpointArgs) -> Result<(), CliError> {
    let wait: &[String] = if args.wait { &["wait".to_owned()] } else { &[] };
    args.volumes.send_within(args.limit.timeout.duration(), "checkpoint", wait)
}
