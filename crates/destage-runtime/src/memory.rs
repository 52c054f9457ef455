//! How much memory there is: what shares in percent are of. And what is given back of it.

use std::path::Path;
use std::time::Duration;
use std::{fs, thread};

/// Bytes that this process may use: the machine's memory, or what the control groups that it is in allow, whatever is less.
/// `None` where the system does not tell.
pub fn usable_bytes() -> Option<u64> {
    usable_below(Path::new("/"))
}

/// Resident memory from the kernel; 0 where it does not say.
pub(crate) fn resident_bytes() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .and_then(|rest| rest.trim().strip_suffix("kB"))
        .and_then(|kib| kib.trim().parse::<u64>().ok())
        .map_or(0, |kib| kib * 1024)
}

fn usable_below(root: &Path) -> Option<u64> {
    let machine = machine_bytes(&fs::read_to_string(root.join("proc/meminfo")).ok()?)?;
    let groups = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    Some(groups.lines().filter_map(|group| group_bytes(root, group)).fold(machine, u64::min))
}

fn machine_bytes(meminfo: &str) -> Option<u64> {
    let total = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = total.trim().strip_suffix("kB")?.trim_end().parse().ok()?;
    kib.checked_mul(1024)
}

/// The limit of a line of `/proc/self/cgroup`, `0::/path` or `7:memory:/path`, or of a group that it is in.
fn group_bytes(root: &Path, line: &str) -> Option<u64> {
    let mut parts = line.splitn(3, ':').skip(1);
    let (controllers, path) = (parts.next()?, parts.next()?);
    let (hierarchy, limit) = match controllers {
        "" => ("sys/fs/cgroup", "memory.max"),
        _ if controllers.split(',').any(|name| name == "memory") => {
            ("sys/fs/cgroup/memory", "memory.limit_in_bytes")
        }
        _ => return None,
    };
    let hierarchy = root.join(hierarchy);
    let own = hierarchy.join(path.trim_start_matches('/'));
    // Inside of a container the path may be that of the host, which is not there; the container's own limit is at the top.
    let groups = own.ancestors().take_while(|group| group.starts_with(&hierarchy));
    let limits = groups.filter_map(|group| fs::read_to_string(group.join(limit)).ok());
    // Without a limit it is `max`.
    limits.filter_map(|limit| limit.trim().parse().ok()).min()
}

/// Has what this process has freed given back to the system whenever it has worked and is quiet again. The allocator keeps it
/// otherwise, for as long as the process lives: after large replies to many clients that is a multiple of what is in use. Not
/// while there is work, which would find the memory again at once, and wait meanwhile.
pub fn give_back_when_quiet() {
    keep_little();
    let watch = || {
        let mut quiet = Quiet::default();
        loop {
            thread::sleep(LOOK_EVERY);
            if quiet.look(processor_time()) {
                give_back();
                quiet.given_back(processor_time());
            }
        }
    };
    if let Err(error) = thread::Builder::new().name("memory".into()).spawn(watch) {
        tracing::warn!("freed memory will not be given back to the system: {error}");
    }
}

/// Whether it is time to give back, by what the process has used of the processors.
#[derive(Debug, Default)]
struct Quiet {
    before: Duration,
    given_back: Duration,
    /// Looks in a row that found little used.
    looks: u32,
}

impl Quiet {
    /// Asked every [`LOOK_EVERY`]; `used` is all that was used so far.
    ///
    /// A process that others keep from the processors seems quiet amid its work, and may have little left to do: what it frees
    /// then is too little work to be noticed at once, and is looked for when the process has been quiet for a while.
    fn look(&mut self, used: Duration) -> bool {
        let is_quiet = used.saturating_sub(self.before) < QUIET_MAX;
        self.looks = if is_quiet { self.looks + 1 } else { 0 };
        self.before = used;
        let since = used.saturating_sub(self.given_back);
        is_quiet && (since >= WORK_MIN || (self.looks >= LONG_LOOKS && since >= LITTLE_WORK_MIN))
    }

    /// What was used so far, and by giving back.
    fn given_back(&mut self, used: Duration) {
        (self.before, self.given_back, self.looks) = (used, used, 0);
    }
}

