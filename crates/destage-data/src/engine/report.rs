//! What the engine measures and tells about itself.

use super::Engine;
use super::health::{OriginHealth, Way};
use super::overlay::Overlay;
use super::session::Session;
use crate::origins::{Applied, OriginError};
use destage_core::{ClientId, Fault, Lsn, Mode, Time};
use destage_runtime::latency::{Latency, SizeWindow};
use destage_runtime::policy::DISK_FULL;
use destage_runtime::status::Report;
use std::collections::{HashMap, HashSet};

/// What happened before the engine existed.
#[derive(Clone, Copy, Debug, Default)]
pub struct StartReport {
    /// Bytes that a torn tail lost.
    pub cut_bytes: u64,
}

/// Counters and distributions.
#[derive(Debug)]
pub(crate) struct Measured {
    pub(crate) commands: u64,
    pub(crate) errors: u64,
    pub(crate) accepted: u64,
    pub(crate) recovered: u64,
    pub(crate) fsync: Latency,
    commit: Latency,
    destage: Latency,
    batch_groups: SizeWindow,
    changes: u64,
    rows: u64,
    /// When the oldest and the newest group of each batch under way were written, by its first group.
    batch_stamps: HashMap<Lsn, (Time, Time)>,
    last_commit: Lsn,
    last_error: Option<String>,
    /// Why the origin did not answer the read that failed last, and those who wait for it are told at once.
    read_error: String,
    origin: OriginHealth,
    pub(crate) start: StartReport,
    journal_full: bool,
    /// Requests whose clients waited for as long as they may, or were gone.
    pub(crate) given_up: u64,
    /// Clients that left while the core held replies for them.
    pub(crate) zombies: HashSet<ClientId>,
}

impl Measured {
    /// Whether the journal's disk has no space.
    pub(super) fn is_journal_full(&self) -> bool {
        self.journal_full
    }

    pub(crate) fn new(now: Time) -> Self {
        Self {
            commands: 0,
            errors: 0,
            accepted: 0,
            recovered: 0,
            fsync: Latency::new(now),
            commit: Latency::new(now),
            destage: Latency::new(now),
            batch_groups: SizeWindow::new(now),
            changes: 0,
            rows: 0,
            batch_stamps: HashMap::new(),
            last_commit: Lsn::ZERO,
            last_error: None,
            read_error: String::new(),
            origin: OriginHealth::default(),
            start: StartReport::default(),
            journal_full: false,
            given_up: 0,
            zombies: HashSet::new(),
        }
    }

    /// Records the oldest group that a sync made durable: the others waited less.
    pub(crate) fn committed(&mut self, now: Time, upto: Lsn, overlay: &Overlay) {
        if upto <= self.last_commit {
            return;
        }
        if let Some(group) = overlay.get(self.last_commit.next()) {
            self.commit.record(now, now.since(group.stamp));
        }
        self.last_commit = upto;
    }

    pub(crate) fn batch_started(&mut self, now: Time, first: Lsn, last: Lsn, overlay: &Overlay) {
        let stamp = |lsn| overlay.get(lsn).map_or(now, |group| group.stamp);
        self.batch_stamps.insert(first, (stamp(first), stamp(last)));
    }

    /// A batch is not under way any more, however it ended: when its oldest and newest group were written.
    pub(crate) fn batch_ended(&mut self, first: Lsn) -> Option<(Time, Time)> {
        self.batch_stamps.remove(&first)
    }

    /// Records the batch's oldest and newest group.
    pub(crate) fn batch_applied(
        &mut self,
        now: Time,
        stamps: Option<(Time, Time)>,
        groups: usize,
        applied: Applied,
    ) {
        if let Some((oldest, newest)) = stamps {
            self.destage.record(now, now.since(oldest));
            self.destage.record(now, now.since(newest));
        }
        self.batch_groups.record(now, groups as u64);
        self.changes += applied.changes;
        self.rows += applied.rows;
    }

    /// The origin took writes, or answered a read.
    pub(crate) fn origin_works(&mut self, way: Way) {
        self.origin.works(way);
    }

