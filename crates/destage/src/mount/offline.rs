//! What is done with a journal that is not in use.

use super::args::{ServeArgs, TokenArgs};
use crate::error::CliError;
use crate::output::{Format, print, print_json};
use destage_runtime::units::Interval;
use std::path::PathBuf;

/// Flags of `check`.
#[derive(Debug, clap::Args)]
pub(crate) struct CheckArgs {
    /// The journal's folder.
    #[arg(long, value_name = "DIR")]
    journal: PathBuf,

    /// The form of the result.
    #[arg(long, value_enum, default_value = "table")]
    format: Format,
}

/// Flags of `replay`.
#[derive(Debug, clap::Args)]
pub(crate) struct ReplayArgs {
    /// The folder that was cached.
    #[arg(value_name = "ORIGIN")]
    origin: PathBuf,

    /// The journal's folder.
    #[arg(long, value_name = "DIR")]
    journal: PathBuf,

    #[command(flatten)]
    tokens: TokenArgs,

    /// How long to destage, such as 30s or 5m; exit code 19 when it is over, and the rest stays in the journal. Without it
    /// for as long as the origin needs.
    #[arg(long, default_value = "none", hide_default_value = true, value_name = "TIME")]
    timeout: Interval,
}

impl CheckArgs {
    pub(crate) fn run(&self) -> Result<(), CliError> {
        let found = destage_mount::serve::check(&self.journal)
            .map_err(|error| CliError::new(error.exit_code(), error))?;
        match self.format {
            Format::Json => print_json(&found.as_json()),
            Format::Table => print(&found.to_string()),
        }
    }
}

impl ReplayArgs {
    pub(crate) fn run(self) -> Result<(), CliError> {
        let settings = ServeArgs::to_replay(self.origin, self.journal, self.tokens, self.timeout)?;
        let conflicts = destage_mount::serve::replay(settings)
            .map_err(|error| CliError::new(error.exit_code(), error))?;
        print(&format!("replayed: the origin has everything; {conflicts} conflicts were kept\n"))
    }
}
