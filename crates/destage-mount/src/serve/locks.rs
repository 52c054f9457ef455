//! Locks of files where several hosts share them, by `fcntl` and by `flock`.
//!
//! Each is a lock of the same range at the origin, through the origin's own mount. For each owner the file is opened there
//! anew, since the origin tells owners apart by that. It lets go once this process has ended, or the session that carries this
//! host's data: so nobody can have a lock of a host that may still write.
//!
//! One thread does all of it but opening files, and tries again for those who wait. None of the kernel's threads waits. The
//! kernel's word that a signal has come to who waits does not reach this front end, so it looks at what is pending for that
//! thread.

mod opening;
mod ranges;

use super::live::Live;
use crate::ask::{Answer, Answered, Errno, Ino, Lock, Locking};
use crate::origin::Origin;
use crossbeam_channel::{Receiver, Sender, at, never, select, unbounded};
use hashbrown::HashMap;
use hashbrown::hash_map::Entry;
use opening::{Opened, Opening};
use ranges::Ranges;
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
    owners: Arc<Owners>,
}

struct Work {
    owner: Owner,
    locking: Locking,
    answer: Box<dyn Answer>,
}

/// Of each owner, how many requests for locks are not answered yet, and one more while it has the file open at the origin. The
/// end of anybody else needs nothing, and waits for no thread.
///
/// Whoever counts something counts before it is so, and takes it back after it was: so nobody is missed in between.
#[derive(Default)]
struct Owners(Mutex<HashMap<Owner, usize>>);

impl Owners {
    fn count(&self, owner: Owner) {
        *self.all().entry(owner).or_default() += 1;
    }

    fn take_back(&self, owner: Owner) {
        let mut all = self.all();
        if let Some(count) = all.get_mut(&owner) {
            *count -= 1;
            if *count == 0 {
                all.remove(&owner);
            }
        }
    }

    fn has(&self, owner: Owner) -> bool {
        self.all().contains_key(&owner)
    }

    fn has_any(&self, ino: Ino) -> bool {
        self.all().keys().any(|owner| owner.0 == ino)
    }

    fn all(&self) -> MutexGuard<'_, HashMap<Owner, usize>> {
        // A panic ends the process: see the program's `main`.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Locks {
    /// Starts the thread.
    ///
    /// # Errors
    /// The system has none.
    pub(super) fn start(live: Weak<Live>, origin: Arc<dyn Origin>) -> io::Result<Self> {
        Self::start_at(Arc::new(AtOrigin { live, origin }))
    }

    fn start_at(files: Arc<dyn Files>) -> io::Result<Self> {
        let (work, works) = unbounded();
        let owners = Arc::<Owners>::default();
        let (opening, opened) = Opening::new();
        let (held, waiting) = (HashMap::new(), Vec::new());
        let keeper = Keeper { files, owners: owners.clone(), held, waiting, opening };
        thread::Builder::new().name("locks".into()).spawn(move || keeper.run(&works, &opened))?;
        Ok(Self { work, owners })
    }

    /// Answers once it is done.
    pub(super) fn ask(&self, owner: Owner, locking: Locking, answer: Box<dyn Answer>) {
        let is_done = match locking {
            Locking::Set(lock, ..) if lock.kind != libc::F_UNLCK => {
                self.owners.count(owner);
                false
            }
            Locking::Set(..) | Locking::End => !self.owners.has(owner),
            Locking::Closed(_) => !self.owners.has_any(owner.0),
            Locking::Test(_) => false,
        };
        if is_done {
            return answer.give(Ok(Answered::Done));
        }
        // The thread lives as long as this does.
        let _ = self.work.send(Work { owner, locking, answer });
    }
}

/// Where the files are.
trait Files: Send + Sync {
    fn serving(&self) -> Serving;

    /// Opens one anew.
    fn open(&self, ino: Ino) -> Result<OwnedFd, Errno>;

    /// Takes a lock at once, or gives it up.
    fn set(&self, file: &OwnedFd, lock: Lock) -> Result<(), Errno> {
        set(file, lock)
    }
}

