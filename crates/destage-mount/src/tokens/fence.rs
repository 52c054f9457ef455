//! Shutting a silent host out, before what it held is given to others.
//!
//! Each host holds a lock of a file at the origin, through the origin's own mount. The origin lets go of it when the session
//! ends that carries the host's data: whoever can take it knows that nothing of that host is on its way any more. Where it
//! cannot be taken, a command may see to it.
//!
//! Who has found a lock free lets go of it at once. The host may start again then, and that is no harm: it says at the store
//! that it has come, and what is declared of it there is declared of the life before.

use super::wire;
use crate::origin::claim;
use destage_runtime::{ServeError, exit};
use destage_tokens::HostId;
use rustix::fs::FlockOperation;
use std::fs::File;
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
        let mut own = claim::open(&path).map_err(failed)?;
        // Others look at it for a moment, whether it is free.
        let mut tries = CLAIM_TRIES;
        while !claim::try_lock(&own, FlockOperation::NonBlockingLockExclusive).map_err(failed)? {
            if tries == 0 {
                let message = format!(
                    "the lock {} is taken: another process has this journal, or the one before has not quite ended; start it again \
                     once it has",
                    path.display()
                );
                return Err(ServeError::new(exit::FENCED, message));
            }
            tries -= 1;
            std::thread::sleep(CLAIM_EVERY);
        }
        let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
        claim::say(&mut own, &format!("{name} {}", std::process::id())).map_err(failed)?;
        Ok(Self { folder: folder.to_owned(), command, _own: own })
    }

    /// Whether a host is shut out now.
    pub(super) fn shut_out(&self, host: HostId) -> bool {
        let word = wire::host_word(host);
        let path = self.folder.join(&word);
        let mut who = String::new();
        // One that is gone altogether was never there, or somebody has removed it: that is no free lock.
        if let Ok(mut lock) = File::options().read(true).write(true).open(&path) {
            if let Ok(true) = claim::try_lock(&lock, FlockOperation::NonBlockingLockExclusive) {
                tracing::warn!(host = word, "a silent host is gone: its lock is free");
                return true;
            }
            who = claim::who(&mut lock);
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
