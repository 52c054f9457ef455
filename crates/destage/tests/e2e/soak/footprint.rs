//! What a server takes and shows at rest: it must be as little after any trouble as before.

use crate::harness::{PATIENCE, Server, eventually, millis};
use std::path::PathBuf;
use std::thread;
use std::time::Instant;

/// What is above zero only while something is under way, waits, or is wrong.
const GAUGES: [&str; 14] = [
    "destage_dirty_groups",
    "destage_dirty_units",
    "destage_dirty_bytes",
    "destage_pinned_bytes",
    "destage_waiting_requests",
    "destage_derived_waiting",
    "destage_parked_groups",
    "destage_halted_domains",
    "destage_journal_dirty_bytes",
    "destage_memory_groups_bytes",
    "destage_origin_down",
    "destage_origin_failing_seconds",
    "destage_rpo_host_crash_seconds",
    "destage_rpo_total_loss_seconds",
];
/// The same where no client is connected.
pub(super) const OF_CLIENTS: [&str; 2] = ["destage_clients", "destage_memory_clients_bytes"];

/// What the kernel counts of a process.
#[derive(Clone, Copy, Debug)]
pub(super) struct Footprint {
    files: usize,
    threads: usize,
    pub(super) resident_bytes: u64,
}

impl Footprint {
    /// What it takes now.
    pub(super) fn of(server: &Server) -> Self {
        let process = PathBuf::from(format!("/proc/{}", server.id()));
        let count = |what: &str| {
            let entries = std::fs::read_dir(process.join(what)).expect("the server runs");
            entries.count()
        };
        let status = std::fs::read_to_string(process.join("status")).expect("the server runs");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
        let resident_bytes = kib.expect("the kernel counts it") << 10;
        Self { files: count("fd"), threads: count("task"), resident_bytes }
    }

    /// Once it no longer takes less and less: connections and idle threads end a while after their last use.
    pub(super) fn settled(server: &Server) -> Self {
        let mut least = Self::of(server);
        let mut since = Instant::now();
        while since.elapsed() < millis(1_500) {
            thread::sleep(millis(100));
            let now = Self::of(server);
            if now.files < least.files || now.threads < least.threads {
                since = Instant::now();
                let (files, threads) = (now.files.min(least.files), now.threads.min(least.threads));
                least = Self { files, threads, ..now };
            }
        }
        Self { resident_bytes: Self::of(server).resident_bytes, ..least }
    }

    /// The same with so many open files more.
    pub(super) fn with_files(self, more: usize) -> Self {
        Self { files: self.files + more, ..self }
    }

    /// What it takes more than before, if anything. Its memory may have grown by `growth_bytes`.
    pub(super) fn above(&self, before: &Self, growth_bytes: u64) -> Option<String> {
        let more = [
            ("open files", self.files as u64, before.files as u64),
            ("threads", self.threads as u64, before.threads as u64),
            ("bytes resident", self.resident_bytes, before.resident_bytes + growth_bytes),
        ];
        let more = more.iter().filter(|(_, now, most)| now > most);
        let more: Vec<String> =
            more.map(|(what, now, most)| format!("{now} {what}, not {most}")).collect();
        (!more.is_empty()).then(|| more.join("; "))
    }
}

/// Those of the gauges that are not zero, with their values.
pub(super) fn above_zero(server: &Server, more: &[&str]) -> Vec<String> {
    let values = GAUGES.iter().chain(more).map(|name| (name, server.metric(name)));
    values
        .filter(|(_, value)| *value != 0.0)
        .map(|(name, value)| format!("{name} {value}"))
        .collect()
}

/// Waits until every gauge is zero.
///
/// # Panics
/// With those that are not.
#[track_caller]
pub(super) fn rests(server: &Server, more: &[&str]) {
    let begun = Instant::now();
    let mut left = above_zero(server, more);
    while !left.is_empty() {
        assert!(begun.elapsed() < PATIENCE, "nothing is under way, and yet: {}", left.join(", "));
        thread::sleep(millis(20));
        left = above_zero(server, more);
    }
}

mod tests {
    use super::*;
    use crate::harness::{Launch, Scratch, shop};

    #[test]
    fn connections_and_writes_that_are_left_over_are_noticed() {
        let scratch = Scratch::new();
        let server = Launch::before(&scratch, &shop::sqlite(&scratch).url()).start();
        server.client().run("HGET customers:1 name");
        rests(&server, &OF_CLIENTS);
        let before = Footprint::settled(&server);
        assert_eq!(Footprint::settled(&server).above(&before, 16 << 20), None);

        let mut clients: Vec<_> = (0..3).map(|_| server.client()).collect();
        assert_eq!(clients[0].run("PING").text(), "PONG");
        let now = Footprint::of(&server);
        let found = now.above(&before, 0).expect("there are more open files");
        assert!(found.contains("open files"), "{found}");
        assert!(!above_zero(&server, &OF_CLIENTS).is_empty());
        let grown = Footprint { resident_bytes: before.resident_bytes + 1, ..before };
        assert!(grown.above(&before, 0).is_some_and(|found| found.contains("resident")));
        let busy = Footprint { threads: before.threads + 1, ..before };
        assert!(busy.above(&before, 0).is_some_and(|found| found.contains("threads")));

        clients[0].run("DESTAGE PAUSE");
        clients[0].run("HSET customers:1 name later");
        let left = above_zero(&server, &[]).join(" ");
        for name in ["destage_dirty_groups", "destage_dirty_bytes", "destage_pinned_bytes"] {
            assert!(left.contains(name), "{name}: {left}");
        }
        clients[0].run("DESTAGE RESUME");
        drop(clients);
        rests(&server, &OF_CLIENTS);
        eventually("the files are closed", PATIENCE, || {
            Footprint::of(&server).above(&before, 16 << 20).is_none()
        });
    }
}