struct AtOrigin {
    live: Weak<Live>,
    origin: Arc<dyn Origin>,
}

impl Files for AtOrigin {
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

    fn open(&self, ino: Ino) -> Result<OwnedFd, Errno> {
        let live = self.live.upgrade().ok_or(Errno::IO)?;
        let key = live.with(|front, _| front.tree.node(ino).map(|node| node.key.clone()));
        self.origin.open_for_locks(&key.ok_or(Errno::STALE)?)
    }
}

/// The thread's own.
struct Keeper {
    files: Arc<dyn Files>,
    owners: Arc<Owners>,
    held: HashMap<Owner, Held>,
    waiting: Vec<Work>,
    opening: Opening,
}

/// The file of an owner at the origin, and what is locked by it.
struct Held {
    file: OwnedFd,
    ranges: Ranges,
}

/// Whether requests are served now.
enum Serving {
    Yes,
    /// Not without a lease.
    Later,
    Never,
}

impl Keeper {
    fn run(mut self, works: &Receiver<Work>, opened: &Receiver<Opened>) {
        let mut look_at = Instant::now();
        loop {
            let look = if self.waiting.is_empty() { never() } else { at(look_at) };
            let frees = select! {
                recv(works) -> work => match work {
                    Ok(work) => self.begin(work),
                    Err(_) => return,
                },
                recv(opened) -> opened => opened.is_ok_and(|opened| self.go_on(opened)),
                recv(look) -> _ => true,
            };
            if frees || Instant::now() >= look_at {
                self.try_again();
                look_at = Instant::now() + LOOK_EVERY;
            }
        }
    }

    /// True if others may have what they wait for.
    fn begin(&mut self, work: Work) -> bool {
        let Some(Work { owner, locking, answer }) = self.opening.park(work) else { return false };
        let (frees, answered) = match locking {
            Locking::End => {
                self.end(owner);
                (true, Ok(()))
            }
            Locking::Closed(open) => (self.close(owner.0, open), Ok(())),
            Locking::Set(lock, ..) if lock.kind == libc::F_UNLCK => {
                (true, self.give_up(owner, lock))
            }
            _ => {
                self.attempt(Work { owner, locking, answer }, None);
                return false;
            }
        };
        answer.give(answered.map(|()| Answered::Done));
        frees
    }

    fn give_up(&mut self, owner: Owner, lock: Lock) -> Result<(), Errno> {
        let Some(held) = self.held.get_mut(&owner) else { return Ok(()) };
        self.files.set(&held.file, lock)?;
        held.ranges.give_up(lock.start, lock.end.min(END));
        if lock.start == 0 && lock.end >= END {
            self.end(owner);
        }
        Ok(())
    }

    fn end(&mut self, owner: Owner) {
        if let Some(held) = self.held.remove(&owner) {
            // The end of the file comes to the origin at some time; this comes to it now.
            self.free(&held.file, 0, END);
            drop(held);
            self.owners.take_back(owner);
        }
    }

    /// Ends what was taken by an open that has ended, and leaves what others have who got its number since. True if that was
    /// anything.
    fn close(&mut self, ino: Ino, open: u64) -> bool {
        let mut frees = false;
        let of_file: Vec<Owner> =
            self.held.keys().filter(|owner| owner.0 == ino).copied().collect();
        for owner in of_file {
            let Some(held) = self.held.get_mut(&owner) else { continue };
            let ended = held.ranges.end(open);
            frees |= !ended.is_empty();
            if held.ranges.is_empty() {
                self.end(owner);
                continue;
            }
            let held = &self.held[&owner];
            ended.into_iter().for_each(|(first, last)| self.free(&held.file, first, last));
        }
        frees
    }

    fn free(&self, file: &OwnedFd, start: u64, end: u64) {
        if let Err(error) = self.files.set(file, Lock { start, end, kind: libc::F_UNLCK }) {
            tracing::debug!(%error, "locks end with their file");
        }
    }

