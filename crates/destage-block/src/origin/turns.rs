//! Clients' reads and destaging at one origin: who may send now.

use super::{Change, Identity, Origin, OriginIoError, Run, SnapshotNote};
use destage_core::{ReadsFirst, Time};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Keeps count of what is under way at an origin; how much of it destaging may have is for [`ReadsFirst`] to say.
#[derive(Debug)]
pub struct Turns {
    state: Mutex<State>,
    changed: Condvar,
    started: Instant,
}

#[derive(Debug, Default)]
struct State {
    reads: ReadsFirst,
    /// Requests of destaging under way.
    destaging: usize,
}

impl Default for Turns {
    fn default() -> Self {
        Self { state: Mutex::default(), changed: Condvar::new(), started: Instant::now() }
    }
}

impl Turns {
    /// Runs a client's read of the origin. It never waits here.
    pub fn read<T>(&self, read: impl FnOnce() -> T) -> T {
        self.lock().reads.begin();
        // More readers leave more room for destaging as well.
        self.changed.notify_one();
        let _ends = OnDrop(|| self.lock().reads.end(self.now()));
        read()
    }

    /// Runs a request of destaging once it may, where the origin takes `most` at a time.
    fn take<T>(&self, most: usize, request: impl FnOnce() -> T) -> T {
        self.wait(most).destaging += 1;
        let _ends = OnDrop(|| {
            self.lock().destaging -= 1;
            self.changed.notify_one();
        });
        request()
    }

    /// Waits until another request may be sent. One always may be while there is none, so this ends.
    fn wait(&self, most: usize) -> MutexGuard<'_, State> {
        let mut state = self.lock();
        loop {
            let now = self.now();
            if state.destaging < state.reads.requests_max(now, most) {
                return state;
            }
            let next = state.reads.next_change(now);
            let time = next.map_or(WAIT_MAX, |at| Duration::from_nanos(at.since(now).as_nanos()));
            let woken = self.changed.wait_timeout(state, time);
            state = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn now(&self) -> Time {
        Time(u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Counts are changed in one step, so a panic elsewhere leaves them whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Does something at the end of its life, also when a panic ends it.
struct OnDrop<F: FnMut()>(F);

impl<F: FnMut()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// An origin as destaging uses it: each read, write and zeroing waits for its turn.
#[derive(Clone, Debug)]
pub struct InTurn {
    origin: Arc<dyn Origin>,
    turns: Arc<Turns>,
}

impl InTurn {
    /// The same origin, for destaging.
    pub fn new(origin: Arc<dyn Origin>, turns: Arc<Turns>) -> Self {
        Self { origin, turns }
    }

    fn take<T>(&self, request: impl FnOnce() -> T) -> T {
        self.turns.take(self.origin.parallelism(), request)
    }
}

impl Origin for InTurn {
    fn size(&self) -> u64 {
        self.origin.size()
    }

    fn take_up_growth(&self) -> Result<u64, OriginIoError> {
        self.origin.take_up_growth()
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<(), OriginIoError> {
        self.take(|| self.origin.read(offset, buf))
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), OriginIoError> {
        self.take(|| self.origin.write(offset, bytes))
    }

    fn zero(&self, offset: u64, len: u64, punch: bool) -> Result<(), OriginIoError> {
        self.take(|| self.origin.zero(offset, len, punch))
    }

    /// Without a turn: what it waits for has been sent already.
    fn flush(&self) -> Result<(), OriginIoError> {
        self.origin.flush()
    }

    fn losses(&self) -> u64 {
        self.origin.losses()
    }

    fn can_flush(&self) -> bool {
        self.origin.can_flush()
    }

    fn parallelism(&self) -> usize {
        self.origin.parallelism()
    }

    fn allocation(&self, offset: u64, len: u64) -> Result<Vec<Run>, OriginIoError> {
        self.origin.allocation(offset, len)
    }

    fn identity(&self) -> Result<Identity, OriginIoError> {
        self.origin.identity()
    }

    /// Without turns: what is written to a copy waits in the host's memory, and one flush brings it to the disk.
    fn replace(&self, note: &SnapshotNote, change: &Change<'_>) -> Result<(), OriginIoError> {
        self.origin.replace(note, change)
    }

    fn snapshot_note(&self) -> Option<SnapshotNote> {
        self.origin.snapshot_note()
    }
}

/// The longest wait without looking again.
const WAIT_MAX: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::SimOrigin;
    use destage_testkit::SimDisk;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread;

    const MOST: usize = 16;

    /// The most requests of destaging seen under way at a time, of many threads that send for as long as `beside` runs.
    fn most_under_way(turns: &Turns, beside: impl FnOnce(&dyn Fn() -> usize)) -> usize {
        let (now, most, rounds) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
        let ends = std::sync::atomic::AtomicBool::new(false);
        thread::scope(|scope| {
            for _ in 0..MOST {
                scope.spawn(|| {
                    while !ends.load(Ordering::SeqCst) {
                        turns.take(MOST, || {
                            most.fetch_max(
                                now.fetch_add(1, Ordering::SeqCst) + 1,
                                Ordering::SeqCst,
                            );
                            thread::sleep(Duration::from_millis(1));
                            now.fetch_sub(1, Ordering::SeqCst);
                        });
                        rounds.fetch_add(1, Ordering::SeqCst);
                    }
                });
            }
            beside(&|| rounds.load(Ordering::SeqCst));
            ends.store(true, Ordering::SeqCst);
        });
        most.into_inner()
    }

    fn wait_for(rounds: &dyn Fn() -> usize, more: usize) {
        let (from, start) = (rounds(), Instant::now());
        while rounds() < from + more {
            assert!(start.elapsed() < Duration::from_secs(60), "destaging stands still");
            thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn beside_a_read_one_request_of_destaging_is_under_way_and_all_of_them_without() {
        let turns = Turns::default();
        let beside = turns.read(|| most_under_way(&turns, |rounds| wait_for(rounds, 200)));
        assert_eq!(beside, 1);
        // Until no further read is expected.
        let deadline = Instant::now() + Duration::from_secs(60);
        while turns.lock().reads.requests_max(turns.now(), MOST) < MOST {
            assert!(Instant::now() < deadline, "reads are expected for ever");
            thread::sleep(Duration::from_millis(1));
        }
        let without = || most_under_way(&turns, |rounds| wait_for(rounds, 200));
        assert!((0..50).any(|_| without() > ReadsFirst::EXPECTING), "nothing holds it back");
    }

    #[test]
    fn an_origin_in_turn_is_the_same_origin() {
        let origin = Arc::new(SimOrigin::new(&SimDisk::new(), "origin", 8192));
        let in_turn = InTurn::new(origin.clone(), Arc::default());
        in_turn.write(4096, &[7; 512]).unwrap();
        in_turn.zero(4096, 256, true).unwrap();
        let mut bytes = [1; 512];
        in_turn.read(4096, &mut bytes).unwrap();
        assert_eq!((bytes[255], bytes[256]), (0, 7));
        in_turn.flush().unwrap();
        assert_eq!(origin.bytes()[4096 + 256], 7);
        assert_eq!((in_turn.size(), in_turn.parallelism()), (8192, origin.parallelism()));
        assert_eq!(in_turn.losses(), origin.losses());
    }
}
