//! `destage block serve`, the server that the figures are about.

use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde::Deserialize;

use super::destage::wait_for_ready;
use super::{Process, free_address};
use crate::Result;
use crate::command::output_within;
use crate::control::http_get;

/// How to start it.
#[derive(Clone, Debug)]
pub(crate) struct BlockConfig {
    pub(crate) bin: PathBuf,
    pub(crate) origin: String,
    pub(crate) redo: String,
    /// Made if it is absent.
    pub(crate) cache: PathBuf,
    pub(crate) cache_bytes: u64,
    pub(crate) log_bytes: u64,
    pub(crate) dirty_bytes: u64,
    pub(crate) policy: &'static str,
    pub(crate) extra: Vec<String>,
}

/// A running `destage block serve` with one volume.
#[derive(Debug)]
pub(crate) struct BlockServer {
    process: Process,
    bin: PathBuf,
    socket: PathBuf,
    admin: SocketAddr,
    /// From the start of the process to its ready line.
    pub(crate) started_in: Duration,
}

impl BlockServer {
    /// D, as the flag takes it.
    pub(crate) const STALENESS: &str = "60s";
    /// No command takes longer unless something is stuck.
    const COMMAND_MAX: Duration = Duration::from_secs(620);

    /// Starts one with its socket in `dir` and waits for its ready line.
    ///
    /// # Errors
    ///
    /// It does not get ready: what it said.
    pub(crate) fn start(dir: &Path, config: &BlockConfig) -> Result<Self> {
        let mut words = Vec::new();
        for (flag, bytes) in [
            ("--cache-size", config.cache_bytes),
            ("--log-size", config.log_bytes),
            ("--dirty-limit", config.dirty_bytes),
        ] {
            words.extend([flag.to_owned(), bytes.to_string()]);
        }
        words
            .extend(["--policy", config.policy, "--staleness", Self::STALENESS].map(str::to_owned));
        words.extend_from_slice(&config.extra);
        Self::start_as(dir, &config.bin, [&config.origin, &config.redo], &config.cache, &words)
    }

    /// The same with these settings alone; all others are the server's own defaults.
    ///
    /// # Errors
    ///
    /// It does not get ready: what it said.
    pub(crate) fn start_as(
        dir: &Path,
        bin: &Path,
        [origin, redo]: [&str; 2],
        cache: &Path,
        words: &[String],
    ) -> Result<Self> {
        let admin = free_address()?;
        let socket = dir.join(format!("block-{}.socket", admin.port()));
        let log = dir.join(format!("block-{}.log", admin.port()));
        let mut command = Command::new(bin);
        command.args(["block", "serve", "--origin", origin, "--redo", redo]);
        command.arg("--cache").arg(cache);
        // What is to be at the origin is drained before.
        command.args(["--drain-timeout", "0"]);
        command.args(["--listen", &format!("unix:{}", socket.display())]);
        command.args(["--admin", &admin.to_string()]).args(words);
        command.stdout(Stdio::piped()).stderr(File::create(&log)?);
        let start = Instant::now();
        let mut process = Process::start(&mut command, "destage block", libc::SIGTERM)?;
        let stdout = process.child.stdout.take().ok_or("destage has no standard output")?;
        wait_for_ready(BufReader::new(stdout).lines()).map_err(|error| {
            let said = std::fs::read_to_string(&log).unwrap_or_default();
            format!("destage block serve did not get ready: {error}; it said: {}", said.trim())
        })?;
        let started_in = start.elapsed();
        Ok(Self { process, bin: bin.to_owned(), socket, admin, started_in })
    }

    pub(crate) fn uri(&self) -> String {
        format!("nbd+unix:///?socket={}", self.socket.display())
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.pid()
    }

    pub(crate) fn cpu(&self) -> Result<Duration> {
        self.process.cpu()
    }

    /// Ends it as a crash would.
    pub(crate) fn kill(mut self) -> Result<()> {
        self.process.kill()
    }

    /// Runs `destage block WORDS`.
    ///
    /// # Errors
    ///
    /// What it said if it failed.
    pub(crate) fn control(&self, words: &[&str]) -> Result<()> {
        let mut command = Command::new(&self.bin);
        command.arg("block").args(words).args(["--admin", &self.admin.to_string()]);
        let output = output_within(&mut command, Self::COMMAND_MAX)?;
        if output.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&output.stderr);
        Err(format!("destage block {} failed: {}", words.join(" "), said.trim()).into())
    }

    /// Waits until the origin has everything written so far.
    ///
    /// # Errors
    ///
    /// It failed, or something is dirty all the same.
    pub(crate) fn drain(&self) -> Result<()> {
        self.control(&["drain"])?;
        let status = self.status()?;
        match status.dirty_writes {
            0 => Ok(()),
            left => Err(format!("{left} writes are not at the origin after a drain").into()),
        }
    }

    /// Changes the policy or parts of it, and waits until it is in force.
    ///
    /// # Errors
    ///
    /// It is refused, or not in force within a minute.
    pub(crate) fn set_policy(&self, changes: &[&str]) -> Result<()> {
        self.control(&[&["policy"], changes].concat())?;
        let deadline = Instant::now() + Duration::from_secs(60);
        while Instant::now() < deadline {
            if self.status()?.mode != "changing-policy" {
                return Ok(());
            }
            thread::sleep(Duration::from_millis(10));
        }
        Err(format!("the policy is not {} within a minute", changes.join(" ")).into())
    }

    /// What the volume tells of itself.
    pub(crate) fn status(&self) -> Result<VolumeStatus> {
        let report: Report = serde_json::from_str(&http_get(self.admin, "/status")?)?;
        let volume = report.volumes.into_iter().next().ok_or("the status shows no volume")?;
        match volume.origin_errors_total + volume.cache_errors_total {
            0 => Ok(volume),
            _ => {
                Err(format!("the origin or the cache failed: {}", volume.origin_last_error).into())
            }
        }
    }
}

#[derive(Deserialize)]
struct Report {
    volumes: Vec<VolumeStatus>,
}

/// What the benchmark reads of a volume.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct VolumeStatus {
    pub(crate) mode: String,
    pub(crate) staleness_max_seconds: f64,
    pub(crate) dirty_bytes: u64,
    pub(crate) dirty_writes: u64,
    pub(crate) clean_blocks: u64,
    pub(crate) log_bytes: u64,
    pub(crate) hit_blocks_total: u64,
    pub(crate) miss_blocks_total: u64,
    origin_errors_total: u64,
    cache_errors_total: u64,
    origin_last_error: String,
}
