//! The servers of a run: started on ports and folders of their own, stopped with it.

mod block;
mod destage;
mod device;
mod ferretdb;
mod postgres;
mod qemu_nbd;
mod redis;

use std::collections::BTreeSet;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

pub(crate) use self::block::{BlockConfig, BlockServer};
pub(crate) use self::destage::{Destage, DestageConfig, status};
pub(crate) use self::device::{DeviceConfig, DeviceServer};
pub(crate) use self::ferretdb::Ferretdb;
pub(crate) use self::postgres::{
    Postgres, Query, SETTINGS as POSTGRES_SETTINGS, Statement, preamble as postgres_preamble,
    push_execute, push_sync, version as postgres_version,
};
pub(crate) use self::qemu_nbd::QemuNbd;
pub(crate) use self::redis::{Fsync, Redis};
use crate::Result;
use crate::cpu;

/// A child process that is stopped, at last resort killed, when dropped.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    stop_signal: i32,
    name: &'static str,
}

impl Process {
    /// Starts `command`; it is killed should this process die first.
    pub(crate) fn start(
        command: &mut Command,
        name: &'static str,
        stop_signal: i32,
    ) -> Result<Self> {
        // SAFETY: between fork and exec only `prctl` runs, which is async-signal-safe.
        unsafe {
            command.pre_exec(|| {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                Ok(())
            });
        }
        let child = command.spawn().map_err(|error| format!("failed to start {name}: {error}"))?;
        Ok(Self { child, stop_signal, name })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// CPU time of the process and its descendants.
    pub(crate) fn cpu(&self) -> Result<Duration> {
        cpu::tree_cpu(self.pid())
    }

    /// Waits until something listens at `address`.
    pub(crate) fn wait_for(&mut self, address: SocketAddr) -> Result<()> {
        self.wait_until(&address.to_string(), || TcpStream::connect(address).is_ok())
    }

    /// Waits until something listens on the socket at `path`.
    pub(crate) fn wait_for_socket(&mut self, path: &Path) -> Result<()> {
        self.wait_until(&path.display().to_string(), || UnixStream::connect(path).is_ok())
    }

    /// Ends it without a chance to tidy up.
    pub(crate) fn kill(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    fn wait_until(&mut self, address: &str, listens: impl Fn() -> bool) -> Result<()> {
        let deadline = Instant::now() + Duration::from_secs(60);
        while Instant::now() < deadline {
            if let Some(status) = self.child.try_wait()? {
                return Err(format!("{} ended at its start: {status}", self.name).into());
            }
            if listens() {
                return Ok(());
            }
            thread::sleep(Duration::from_millis(20));
        }
        Err(format!("{} does not listen at {address} after 60 s", self.name).into())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if !matches!(self.child.try_wait(), Ok(None)) {
            return;
        }
        let pid = self.child.id() as i32;
        // SAFETY: the child has not been waited for, so its pid is still its own.
        unsafe { libc::kill(pid, self.stop_signal) };
        let deadline = Instant::now() + Duration::from_secs(60);
        while Instant::now() < deadline {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            thread::sleep(Duration::from_millis(20));
        }
        eprintln!("warning: {} did not stop within 60 s and is killed", self.name);
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A loopback address whose port nobody uses right now, and that was not given to another server of this run.
pub(crate) fn free_address() -> Result<SocketAddr> {
    static GIVEN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());
    loop {
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let mut given = GIVEN.lock().unwrap_or_else(PoisonError::into_inner);
        if given.insert(address.port()) {
            return Ok(address);
        }
    }
}
