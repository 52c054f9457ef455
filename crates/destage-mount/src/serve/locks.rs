//! Locks of files where several hosts share them, by `fcntl` and by `flock`.
//!
//! Each is a lock of the same range at the origin, through the origin's own mount. For each owner the file is opened there
//! anew, since the origin tells owners apart by that. It lets go once this process has ended, or the session that carries this
//! host's data: so nobody can have a lock of a host that may still write.
//!
//! One thread does all of it, and tries again for those who wait. None of the kernel's threads waits. The kernel's word that
//! a signal has come to who waits does not reach this front end, so it looks at what is pending for that thread.

use super::live::Live;
use super::shared::Nobody;
use crate::ask::{Answer, Answered, Errno, Ino, Lock, Locking};
use crate::origin::Origin;
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, unbounded};
use hashbrown::HashMap;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

/// A file, and who has locks of it: a process or an open, as the kernel numbers them.
type Owner = (Ino, u64);

/// The locks of a mount: see the module.
pub(super) struct Locks {
    work: Sender<Work>,
    /// Who has asked for one, and by which open of the file the last time: a close by anybody else needs nothing.
    owners: Arc<Mutex<HashMap<Owner, u64>>>,
}

struct Work {
    owner: Owner,
    locking: Locking,
    answer: Box<dyn Answer>,
}

impl Locks {
    /// Starts the thread.
    ///
    /// # Errors
    /// The system has none.
    pub(super) fn start(live: Weak<Live>, origin: Arc<dyn Origin>) -> io::Result<Self> {
        let (work, works) = unbounded();
        let owners = Arc::new(Mutex::default());
        let keeper =
            Keeper { live, origin, owners: owners.clone(), held: HashMap::new(), waiting: vec![] };
        thread::Builder::new().name("locks".into()).spawn(move || keeper.run(&works))?;
        Ok(Self { work, owners })
    }

    /// Answers once it is done.
    pub(super) fn ask(&self, owner: Owner, locking: Locking, answer: Box<dyn Answer>) {
        if let Locking::Closed(handle) = locking {
            return self.closed(owner.0, handle, answer);
        }
        let gives_up = match locking {
            Locking::Set(lock, ..) => lock.kind == libc::F_UNLCK,
            Locking::End => true,
            Locking::Test(_) | Locking::Closed(_) => false,
        };
        let is_known = {
            let mut owners = lock_of(&self.owners);
            if let Locking::Set(_, _, handle) = locking
                && !gives_up
            {
                owners.insert(owner, handle);
            }
            owners.contains_key(&owner)
        };
        if gives_up && !is_known {
            return answer.give(Ok(Answered::Done));
        }
        self.send(Work { owner, locking, answer });
    }

    /// Ends those who have taken locks by an open that has ended. Processes have given theirs up: the kernel tells of each close
    /// of theirs before.
    fn closed(&self, ino: Ino, handle: u64, answer: Box<dyn Answer>) {
        let of_open =
            |(owner, by): (&Owner, &u64)| (owner.0 == ino && *by == handle).then_some(*owner);
        let left: Vec<Owner> = lock_of(&self.owners).iter().filter_map(of_open).collect();
        for owner in left {
            self.send(Work { owner, locking: Locking::End, answer: Box::new(Nobody) });
        }
        answer.give(Ok(Answered::Done));
    }

    fn send(&self, work: Work) {
        // The thread lives as long as this does.
        let _ = self.work.send(work);
    }
}

/// The thread's own.
struct Keeper {
    live: Weak<Live>,
    origin: Arc<dyn Origin>,
    owners: Arc<Mutex<HashMap<Owner, u64>>>,
    held: HashMap<Owner, OwnedFd>,
    waiting: Vec<Work>,
}

/// Whether requests are served now.
enum Serving {
    Yes,
    /// Not without a lease.
    Later,
    Never,
}

