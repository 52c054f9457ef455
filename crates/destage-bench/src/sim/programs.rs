//! The two programs, run to their end with what they used.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use super::loads::Trace;
use crate::Result;

/// Bytes of a block in the traces; objects take a place whatever their size.
const BLOCK: u64 = 4_096;

/// Whose turn it is.
#[derive(Clone, Copy, Debug)]
pub(super) enum Side {
    Ours,
    Theirs,
}

/// What a run took and found.
#[derive(Debug)]
pub(super) struct Used {
    /// User and system time.
    pub(super) cpu: Duration,
    /// At most at once.
    pub(super) memory_bytes: u64,
    /// Of the largest cache, where there were several.
    pub(super) miss_ratio: f64,
}

/// The programs and where they run.
pub(super) struct Programs {
    pub(super) destage: PathBuf,
    pub(super) cachesim: Option<PathBuf>,
    /// The processor.
    pub(super) core: usize,
    pub(super) dir: PathBuf,
}

impl Programs {
    /// One cache of ours.
    pub(super) fn ours(&self, trace: &Trace, policy: &str, blocks: u64) -> Result<Used> {
        let size = (blocks * BLOCK).to_string();
        let mut run = self.sim(&["run", "--flash", &size, "--replacement", policy], &trace.path);
        let (text, cpu, memory_bytes) = finish(&mut run)?;
        let rows: Value = serde_json::from_str(&text)?;
        let hits =
            rows[0]["block_hit_ratio"].as_f64().ok_or("the result has no block_hit_ratio")?;
        Ok(Used { cpu, memory_bytes, miss_ratio: 1.0 - hits })
    }

    /// A curve of ours under LRU, the largest size last.
    pub(super) fn our_curve(&self, trace: &Trace, blocks: &[u64]) -> Result<Used> {
        let sizes: Vec<String> = blocks.iter().map(|blocks| (blocks * BLOCK).to_string()).collect();
        let mut run = self.sim(&["curve", "--sizes", &sizes.join(",")], &trace.path);
        let (text, cpu, memory_bytes) = finish(&mut run)?;
        let found: Value = serde_json::from_str(&text)?;
        let points = found["curves"][0]["points"].as_array().ok_or("the curve has no points")?;
        let last = points.last().and_then(|point| point["block_miss_ratio"].as_f64());
        Ok(Used { cpu, memory_bytes, miss_ratio: last.ok_or("the curve has no miss ratio")? })
    }

    /// libCacheSim's caches of these sizes, the largest last.
    pub(super) fn theirs(&self, trace: &Trace, policy: &str, blocks: &[u64]) -> Result<Used> {
        let program = self.cachesim.as_ref().ok_or("libCacheSim is not there")?;
        let sizes: Vec<String> = blocks.iter().map(u64::to_string).collect();
        let mut run = self.pinned(program);
        run.arg(&trace.path).args(["oracleGeneral", policy, &sizes.join(",")]);
        run.args(["--ignore-obj-size", "1", "--num-thread", "1", "-o", "/dev/null"]);
        let (text, cpu, memory_bytes) = finish(&mut run)?;
        let miss_ratio = last_miss_ratio(&text)
            .ok_or_else(|| format!("libCacheSim prints no miss ratio: {text}"))?;
        Ok(Used { cpu, memory_bytes, miss_ratio })
    }

    /// Writes what a command of `destage sim` prints into a file.
    pub(super) fn write(&self, arguments: &[String], path: &Path) -> Result<()> {
        let mut command = Command::new(&self.destage);
        let command = command.arg("sim").args(arguments).stdin(Stdio::null());
        let status = command.stdout(File::create(path)?).status()?;
        if status.success() {
            Ok(())
        } else {
            Err(format!("destage sim {}: {status}", arguments.join(" ")).into())
        }
    }

    /// How many blocks a trace touches.
    pub(super) fn distinct(&self, path: &Path) -> Result<u64> {
        let size = BLOCK.to_string();
        let (text, ..) = finish(&mut self.sim(&["run", "--flash", &size], path))?;
        let rows: Value = serde_json::from_str(&text)?;
        Ok(rows[0]["distinct_blocks"].as_u64().ok_or("the result has no distinct_blocks")?)
    }

    fn sim(&self, arguments: &[&str], trace: &Path) -> Command {
        let mut command = self.pinned(&self.destage);
        command.arg("sim").args(arguments).arg("--trace").arg(trace);
        command.args(["--trace-format", "oracle-general", "--format", "json"]);
        command
    }

    fn pinned(&self, program: &Path) -> Command {
        let mut command = Command::new("taskset");
        command.arg("--cpu-list").arg(self.core.to_string()).arg(program).current_dir(&self.dir);
        command
    }
}

/// The last of the ratios that libCacheSim prints, which names sizes in the order in which they were asked for.
fn last_miss_ratio(text: &str) -> Option<f64> {
    const NAME: &str = " miss ratio ";
    let last = text.lines().rev().find_map(|line| line.split_once(NAME))?.1;
    last.split([',', ' ', '\n']).next()?.parse().ok()
}

/// Runs a program to its end: what it prints, its processor time, and its memory.
fn finish(command: &mut Command) -> Result<(String, Duration, u64)> {
    let shown = format!("{command:?}");
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| format!("failed to start {shown}: {error}"))?;
    let mut text = String::new();
    let mut output = child.stdout.take().ok_or("the output is piped")?;
    output.read_to_string(&mut text)?;
    let pid = child.id().cast_signed();
    let mut status = 0;
    // SAFETY: all bits of a rusage may be zero.
    let mut used: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the pid is our own child's, which nobody has waited for; both places outlive the call.
    if unsafe { libc::wait4(pid, &raw mut status, 0, &raw mut used) } != pid {
        return Err(std::io::Error::last_os_error().into());
    }
    if status != 0 {
        return Err(format!("{shown} ended with the status {status:#x}").into());
    }
    let time = |time: libc::timeval| {
        Duration::from_secs(time.tv_sec as u64) + Duration::from_micros(time.tv_usec as u64)
    };
    Ok((text, time(used.ru_utime) + time(used.ru_stime), used.ru_maxrss as u64 * 1024))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_miss_ratio_of_what_is_printed_counts() {
        let one =
            "a.bin LRU cache size   131072,   39 req, miss ratio 0.5521, throughput 3.12 MQPS\n";
        let many = "\nresult/a LRU cache size 1, 9 req, miss ratio 0.7000, byte miss ratio 0.7000\n\
                    result/a LRU cache size 2, 9 req, miss ratio 0.6000, byte miss ratio 0.6500\n";
        assert_eq!(last_miss_ratio(one), Some(0.5521));
        assert_eq!(last_miss_ratio(many), Some(0.6));
        assert_eq!(last_miss_ratio("nothing"), None);
    }

    #[test]
    fn a_programs_own_time_and_memory_are_counted_and_its_failure_is_one() {
        let mut busy = Command::new("sh");
        busy.args(["-c", "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; echo $i"]);
        let (text, cpu, memory) = finish(&mut busy).expect("it ends");
        assert_eq!(text, "20000\n");
        assert!(cpu > Duration::ZERO && memory > 100_000, "{cpu:?} {memory}");
        assert!(finish(Command::new("sh").args(["-c", "exit 3"])).is_err());
    }
}
