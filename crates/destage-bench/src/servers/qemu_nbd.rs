//! `qemu-nbd`, the peer that serves a file of the cache's disk as it is.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::Process;
use crate::Result;

/// A running `qemu-nbd`.
#[derive(Debug)]
pub(crate) struct QemuNbd {
    process: Process,
    socket: PathBuf,
}

impl QemuNbd {
    /// What it is started with beside its file and its socket.
    pub(crate) const SETTINGS: [&str; 5] =
        ["--format=raw", "--cache=none", "--aio=native", "--discard=unmap", "--persistent"];

    /// Serves the file at `path`.
    pub(crate) fn start(dir: &Path, path: &Path) -> Result<Self> {
        let socket = dir.join("qemu.socket");
        let mut command = Command::new("qemu-nbd");
        command.args(Self::SETTINGS).arg("--socket").arg(&socket).arg(path);
        let mut process = Process::start(&mut command, "qemu-nbd", libc::SIGTERM)?;
        process.wait_for_socket(&socket)?;
        Ok(Self { process, socket })
    }

    pub(crate) fn uri(&self) -> String {
        format!("nbd+unix:///?socket={}", self.socket.display())
    }

    pub(crate) fn cpu(&self) -> Result<Duration> {
        self.process.cpu()
    }
}