    /// A file was opened, or was not. True if others may have what they wait for.
    fn go_on(&mut self, (ino, file): Opened) -> bool {
        let mut parked = self.opening.ended(ino);
        if let Some(first) = parked.pop_front() {
            self.attempt(first, Some(file));
        }
        let frees: Vec<bool> = parked.into_iter().map(|work| self.begin(work)).collect();
        frees.contains(&true)
    }

    fn try_again(&mut self) {
        for work in std::mem::take(&mut self.waiting) {
            if self.opening.has(work.owner.0) && !self.held.contains_key(&work.owner) {
                self.waiting.push(work);
            } else {
                self.attempt(work, None);
            }
        }
    }

    /// Answers, unless it has to wait. `file` is the owner's, if it was opened for this.
    fn attempt(&mut self, work: Work, file: Option<Result<OwnedFd, Errno>>) {
        let answered = match self.files.serving() {
            Serving::Never => Err(Errno::IO),
            Serving::Later => match work.locking {
                Locking::Set(_, Some(thread), _) if has_signal(thread) => Err(Errno::INTR),
                _ => return self.waiting.push(work),
            },
            Serving::Yes => {
                let Some(answered) = self.carry_out(work.owner, work.locking, file) else {
                    return self.opening.open(&self.files, work);
                };
                match (work.locking, answered) {
                    (Locking::Set(_, Some(thread), _), Err(Errno::AGAIN)) => {
                        if !has_signal(thread) {
                            return self.waiting.push(work);
                        }
                        Err(Errno::INTR)
                    }
                    (_, answered) => answered,
                }
            }
        };
        if let Locking::Set(..) = work.locking {
            self.owners.take_back(work.owner);
        }
        work.answer.give(answered);
    }

    /// `None` if the file has to be opened first.
    fn carry_out(
        &mut self,
        owner: Owner,
        locking: Locking,
        file: Option<Result<OwnedFd, Errno>>,
    ) -> Option<Result<Answered, Errno>> {
        Some(match locking {
            Locking::Set(lock, _, open) => {
                let held = match self.held.entry(owner) {
                    Entry::Occupied(held) => held.into_mut(),
                    Entry::Vacant(place) => {
                        let file = match file? {
                            Ok(file) => file,
                            Err(error) => return Some(Err(error)),
                        };
                        self.owners.count(owner);
                        place.insert(Held { file, ranges: Ranges::default() })
                    }
                };
                self.files.set(&held.file, lock).map(|()| {
                    held.ranges.take(lock.start, lock.end.min(END), open);
                    Answered::Done
                })
            }
            Locking::Test(lock) => {
                let found = match self.held.get(&owner) {
                    Some(held) => test(&held.file, lock),
                    None => file?.and_then(|file| test(&file, lock)),
                };
                found.map(Answered::Locked)
            }
            Locking::End | Locking::Closed(_) => Ok(Answered::Done),
        })
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

/// The last byte of a lock of all that a file may ever hold.
const END: u64 = i64::MAX as u64;
/// How often those are looked at who wait.
const LOOK_EVERY: Duration = Duration::from_millis(20);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::origin::claim;
    use crossbeam_channel::bounded;
    use std::path::PathBuf;

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

    /// Locks of a file in a folder. Whoever gives one up there waits until somebody listens, and has said that it may go on.
    struct Slow {
        path: PathBuf,
        gives_up: Sender<()>,
        goes_on: Receiver<()>,
    }

    impl Files for Slow {
        fn serving(&self) -> Serving {
            Serving::Yes
        }

        fn open(&self, _: Ino) -> Result<OwnedFd, Errno> {
            Ok(claim::open(&self.path)?.into())
        }

        fn set(&self, file: &OwnedFd, lock: Lock) -> Result<(), Errno> {
            if lock.kind == libc::F_UNLCK && self.gives_up.send(()).is_ok() {
                let _ = self.goes_on.recv();
            }
            set(file, lock)
        }
    }

    struct Tells(Sender<Result<Answered, Errno>>);

    impl Answer for Tells {
        fn give(self: Box<Self>, answered: Result<Answered, Errno>) {
            self.0.send(answered).unwrap();
        }
    }

    /// One file, and somebody else who has it open.
    struct Tried {
        locks: Locks,
        other: OwnedFd,
        /// Both go once an end needs not be waited for any more.
        slow: Option<(Receiver<()>, Sender<()>)>,
        _folder: tempfile::TempDir,
    }

    impl Tried {
        fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("file");
            let other = claim::open(&path).unwrap().into();
            let (gives_up, began) = bounded(0);
            let (go_on, goes_on) = bounded(0);
            let locks = Locks::start_at(Arc::new(Slow { path, gives_up, goes_on })).unwrap();
            Self { locks, other, slow: Some((began, go_on)), _folder: folder }
        }

        fn at_once() -> Self {
            Self { slow: None, ..Self::new() }
        }

        fn ask(&self, owner: u64, locking: Locking) -> Receiver<Result<Answered, Errno>> {
            let (answer, answered) = unbounded();
            self.locks.ask((1, owner), locking, Box::new(Tells(answer)));
            answered
        }

        fn done(&self, owner: u64, locking: Locking) {
            assert!(matches!(self.ask(owner, locking).recv().unwrap(), Ok(Answered::Done)));
        }

        /// So the next close waits for nobody.
        fn knows_nobody(&self) -> bool {
            self.locks.owners.all().is_empty()
        }

        /// Whether anybody has one of these bytes.
        fn is_held(&self, start: u64, end: u64) -> bool {
            test(&self.other, Lock { start, end, kind: libc::F_WRLCK }).unwrap().is_some()
        }
    }

