//! Shutting a silent host out, before what it held is given to others.
//!
//! Each host holds a lock of a file at the origin, through the origin's own mount. The origin lets go of it when the session
//! ends that carries the host's data: whoever can take it knows that nothing of that host is on its way any more. Where it
//! cannot be taken, a command may see to it.
//!
//! Who has found a lock free lets go of it at once. The host may start again then, and that is no harm: it says at the store
//! that it has come, and what is declared of it there is declared of the life before.

use super::wire;
use destage_runtime::{ServeError, exit};
use destage_tokens::HostId;
use rustix::fs::{FlockOperation, flock};
use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The locks of all hosts: see the module.
pub(crate) struct Fences {
    folder: PathBuf,
    command: Option<String>,
    /// This host's own.
    _own: File,
}

impl Fences {
    /// Takes this host's lock in a folder at the origin.
    ///
    /// # Errors
    /// It is taken: by another process with the same journal, or by whoever shuts this host out.
    pub(crate) fn claim(
        folder: &Path,
        host: HostId,
        command: Option<String>,
    ) -> Result<Self, ServeError> {
        let path = folder.join(wire::host_word(host));
        let failed = |error: std::io::Error| {
            let message =
                format!("cannot claim a place among the hosts by {}: {error}", path.display());
            ServeError::new(exit::ORIGIN_UNREACHABLE, message)
        };
        let mut own = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(failed)?;
        // Others look at it for a moment, whether it is free.
        let mut tries = CLAIM_TRIES;
        let taken = loop {
            match flock(&own, FlockOperation::NonBlockingLockExclusive) {
                Err(rustix::io::Errno::WOULDBLOCK) if tries > 0 => {
                    tries -= 1;
                    std::thread::sleep(CLAIM_EVERY);
                }
                other => break other,
            }
        };
        match taken {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => {
                let message = format!(
                    "the lock {} is taken: another process has this journal, or the one before has not quite ended; start it again \
                     once it has",
                    path.display()
                );
                return Err(ServeError::new(exit::FENCED, message));
            }
            Err(error) => return Err(failed(error.into())),
        }
        let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
        own.set_len(0).map_err(failed)?;
        write!(own, "{name} {}", std::process::id()).map_err(failed)?;
        Ok(Self { folder: folder.to_owned(), command, _own: own })
    }

    /// Whether a host is shut out now.
    pub(super) fn shut_out(&self, host: HostId) -> bool {
        let word = wire::host_word(host);
        let path = self.folder.join(&word);
        let mut who = String::new();
        let lock = File::options().read(true).write(true).open(&path);
        if let Ok(mut lock) = lock {
            match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {
                    tracing::warn!(host = word, "a silent host is gone: its lock is free");
                    return true;
                }
                // It says who, where it says anything.
                Err(_) => _ = lock.read_to_string(&mut who),
            }
        }
        let Some(command) = &self.command else {
            tracing::warn!(
                host = word,
                who,
                "a host is silent and still has its lock: what it holds is waited for; end it, or name a --fence-command"
            );
            return false;
        };
        let (name, process) = who.split_once(' ').unwrap_or((&who, ""));
        let status = Command::new("sh")
            .args(["-c", command])
            .env("DESTAGE_FENCE_HOST", name)
            .env("DESTAGE_FENCE_PROCESS", process)
            .env("DESTAGE_FENCE_JOURNAL", &word)
            .status();
        match status {
            Ok(status) if status.success() => {
                tracing::warn!(host = word, who, "a silent host was shut out by the command");
                true
            }
            Ok(status) => {
                tracing::warn!(host = word, %status, "the command that shuts hosts out failed; trying again");
                false
            }
            Err(error) => {
                tracing::warn!(%error, "the command that shuts hosts out cannot be started");
                false
            }
        }
    }
}

/// How often, and how long apart, a lock is tried that is taken.
const CLAIM_TRIES: u32 = 40;
const CLAIM_EVERY: Duration = Duration::from_millis(50);
