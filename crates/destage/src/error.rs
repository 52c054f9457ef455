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

    /// What the message cannot know where it arises: a hardened unit keeps its service from writing, whoever owns the folder.
    pub(crate) fn advice(&self, is_service: bool) -> &'static str {
        if is_service && self.message.contains("Read-only file system") {
            "; a service may write only where its unit lets it: 'systemctl edit' it, and name the folder by ReadWritePaths="
        } else {
            ""
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_that_may_not_write_is_told_what_lets_it() {
        let read_only = std::io::Error::from(rustix::io::Errno::ROFS);
        let error = CliError::usage(format!("cannot make /ssd/data: {read_only}"));
        assert!(error.advice(true).contains("ReadWritePaths="));
        assert_eq!(error.advice(false), "");
        assert_eq!(CliError::usage("no such folder").advice(true), "");
    }
}
