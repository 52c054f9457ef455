//! How much of an answer is taken in: an origin that is not what it seems, or has gone mad, must not fill the memory.

use crate::contract::OriginError;
use destage_core::Fault;

/// What may still come in answer to one operation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bound {
    rows: usize,
    bytes: usize,
}

impl Default for Bound {
    /// More than the catalogue of any database that is served, and anything else that has no bound of its own.
    fn default() -> Self {
        Self { rows: ROWS_MAX, bytes: BYTES_MAX }
    }
}

impl Bound {
    /// So many rows, which are as large as the values in them.
    pub(super) fn rows(rows: usize) -> Self {
        Self { rows, bytes: usize::MAX }
    }

    /// All writes that are parked.
    pub(super) fn parked(bytes_max: u64) -> Self {
        Self { bytes: usize::try_from(bytes_max).unwrap_or(usize::MAX), ..Self::default() }
    }

    /// Most bytes that one row may still have.
    pub(super) fn row_bytes_max(self) -> usize {
        self.bytes.min(ROW_BYTES_MAX)
    }

    /// Takes in a row; false if that is one too many.
    pub(super) fn takes(&mut self, bytes: usize) -> bool {
        match (self.rows.checked_sub(1), self.bytes.checked_sub(bytes)) {
            (Some(rows), Some(bytes)) => {
                *self = Self { rows, bytes };
                true
            }
            _ => false,
        }
    }
}

/// What was asked for is given up, and so is the connection.
pub(super) fn exceeded(what: &str, place: &str) -> OriginError {
    let message = format!(
        "failed to {what} at {place}: the answer was given up, as it is longer than any that Destage expects (at most {ROWS_MAX} \
         rows and {} MiB of what is not rows of your tables, {} MiB of one of these, and of parked writes what --parked-limit says): \
         look at what answers there",
        BYTES_MAX >> 20,
        ROW_BYTES_MAX >> 20
    );
    OriginError::new(Fault::Denied, message)
}

const ROWS_MAX: usize = 1_000_000;
const BYTES_MAX: usize = 128 << 20;
/// What one message may have that is no row of a table.
pub(super) const MESSAGE_BYTES_MAX: usize = BYTES_MAX;
/// What PostgreSQL and MariaDB give a row at most.
pub(super) const ROW_BYTES_MAX: usize = 1 << 30;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_and_bytes_are_taken_up_to_the_bound() {
        let mut rows = Bound::rows(2);
        assert!(rows.takes(usize::MAX - 1) && rows.takes(1) && !rows.takes(0));
        let mut bytes = Bound::default();
        assert!(bytes.takes(BYTES_MAX - 1) && !bytes.takes(2) && bytes.takes(1));
    }
}
