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
            by => self.by_lock(host, &path, by, LOOK_LIMIT),
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
        if !has_begun && matches!(self.look_within(host, path, LOOK_LIMIT), Look::Free) {
            return Ok(FREE.into());
        }
        let Some(client) = client else {
            return Err("etcd does not know its client of CephFS, since its version is an earlier one: end it".into());
        };
        evictions.evict(&client)?;
        Ok(format!("its client {} of CephFS is evicted", client.id))
    }

    /// Whoever cannot be named is shut out by no command: it would succeed with nothing done.
    fn by_lock(
        &self,
        host: HostId,
        path: &Path,
        by: &By,
        limit: Duration,
    ) -> Result<String, String> {
        let who = match self.look_within(host, path, limit) {
            Look::Free => return Ok(FREE.into()),
            Look::Held(who) => who,
            Look::Unknown(why) => return Err(why),
        };
        let By::Command(command) = by else {
            return Err(format!(
                "its process ({who}) still has its lock; end it, or name a --fence-command"
            ));
        };
        let named = who.split_once(' ');
        let Some((name, process)) = named.filter(|(name, process)| {
            let is_there = |word: &str| !word.trim().is_empty();
            is_there(name) && is_there(process)
        }) else {
            return Err(format!(
                "its lock {} is held and does not say by whom, so that the --fence-command is not run: end its process",
                path.display()
            ));
        };
        match fencing(command, name, process, &wire::host_word(host)).status() {
            Ok(status) if status.success() => {
                Ok(format!("the --fence-command has succeeded ({who})"))
            }
            Ok(status) => Err(format!("the --fence-command failed ({who}): {status}")),
            Err(error) => Err(format!("the --fence-command cannot be started: {error}")),
        }
    }

    /// What becomes of a look at a host's lock.
    fn look_within(&self, host: HostId, path: &Path, limit: Duration) -> Look {
        let silent = |path: &Path| {
            let (path, seconds) = (path.display(), limit.as_secs());
            Look::Unknown(format!(
                "the origin does not say within {seconds} s whether its lock {path} is free"
            ))
        };
        if !lock(&self.looking).insert(host) {
            return silent(path);
        }
        let (said, hears) = bounded(1);
        let (looking, its) = (self.looking.clone(), path.to_owned());
        let looks = thread::Builder::new().name("tokens-lock".into()).spawn(move || {
            let found = look(&its);
            lock(&looking).remove(&host);
            let _ = said.send(found);
        });
        if looks.is_err() {
            lock(&self.looking).remove(&host);
        }
        hears.recv_timeout(limit).unwrap_or_else(|_| silent(path))
    }
}

/// A host's lock.
enum Look {
    Free,
    /// By whom, as it says itself.
    Held(String),
    /// Nobody knows, and why not.
    Unknown(String),
}

/// One that is gone altogether was never there, or somebody has removed it: that is no free lock. Others may look at the same
/// time, and are not to take each other for who has it: that one alone holds it exclusively.
fn look(path: &Path) -> Look {
    let unknown = |error: std::io::Error| {
        // Whoever knows that it is off may make the file anew: one that nobody has locked is free.
        let way_out = match error.kind() {
            std::io::ErrorKind::NotFound => {
                "; if that host is surely off, an empty file of this name frees it"
            }
            _ => "",
        };
        Look::Unknown(format!("its lock {} cannot be looked at: {error}{way_out}", path.display()))
    };
    let mut file = match File::options().read(true).write(true).open(path) {
        Ok(file) => file,
        Err(error) => return unknown(error),
    };
    match claim::try_lock(&file, FlockOperation::NonBlockingLockShared) {
        Ok(true) => Look::Free,
        Ok(false) => Look::Held(claim::who(&mut file)),
        Err(error) => unknown(error),
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
/// How long the origin is asked for a lock.
const LOOK_LIMIT: Duration = Duration::from_secs(10);
/// How often, and how long apart, a lock is tried that is taken.
const CLAIM_TRIES: u32 = 40;
const CLAIM_EVERY: Duration = Duration::from_millis(50);

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsStr;
    use std::fs;
    use tempfile::TempDir;

    const OTHER: HostId = HostId(2);
    const LIMIT: Duration = Duration::from_secs(10);

    /// A host beside another one, whose lock is at this path; and what a command leaves that is run.
    fn beside_another() -> (TempDir, Fences, PathBuf, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let fences = Fences::claim(folder.path(), HostId(1), None, None).unwrap();
        let (path, ran) = (folder.path().join(wire::host_word(OTHER)), folder.path().join("ran"));
        (folder, fences, path, ran)
    }

    fn touch(ran: &Path) -> By {
        By::Command(format!("echo $DESTAGE_FENCE_HOST $DESTAGE_FENCE_PROCESS >'{}'", ran.display()))
    }

    /// A lock, for as long as it is open.
    fn locked(path: &Path, how: FlockOperation) -> File {
        let file = claim::open(path).unwrap();
        assert!(claim::try_lock(&file, how).unwrap());
        file
    }

    #[test]
    fn those_who_look_at_a_free_lock_at_a_time_do_not_take_each_other_for_its_holder() {
        let (_folder, fences, path, ran) = beside_another();
        let looks = locked(&path, FlockOperation::NonBlockingLockShared);
        fs::write(&path, "b 7").unwrap();
        assert_eq!(fences.by_lock(OTHER, &path, &touch(&ran), LIMIT), Ok(FREE.into()));
        assert!(!ran.exists());
        drop(looks);
        let holds = locked(&path, FlockOperation::NonBlockingLockExclusive);
        fences.by_lock(OTHER, &path, &touch(&ran), LIMIT).unwrap();
        assert_eq!(fs::read_to_string(&ran).unwrap(), "b 7\n");
        drop(holds);
    }

    #[test]
    fn no_command_is_run_without_the_name_of_a_host() {
        let (_folder, fences, path, ran) = beside_another();
        let by = touch(&ran);
        let refused = || fences.by_lock(OTHER, &path, &by, LIMIT).unwrap_err();
        let why = refused();
        assert!(why.contains("cannot be looked at"), "{why}");
        let _holds = locked(&path, FlockOperation::NonBlockingLockExclusive);
        for nameless in ["", " ", "b", " 7", "b "] {
            fs::write(&path, nameless).unwrap();
            let why = refused();
            assert!(why.contains("does not say by whom"), "{why}");
        }
        assert!(!ran.exists());
    }

    #[test]
    fn an_origin_that_does_not_say_who_has_a_lock_is_not_waited_for() {
        let (_folder, fences, path, ran) = beside_another();
        // What it says is never read to its end.
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, rustix::fs::Mode::RWXU).unwrap();
        let _holds = locked(&path, FlockOperation::NonBlockingLockExclusive);
        for _ in 0..2 {
            let limit = Duration::from_millis(100);
            let why = fences.by_lock(OTHER, &path, &touch(&ran), limit).unwrap_err();
            assert!(why.contains("does not say within"), "{why}");
        }
        assert!(!ran.exists());
    }

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
