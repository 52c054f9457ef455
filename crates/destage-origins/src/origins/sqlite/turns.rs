//! Whose turn it is at a database with a rollback journal: the reads', or a commit's.
//!
//! While a commit is on its way to such a file nobody can read it. SQLite waits for that by looking again from time to time,
//! ever more rarely. Where one commit follows upon another, what lies between them is so short that a read may miss it for
//! seconds. So the reads and the commits of one process take turns here, and nobody has to look for the moment.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// For how long a commit waits for reads. What takes longer, such as the query of a derived key, meets SQLite's own waiting.
const READS_MAX: Duration = Duration::from_millis(100);

#[derive(Debug, Default)]
pub(super) struct Turns {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Reads under way.
    reads: usize,
    /// Reads that wait for the end of a commit.
    waiting: usize,
    /// A commit is under way, or waits for the last reads.
    is_committing: bool,
}

impl Turns {
    /// Runs a read while no commit is under way.
    pub(super) fn read<T>(&self, read: impl FnOnce() -> T) -> T {
        let mut state = self.lock();
        state.waiting += 1;
        while state.is_committing {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.waiting -= 1;
        state.reads += 1;
        self.changed.notify_all();
        drop(state);
        let _ended = Ended(self, |state| state.reads -= 1);
        read()
    }

    /// Runs a commit. Reads that waited for the one before go first; those that come now wait for this one.
    pub(super) fn commit<T>(&self, commit: impl FnOnce() -> T) -> T {
        self.commit_after(READS_MAX, commit)
    }

    /// The same, where the reads have so long each time.
    fn commit_after<T>(&self, limit: Duration, commit: impl FnOnce() -> T) -> T {
        let mut state = self.wait_until(limit, self.lock(), |state| state.waiting == 0);
        state.is_committing = true;
        drop(self.wait_until(limit, state, |state| state.reads == 0));
        let _ended = Ended(self, |state| state.is_committing = false);
        commit()
    }

    fn wait_until<'s>(
        &'s self,
        limit: Duration,
        state: MutexGuard<'s, State>,
        is_met: impl Fn(&State) -> bool,
    ) -> MutexGuard<'s, State> {
        let waited = self.changed.wait_timeout_while(state, limit, |state| !is_met(state));
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Notes that something has ended, however it did.
struct Ended<'t>(&'t Turns, fn(&mut State));

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        (self.1)(&mut self.0.lock());
        self.0.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    use std::thread;

    /// As long as a machine may need that has more to do.
    const PATIENT: Duration = Duration::from_secs(60);

    #[test]
    fn a_read_waits_for_one_commit_and_not_for_those_that_follow() {
        let (turns, has_read) = (Turns::default(), AtomicBool::new(false));
        thread::scope(|scope| {
            turns.commit_after(PATIENT, || {
                scope.spawn(|| turns.read(|| has_read.store(true, Ordering::SeqCst)));
                while turns.lock().waiting == 0 {
                    thread::yield_now();
                }
                assert!(!has_read.load(Ordering::SeqCst), "a commit is under way");
            });
            turns.commit_after(PATIENT, || assert!(has_read.load(Ordering::SeqCst)));
        });
    }

    #[test]
    fn no_commit_is_under_way_while_something_reads() {
        let (turns, reads) = (Turns::default(), AtomicUsize::new(0));
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        turns.read(|| {
                            reads.fetch_add(1, Ordering::SeqCst);
                            thread::yield_now();
                            reads.fetch_sub(1, Ordering::SeqCst);
                        });
                    }
                });
            }
            for _ in 0..200 {
                turns.commit_after(PATIENT, || assert_eq!(reads.load(Ordering::SeqCst), 0));
            }
        });
    }

    #[test]
    fn a_read_that_takes_long_holds_no_commit_up_for_good() {
        let turns = Turns::default();
        turns.read(|| assert_eq!(turns.commit(|| 7), 7));
        assert_eq!(turns.read(|| 8), 8);
    }
}
