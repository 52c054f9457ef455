//! How much the scripts of one transaction may do, so that nobody waits for long: a script alone is one.

use super::value::TOO_MUCH;
use crate::resp::ReplyError;

/// Most steps: statements and values.
const STEPS_MAX: usize = 100_000;
/// Most bytes of the texts that are made, read as numbers, compared, or passed to commands and back.
const BYTES_MAX: usize = 8 << 20;

/// What is left of it.
#[derive(Debug)]
pub(in crate::engine) struct Budget {
    steps: usize,
    bytes: usize,
}

impl Default for Budget {
    fn default() -> Self {
        Self { steps: STEPS_MAX, bytes: BYTES_MAX }
    }
}

impl Budget {
    /// Takes steps from it.
    ///
    /// # Errors
    /// There are too few.
    pub(super) fn step(&mut self, count: usize) -> Result<(), ReplyError> {
        self.steps = self.steps.checked_sub(count).ok_or(TOO_MUCH)?;
        Ok(())
    }

    /// Takes bytes from it.
    ///
    /// # Errors
    /// There are too few.
    pub(super) fn weigh(&mut self, bytes: usize) -> Result<(), ReplyError> {
        self.bytes = self.bytes.checked_sub(bytes).ok_or(TOO_MUCH)?;
        Ok(())
    }

    pub(super) fn steps(&self) -> usize {
        self.steps
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }
}
