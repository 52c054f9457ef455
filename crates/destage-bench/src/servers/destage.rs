//! `destage serve`, the server that the figures are about.

use std::fs::File;
use std::io::{BufRead, BufReader, Lines};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{ChildStdout, Command, Stdio};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use destage_runtime::sockets::Listen;
use serde_json::Value as Json;
use tempfile::TempDir;

use super::{Process, Transport, free_address};
use crate::Result;
use crate::control::{Client, Value, http_get};

/// How to start it.
#[derive(Clone, Debug)]
pub(crate) struct DestageConfig {
    pub(crate) bin: PathBuf,
    pub(crate) origin: String,
    /// `d`, as the flag takes it.
    pub(crate) commit: String,
    /// `D`, as the flag takes it.
    pub(crate) staleness: String,
    /// Where it listens.
    pub(crate) transport: Transport,
    pub(crate) extra: Vec<String>,
}

/// A running `destage serve`.
#[derive(Debug)]
pub(crate) struct Destage {
    process: Process,
    pub(crate) address: Listen,
    admin: SocketAddr,
    /// The journal's folder, removed once the process has stopped.
    data: TempDir,
    /// From the start of the process to its ready line.
    pub(crate) started_in: Duration,
}

impl Destage {
    /// Starts one with a journal of its own below `dir` and waits for its ready line.
    pub(crate) fn start(dir: &Path, config: &DestageConfig) -> Result<Self> {
        let data = tempfile::Builder::new().prefix("destage-").tempdir_in(dir)?;
        // Each run has a data folder of its own, while the origin remembers the run before.
        Self::start_with(dir, config, data, &["--adopt", "--take-over"])
    }

    /// The same where nobody else can own the origin: who takes over by force from an owner of a log on other servers answers
    /// nothing before that one must have noticed.
    pub(crate) fn start_unforced(dir: &Path, config: &DestageConfig) -> Result<Self> {
        let data = tempfile::Builder::new().prefix("destage-").tempdir_in(dir)?;
        Self::start_with(dir, config, data, &["--adopt"])
    }

    /// Ends it without a chance to tidy up, if it has not ended yet, and starts another one over the same journal.
    ///
    /// # Errors
    ///
    /// It does not start, since it misses what the journal should hold, say.
    pub(crate) fn start_again(self, dir: &Path, config: &DestageConfig) -> Result<Self> {
        let Self { mut process, data, .. } = self;
        process.kill()?;
        drop(process);
        Self::start_with(dir, config, data, &["--take-over"])
    }

    fn start_with(
        dir: &Path,
        config: &DestageConfig,
        data: TempDir,
        flags: &[&str],
    ) -> Result<Self> {
        let settings = ["--policy", "write-back", "--dirty-limit", "4G", "--cache-size", "4G"];
        let times = ["--commit", &config.commit, "--staleness", &config.staleness];
        let words = [flags, &settings, &times].concat().into_iter().map(str::to_owned);
        let words: Vec<String> = words.chain(config.extra.iter().cloned()).collect();
        Self::start_as(dir, &config.bin, &config.origin, config.transport, data, &words)
    }

    /// The same with these settings alone; all others are the server's own defaults.
    ///
    /// # Errors
    ///
    /// It does not get ready: what it said.
    pub(crate) fn start_as(
        dir: &Path,
        bin: &Path,
        origin: &str,
        transport: Transport,
        data: TempDir,
        words: &[String],
    ) -> Result<Self> {
        let (address, admin) = (transport.place(dir, "destage")?, free_address()?);
        let log = dir.join(format!("destage-{}.log", admin.port()));
        let mut command = Command::new(bin);
        command.args(["serve", "--origin", origin, "--no-auth"]);
        command.args(["--listen", &address.to_string(), "--admin", &admin.to_string()]);
        command.arg("--data").arg(data.path()).args(words);
        command.stdout(Stdio::piped()).stderr(File::create(&log)?);
        let start = Instant::now();
        let mut process = Process::start(&mut command, "destage", libc::SIGTERM)?;
        let stdout = process.child.stdout.take().ok_or("destage has no standard output")?;
        wait_for_ready(BufReader::new(stdout).lines()).map_err(|error| {
            let said = std::fs::read_to_string(&log).unwrap_or_default();
            format!("destage serve did not get ready: {error}; it said: {}", said.trim())
        })?;
        let started_in = start.elapsed();
        Ok(Self { process, address, admin, data, started_in })
    }

