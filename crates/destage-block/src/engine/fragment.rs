//! Fragments: parts of requests that the core decides about one by one, and where each of them stands.

use super::range_lock::RangeLock;
use crate::block::{Extent, Lba};
use destage_core::{Lsn, UnitId};
use hashbrown::HashMap;
use std::collections::VecDeque;

/// A part of a request.
#[derive(Debug)]
pub(super) struct Fragment {
    pub(super) asked: u32,
    pub(super) extent: Extent,
    pub(super) work: Work,
    /// Its blocks' handles, once it has been started.
    pub(super) units: Vec<UnitId>,
    /// How often it was begun again because the cache device gave something else than was written there.
    pub(super) tries: u32,
}

/// What it does.
#[derive(Debug)]
pub(super) enum Work {
    /// Reads `len` bytes, `skip` bytes into the extent, to `at` in the reply; if nothing of it is cached, perhaps from the
    /// origin without keeping it.
    Read { skip: usize, len: usize, at: usize, passes_by: bool },
    /// Fetches what is not cached.
    Prefetch,
    /// Reads the blocks that a write changes in part: the first one of the extent, or the last, or both.
    Edges { writer: u64 },
    /// Writes whole blocks. With `merge`, their ends are to be completed by what is there. With `passes_by`, the cache does not
    /// keep them once they are at the origin.
    Write { data: Vec<u8>, merge: Option<Merge>, passes_by: bool },
    /// Makes blocks read as zeros.
    Zero { punch: bool },
}

/// What a write leaves out of its first and its last block, bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Merge {
    pub(super) head: usize,
    pub(super) tail: usize,
}

/// The bytes of some blocks, as they come.
#[derive(Debug)]
pub(super) struct Gather {
    pub(super) fragment: u64,
    pub(super) bytes: Vec<u8>,
}

impl Merge {
    /// `None` where nothing is left out.
    pub(super) fn of(head: usize, tail: usize) -> Option<Self> {
        (head > 0 || tail > 0).then_some(Self { head, tail })
    }
}

impl Fragment {
    pub(super) fn new(asked: u32, extent: Extent, work: Work) -> Self {
        Self { asked, extent, work, units: Vec::new(), tries: 0 }
    }

    pub(super) fn is_write(&self) -> bool {
        matches!(self.work, Work::Write { .. } | Work::Zero { .. })
    }

    /// Whether it changes blocks in part.
    pub(super) fn is_partial(&self) -> bool {
        matches!(self.work, Work::Write { merge: Some(_), .. })
    }

    /// Whether it is of a long sequential write.
    pub(super) fn is_of_stream(&self) -> bool {
        matches!(self.work, Work::Write { passes_by: true, .. })
    }

    pub(super) fn is_zero(&self) -> bool {
        matches!(self.work, Work::Zero { .. })
    }

    /// How many handles it needs.
    pub(super) fn handles(&self) -> usize {
        self.lbas().count()
    }

    /// The blocks whose handles it needs, each once. Zeros need none: they are held by extents.
    pub(super) fn lbas(&self) -> impl Iterator<Item = Lba> + use<> {
        let extent = self.extent;
        let (step, count) = match self.work {
            Work::Zero { .. } => (1, 0),
            Work::Edges { .. } => ((extent.blocks as usize - 1).max(1), 2),
            _ => (1, usize::MAX),
        };
        extent.iter().step_by(step).take(count)
    }
}

/// All fragments, and where each of them stands.
#[derive(Debug, Default)]
pub(super) struct Fragments {
    fragments: HashMap<u64, Fragment>,
    /// Writes that may not begin yet, and those that others wait for.
    lock: RangeLock,
    /// Fragments that need handles before the core is asked.
    starts: VecDeque<u64>,
    gathers: HashMap<u64, Gather>,
    /// Writes that wait for the origin, by their groups.
    settling: HashMap<Lsn, u64>,
}

impl Fragments {
    /// A new fragment. A write waits for its turn, see [`Fragments::next_write`].
    pub(super) fn insert(&mut self, id: u64, fragment: Fragment) {
        if fragment.is_write() {
            let is_exclusive = fragment.is_partial() || fragment.is_zero();
            self.lock.push(id, fragment.extent, is_exclusive, fragment.handles() as u64);
        }
        self.fragments.insert(id, fragment);
    }

    pub(super) fn get(&self, id: u64) -> Option<&Fragment> {
        self.fragments.get(&id)
    }

    pub(super) fn get_mut(&mut self, id: u64) -> Option<&mut Fragment> {
        self.fragments.get_mut(&id)
    }

    /// A fragment is done, or has failed. A write lets those pass that wait for it.
    pub(super) fn remove(&mut self, id: u64) -> Option<Fragment> {
        let fragment = self.fragments.remove(&id)?;
        if fragment.is_write() {
            self.lock.leave(id);
        }
        Some(fragment)
    }

    /// The next write that may begin, as long as those that have begun hold at most `handles_max` handles.
    pub(super) fn next_write(&mut self, handles_max: u64) -> Option<u64> {
        self.lock.pass(handles_max)
    }

