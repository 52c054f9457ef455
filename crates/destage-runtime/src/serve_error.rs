//! Why a server ended other than as asked: what to tell its user, and the process's exit code.

use crate::exit;
use std::fmt::Display;

/// Why a server ended other than as asked. Its text says what happened, to what, and what to do.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{message}")]
pub struct ServeError {
    code: u8,
    message: String,
}

impl ServeError {
    /// One with an exit code of [`exit::TABLE`], or that of a command that was run.
    pub fn new(code: u8, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    /// The flags, settings or arguments are wrong.
    pub fn usage(error: &impl Display) -> Self {
        Self::new(exit::USAGE, error.to_string())
    }

    /// The system has no thread, or whatever else it never lacks.
    pub fn internal(error: &std::io::Error) -> Self {
        Self::new(exit::BUG, format!("cannot start: {error}"))
    }

    /// The same with more text before it.
    #[must_use]
    pub fn within(self, place: &str) -> Self {
        Self { message: format!("{place}{}", self.message), ..self }
    }

    /// The same with more text behind it.
    #[must_use]
    pub fn with_advice(self, advice: &str) -> Self {
        Self { message: self.message + advice, ..self }
    }

    /// The process's exit code.
    pub fn exit_code(&self) -> u8 {
        self.code
    }
}

impl From<destage_journal::Error> for ServeError {
    fn from(error: destage_journal::Error) -> Self {
        Self::new(exit::JOURNAL_UNUSABLE, format!("the journal: {error}"))
    }
}
