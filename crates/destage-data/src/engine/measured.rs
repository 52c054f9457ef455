//! What is counted and measured of an engine.

use super::health::OriginHealth;
use super::overlay::Overlay;
use super::slow::{LatencyLog, SYNC, SlowLog};
use crate::origins::{Applied, OriginError};
use destage_core::{Fault, Lsn, Mode, Span, Time};
use destage_engine::auto::Counts;
use destage_journal::JournalStatus;
use destage_replicas_redis::Reach;
use destage_runtime::auto::AutoPilot;
use destage_runtime::latency::{Latency, SizeWindow};
use destage_runtime::mode_log::ModeLog;
use destage_runtime::policy::{COPIES_FALLBACK, DISK_FULL, TOO_FEW_COPIES};
use destage_runtime::status::Report;
use std::collections::HashMap;

pub(super) use super::health::Way;

/// What happened before the engine existed.
#[derive(Clone, Copy, Debug, Default)]
pub struct StartReport {
    /// Bytes that a torn tail lost.
    pub cut_bytes: u64,
}

/// Counters and distributions.
#[derive(Debug)]
pub(super) struct Measured {
    started: Time,
    /// The modes of the core, as the log is told of them.
    modes: ModeLog,
    commands: u64,
    errors: u64,
    accepted: u64,
    recovered: u64,
    fsync: Latency,
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
    start: StartReport,
    journal_full: bool,
    /// What the servers of the log allow, and what of it the policy makes use of.
    offered: Reach,
    reach: Reach,
    /// Requests whose clients waited for as long as they may, or were gone.
    given_up: u64,
    slow: SlowLog,
    spikes: LatencyLog,
    auto: AutoPilot,
}

impl Measured {
    pub(super) fn new(now: Time, auto: AutoPilot) -> Self {
        Self {
            started: now,
            modes: ModeLog::default(),
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
            offered: Reach::Whole,
            reach: Reach::Whole,
            given_up: 0,
            slow: SlowLog::default(),
            spikes: LatencyLog::default(),
            auto,
        }
    }

    /// A sync took so long. Records the oldest group that it made durable: the others waited less.
    pub(super) fn committed(&mut self, now: Time, upto: Lsn, took: Span, overlay: &Overlay) {
        self.fsync.record(now, took);
        self.spikes.record(now, SYNC, took);
        if upto <= self.last_commit {
            return;
        }
        if let Some(group) = overlay.get(self.last_commit.next()) {
            self.commit.record(now, now.since(group.stamp));
        }
        self.last_commit = upto;
    }

    pub(super) fn batch_started(&mut self, now: Time, first: Lsn, last: Lsn, overlay: &Overlay) {
        let stamp = |lsn| overlay.get(lsn).map_or(now, |group| group.stamp);
        self.batch_stamps.insert(first, (stamp(first), stamp(last)));
    }

    /// A batch is not under way any more, however it ended: when its oldest and newest group were written.
    pub(super) fn batch_ended(&mut self, first: Lsn) -> Option<(Time, Time)> {
        self.batch_stamps.remove(&first)
    }

