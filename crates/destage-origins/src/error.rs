//! What goes wrong at an origin.

use destage_core::Fault;
use destage_runtime::exit;
use destage_runtime::foreign::escaped;
use std::fmt;

/// A failure at the origin: what the core needs to know, and what the user does.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{message}")]
pub struct OriginError {
    /// What to do about it.
    pub fault: Fault,
    /// What happened, to what, in words for logs, reports and clients; never a password, nor a value of a row that was
    /// rejected.
    pub message: String,
    /// What the origin says of such a row besides, with its values: for the origin's own table of parked writes alone.
    pub values: Option<String>,
    /// It took longer than one operation may.
    pub is_late: bool,
    /// When.
    pub stage: Stage,
}

/// When an [`OriginError`] happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// The address was looked at.
    Address,
    /// A connection was opened.
    Connection,
    /// The origin was asked something.
    Request,
}

/// Longer messages are cut: they are logged, kept, and told to clients.
const MESSAGE_BYTES_MAX: usize = 16 << 10;

fn shortened(mut message: String) -> String {
    let len = message.len();
    if len > MESSAGE_BYTES_MAX {
        message.truncate(message.floor_char_boundary(MESSAGE_BYTES_MAX));
        message.push_str(&format!("... ({len} bytes)"));
    }
    message
}

impl OriginError {
    /// An error of that class, of a request.
    pub fn new(fault: Fault, message: impl fmt::Display) -> Self {
        // It may repeat what an origin says, or a client: on one line, and without commands for a terminal.
        let message = shortened(escaped(&message.to_string()).into_owned());
        Self { fault, message, values: None, stage: Stage::Request, is_late: false }
    }

    /// The same at another stage.
    pub fn at(self, stage: Stage) -> Self {
        Self { stage, ..self }
    }

    /// The same, with what the origin says of the row's values.
    #[must_use]
    pub fn with_values(self, values: impl Into<String>) -> Self {
        Self { values: Some(values.into()), ..self }
    }

    /// All that is known, values included.
    pub fn in_full(&self) -> String {
        match &self.values {
            Some(values) => format!("{} ({values})", self.message),
            None => self.message.clone(),
        }
    }

    /// Whether the origin refuses only what was asked of it, such as one table.
    pub fn is_partial(&self) -> bool {
        self.stage == Stage::Request && matches!(self.fault, Fault::Denied | Fault::Rejected)
    }

    /// How a program ends that cannot go on: one of [`exit::TABLE`].
    pub fn exit_code(&self) -> u8 {
        match (self.fault, self.stage) {
            (Fault::Fenced, _) => exit::FENCED,
            (Fault::Denied, Stage::Address) => exit::USAGE,
            _ => exit::ORIGIN_UNREACHABLE,
        }
    }

    /// The same for what took longer than one operation may.
    #[must_use]
    pub fn late(mut self) -> Self {
        self.is_late = true;
        self
    }
}

impl From<OriginError> for destage_runtime::ServeError {
    fn from(error: OriginError) -> Self {
        Self::new(error.exit_code(), error.message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_origin_that_says_too_much_is_cut_short() {
        let said = "é".repeat(MESSAGE_BYTES_MAX);
        let message = OriginError::new(Fault::Denied, said).message;
        assert!(message.len() < MESSAGE_BYTES_MAX + 30 && message.ends_with("... (32768 bytes)"));
    }
}