/// What all threads of this process have used of the processors.
fn processor_time() -> Duration {
    let used = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(used.tv_sec.cast_unsigned(), u32::try_from(used.tv_nsec).unwrap_or(0))
}

/// Each thread's allocations have an end that [`give_back`] does not reach: it is given back by itself beyond a limit. That
/// would grow with the largest allocation so far, to 64 MiB for each thread.
#[cfg(target_env = "gnu")]
fn keep_little() {
    // SAFETY: it sets numbers.
    unsafe {
        libc::mallopt(libc::M_TRIM_THRESHOLD, KEPT_BYTES_MAX);
        libc::mallopt(libc::M_MMAP_THRESHOLD, KEPT_BYTES_MAX);
    }
}

#[cfg(not(target_env = "gnu"))]
fn keep_little() {}

#[cfg(target_env = "gnu")]
fn give_back() {
    // SAFETY: it touches nothing but what is free.
    unsafe { libc::malloc_trim(0) };
}

#[cfg(not(target_env = "gnu"))]
fn give_back() {}

/// What is allocated at once and is larger comes from the system each time, and goes back there.
#[cfg(target_env = "gnu")]
const KEPT_BYTES_MAX: libc::c_int = 2 << 20;
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Of the processors' time in between: less is quiet,
const QUIET_MAX: Duration = Duration::from_millis(100);
/// and less than this since the last time leaves nothing worth looking for.
const WORK_MIN: Duration = Duration::from_millis(250);
/// unless it has been quiet for so many looks: then for less than this.
const LONG_LOOKS: u32 = 5;
const LITTLE_WORK_MIN: Duration = Duration::from_millis(20);

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: u64 = 16_000_000;

    /// A system whose process is in that group, with these limits.
    fn system(group: &str, limits: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("proc/meminfo", &format!("MemTotal:       {KIB} kB\nMemFree:  1 kB\n"));
        write("proc/self/cgroup", group);
        limits.iter().for_each(|(path, limit)| write(&format!("sys/fs/cgroup/{path}"), limit));
        root
    }

    #[test]
    fn the_least_limit_of_the_groups_counts() {
        for (group, limits, expected) in [
            ("", &[][..], KIB * 1024),
            ("0::/\n", &[], KIB * 1024),
            ("0::/a/b\n", &[("a/b/memory.max", "max\n"), ("memory.max", "max\n")], KIB * 1024),
            ("0::/a/b\n", &[("a/b/memory.max", "4096\n"), ("a/memory.max", "8192\n")], 4096),
            ("0::/a/b\n", &[("a/b/memory.max", "8192\n"), ("a/memory.max", "4096\n")], 4096),
            ("0::/elsewhere\n", &[("memory.max", "4096\n")], 4096),
            ("3:cpu:/a\n2:rdma,memory:/a\n", &[("memory/a/memory.limit_in_bytes", "4096\n")], 4096),
            (
                "2:memory:/\n",
                &[("memory/memory.limit_in_bytes", "9223372036854771712\n")],
                KIB * 1024,
            ),
        ] {
            let root = system(group, limits);
            assert_eq!(usable_below(root.path()), Some(expected), "{group} {limits:?}");
        }
    }

    #[test]
    fn what_is_freed_by_little_work_is_given_back_when_it_stays_quiet() {
        let mut quiet = Quiet::default();
        let at = Duration::from_millis;
        assert!(!quiet.look(at(500)), "it works");
        assert!(quiet.look(at(510)), "starved amid its work");
        quiet.given_back(at(512));
        let mut used = 600;
        let looks = (0..20).map(|_| {
            used += 1;
            quiet.look(at(used))
        });
        assert_eq!(looks.take_while(|is_time| !is_time).count(), 4);
        quiet.given_back(at(used));
        // What an idle server does is no work.
        let mut idle = (0..15).map(|_| {
            used += 1;
            quiet.look(at(used))
        });
        assert!(!idle.any(|is_time| is_time));
    }

    #[test]
    fn this_machine_has_memory() {
        assert!(usable_bytes().is_some_and(|bytes| bytes > 1 << 20));
    }
}
