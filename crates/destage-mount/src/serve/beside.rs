//! What is looked at from time to time, beside all else: stores through mappings, which the kernel does not tell of, and the
//! room at the origin.

use super::live::Live;
use crate::ask::Ino;
use crossbeam_channel::{Receiver, bounded};
use fuser::{INodeNo, Notifier};
use hashbrown::HashSet;
use std::convert::Infallible;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// What the kernel remembers of files.
#[derive(Clone, Debug)]
pub(super) struct Remembered {
    notifier: Notifier,
    root: u64,
}

impl Remembered {
    pub(super) fn new(notifier: Notifier, root: u64) -> Self {
        Self { notifier, root }
    }

    /// It asks for a file's attributes again. Waits for no page, and so for nobody who waits for this process.
    pub(super) fn forget_attributes(&self, ino: u64) {
        self.forget(ino, -1);
    }

    /// It writes the pages of a file back to this process before this returns.
    pub(super) fn forget_pages(&self, ino: u64) {
        self.forget(ino, 0);
    }

    fn forget(&self, ino: u64, from: i64) {
        let ino = if ino == self.root { INodeNo::ROOT } else { INodeNo(ino) };
        // Of a file that the kernel has forgotten it remembers nothing.
        let _ = self.notifier.inval_inode(ino, from, 0);
    }
}

/// Looks every `period` at mappings, and at the room at the origin, which may hang.
///
/// # Errors
/// The system has no threads.
pub(super) fn start(live: Arc<Live>, remembered: Remembered, period: Duration) -> io::Result<()> {
    let room = live.clone();
    every("room", SPACE_EVERY, move || room.look_at_space())?;
    let waited_for = WaitedFor::default();
    every("beside", period, move || {
        for ino in live.with(|front, _| front.take_mapped()) {
            let are_asked = live.shared().is_some_and(|shared| shared.sizes.are_asked(ino));
            let remembered = remembered.clone();
            if are_asked || !waited_for.take_back(ino, move || remembered.forget_pages(ino)) {
                live.with(|front, _| front.is_mapped(ino));
            }
        }
    })
}

/// Has the kernel forget the pages of files, on threads of its own: it waits for those that it is reading, which may take until
/// there is a lease again. The others do not wait for these for long, however many they are. Who hears the end hears that all were tried.
pub(super) fn forget_each(
    files: Vec<Ino>,
    forget: impl Fn(Ino) + Clone + Send + 'static,
) -> io::Result<Receiver<Infallible>> {
    let (tries, end) = bounded(0);
    thread::Builder::new().name("pages".into()).spawn(move || {
        let (deadline, threads) = (Instant::now() + WAIT_FOR_PAGES, Arc::new(()));
        for ino in files {
            let (done, is_done) = bounded(1);
            let work = {
                let (forget, thread) = (forget.clone(), threads.clone());
                move || {
                    forget(ino);
                    drop(thread);
                    let _ = done.send(());
                }
            };
            while let Err(error) = thread::Builder::new().name("forgets".into()).spawn(work.clone())
            {
                tracing::debug!(%error, "pages in the kernel stay until there is a thread");
                thread::sleep(WAIT_FOR_THREAD);
            }
            // Else as soon as it can.
            let is_many = Arc::strong_count(&threads) > THREADS_MAX;
            let least = if is_many { WAIT_FOR_PAGES } else { WAIT_FOR_ONE };
            let _ = is_done.recv_deadline(deadline.max(Instant::now() + least));
        }
        drop(tries);
    })?;
    Ok(end)
}

/// Files whose pages are waited for: the kernel gives none back that it is reading, which may take until there is a token.
#[derive(Default)]
struct WaitedFor(Arc<Mutex<HashSet<Ino>>>);

impl WaitedFor {
    /// Takes the pages of a file back; the others do not wait for it for long. False if they are being waited for already.
    fn take_back(&self, ino: Ino, takes: impl FnOnce() + Send + 'static) -> bool {
        let files = self.0.clone();
        // A panic ends the process: see the program's `main`.
        let with = move |files: &Mutex<HashSet<Ino>>,
                         change: fn(&mut HashSet<Ino>, Ino) -> bool| {
            change(&mut files.lock().unwrap_or_else(PoisonError::into_inner), ino)
        };
        if !with(&files, |files, ino| files.insert(ino)) {
            return false;
        }
        let (done, is_done) = bounded(1);
        let waited_for = files.clone();
        let told = thread::Builder::new().name("mapped".into()).spawn(move || {
            takes();
            with(&waited_for, |files, ino| files.remove(&ino));
            let _ = done.send(());
        });
        if told.is_err() {
            with(&files, |files, ino| files.remove(&ino));
            return false;
        }
        let _ = is_done.recv_timeout(WAIT_FOR_PAGES);
        true
    }
}

/// On a thread of its own.
fn every(name: &str, period: Duration, work: impl Fn() + Send + 'static) -> io::Result<()> {
    thread::Builder::new().name(name.into()).spawn(move || {
        loop {
            thread::sleep(period);
            work();
        }
    })?;
    Ok(())
}

/// How old what is known of the room may be.
const SPACE_EVERY: Duration = Duration::from_secs(1);
/// How long other files wait for the pages of one.
const WAIT_FOR_PAGES: Duration = Duration::from_millis(100);
/// The same of one file, once others have taken so long.
const WAIT_FOR_ONE: Duration = Duration::from_millis(1);
/// Unless so many of them are waited for already.
const THREADS_MAX: usize = 64;
/// How long the system gets to have a thread again.
const WAIT_FOR_THREAD: Duration = Duration::from_millis(5);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_whose_pages_are_held_keeps_no_other_one_waiting() {
        let waited_for = WaitedFor::default();
        let (goes_on, held) = bounded::<()>(0);
        let (ended, has_ended) = bounded(1);
        assert!(waited_for.take_back(1, move || {
            let _ = held.recv();
            let _ = ended.send(());
        }));
        assert!(waited_for.take_back(2, || {}));
        assert!(!waited_for.take_back(1, || {}), "it is waited for");
        drop(goes_on);
        has_ended.recv().unwrap();
        while !waited_for.take_back(1, || {}) {
            thread::yield_now();
        }
    }

    #[test]
    fn pages_that_the_kernel_is_reading_keep_no_others_there() {
        let (goes_on, held) = bounded::<()>(0);
        let (forgotten, forgets) = bounded(4);
        let forget = move |ino| {
            if ino % 2 == 1 {
                let _ = held.recv();
            }
            let _ = forgotten.send(ino);
        };
        let end = forget_each(vec![1, 2, 3, 4], forget).unwrap();
        assert!(end.recv().is_err());
        assert_eq!([forgets.recv().unwrap(), forgets.recv().unwrap()], [2, 4]);
        drop(goes_on);
        let mut late = [forgets.recv().unwrap(), forgets.recv().unwrap()];
        late.sort_unstable();
        assert_eq!(late, [1, 3]);
    }
}