    pub(crate) fn origin_failed(&mut self, now: Time, way: Way, error: &OriginError) {
        self.origin.failed(now, way, &error.message);
        self.last_error = Some(error.message.clone());
    }

    /// A read of this table, or a query, failed: that it is denied, or what it asks is rejected, is no failure of the origin.
    pub(crate) fn read_failed(&mut self, now: Time, table: &str, error: &OriginError) {
        self.read_error.clone_from(&error.message);
        if !error.is_partial() {
            self.origin_failed(now, Way::Read, error);
        } else if error.fault == Fault::Denied {
            self.origin.denied(now, table, &error.message);
        }
    }

    pub(crate) fn read_error(&self) -> &str {
        &self.read_error
    }
}

impl Engine {
    /// How many clients are connected.
    pub fn clients(&self) -> usize {
        self.clients
    }

    /// Adds what happened before the engine existed.
    pub fn set_start_report(&mut self, start: StartReport) {
        self.measured.start = start;
    }

    /// Whether the journal's disk is full, so that nothing can be acknowledged.
    pub fn journal_full(&mut self, is_full: bool) {
        self.measured.journal_full = is_full;
        if !is_full {
            self.wake_lease_waiters();
            self.run_ready();
        }
    }

    /// Everything there is to see now.
    pub fn report(&mut self) -> Report {
        let now = self.now;
        let status = self.core.status();
        let journal = self.journal.status();
        let mut report = Report::from_core("serve", &status, self.core.policy());
        report.clients.waiting = self.requests_waiting(status.mode);
        report.journal.disk_full = Some(self.measured.journal_full);
        if self.measured.journal_full && status.mode != Mode::Stopped {
            report.mode = DISK_FULL.into();
        }
        let measured = &mut self.measured;
        report.uptime_seconds = now.since(self.started).as_secs_f64();
        report.origin.description.clone_from(&self.config.origin);
        report.origin.last_error.clone_from(&measured.last_error);
        report.origin.failing_for_seconds =
            measured.origin.failing_since().map(|since| now.since(since).as_secs_f64());
        report.origin.down |= measured.origin.failing_since().is_some();
        report.origin.connected = !report.origin.down;
        report.clients.connected = self.clients as u64;
        report.clients.connected_max = self.config.clients_max as u64;
        report.clients.accepted_total = measured.accepted;
        report.clients.commands_total = measured.commands;
        report.clients.errors_total = measured.errors;
        report.clients.set_auth(&self.config.auth);
        report.clients.unread_bytes = Some(self.unread.bytes());
        report.clients.cut_off_total = Some(self.unread.cut());
        report.writes.commit_latency = measured.commit.summary(now);
        report.destage.latency = measured.destage.summary(now);
        report.destage.batch_groups = measured.batch_groups.summary(now);
        report.destage.changes_total = measured.changes;
        report.destage.rows_total = measured.rows;
        report.journal.segments = journal.segments as u64;
        report.journal.bytes = journal.bytes;
        let kept = journal.oldest_stamp_ns.filter(|_| journal.oldest_lsn <= self.core.decided().0);
        report.journal.retained_seconds =
            Some(kept.map_or(0.0, |stamp| now.since(Time(stamp)).as_secs_f64()));
        report.journal.fsync_latency = measured.fsync.summary(now);
        report.journal.cut_bytes_at_start = measured.start.cut_bytes;
        report.journal.recovered_groups_at_start = measured.recovered;
        report.domains = self.domain_reports();
        report.halted = self.halt_reports();
        report.memory.rows_bytes = Some(status.cache_bytes + status.pinned_bytes);
        report.memory.index_bytes = Some((self.rows.len() * super::rows::OVERHEAD) as u64);
        report.memory.groups_bytes = status.dirty_bytes;
        report.memory.clients_bytes =
            self.sessions.iter().flatten().map(|s| (s.output_bytes() + s.inbox.len()) as u64).sum();
        report.derived = Some(self.derived.report());
        report.once = Some(self.tokens.report());
        report.invalidation = Some(self.invalidation_report());
        report.warnings.extend(self.invalidation_warning());
        if self.config.unsafe_flags.in_force().any() {
            report.warnings.push("an --unsafe-... flag breaks promises on purpose".into());
        }
        report.finish()
    }

