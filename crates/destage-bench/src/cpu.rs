//! CPU time of server processes, from `/proc`.
//!
//! The figure is user plus system time of a process tree: all threads, children that run
//! (PostgreSQL's backends), and children that have ended and were waited for.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::time::Duration;

use crate::Result;

/// User plus system time of `root` and all its descendants. Resolution: one clock tick (10 ms).
///
/// # Errors
///
/// `root` does not exist.
pub(crate) fn tree_cpu(root: u32) -> Result<Duration> {
    let stats = all_stats()?;
    if !stats.contains_key(&root) {
        return Err(format!("process {root} is gone: its CPU time cannot be read").into());
    }
    let ticks: u64 = tree(root, &stats).iter().map(|pid| stats[pid].ticks).sum();
    // SAFETY: `sysconf` reads a constant and touches no memory of ours.
    let per_second = unsafe { libc::sysconf(libc::_SC_CLK_TCK) }.max(1) as u64;
    Ok(Duration::from_nanos(ticks * (1_000_000_000 / per_second)))
}

/// Memory of its own that one process holds, bytes: not the pages of its program, which come and go with what it runs.
pub(crate) fn resident_bytes(pid: u32) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let kib = status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:"))
        .and_then(|rest| rest.trim().trim_end_matches("kB").trim().parse::<u64>().ok())
        .ok_or_else(|| format!("process {pid} shows no RssAnon"))?;
    Ok(kib * 1024)
}

/// The CPU time of this process and its ended children.
pub(crate) fn own_cpu() -> Result<Duration> {
    tree_cpu(std::process::id())
}

struct Stat {
    parent: u32,
    ticks: u64,
}

fn all_stats() -> Result<HashMap<u32, Stat>> {
    let mut stats = HashMap::new();
    for entry in fs::read_dir("/proc")? {
        let Some(pid) = entry?.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        // A process may end between the listing and the read.
        let Ok(text) = fs::read_to_string(format!("/proc/{pid}/stat")) else { continue };
        if let Some(stat) = parse_stat(&text) {
            stats.insert(pid, stat);
        }
    }
    Ok(stats)
}

/// Fields after the command name, which is in parentheses and may hold any character.
fn parse_stat(text: &str) -> Option<Stat> {
    let rest = &text[text.rfind(')')? + 1..];
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    let number = |at: usize| fields.get(at).and_then(|f| f.parse::<u64>().ok());
    let ticks = (11..=14).map(number).sum::<Option<u64>>()?;
    Some(Stat { parent: u32::try_from(number(1)?).ok()?, ticks })
}

fn tree(root: u32, stats: &HashMap<u32, Stat>) -> HashSet<u32> {
    let mut members = HashSet::from([root]);
    loop {
        let before = members.len();
        members.extend(
            stats
                .iter()
                .filter(|(_, s)| members.contains(&s.parent))
                .map(|(pid, _)| *pid)
                .collect::<Vec<_>>(),
        );
        if members.len() == before {
            return members;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::time::Instant;

    use super::*;

    #[test]
    fn stat_line_with_a_hostile_name_is_parsed() {
        let line = "42 (a) b (c) S 7 1 1 0 -1 0 1 2 3 4 100 20 3 1 20 0 1 0";
        let stat = parse_stat(line).expect("parses");
        assert_eq!((stat.parent, stat.ticks), (7, 124));
    }

    #[test]
    fn a_busy_child_is_counted_while_it_runs() {
        let mut child = Command::new("sh")
            .args(["-c", "(while :; do :; done) & trap 'kill $!' TERM; wait"])
            .spawn()
            .expect("sh starts");
        let start = Instant::now();
        let mut cpu = Duration::ZERO;
        // The machine may be busy with others, so how long it takes to get that much is open.
        while cpu < Duration::from_millis(200) && start.elapsed() < Duration::from_secs(60) {
            std::thread::sleep(Duration::from_millis(10));
            cpu = tree_cpu(child.id()).expect("running");
        }
        let wall = start.elapsed();
        // SAFETY: the pid is our own running child's.
        unsafe { libc::kill(child.id() as i32, libc::SIGTERM) };
        child.wait().expect("ends");
        assert!(cpu >= Duration::from_millis(200) && cpu <= wall * 2, "{cpu:?} of {wall:?}");
    }

    #[test]
    fn resident_memory_follows_an_allocation() {
        let before = resident_bytes(std::process::id()).expect("own status");
        let block = vec![1u8; 64 << 20];
        let after = resident_bytes(std::process::id()).expect("own status");
        assert!(after >= before + (60 << 20), "{before} {after} {}", block[5]);
    }
}
