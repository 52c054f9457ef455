//! The servers of a run: started on ports and folders of their own, stopped with it.

mod block;
mod destage;
mod device;
mod ferretdb;
mod java;
mod postgres;
mod qemu_nbd;
mod redis;

use std::collections::BTreeSet;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use destage_runtime::sockets::Listen;

pub(crate) use self::block::{BlockConfig, BlockServer};
pub(crate) use self::destage::{Destage, DestageConfig, status};
pub(crate) use self::device::{DeviceConfig, DeviceServer};
pub(crate) use self::ferretdb::Ferretdb;
pub(crate) use self::java::Java;
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

    /// Waits until something listens there.
    pub(crate) fn wait_for_any(&mut self, listen: &Listen) -> Result<()> {
        match listen {
            Listen::Tcp(address) => self.wait_for(*address),
            Listen::Unix(path) => self.wait_for_socket(path),
        }
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

    /// Asks it to end by this signal, and waits for its end.
    ///
    /// # Errors
    ///
    /// It has not ended after 60 s.
    pub(crate) fn end(&mut self, signal: i32) -> Result<()> {
        if !self.ends_by(signal) {
            return Err(format!("{} did not stop within 60 s", self.name).into());
        }
        Ok(())
    }

    fn ends_by(&mut self, signal: i32) -> bool {
        if !matches!(self.child.try_wait(), Ok(None)) {
            return true;
        }
        let pid = self.child.id() as i32;
        // SAFETY: the child has not been waited for, so its pid is still its own.
        unsafe { libc::kill(pid, signal) };
        let deadline = Instant::now() + Duration::from_secs(60);
        while Instant::now() < deadline {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return true;
            }
            thread::sleep(Duration::from_millis(20));
        }
        false
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
        if self.ends_by(self.stop_signal) {
            return;
        }
        eprintln!("warning: {} did not stop within 60 s and is killed", self.name);
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// How clients reach the servers of this machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Transport {
    #[default]
    Tcp,
    /// Sockets in the file system.
    Unix,
}

impl Transport {
    /// Where a server of this name can listen: on a port that nobody uses, or at a socket in `dir`.
    ///
    /// # Errors
    ///
    /// The path is too long for a socket.
    pub(crate) fn place(self, dir: &Path, name: &str) -> Result<Listen> {
        let address = free_address()?;
        match self {
            Self::Tcp => Ok(Listen::Tcp(address)),
            Self::Unix => {
                let path = dir.join(format!("{name}-{}.sock", address.port()));
                checked_socket(path).map(Listen::Unix)
            }
        }
    }
}

/// The path, if a socket can have it.
fn checked_socket(path: PathBuf) -> Result<PathBuf> {
    match path.as_os_str().len() {
        0..=SOCKET_PATH_MAX => Ok(path),
        length => Err(format!(
            "the path {} has {length} bytes, more than the {SOCKET_PATH_MAX} of a socket: name a shorter folder by --dir",
            path.display()
        )
        .into()),
    }
}

/// `sun_path` without its closing zero.
const SOCKET_PATH_MAX: usize = 107;

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
