//! What the engine measures and tells about itself.

use super::Engine;
use super::measured::StartReport;
use super::session::Session;
use destage_core::Mode;
use destage_runtime::status::Report;

impl Engine {
    /// How many clients are connected.
    pub fn clients(&self) -> usize {
        self.sessions.connected()
    }

    /// Adds what happened before the engine existed.
    pub fn set_start_report(&mut self, start: StartReport) {
        self.measured.set_start(start);
    }

    /// Everything there is to see now.
    pub fn report(&mut self) -> Report {
        let now = self.now;
        let status = self.core.status();
        let mut report = Report::from_core("serve", &status, self.core.policy());
        let of_core = (status.mode, self.core.decided());
        self.measured.add_to(&mut report, now, of_core, &self.log.status());
        report.origin.description.clone_from(&self.config.origin);
        report.clients.waiting = self.requests_waiting(status.mode);
        report.clients.connected = self.sessions.connected() as u64;
        report.clients.connected_max = self.config.clients_max as u64;
        report.clients.set_auth(&self.config.auth);
        let (unread_bytes, cut_off) = self.sessions.unread();
        report.clients.unread_bytes = Some(unread_bytes);
        report.clients.cut_off_total = Some(cut_off);
        report.domains = self.domains.reports(&self.core.domain_statuses());
        report.halted = self.halt_reports();
        report.memory.rows_bytes = Some(status.cache_bytes + status.pinned_bytes);
        report.memory.index_bytes = Some((self.rows.len() * super::rows::OVERHEAD) as u64);
        report.memory.groups_bytes = status.dirty_bytes;
        report.memory.clients_bytes =
            self.sessions.iter().map(|s| (s.output_bytes() + s.inbox.len()) as u64).sum();
        report.auto = self.measured.auto().report(self.core.policy());
        report.derived = Some(self.derived.report());
        report.once = Some(self.once.report());
        report.tracking = Some(self.rows.tracking().report());
        report.ended = self.report_ended();
        report.absent = self.report_absent();
        let listening = self.freshness.listening();
        report.invalidation = Some(listening.report());
        report.warnings.extend(listening.warning());
        if self.config.unsafe_flags.in_force().any() {
            report.warnings.push("an --unsafe-... flag breaks promises on purpose".into());
        }
        report.finish()
    }

    /// Connections whose request waits. A reply that waits for a usual sync does not count: it leaves in a moment.
    fn requests_waiting(&self, mode: Mode) -> u64 {
        let withheld = self.measured.is_journal_full()
            || self.lack_of_copies().is_some()
            || mode == Mode::StalenessExceeded;
        let waits =
            |session: &Session| session.waiting.is_some() || withheld && !session.gated.is_empty();
        self.sessions.iter().filter(|session| waits(session)).count() as u64
    }

    /// An estimate of the keys: those in memory. To count the origin's rows would read all of them.
    pub(super) fn keys_in_memory(&self) -> u64 {
        let status = self.core.status();
        status.cache_units + status.dirty_units
    }

    /// INFO, in the sections and names that Redis tools read, and a section of our own.
    pub(super) fn info(&mut self, sections: &[&[u8]]) -> String {
        let report = self.report();
        let tracking = report.tracking.clone().unwrap_or_default();
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
                    "connected_clients:{}\r\nmaxclients:{}\r\nblocked_clients:{}\r\ntracking_clients:{}\r\n",
                    report.clients.connected,
                    report.clients.connected_max,
                    report.clients.waiting,
                    tracking.clients
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
                    if self.measured.is_journal_full() { "err" } else { "ok" },
                    report.journal.bytes
                ),
            ),
            (
                "stats",
                "Stats",
                format!(
                    "total_connections_received:{}\r\ntotal_commands_processed:{}\r\nkeyspace_hits:{}\r\n\
                 keyspace_misses:{}\r\nevicted_keys:{}\r\ntracking_total_keys:{}\r\ntracking_total_items:{}\r\n\
                 tracking_total_prefixes:{}\r\n",
                    report.clients.accepted_total,
                    report.clients.commands_total,
                    report.cache.hits_total,
                    report.cache.misses_total,
                    report.cache.evictions_total,
                    tracking.keys,
                    tracking.items,
                    tracking.prefixes
                ),
            ),
            ("replication", "Replication", "role:master\r\nconnected_slaves:0\r\n".into()),
            (
                "keyspace",
                "Keyspace",
                // As in Redis, a database without keys is not named.
                match self.keys_in_memory() {
                    0 => String::new(),
                    keys => format!("db0:keys={keys}\r\n"),
                },
            ),
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
                    self.measured.given_up()
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