    /// Records the batch's oldest and newest group.
    pub(super) fn batch_applied(
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
    pub(super) fn origin_works(&mut self, way: Way) {
        self.origin.works(way);
    }

    pub(super) fn origin_failed(&mut self, now: Time, way: Way, error: &OriginError) {
        self.origin.failed(now, way, &error.message);
        self.last_error = Some(error.message.clone());
    }

    /// A read of this table, or a query, failed: that it is denied, or what it asks is rejected, is no failure of the origin.
    pub(super) fn read_failed(&mut self, now: Time, table: &str, error: &OriginError) {
        self.read_error.clone_from(&error.message);
        if !error.is_partial() {
            self.origin_failed(now, Way::Read, error);
        } else if error.fault == Fault::Denied {
            self.origin.denied(now, table, &error.message);
        }
    }

    pub(super) fn read_error(&self) -> &str {
        &self.read_error
    }

    /// A client has sent a command.
    #[inline]
    pub(super) fn command(&mut self) {
        self.commands += 1;
    }

    /// A client was told of an error.
    pub(super) fn error(&mut self) {
        self.errors += 1;
    }

    /// A client has connected.
    pub(super) fn accepted(&mut self) {
        self.accepted += 1;
    }

    /// A group of an earlier run was taken in.
    pub(super) fn recovered(&mut self) {
        self.recovered += 1;
    }

    /// The requests that waited long.
    pub(super) fn slow(&mut self) -> &mut SlowLog {
        &mut self.slow
    }

    /// The seconds in which something took long.
    pub(super) fn spikes(&mut self) -> &mut LatencyLog {
        &mut self.spikes
    }

    /// So many requests were given up.
    pub(super) fn gave_up(&mut self, requests: u64) {
        self.given_up += requests;
    }

    /// How many were.
    pub(super) fn given_up(&self) -> u64 {
        self.given_up
    }

    /// Adds what happened before the engine existed.
    pub(super) fn set_start(&mut self, start: StartReport) {
        self.start = start;
    }

    /// Whether the origin failed when it was used last.
    pub(super) fn is_failing(&self) -> bool {
        self.origin.failing_since().is_some()
    }

    /// Whether the origin has answered nothing since a read failed.
    pub(super) fn is_read_failing(&self) -> bool {
        self.origin.is_read_failing()
    }

    /// Whether the journal's disk has no space.
    pub(super) fn is_journal_full(&self) -> bool {
        self.journal_full
    }

    /// It has none, or has some again.
    pub(super) fn set_journal_full(&mut self, is_full: bool) {
        self.journal_full = is_full;
    }

    /// What the servers of the log allow, as far as the policy makes use of it.
    pub(super) fn reach(&self) -> Reach {
        self.reach
    }

    /// What they allow.
    pub(super) fn offered(&self) -> Reach {
        self.offered
    }

    /// They allow something else, of which the policy makes use of so much; what it did.
    pub(super) fn set_reach(&mut self, offered: Reach, reach: Reach) -> Reach {
        self.offered = offered;
        std::mem::replace(&mut self.reach, reach)
    }

    /// The core has changed its mode.
    pub(super) fn mode_changed(&mut self, now: Time, mode: Mode) {
        self.modes.changed(now, mode);
    }

    /// Adds what was counted to what the core knows.
    pub(super) fn counts(&self, of_core: Counts) -> Counts {
        let (answers, answers_nanos) = self.commit.totals();
        Counts {
            changes: self.changes,
            sent: self.rows,
            answers,
            answers_nanos,
            is_disturbed: of_core.is_disturbed
                || self.is_failing()
                || self.journal_full
                || self.reach != Reach::Whole,
            ..of_core
        }
    }

    /// Time passed.
    pub(super) fn tick(&mut self, now: Time) {
        self.modes.tick(now);
    }

    /// When the log is to be told of a mode at the latest.
    pub(super) fn next_timeout(&self) -> Option<Time> {
        self.modes.due().into_iter().chain(self.auto.due()).min()
    }

    /// The settings that are tried out, by what is measured.
    pub(super) fn auto(&self) -> &AutoPilot {
        &self.auto
    }

    /// The same, to go on.
    pub(super) fn auto_mut(&mut self) -> &mut AutoPilot {
        &mut self.auto
    }

    /// Adds what was counted and measured to a report. The core is in this mode, and has decided everything up to `decided`.
    pub(super) fn add_to(
        &mut self,
        report: &mut Report,
        now: Time,
        (mode, decided): (Mode, Lsn),
        journal: &JournalStatus,
    ) {
        report.journal.disk_full = Some(self.journal_full);
        if mode != Mode::Stopped {
            if self.journal_full {
                report.mode = DISK_FULL.into();
            } else if matches!(self.reach, Reach::Reads | Reach::Nothing) {
                report.mode = TOO_FEW_COPIES.into();
            } else if self.reach == Reach::Through && mode == Mode::Fallback {
                report.mode = COPIES_FALLBACK.into();
            }
        }
        report.uptime_seconds = now.since(self.started).as_secs_f64();
        report.origin.last_error.clone_from(&self.last_error);
        let failing_since = self.origin.failing_since();
        report.origin.failing_for_seconds =
            failing_since.map(|since| now.since(since).as_secs_f64());
        report.origin.down |= failing_since.is_some();
        report.origin.connected = !report.origin.down;
        report.clients.accepted_total = self.accepted;
        report.clients.commands_total = self.commands;
        report.clients.errors_total = self.errors;
        report.slow_commands = self.slow.report(now);
        report.writes.commit_latency = self.commit.summary(now);
        report.destage.latency = self.destage.summary(now);
        report.destage.batch_groups = self.batch_groups.summary(now);
        report.destage.changes_total = self.changes;
        report.destage.rows_total = self.rows;
        report.journal.segments = journal.segments as u64;
        report.journal.bytes = journal.bytes;
        report.journal.depth = Some(journal.durable_writes as u64);
        let kept = journal.oldest_stamp_ns.filter(|_| journal.oldest_lsn <= decided.0);
        report.journal.retained_seconds =
            Some(kept.map_or(0.0, |stamp| now.since(Time(stamp)).as_secs_f64()));
        report.journal.fsync_latency = self.fsync.summary(now);
        report.journal.cut_bytes_at_start = self.start.cut_bytes;
        report.journal.recovered_groups_at_start = self.recovered;
    }
}
