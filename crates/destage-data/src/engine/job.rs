//! What goes to the threads that do I/O: jobs, the groups of a batch, rows to be fetched.

use super::login::PasswordJob;
use crate::origins::{EndedAsk, GroupRef, Mark, ParkedGroup, Watermarks};
use crate::schema::TableId;
use destage_core::{BatchId, Lsn, Span, StopReason, UnitId};

/// Work for the threads that do I/O.
#[derive(Debug)]
pub enum Io {
    /// Make the journal durable up to a group, then [`super::Engine::synced`].
    Sync {
        /// The newest group.
        upto: Lsn,
    },
    /// Apply the groups in one transaction, then [`super::Engine::destaged`].
    Destage {
        /// The batch.
        batch: BatchId,
        /// How the watermarks of its domains move.
        marks: Box<[Mark]>,
        /// The groups, oldest first.
        groups: Groups,
    },
    /// Move the watermarks past one group and keep it as parked if one is given, then [`super::Engine::parked`].
    Park {
        /// The group.
        lsn: Lsn,
        /// How the watermarks of its domains move.
        marks: Box<[Mark]>,
        /// What to store.
        parked: Option<ParkedGroup>,
    },
    /// Move the mark of all domains, then [`super::Engine::marked_all`].
    MarkAll {
        /// Where it stands.
        expected: Lsn,
        /// Everything up to here is decided.
        upto: Lsn,
        /// Where each domain stands at least; else the origin went back.
        floors: Watermarks,
    },
    /// Read keys in order, then [`super::Engine::scanned`].
    Scan {
        /// Which question this is.
        request: u64,
        /// The table.
        table: TableId,
        /// Keys greater than this one.
        after: Option<Box<[u8]>>,
        /// At most so many.
        limit: usize,
    },
    /// Look for rows that have ended, then [`super::Engine::ended`].
    Ended {
        /// Which question this is.
        request: u64,
        /// Which rows.
        ask: EndedAsk,
    },
    /// Reserve keys, then [`super::Engine::keys_reserved`].
    NextKeys {
        /// Which question this is.
        request: u64,
        /// The table.
        table: TableId,
        /// The column that the sequence is of.
        column: usize,
        /// How many.
        count: u32,
    },
    /// Ask which rows have values, then [`super::Engine::holders_found`].
    Holders {
        /// Which question this is.
        request: u64,
        /// Tables, places of their unique indexes, and values of these' columns, as cells.
        questions: Vec<(TableId, usize, Box<[u8]>)>,
    },
    /// Run the query of a derived key, then [`super::Engine::queried`].
    Query {
        /// Which question this is.
        job: u64,
        /// The query's number among [`super::Engine::queries`].
        query: usize,
        /// Its parameters' values, as cells.
        values: Box<[u8]>,
        /// After that nobody waits for the result any more.
        limit: Span,
    },
    /// Take groups out of the parked ones and apply `groups` in order, in one transaction, then [`super::Engine::unparked`].
    Unpark {
        /// What is parked no more.
        parked: Vec<Lsn>,
        /// What is applied.
        groups: Groups,
    },
    /// Read everything parked, then [`super::Engine::parked_listed`].
    ListParked {
        /// Which question this is.
        request: u64,
    },
    /// Look at a password, then [`super::Engine::password_checked`].
    CheckPassword(PasswordJob),
    /// Stop serving; the process ends with the reason's exit code.
    Stop(StopReason),
}

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
