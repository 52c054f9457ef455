//! What is counted and measured of a mount.

use super::Front;
use destage_core::{Lsn, Span, Time};
use destage_engine::Drive;
use destage_runtime::latency::{Latency, SizeWindow};
use destage_runtime::status::{MountReport, Report};

/// What happened since the start.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counted {
    pub(crate) requests: u64,
    pub(crate) errors: u64,
    pub(crate) conflicts: u64,
    pub(crate) files_written: u64,
    pub(crate) names_changed: u64,
    pub(crate) absorbed: u64,
    pub(crate) origin_error: Option<String>,
    pub(crate) origin_errors: u64,
    pub(crate) recovered_groups: u64,
    pub(crate) cut_bytes: u64,
}

/// How long things take, over the last minutes.
#[derive(Debug)]
pub(super) struct Measured {
    sync: Latency,
    commit: Latency,
    destage: Latency,
    batch_groups: SizeWindow,
    /// The journal's disk has no space.
    pub(super) is_journal_full: bool,
    failing_since: Option<Time>,
}

impl Measured {
    pub(super) fn new(now: Time) -> Self {
        Self {
            sync: Latency::new(now),
            commit: Latency::new(now),
            destage: Latency::new(now),
            batch_groups: SizeWindow::new(now),
            is_journal_full: false,
            failing_since: None,
        }
    }

    pub(super) fn synced(&mut self, now: Time, took: Span) {
        self.sync.record(now, took);
    }

    /// Groups became durable, of which the oldest had waited so long: the others waited less.
    pub(super) fn committed(&mut self, now: Time, oldest: Span) {
        self.commit.record(now, oldest);
    }

    /// So many groups came to the origin, of which the oldest is so old.
    pub(super) fn destaged(&mut self, now: Time, oldest: Span, groups: usize) {
        self.destage.record(now, oldest);
        self.batch_groups.record(now, groups as u64);
        self.failing_since = None;
    }

    pub(super) fn origin_failed(&mut self, now: Time) {
        self.failing_since.get_or_insert(now);
    }
}

impl Front {
    /// Adds what was counted and measured to a report of the core.
    pub(crate) fn add_to(&mut self, report: &mut Report) {
        let now = self.now;
        let (counted, measured) = (&self.counted, &mut self.measured);
        report.origin.last_error.clone_from(&counted.origin_error);
        let failing = measured.failing_since;
        report.origin.failing_for_seconds = failing.map(|since| now.since(since).as_secs_f64());
        report.origin.down |= failing.is_some();
        report.origin.connected = !report.origin.down;
        report.clients.waiting = (self.requests.len() + self.held.len()) as u64;
        report.clients.commands_total = counted.requests;
        report.clients.errors_total = counted.errors;
        report.writes.commit_latency = measured.commit.summary(now);
        report.destage.latency = measured.destage.summary(now);
        report.destage.batch_groups = measured.batch_groups.summary(now);
        report.destage.changes_total = report.destage.groups_total;
        report.destage.rows_total = counted.files_written + counted.names_changed;
        let journal = self.journal.status();
        report.journal.segments = journal.segments as u64;
        report.journal.bytes = journal.bytes;
        report.journal.fsync_latency = measured.sync.summary(now);
        report.journal.disk_full =
            Some(measured.is_journal_full || self.held.is_for_want_of_disk());
        report.journal.recovered_groups_at_start = counted.recovered_groups;
        report.journal.cut_bytes_at_start = counted.cut_bytes;
        report.mount = Some(MountReport {
            files_written_total: counted.files_written,
            names_changed_total: counted.names_changed,
            absorbed_files_total: counted.absorbed,
            conflicts_total: counted.conflicts,
            origin_errors_total: counted.origin_errors,
            room_bytes: self.room,
            frozen: self.frozen.is_some(),
        });
    }

    /// The age of the oldest group that is not durable in the journal.
    pub(super) fn uncommitted_age(&self) -> Span {
        self.core().status().uncommitted_age
    }

    pub(super) fn note_destaged(&mut self, groups: &[Lsn]) {
        let oldest = self.core().staleness();
        self.measured.destaged(self.now, oldest, groups.len());
    }
}