    /// Ends it without a chance to tidy up.
    ///
    /// # Errors
    ///
    /// The system does not let it.
    pub(crate) fn kill(mut self) -> Result<()> {
        self.process.kill()
    }

    /// The same, if it is to be [started again](Self::start_again).
    ///
    /// # Errors
    ///
    /// The system does not let it.
    pub(crate) fn kill_now(&mut self) -> Result<()> {
        self.process.kill()
    }

    /// Ends it in order, if it is to be [started again](Self::start_again).
    ///
    /// # Errors
    ///
    /// It has not ended after 60 s.
    pub(crate) fn terminate(&mut self) -> Result<()> {
        self.process.end(libc::SIGTERM)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.pid()
    }

    pub(crate) fn cpu(&self) -> Result<Duration> {
        self.process.cpu()
    }

    /// The folder of its journal.
    pub(crate) fn data(&self) -> &Path {
        self.data.path()
    }

    pub(crate) fn admin(&self) -> SocketAddr {
        self.admin
    }

    /// Runs `DESTAGE arguments`.
    pub(crate) fn control(&self, arguments: &[&str]) -> Result<Value> {
        Client::connect(&self.address)?.call(&[&["DESTAGE"], arguments].concat())
    }

    /// Waits until everything written so far is decided at the origin.
    ///
    /// # Errors
    ///
    /// The flush failed, or the status shows that something is undecided or parked after it.
    pub(crate) fn drain(&self) -> Result<()> {
        self.control(&["DRAIN"])?;
        let status = self.status()?;
        if status.decided < status.last || status.parked > 0 {
            return Err(
                format!("the flush ended, but not everything is decided: {status:?}").into()
            );
        }
        Ok(())
    }

    pub(crate) fn status(&self) -> Result<Status> {
        status(self.admin)
    }
}

/// What the benchmark reads from `/status`.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Status {
    pub(crate) staleness_seconds: f64,
    pub(crate) last: u64,
    pub(crate) decided: u64,
    pub(crate) parked: u64,
    pub(crate) batches: u64,
    pub(crate) destaged: u64,
    pub(crate) dirty_bytes: u64,
    pub(crate) cached_units: u64,
    /// Uses of units that were present, and of those that were not.
    pub(crate) cache_hits: u64,
    pub(crate) cache_misses: u64,
}

/// Asks the admin port.
///
/// # Errors
///
/// It does not answer, or a field is missing.
pub(crate) fn status(admin: SocketAddr) -> Result<Status> {
    let json: Json = serde_json::from_str(&http_get(admin, "/status")?)?;
    let missing = |path: &str| format!("the status has no number at {path}");
    let number =
        |path: &str| json.pointer(path).and_then(Json::as_f64).ok_or_else(|| missing(path));
    let count = |path: &str| json.pointer(path).and_then(Json::as_u64).ok_or_else(|| missing(path));
    Ok(Status {
        staleness_seconds: number("/rpo/total_loss_seconds")?,
        last: count("/writes/last_lsn")?,
        decided: count("/writes/decided_lsn")?,
        parked: count("/destage/parked_groups")?,
        batches: count("/destage/batches_total")?,
        destaged: count("/destage/groups_total")?,
        dirty_bytes: count("/writes/dirty_bytes")?,
        cached_units: count("/cache/units")?,
        cache_hits: count("/cache/hits_total")?,
        cache_misses: count("/cache/misses_total")?,
    })
}

/// Reads on after the ready line, so that the server never blocks on its standard output.
pub(super) fn wait_for_ready(mut lines: Lines<BufReader<ChildStdout>>) -> Result<()> {
    let (sender, receiver) = channel();
    thread::spawn(move || {
        let ready = |line: &std::io::Result<String>| {
            line.as_ref().map_or(true, |line| line.starts_with("destage ready:"))
        };
        let _ = sender.send(lines.by_ref().find(ready).is_some_and(|line| line.is_ok()));
        lines.for_each(drop);
    });
    match receiver.recv_timeout(Duration::from_secs(120)) {
        Ok(true) => Ok(()),
        Ok(false) => Err("it ended".into()),
        Err(_) => Err("no ready line within 120 s".into()),
    }
}
