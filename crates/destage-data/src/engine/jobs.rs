//! What goes to the threads that do I/O: the groups of a batch, rows to be fetched.

use crate::origins::GroupRef;
use crate::schema::TableId;
use destage_core::{Lsn, UnitId};

/// The groups of a batch, in one piece of memory.
#[derive(Debug, Default)]
pub struct Groups {
    bytes: Vec<u8>,
    ends: Vec<(Lsn, usize)>,
}

impl Groups {
    pub(super) fn push(&mut self, lsn: Lsn, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        self.ends.push((lsn, self.bytes.len()));
    }

    /// The groups, oldest first.
    pub fn iter(&self) -> impl Iterator<Item = GroupRef<'_>> {
        let starts = std::iter::once(0).chain(self.ends.iter().map(|(_, end)| *end));
        self.ends
            .iter()
            .zip(starts)
            .map(|(&(lsn, end), start)| GroupRef { lsn, bytes: &self.bytes[start..end] })
    }
}

/// A row to be fetched; [`super::Engine::fetched`] or [`super::Engine::fetch_failed`] follows.
#[derive(Debug)]
pub struct FetchJob {
    /// The unit.
    pub unit: UnitId,
    /// Its table.
    pub table: TableId,
    /// Its encoded key.
    pub key: Box<[u8]>,
    /// Up to where the row's domain was known to be decided when the row was asked for.
    pub confirmed: Lsn,
}
