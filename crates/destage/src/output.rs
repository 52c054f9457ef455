//! Results on stdout.

use crate::error::CliError;
use destage_runtime::exit;
use std::io::{self, Write};

/// The form of a result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Format {
    /// For people.
    #[default]
    Table,
    /// For programs.
    Json,
}

/// Writes a result. A reader that went away (`| head`) is no error.
pub(crate) fn print(text: &str) -> Result<(), CliError> {
    let mut stdout = io::stdout().lock();
    let newline = if text.ends_with('\n') { "" } else { "\n" };
    match write!(stdout, "{text}{newline}").and_then(|()| stdout.flush()) {
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => std::process::exit(exit::OK.into()),
        Err(e) => Err(CliError::unwritable(format!("failed to write to stdout: {e}"))),
        Ok(()) => Ok(()),
    }
}

/// JSON, indented.
pub(crate) fn print_json(value: &impl serde::Serialize) -> Result<(), CliError> {
    let text = serde_json::to_string_pretty(value)
        .map_err(|e| CliError::new(exit::BUG, format!("failed to write JSON: {e}")))?;
    print(&text)
}
