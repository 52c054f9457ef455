//! A CephFS of the benchmark's own, and what its OSDs say that they received.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use super::sides::is_mounted;
use crate::Result;
use crate::command::output_within;

/// A CephFS that is mounted twice: without and with the kernel's page cache. Ends when dropped.
#[derive(Debug)]
pub(super) struct Ceph {
    scripts: PathBuf,
    state: PathBuf,
    /// The mount with the page cache.
    cached: Option<Cached>,
}

/// A mount with the kernel's page cache. Ends when dropped.
#[derive(Debug)]
struct Cached {
    server: Child,
    folder: PathBuf,
}

impl Drop for Cached {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
        // The kernel keeps a mount whose server was killed.
        let unmount = run(Command::new("umount").arg("--lazy").arg(&self.folder), START_MAX);
        if let Err(error) = unmount {
            eprintln!("warning: {error}");
        }
    }
}

/// What all OSDs have received so far, from clients and from each other.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Received {
    pub(super) bytes: f64,
    pub(super) operations: f64,
}

impl Received {
    pub(super) fn since(self, before: Self) -> Self {
        Self { bytes: self.bytes - before.bytes, operations: self.operations - before.operations }
    }
}

impl Ceph {
    /// Starts one by the scripts; its state lies in `dir`.
    ///
    /// # Errors
    ///
    /// What the script said.
    pub(super) fn start(scripts: &Path, dir: &Path, osds: u32, is_quick: bool) -> Result<Self> {
        // Its name is part of those of sockets, which must be short.
        let state = PathBuf::from(format!("/tmp/destage-bench-ceph-{}", std::process::id()));
        let port = 15_000 + std::process::id() % 80 * 210;
        let store = if is_quick { "memstore" } else { "bluestore" };
        let mut ceph = Self { scripts: scripts.to_owned(), state, cached: None };
        let start = || {
            let mut start = Command::new(scripts.join("start.sh"));
            start.arg(&ceph.state).args(["--osds", &osds.to_string(), "--store", store]);
            start.args(["--mounts", "1", "--port", &port.to_string()]);
            run(&mut start, START_MAX)
        };
        // One of its daemons may die as it starts: what is missing is started again.
        let mut started = start();
        for _ in 1..STARTS_MAX {
            if started.is_err() {
                started = start();
            }
        }
        started?;
        let cached = dir.join("page-cache");
        std::fs::create_dir(&cached)?;
        let mut mount = Command::new("ceph-fuse");
        mount.arg("-f").arg("-c").arg(ceph.state.join("ceph.conf")).args([
            "--id",
            "admin",
            "--pid-file=",
        ]);
        mount.arg("--fuse_disable_pagecache=false").args(["-o", "dev,suid"]).arg(&cached);
        mount.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let cached = ceph.cached.insert(Cached { server: mount.spawn()?, folder: cached });
        let deadline = std::time::Instant::now() + START_MAX;
        while !is_mounted(&cached.folder) {
            if std::time::Instant::now() > deadline {
                return Err("ceph-fuse with the page cache was not mounted in time".into());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(ceph)
    }

    /// The coherent mount, without the page cache.
    pub(super) fn folder(&self) -> PathBuf {
        self.state.join("mnt/1")
    }

    /// What the OSDs have received since they started.
    ///
    /// # Errors
    ///
    /// One does not answer.
    pub(super) fn received(&self) -> Result<Received> {
        let mut sum = Received::default();
        for osd in 0.. {
            let socket = self.state.join(format!("run/osd.{osd}.asok"));
            if !socket.exists() {
                break;
            }
            let mut ask = Command::new("ceph");
            ask.arg("--admin-daemon").arg(&socket).args(["perf", "dump"]);
            let said: serde_json::Value = serde_json::from_str(&run(&mut ask, ASK_MAX)?)?;
            let count = |name: &str| said["osd"][name].as_f64().unwrap_or(0.0);
            sum.bytes += count("op_in_bytes") + count("subop_in_bytes");
            sum.operations += count("op") + count("subop");
        }
        if sum.operations > 0.0 {
            Ok(sum)
        } else {
            Err("the OSDs tell nothing of what they received".into())
        }
    }
}

impl Drop for Ceph {
    fn drop(&mut self) {
        self.cached = None;
        if let Err(error) =
            run(Command::new(self.scripts.join("stop.sh")).arg(&self.state), START_MAX)
        {
            eprintln!("warning: {error}");
        }
    }
}

const STARTS_MAX: u32 = 8;
const START_MAX: Duration = Duration::from_secs(180);
const ASK_MAX: Duration = Duration::from_secs(30);

/// Runs a program to its end; what it printed.
///
/// # Errors
///
/// It is missing, failed, or took too long.
pub(super) fn run(command: &mut Command, most: Duration) -> Result<String> {
    let output = output_within(command, most)?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let (name, said) =
        (command.get_program().to_string_lossy(), String::from_utf8_lossy(&output.stderr));
    Err(format!("{name} failed: {}", said.trim()).into())
}