impl Keeper {
    fn run(mut self, works: &Receiver<Work>) {
        let mut look_at = Instant::now();
        loop {
            let next = if self.waiting.is_empty() {
                works.recv().map_err(|_| RecvTimeoutError::Disconnected)
            } else {
                works.recv_deadline(look_at)
            };
            match next {
                Ok(work) => {
                    let frees = self.begin(work);
                    if !frees && Instant::now() < look_at {
                        continue;
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            self.try_again();
            look_at = Instant::now() + LOOK_EVERY;
        }
    }

    /// True if others may have what they wait for.
    fn begin(&mut self, work: Work) -> bool {
        let Work { owner, locking, answer } = work;
        match locking {
            Locking::End => {
                self.end(owner);
                answer.give(Ok(Answered::Done));
                true
            }
            Locking::Set(lock, ..) if lock.kind == libc::F_UNLCK => {
                let done = match self.held.get(&owner) {
                    Some(file) => set(file, lock),
                    None => Ok(()),
                };
                if done.is_ok() && lock.start == 0 && lock.end >= END {
                    self.end(owner);
                }
                answer.give(done.map(|()| Answered::Done));
                true
            }
            _ => {
                if let Some(work) = self.attempt(Work { owner, locking, answer }) {
                    self.waiting.push(work);
                }
                false
            }
        }
    }

    fn end(&mut self, owner: Owner) {
        if let Some(file) = self.held.remove(&owner) {
            // The end of the file comes to the origin at some time; this comes to it now.
            let all = Lock { start: 0, end: END, kind: libc::F_UNLCK };
            if let Err(error) = set(&file, all) {
                tracing::debug!(%error, "locks end with their file");
            }
        }
        if !self.waiting.iter().any(|work| work.owner == owner) {
            lock_of(&self.owners).remove(&owner);
        }
    }

    fn try_again(&mut self) {
        for work in std::mem::take(&mut self.waiting) {
            if let Some(work) = self.attempt(work) {
                self.waiting.push(work);
            }
        }
    }

    /// Answers, unless it has to wait.
    fn attempt(&mut self, work: Work) -> Option<Work> {
        let answered = match self.serving() {
            Serving::Never => Err(Errno::IO),
            Serving::Later => match work.locking {
                Locking::Set(_, Some(thread), _) if has_signal(thread) => Err(Errno::INTR),
                _ => return Some(work),
            },
            Serving::Yes => match (work.locking, self.carry_out(work.owner, work.locking)) {
                (Locking::Set(_, Some(thread), _), Err(Errno::AGAIN)) => {
                    if !has_signal(thread) {
                        return Some(work);
                    }
                    Err(Errno::INTR)
                }
                (_, answered) => answered,
            },
        };
        work.answer.give(answered);
        None
    }

    fn serving(&self) -> Serving {
        let Some(live) = self.live.upgrade() else { return Serving::Never };
        match live.shared() {
            Some(shared) if !shared.is_over() => {
                if shared.tokens.may_serve() {
                    Serving::Yes
                } else {
                    Serving::Later
                }
            }
            _ => Serving::Never,
        }
    }

    fn carry_out(&mut self, owner: Owner, locking: Locking) -> Result<Answered, Errno> {
        match locking {
            Locking::Set(lock, ..) => {
                if !self.held.contains_key(&owner) {
                    let file = self.open(owner.0)?;
                    self.held.insert(owner, file);
                }
                set(&self.held[&owner], lock)?;
                Ok(Answered::Done)
            }
            Locking::Test(lock) => {
                let found = match self.held.get(&owner) {
                    Some(file) => test(file, lock)?,
                    None => test(&self.open(owner.0)?, lock)?,
                };
                Ok(Answered::Locked(found))
            }
            Locking::End | Locking::Closed(_) => Ok(Answered::Done),
        }
    }

    fn open(&self, ino: Ino) -> Result<OwnedFd, Errno> {
        let live = self.live.upgrade().ok_or(Errno::IO)?;
        let key = live.with(|front, _| front.tree.node(ino).map(|node| node.key.clone()));
        self.origin.open_for_locks(&key.ok_or(Errno::STALE)?)
    }
}

/// Takes a lock at once, or gives it up.
fn set(file: &OwnedFd, lock: Lock) -> Result<(), Errno> {
    ask(file, libc::F_OFD_SETLK, lock).map(|_| ())
}

fn test(file: &OwnedFd, lock: Lock) -> Result<Option<Lock>, Errno> {
    let found = ask(file, libc::F_OFD_GETLK, lock)?;
    Ok((found.kind != libc::F_UNLCK).then_some(found))
}

fn ask(file: &OwnedFd, command: i32, lock: Lock) -> Result<Lock, Errno> {
    let start = i64::try_from(lock.start).map_err(|_| Errno::INVAL)?;
    let len = if lock.end >= END { 0 } else { lock.end as i64 - start + 1 };
    // SAFETY: all of its fields are numbers, for which zero is one.
    let mut range: libc::flock = unsafe { std::mem::zeroed() };
    range.l_type = lock.kind as libc::c_short;
    range.l_whence = libc::SEEK_SET as libc::c_short;
    (range.l_start, range.l_len) = (start, len);
    // SAFETY: the descriptor is open, and the command reads and writes a `flock`.
    if unsafe { libc::fcntl(file.as_raw_fd(), command, &raw mut range) } == 0 {
        let start = range.l_start.max(0) as u64;
        let end = if range.l_len == 0 { END } else { start + range.l_len as u64 - 1 };
        return Ok(Lock { start, end, kind: range.l_type.into() });
    }
    Err(match Errno::from(io::Error::last_os_error()) {
        Errno(libc::EACCES) => Errno::AGAIN,
        // Not even this process may write to it.
        Errno(libc::EBADF) => Errno::NOLCK,
        other => other,
    })
}

/// Whether a thread waits that a signal is to end, or to stop: the kernel then asks again by itself if that is wanted.
fn has_signal(thread: u32) -> bool {
    if thread == 0 {
        // Of a process that this one cannot see.
        return false;
    }
    // One that is gone waits for nothing.
    let Ok(status) = fs::read_to_string(format!("/proc/{thread}/status")) else { return true };
    is_signalled(&status)
}

/// What `/proc/.../status` says of it.
fn is_signalled(status: &str) -> bool {
    let signals = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|line| u64::from_str_radix(line.trim(), 16).ok()).unwrap_or(0)
    };
    (signals("SigPnd:") | signals("ShdPnd:")) & !(signals("SigBlk:") | signals("SigIgn:")) != 0
}

fn lock_of<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic ends the process: see the program's `main`.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The last byte of a lock of all that a file may ever hold.
const END: u64 = i64::MAX as u64;
/// How often those are looked at who wait.
const LOOK_EVERY: Duration = Duration::from_millis(20);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::origin::claim;

