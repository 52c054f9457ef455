//! What waits for the threads that do I/O: jobs, and rows to be fetched, which are asked for many at a time.

use super::job::{FetchJob, Io};
use super::put_off::PutOff;
use std::collections::VecDeque;

/// The queues of an engine.
#[derive(Debug, Default)]
pub(super) struct Jobs {
    io: Vec<Io>,
    fetches: VecDeque<FetchJob>,
    put_off: PutOff,
}

impl Jobs {
    /// Has a job be started.
    pub(super) fn push(&mut self, job: Io) {
        self.io.push(job);
    }

    /// Jobs to start, in order.
    pub(super) fn take(&mut self) -> Vec<Io> {
        std::mem::take(&mut self.io)
    }

    /// What is to be asked again of an origin that is away.
    pub(super) fn put_off(&self) -> &PutOff {
        &self.put_off
    }

    /// The same, to be changed.
    pub(super) fn put_off_mut(&mut self) -> &mut PutOff {
        &mut self.put_off
    }

    /// Has a row be fetched.
    pub(super) fn fetch(&mut self, job: FetchJob) {
        self.fetches.push_back(job);
    }

    /// The next rows to fetch: up to `limit`, all of one table; or one alone if `is_alone` says so of the first.
    pub(super) fn take_fetches(
        &mut self,
        limit: usize,
        is_alone: impl FnOnce(&FetchJob) -> bool,
    ) -> Vec<FetchJob> {
        let Some(first) = self.fetches.front() else { return Vec::new() };
        let (table, limit) = (first.table, if is_alone(first) { 1 } else { limit });
        let count = self.fetches.iter().take(limit).take_while(|job| job.table == table).count();
        self.fetches.drain(..count).collect()
    }

    /// Whether rows wait to be fetched.
    pub(super) fn has_fetches(&self) -> bool {
        !self.fetches.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::TableId;
    use destage_core::{Lsn, UnitId};

    #[test]
    fn rows_of_one_table_are_fetched_together() {
        let mut jobs = Jobs::default();
        for (unit, table) in [(0, 1), (1, 1), (2, 1), (3, 2), (4, 1)] {
            let (unit, table) = (UnitId(unit), TableId(table));
            jobs.fetch(FetchJob { unit, table, key: Box::default(), confirmed: Lsn::ZERO });
        }
        let mut next = |limit, is_alone| {
            let taken = jobs.take_fetches(limit, |_| is_alone);
            taken.into_iter().map(|job| job.unit.0).collect::<Vec<_>>()
        };
        assert_eq!(next(9, true), [0]);
        assert_eq!(next(9, false), [1, 2]);
        assert_eq!(next(9, false), [3]);
        assert_eq!(next(0, false), [0_u32; 0]);
        assert_eq!(next(1, false), [4]);
        assert!(!jobs.has_fetches());
    }
}
