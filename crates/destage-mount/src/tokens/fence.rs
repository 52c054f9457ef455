//! Shutting a silent host out, before what it held is given to others.
//!
//! Each host holds a lock of a file at the origin, through the origin's own mount. The origin lets go of it when the session
//! ends that carries the host's data: whoever can take it knows that nothing of that host is on its way any more. Where it
//! cannot be taken, a command may see to it, or the host's client of CephFS is evicted ([`super::ceph`]).
//!
//! Who has found a lock free lets go of it at once. The host may start again then, and that is no harm: it says at the store
//! that it has come, and what is declared of it there is declared of the life before.

use super::ceph::{CephCommand, Client, Evictions};
use super::etcd::Etcd;
use super::wire;
use crate::origin::claim;
use crossbeam_channel::bounded;
use destage_runtime::{ServeError, child, exit};
use destage_tokens::HostId;
use hashbrown::{HashMap, HashSet};
use rustix::fs::FlockOperation;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// What shuts a silent host out whose lock is held.
#[derive(Clone, Debug)]
pub enum FenceBy {
    /// This, run by the shell.
    Command(String),
    /// Its client of CephFS is evicted.
    Ceph(CephCommand),
}

/// The same, tried out.
enum By {
    Nobody,
    Command(String),
    Ceph(Evictions),
}

/// The locks of all hosts: see the module.
pub(crate) struct Fences {
    folder: PathBuf,
    by: By,
    /// This host's own.
    _own: File,
    /// Hosts whose locks are being looked at: an origin may hang because of the very host that is to be shut out.
    looking: Arc<Mutex<HashSet<HostId>>>,
    /// Why hosts are not shut out yet.
    troubles: Mutex<HashMap<HostId, String>>,
}

impl Fences {
    /// Takes this host's lock in a folder at the origin. `client` is the origin's of CephFS, if it is one.
    ///
    /// # Errors
    /// It is taken: by another process with the same journal, or by whoever shuts this host out. Or what shuts others out does
    /// not work here.
    pub(crate) fn claim(
        folder: &Path,
        host: HostId,
        by: Option<FenceBy>,
        client: Option<&Client>,
    ) -> Result<Self, ServeError> {
        let by = match (by, client) {
            (None, _) => By::Nobody,
            (Some(FenceBy::Command(command)), _) => By::Command(command),
            (Some(FenceBy::Ceph(command)), Some(client)) => {
                let evictions = Evictions::new(command, client.clone()).map_err(|why| {
                    let message = format!("--fence ceph does not work here: {why}");
                    ServeError::new(exit::ORIGIN_UNREACHABLE, message)
                })?;
                By::Ceph(evictions)
            }
            (Some(FenceBy::Ceph(_)), None) => {
                let message = "--fence ceph evicts clients of CephFS, and the origin is none, or one before Ceph 16: use \
                               --fence-command";
                return Err(ServeError::new(exit::USAGE, message.to_owned()));
            }
        };
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
            thread::sleep(CLAIM_EVERY);
        }
        let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
        claim::say(&mut own, &format!("{name} {}", std::process::id())).map_err(failed)?;
        let (looking, troubles) = (Arc::default(), Mutex::default());
        Ok(Self { folder: folder.to_owned(), by, _own: own, looking, troubles })
    }

    /// Whether a host is shut out now. What keeps it from that is in the log, and in [`Fences::troubles`].
    pub(super) fn shut_out(&self, host: HostId, etcd: &Etcd) -> bool {
        let word = wire::host_word(host);
        let path = self.folder.join(&word);
        let done = match &self.by {
            By::Ceph(evictions) => self.evict(host, &path, evictions, etcd),
            by => by_lock(&path, &word, by),
        };
        match done {
            Ok(how) => {
                tracing::warn!(host = word, "a silent host is shut out: {how}");
                lock(&self.troubles).remove(&host);
                true
            }
            Err(why) => {
                let trouble =
                    format!("host {word} is silent, and what it holds is waited for: {why}");
                tracing::warn!("{trouble}");
                lock(&self.troubles).insert(host, trouble);
                false
            }
        }
    }

    /// Why this host is not shut out yet, as of the last attempt.
    pub(super) fn trouble(&self, host: HostId) -> Option<String> {
        lock(&self.troubles).get(&host).cloned()
    }

    fn evict(
        &self,
        host: HostId,
        path: &Path,
        evictions: &Evictions,
        etcd: &Etcd,
    ) -> Result<String, String> {
        let client = etcd.client_of(host).map_err(|error| error.to_string())?;
        let has_begun = client.as_ref().is_some_and(|client| evictions.has_begun(client));
        if !has_begun && self.is_free_within(host, path, LOOK_LIMIT) {
            return Ok(FREE.into());
        }
        let Some(client) = client else {
            return Err("etcd does not know its client of CephFS, since its version is an earlier one: end it".into());
        };
        evictions.evict(&client)?;
        Ok(format!("its client {} of CephFS is evicted", client.id))
    }

    /// Whether a host's lock is free. Not, if the origin has not said so by then.
    fn is_free_within(&self, host: HostId, path: &Path, limit: Duration) -> bool {
        if !lock(&self.looking).insert(host) {
            return false;
        }
        let (said, hears) = bounded(1);
        let (looking, path) = (self.looking.clone(), path.to_owned());
        let looks = thread::Builder::new().name("tokens-lock".into()).spawn(move || {
            let is_free = open(&path).is_some_and(|file| is_free(&file));
            lock(&looking).remove(&host);
            let _ = said.send(is_free);
        });
        if looks.is_err() {
            lock(&self.looking).remove(&host);
        }
        hears.recv_timeout(limit).unwrap_or(false)
    }
}