    #[test]
    fn a_signal_counts_that_is_pending_and_neither_blocked_nor_ignored() {
        let status = |own: &str, all: &str, blocked: &str, ignored: &str| {
            format!(
                "Name:\tx\nSigPnd:\t{own}\nShdPnd:\t{all}\nSigBlk:\t{blocked}\nSigIgn:\t{ignored}\n"
            )
        };
        assert!(!is_signalled(&status("0", "0", "0", "0")));
        assert!(is_signalled(&status("0000000000000100", "0", "0", "0")), "killed");
        assert!(is_signalled(&status("0", "0000000000000002", "0", "0")), "interrupted");
        assert!(!is_signalled(&status("0", "2", "2", "0")), "blocked");
        assert!(!is_signalled(&status("0", "2", "0", "2")), "ignored");
    }

    #[test]
    fn owners_exclude_each_other_by_ranges_and_a_range_says_who_is_in_the_way() {
        let folder = tempfile::tempdir().unwrap();
        let open = || OwnedFd::from(claim::open(&folder.path().join("file")).unwrap());
        let (one, two) = (open(), open());
        let range = |start, end, kind| Lock { start, end, kind };
        set(&one, range(0, 9, libc::F_WRLCK)).unwrap();
        set(&two, range(10, END, libc::F_WRLCK)).unwrap();
        assert_eq!(set(&two, range(9, 9, libc::F_RDLCK)), Err(Errno::AGAIN));
        let found = test(&two, range(0, END, libc::F_RDLCK)).unwrap();
        assert_eq!(found, Some(range(0, 9, libc::F_WRLCK)));
        set(&one, range(5, 9, libc::F_UNLCK)).unwrap();
        set(&two, range(9, 9, libc::F_RDLCK)).unwrap();
        assert_eq!(test(&one, range(20, 30, libc::F_RDLCK)).unwrap().unwrap().end, END);
    }
}