    fn takes(start: u64, end: u64, open: u64) -> Locking {
        Locking::Set(Lock { start, end, kind: libc::F_WRLCK }, None, open)
    }

    #[test]
    fn a_lock_that_is_asked_for_while_that_of_the_last_open_ends_ends_with_its_own() {
        let mut tried = Tried::new();
        tried.done(7, takes(0, END, 1));
        let closed = tried.ask(0, Locking::Closed(1));
        let (began, go_on) = tried.slow.take().unwrap();
        began.recv().unwrap();
        // The number of the owner is that of the open which has just ended.
        let taken = tried.ask(7, takes(0, END, 2));
        go_on.send(()).unwrap();
        drop((began, go_on));
        closed.recv().unwrap().unwrap();
        taken.recv().unwrap().unwrap();
        assert!(tried.is_held(0, END));
        tried.done(0, Locking::Closed(2));
        assert!(!tried.is_held(0, END), "nobody has the file open any more");
        assert!(tried.knows_nobody());
    }

    #[test]
    fn an_end_that_comes_late_leaves_the_lock_of_the_next_open() {
        let tried = Tried::at_once();
        tried.done(7, takes(0, END, 1));
        tried.done(7, takes(0, END, 2));
        tried.done(0, Locking::Closed(1));
        assert!(tried.is_held(0, END), "the second one has it");
        tried.done(0, Locking::Closed(2));
        assert!(!tried.is_held(0, END));
        // The same of ranges.
        tried.done(7, takes(0, 9, 3));
        tried.done(7, takes(5, 19, 4));
        tried.done(0, Locking::Closed(3));
        assert!(!tried.is_held(0, 4) && tried.is_held(5, 9) && tried.is_held(10, 19));
        tried.done(0, Locking::Closed(4));
        assert!(!tried.is_held(0, END) && tried.knows_nobody());
    }

    #[test]
    fn a_process_has_its_locks_by_whichever_open_it_took_them() {
        let tried = Tried::at_once();
        tried.done(7, takes(0, 9, 1));
        tried.done(7, takes(20, 29, 2));
        let free = Lock { start: 5, end: 24, kind: libc::F_UNLCK };
        tried.done(7, Locking::Set(free, None, 2));
        assert!(tried.is_held(0, 4) && !tried.is_held(5, 24) && tried.is_held(25, 29));
        tried.done(7, Locking::End);
        assert!(!tried.is_held(0, END) && tried.knows_nobody());
    }
}