/// One that is gone altogether was never there, or somebody has removed it: that is no free lock.
fn open(path: &Path) -> Option<File> {
    File::options().read(true).write(true).open(path).ok()
}

fn is_free(file: &File) -> bool {
    matches!(claim::try_lock(file, FlockOperation::NonBlockingLockExclusive), Ok(true))
}

fn by_lock(path: &Path, word: &str, by: &By) -> Result<String, String> {
    let mut who = String::new();
    if let Some(mut file) = open(path) {
        if is_free(&file) {
            return Ok(FREE.into());
        }
        who = claim::who(&mut file);
    }
    let By::Command(command) = by else {
        return Err(format!(
            "its process ({who}) still has its lock; end it, or name a --fence-command"
        ));
    };
    let (name, process) = who.split_once(' ').unwrap_or((&who, ""));
    match fencing(command, name, process, word).status() {
        Ok(status) if status.success() => Ok(format!("the --fence-command has succeeded ({who})")),
        Ok(status) => Err(format!("the --fence-command failed ({who}): {status}")),
        Err(error) => Err(format!("the --fence-command cannot be started: {error}")),
    }
}

/// The command that shuts a host out.
fn fencing(command: &str, name: &str, process: &str, journal: &str) -> Command {
    let mut fencing = child::shell(command);
    fencing
        .env("DESTAGE_FENCE_HOST", name)
        .env("DESTAGE_FENCE_PROCESS", process)
        .env("DESTAGE_FENCE_JOURNAL", journal);
    fencing
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic ends the process: see the program's `main`.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

const FREE: &str = "its lock is free";
/// How long the origin is asked for a lock before its holder is evicted.
const LOOK_LIMIT: Duration = Duration::from_secs(10);
/// How often, and how long apart, a lock is tried that is taken.
const CLAIM_TRIES: u32 = 40;
const CLAIM_EVERY: Duration = Duration::from_millis(50);

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsStr;

    #[test]
    fn the_command_is_told_of_the_host_and_no_password() {
        let fencing = fencing("true", "b", "7", "journal");
        let told: HashMap<&OsStr, Option<&OsStr>> = fencing.get_envs().collect();
        assert_eq!(told[OsStr::new("DESTAGE_FENCE_PROCESS")], Some(OsStr::new("7")));
        for secret in child::SECRETS {
            assert_eq!(told.get(OsStr::new(secret)), Some(&None), "{secret}");
        }
    }
}
