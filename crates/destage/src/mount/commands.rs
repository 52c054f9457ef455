//! What a mount is asked.

use crate::admin::{AdminArgs, WaitArgs};
use crate::commands::show;
use crate::draining;
use crate::error::CliError;
use crate::status::{self, StatusArgs};
use std::path::{Path, PathBuf};

/// Which mount.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Mounted {
    /// Where it is mounted: it tells its admin port. Without it, --admin says where that is.
    #[arg(value_name = "MOUNTPOINT")]
    mountpoint: Option<PathBuf>,

    #[command(flatten)]
    admin: AdminArgs,
}

/// Flags of `status`.
#[derive(Debug, clap::Args)]
pub(crate) struct MountStatusArgs {
    /// Where it is mounted: it tells its admin port. Without it, --admin says where that is.
    #[arg(value_name = "MOUNTPOINT")]
    mountpoint: Option<PathBuf>,

    #[command(flatten)]
    status: StatusArgs,
}

/// Flags of the commands that wait.
#[derive(Debug, clap::Args)]
pub(crate) struct MountWaitArgs {
    #[command(flatten)]
    mounted: Mounted,

    #[command(flatten)]
    limit: WaitArgs,
}

/// Flags of `policy`.
#[derive(Debug, clap::Args)]
pub(crate) struct MountPolicyArgs {
    #[command(flatten)]
    mounted: Mounted,

    /// The new policy (write-back, write-through) or a part of it as PART=VALUE, with the parts when, commit, staleness,
    /// read-priority, at-limit, dirty-limit, linger. May be given several times. Without any, the policy in force is shown.
    #[arg(long, value_name = "CHANGE")]
    set: Vec<String>,
}

impl Mounted {
    /// The admin port that is meant.
    pub(crate) fn admin(&self) -> Result<AdminArgs, CliError> {
        found(self.mountpoint.as_deref(), &self.admin)
    }

    pub(crate) fn plain(&self, command: &str) -> Result<(), CliError> {
        show(&self.admin()?.command(command, &[])?)
    }
}

impl MountStatusArgs {
    pub(crate) fn run(mut self) -> Result<(), CliError> {
        self.status.admin = found(self.mountpoint.as_deref(), &self.status.admin)?;
        status::run(&self.status)
    }
}

impl MountWaitArgs {
    pub(crate) fn run(&self, command: &str) -> Result<(), CliError> {
        let limit = self.limit.timeout.duration();
        let admin = self.mounted.admin()?;
        let send = || admin.command_within(limit, command, &[]);
        // A sync takes as long as the disk needs for it.
        show(&if command == "drain" { draining::shown(&admin, &[], send) } else { send() }?)
    }
}

impl MountPolicyArgs {
    pub(crate) fn run(&self) -> Result<(), CliError> {
        show(&self.mounted.admin()?.command("policy", &self.set)?)
    }
}

fn found(mountpoint: Option<&Path>, admin: &AdminArgs) -> Result<AdminArgs, CliError> {
    let Some(mountpoint) = mountpoint else { return Ok(admin.clone()) };
    let address = destage_mount::admin_of(mountpoint).map_err(|error| {
        CliError::usage(format!(
            "{} does not tell the admin port of a mount: {error}; is it mounted there? Else say --admin",
            mountpoint.display()
        ))
    })?;
    Ok(AdminArgs { admin: address, ..admin.clone() })
}
