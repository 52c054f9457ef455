//! FerretDB, which speaks MongoDB's protocol, over SQLite: the program that the tests use.

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{ChildStdin, Command, Stdio};
use std::time::Duration;

use super::{Process, free_address};
use crate::Result;

/// A running server.
#[derive(Debug)]
pub(crate) struct Ferretdb {
    process: Process,
    pub(crate) address: SocketAddr,
    /// The server ends with it.
    _input: ChildStdin,
}

impl Ferretdb {
    /// Starts `program` with its data below `dir`.
    ///
    /// # Errors
    ///
    /// It does not start, or does not listen.
    pub(crate) fn start(program: &Path, dir: &Path) -> Result<Self> {
        let address = free_address()?;
        let folder = dir.join(format!("ferretdb-{}", address.port()));
        std::fs::create_dir(&folder)?;
        let mut command = Command::new(program);
        command.arg(address.to_string()).arg(&folder);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        command.stderr(std::fs::File::create(folder.join("log"))?);
        let mut process = Process::start(&mut command, "ferretdb", libc::SIGTERM)?;
        let input = process.child.stdin.take().ok_or("ferretdb has no standard input")?;
        let output = process.child.stdout.take().ok_or("ferretdb has no standard output")?;
        let mut ready = String::new();
        BufReader::new(output).read_line(&mut ready)?;
        if !ready.starts_with("mongodb://") {
            return Err(format!("ferretdb ended at its start: see {}", folder.display()).into());
        }
        process.wait_for(address)?;
        Ok(Self { process, address, _input: input })
    }

    /// CPU time of the process.
    pub(crate) fn cpu(&self) -> Result<Duration> {
        self.process.cpu()
    }

    /// The address of `database` for Destage, through `via` if there is a proxy between.
    pub(crate) fn url(via: SocketAddr, database: &str) -> String {
        format!("mongodb://{via}/{database}")
    }
}