    /// Connections whose request waits. A reply that waits for a usual sync does not count: it leaves in a moment.
    fn requests_waiting(&self, mode: Mode) -> u64 {
        let withheld = self.measured.journal_full || mode == Mode::StalenessExceeded;
        let waits =
            |session: &Session| session.waiting.is_some() || withheld && !session.gated.is_empty();
        self.sessions.iter().flatten().filter(|session| waits(session)).count() as u64
    }

    /// INFO, in the sections and names that Redis tools read, and a section of our own.
    pub(super) fn info(&mut self, sections: &[&[u8]]) -> String {
        let report = self.report();
        let all = [
            (
                "server",
                "Server",
                format!(
                    "redis_version:7.2.0\r\ndestage_version:{}\r\nredis_mode:standalone\r\nprocess_id:{}\r\n\
                 uptime_in_seconds:{}\r\n",
                    report.version,
                    std::process::id(),
                    report.uptime_seconds as u64
                ),
            ),
            (
                "clients",
                "Clients",
                format!(
                    "connected_clients:{}\r\nmaxclients:{}\r\nblocked_clients:{}\r\n",
                    report.clients.connected, report.clients.connected_max, report.clients.waiting
                ),
            ),
            (
                "memory",
                "Memory",
                format!(
                    "used_memory:{}\r\nused_memory_rss:{}\r\nmaxmemory:{}\r\n",
                    report.memory.rows_bytes.unwrap_or(0) + report.memory.groups_bytes,
                    report.memory.resident_bytes,
                    report.policy.cache_bytes_max
                ),
            ),
            (
                "persistence",
                "Persistence",
                format!(
                    "aof_enabled:1\r\naof_last_write_status:{}\r\naof_current_size:{}\r\n",
                    if self.measured.journal_full { "err" } else { "ok" },
                    report.journal.bytes
                ),
            ),
            (
                "stats",
                "Stats",
                format!(
                    "total_connections_received:{}\r\ntotal_commands_processed:{}\r\nkeyspace_hits:{}\r\n\
                 keyspace_misses:{}\r\nevicted_keys:{}\r\n",
                    report.clients.accepted_total,
                    report.clients.commands_total,
                    report.cache.hits_total,
                    report.cache.misses_total,
                    report.cache.evictions_total
                ),
            ),
            ("replication", "Replication", "role:master\r\nconnected_slaves:0\r\n".into()),
            (
                "destage",
                "Destage",
                format!(
                    "mode:{}\r\norigin:{}\r\norigin_down:{}\r\npolicy:{}\r\nlast_lsn:{}\r\ncommitted_lsn:{}\r\n\
                 decided_lsn:{}\r\ndirty_groups:{}\r\ndirty_bytes:{}\r\nstaleness_seconds:{:.3}\r\n\
                 parked_groups:{}\r\nrequests_given_up:{}\r\n",
                    report.mode,
                    report.origin.description,
                    u8::from(report.origin.down),
                    report.policy.acknowledge,
                    report.writes.last_lsn,
                    report.writes.committed_lsn,
                    report.writes.decided_lsn,
                    report.writes.dirty_groups,
                    report.writes.dirty_bytes,
                    report.rpo.total_loss_seconds,
                    report.destage.parked_groups.unwrap_or(0),
                    self.measured.given_up
                ),
            ),
        ];
        let is_wanted = |section: &&[u8], name: &str| match section.to_ascii_lowercase().as_slice()
        {
            b"all" | b"default" | b"everything" => true,
            wanted => wanted == name.as_bytes(),
        };
        let shown =
            |name: &str| sections.is_empty() || sections.iter().any(|one| is_wanted(one, name));
        let sections = all.iter().filter(|(name, ..)| shown(name));
        let texts: Vec<String> =
            sections.map(|(_, title, body)| format!("# {title}\r\n{body}")).collect();
        texts.join("\r\n")
    }
}
