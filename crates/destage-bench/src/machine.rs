//! What the figures were measured on: machine, kernel, versions, commit, disk.

use std::fs::{self, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use serde::Serialize;

use crate::Result;
use crate::stats::Spread;

/// Facts that make a figure comparable.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Machine {
    pub(crate) cpu: String,
    pub(crate) cpus: usize,
    pub(crate) memory_gib: f64,
    pub(crate) kernel: String,
    pub(crate) commit: String,
    pub(crate) load_before: String,
    /// Microseconds per fdatasync after overwriting 4 KiB.
    pub(crate) fdatasync_us: Spread,
    /// Name and version of each program that took part.
    pub(crate) versions: Vec<(String, String)>,
}

impl Machine {
    /// Reads the facts; `dir` is on the disk that the servers use.
    pub(crate) fn look(dir: &Path) -> Result<Self> {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo")?;
        let cpu = field(&cpuinfo, "model name").unwrap_or("unknown").to_owned();
        let meminfo = fs::read_to_string("/proc/meminfo")?;
        let kib: f64 = field(&meminfo, "MemTotal")
            .and_then(|v| v.trim_end_matches("kB").trim().parse().ok())
            .unwrap_or(0.0);
        Ok(Self {
            cpu,
            cpus: std::thread::available_parallelism()?.get(),
            memory_gib: (kib / 1024.0 / 1024.0 * 10.0).round() / 10.0,
            kernel: output("uname", &["-sr"]).unwrap_or_else(|| "unknown".into()),
            commit: commit(),
            load_before: fs::read_to_string("/proc/loadavg")?
                .split_whitespace()
                .next()
                .unwrap_or("?")
                .to_owned(),
            fdatasync_us: fdatasync_us(dir)?,
            versions: Vec::new(),
        })
    }
}

/// Median of 200 overwrites of one 4 KiB block, each followed by fdatasync, microseconds.
pub(crate) fn fdatasync_us(dir: &Path) -> Result<Spread> {
    let path = dir.join("fdatasync");
    let file = OpenOptions::new().create(true).truncate(true).write(true).open(&path)?;
    file.write_all_at(&[0u8; 64 * 1024], 0)?;
    file.sync_all()?;
    let mut times = Vec::with_capacity(200);
    for i in 0..200u8 {
        let start = Instant::now();
        file.write_all_at(&[i; 4096], 4096)?;
        // SAFETY: the descriptor is open as long as `file` lives.
        if unsafe { libc::fdatasync(file.as_raw_fd()) } != 0 {
            return Err(std::io::Error::last_os_error().into());
        }
        times.push(start.elapsed().as_secs_f64() * 1e6);
    }
    drop(file);
    fs::remove_file(&path)?;
    Ok(Spread::of(times).expect("200 overwrites were timed"))
}

/// The first line that a program prints, if it runs.
pub(crate) fn output(program: &str, args: &[&str]) -> Option<String> {
    let out = Command::new(program).args(args).output().ok()?;
    let text = String::from_utf8_lossy(&out.stdout);
    let line = text.lines().next()?.trim();
    (out.status.success() && !line.is_empty()).then(|| line.to_owned())
}

fn commit() -> String {
    let Some(hash) = output("git", &["rev-parse", "--short=12", "HEAD"]) else {
        return "none".into();
    };
    let dirty = output("git", &["status", "--porcelain"]).is_some();
    if dirty { format!("{hash} with changes") } else { hash }
}

fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines()
        .filter_map(|line| line.split_once(':'))
        .find(|(key, _)| key.trim() == name)
        .map(|(_, value)| value.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_are_found_on_this_machine() {
        let dir = tempfile::tempdir().expect("temp folder");
        let machine = Machine::look(dir.path()).expect("proc is readable");
        assert!(machine.cpus >= 1 && machine.memory_gib > 0.0);
        assert!(machine.fdatasync_us.median > 0.0);
    }
}
