//! What ends a subcommand early.

use destage_runtime::exit;
use std::fmt;

/// A message and the exit code that goes with it.
#[derive(Debug)]
pub(crate) struct CliError {
    /// From [`destage_runtime::exit`].
    pub(crate) code: u8,
    message: String,
}

impl CliError {
    pub(crate) fn new(code: u8, message: impl fmt::Display) -> Self {
        Self { code, message: message.to_string() }
    }

    /// Wrong flags, settings or arguments.
    pub(crate) fn usage(message: impl fmt::Display) -> Self {
        Self::new(exit::USAGE, message)
    }

    /// The result cannot be written.
    pub(crate) fn unwritable(message: impl fmt::Display) -> Self {
        Self::new(exit::OUTPUT_UNWRITABLE, message)
    }
}

impl fmt::Display for CliError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}