    /// Whether a write has begun that is not logged.
    pub(super) fn is_write_under_way(&self) -> bool {
        !self.lock.is_quiet()
    }

    /// Writes that wait for their turn.
    pub(super) fn writes_waiting(&self) -> usize {
        self.lock.waiting_len()
    }

    /// A fragment is to be started, after all others.
    pub(super) fn start(&mut self, id: u64) {
        self.starts.push_back(id);
    }

    /// A fragment is to be started once more, before all others.
    pub(super) fn start_again(&mut self, id: u64) {
        self.starts.push_front(id);
    }

    /// The fragment to be started at this place of the queue, as far as it is looked at.
    pub(super) fn start_at(&self, place: usize) -> Option<u64> {
        self.starts.get(place).copied().filter(|_| place < STARTS_LOOKED_AT)
    }

    /// Takes the fragment at this place out of the queue.
    pub(super) fn take_start(&mut self, place: usize) {
        self.starts.remove(place);
    }

    /// The bytes of a fragment's blocks are on their way.
    pub(super) fn gather(&mut self, id: u64, gather: Gather) {
        self.gathers.insert(id, gather);
    }

    /// What was on its way has come, or has failed.
    pub(super) fn take_gather(&mut self, id: u64) -> Option<Gather> {
        self.gathers.remove(&id)
    }

    /// A write waits until the origin has decided its group.
    pub(super) fn settle(&mut self, lsn: Lsn, id: u64) {
        self.settling.insert(lsn, id);
    }

    /// The origin has decided a group. Returns the write that waited for it.
    pub(super) fn settled(&mut self, lsn: Lsn) -> Option<u64> {
        self.settling.remove(&lsn)
    }

    /// Takes the writes that wait for their turn.
    pub(super) fn take_writes_waiting(&mut self) -> Vec<u64> {
        self.lock.drain()
    }

    /// Takes the fragments that are to be started.
    pub(super) fn take_starts(&mut self) -> VecDeque<u64> {
        std::mem::take(&mut self.starts)
    }

    /// Takes the writes that wait for the origin.
    pub(super) fn take_settling(&mut self) -> Vec<u64> {
        let mut settling: Vec<u64> = std::mem::take(&mut self.settling).into_values().collect();
        // A hash map's order must not show.
        settling.sort_unstable();
        settling
    }
}

/// How far behind a fragment that waits for handles others may pass it.
const STARTS_LOOKED_AT: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    fn write(first: u64, blocks: u32, merge: Option<Merge>) -> Fragment {
        let work = Work::Write { data: Vec::new(), merge, passes_by: false };
        Fragment::new(1, Extent { first: Lba(first), blocks }, work)
    }

    #[test]
    fn a_write_lets_the_next_to_its_blocks_pass_once_it_is_removed() {
        let mut fragments = Fragments::default();
        fragments.insert(1, write(0, 2, Merge::of(1, 0)));
        fragments.insert(2, write(1, 1, None));
        fragments.insert(3, write(5, 1, None));
        assert_eq!([0; 3].map(|_| fragments.next_write(9)), [Some(1), Some(3), None]);
        assert!(fragments.is_write_under_way() && fragments.writes_waiting() == 1);
        assert!(fragments.remove(1).is_some() && fragments.remove(1).is_none());
        assert_eq!(fragments.next_write(9), Some(2));
        fragments.remove(2);
        fragments.remove(3);
        assert!(!fragments.is_write_under_way());
    }

    #[test]
    fn a_write_that_waits_may_be_taken_out() {
        let mut fragments = Fragments::default();
        (1..=3).for_each(|id| fragments.insert(id, write(0, 1, Merge::of(1, 0))));
        assert_eq!(fragments.next_write(9), Some(1));
        fragments.remove(2);
        assert_eq!((fragments.writes_waiting(), fragments.take_writes_waiting()), (1, vec![3]));
        fragments.remove(3);
        fragments.remove(1);
        assert_eq!(fragments.next_write(9), None);
    }

    #[test]
    fn what_is_begun_again_comes_first_and_few_are_looked_at() {
        let mut fragments = Fragments::default();
        (1..=300).for_each(|id| fragments.start(id));
        fragments.start_again(0);
        assert_eq!((fragments.start_at(0), fragments.start_at(1)), (Some(0), Some(1)));
        fragments.take_start(0);
        assert_eq!(fragments.start_at(0), Some(1));
        assert!(fragments.start_at(STARTS_LOOKED_AT - 1).is_some());
        assert!(fragments.start_at(STARTS_LOOKED_AT).is_none());
    }

    #[test]
    fn zeros_need_no_handles_and_edges_need_two() {
        let extent = Extent { first: Lba(0), blocks: 9 };
        let handles = |work| Fragment::new(1, extent, work).handles();
        assert_eq!(handles(Work::Zero { punch: false }), 0);
        assert_eq!(handles(Work::Edges { writer: 1 }), 2);
        assert_eq!(handles(Work::Prefetch), 9);
    }
}
