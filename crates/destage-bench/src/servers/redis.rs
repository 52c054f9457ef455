//! `redis-server`, the peer for hits and for the journal.

use std::fs::File;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use destage_runtime::sockets::Listen;
use tempfile::TempDir;

use super::{Process, Transport};
use crate::Result;
use crate::control::{Client, Value};

/// When Redis makes its append-only file durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fsync {
    /// No append-only file at all.
    Off,
    EverySecond,
    Always,
}

impl Fsync {
    pub(crate) fn settings(self) -> &'static str {
        match self {
            Self::Off => "save \"\", appendonly no",
            Self::EverySecond => "save \"\", appendonly yes, appendfsync everysec",
            Self::Always => "save \"\", appendonly yes, appendfsync always",
        }
    }
}

/// A running `redis-server`.
#[derive(Debug)]
pub(crate) struct Redis {
    process: Process,
    pub(crate) address: Listen,
    fsync: Fsync,
    /// Removed once the process has stopped.
    data: TempDir,
}

impl Redis {
    /// Starts one with its data in `dir`. Snapshots and rewrites of the append-only file are off:
    /// they would only disturb it.
    pub(crate) fn start(dir: &Path, fsync: Fsync, transport: Transport) -> Result<Self> {
        let address = transport.place(dir, "redis")?;
        let data = tempfile::Builder::new().prefix("redis-").tempdir_in(dir)?;
        let process = launch(&address, fsync, data.path())?;
        Ok(Self { process, address, fsync, data })
    }

    /// Ends it without a chance to tidy up, and starts it again over what it has on the disk.
    ///
    /// # Errors
    ///
    /// It does not start again.
    pub(crate) fn crash(&mut self) -> Result<()> {
        self.process.kill()?;
        self.process = launch(&self.address, self.fsync, self.data.path())?;
        Ok(())
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.pid()
    }

    pub(crate) fn cpu(&self) -> Result<Duration> {
        self.process.cpu()
    }

    /// Stores `fields` under each of `table:000000000000` to `table:keys-1`.
    pub(crate) fn preload(
        &self,
        table: &str,
        keys: u64,
        fields: &[(String, String)],
    ) -> Result<()> {
        let mut client = Client::connect(&self.address)?;
        for start in (0..keys).step_by(100) {
            let end = (start + 100).min(keys);
            for key in start..end {
                let name = format!("{table}:{key:012}");
                let mut arguments = vec!["HSET", name.as_str()];
                fields.iter().for_each(|(f, v)| arguments.extend([f.as_str(), v.as_str()]));
                client.send(&arguments)?;
            }
            for _ in start..end {
                client.receive()?;
            }
        }
        match client.call(&["DBSIZE"])? {
            Value::Int(_) => Ok(()),
            other => Err(format!("unexpected DBSIZE: {other:?}").into()),
        }
    }
}

fn launch(address: &Listen, fsync: Fsync, data: &Path) -> Result<Process> {
    let (append, when) = match fsync {
        Fsync::Off => ("no", "no"),
        Fsync::EverySecond => ("yes", "everysec"),
        Fsync::Always => ("yes", "always"),
    };
    let mut command = Command::new("redis-server");
    match address {
        Listen::Tcp(at) => command.args(["--bind", "127.0.0.1", "--port", &at.port().to_string()]),
        Listen::Unix(path) => command.args(["--port", "0", "--unixsocket"]).arg(path),
    };
    command.args(["--dir", &data.to_string_lossy(), "--save", ""]);
    command.args(["--appendonly", append, "--appendfsync", when]);
    command.args(["--auto-aof-rewrite-percentage", "0", "--daemonize", "no"]);
    command.stdout(File::options().create(true).append(true).open(data.join("log"))?);
    let mut process = Process::start(&mut command, "redis-server", libc::SIGTERM)?;
    process.wait_for_any(address)?;
    Ok(process)
}
