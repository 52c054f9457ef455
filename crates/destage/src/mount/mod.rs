//! `destage mount`: a host-side journal in front of a directory of a shared file system.

mod args;

use crate::error::CliError;
pub(crate) use args::MountArgs;

/// The default of `--admin` for what asks a mount: beside the other servers there is room for it.
pub(crate) const ADMIN: &str = "127.0.0.1:6383";

/// Mounts.
pub(crate) fn run(args: MountArgs) -> Result<(), CliError> {
    let settings = args.into_settings()?;
    destage_mount::serve::run(settings).map_err(|error| CliError::new(error.exit_code(), error))
}
