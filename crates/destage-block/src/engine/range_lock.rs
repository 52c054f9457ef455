//! The range lock of writes. A write that changes a block in part first reads it; nobody may write it in between. A write that
//! zeros holds no handles by which the core would keep others from the same blocks.

use crate::block::Extent;
use hashbrown::HashMap;
use std::collections::VecDeque;

/// Writes that wait, and those that have begun and are not logged.
#[derive(Debug, Default)]
pub(super) struct RangeLock {
    waiting: VecDeque<Entry>,
    begun: HashMap<u64, Entry>,
    /// Handles of those that have begun.
    begun_handles: u64,
    /// How many of all are exclusive.
    exclusive: usize,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    id: u64,
    extent: Extent,
    /// Nothing else may be under way to its blocks.
    is_exclusive: bool,
    /// How many it needs.
    handles: u64,
}

impl Entry {
    /// Whether the order of the two shows, and cannot be left to the order in which they are logged.
    fn excludes(&self, other: &Self) -> bool {
        (self.is_exclusive || other.is_exclusive)
            && self.extent.first < other.extent.end()
            && other.extent.first < self.extent.end()
    }
}

impl RangeLock {
    /// A write waits from now on; it needs so many handles. An exclusive one excludes all others to its blocks.
    pub(super) fn push(&mut self, id: u64, extent: Extent, is_exclusive: bool, handles: u64) {
        self.exclusive += usize::from(is_exclusive);
        self.waiting.push_back(Entry { id, extent, is_exclusive, handles });
    }

    /// The next write that may begin, as long as those that have begun hold at most `handles_max` handles.
    pub(super) fn pass(&mut self, handles_max: u64) -> Option<u64> {
        let looked_at = self.waiting.len().min(LOOKED_AT);
        let index = (0..looked_at).find(|&index| self.may_pass(index))?;
        let handles = self.waiting[index].handles;
        if self.begun_handles > 0 && self.begun_handles + handles > handles_max {
            return None;
        }
        let entry = self.waiting.remove(index)?;
        self.begun_handles += handles;
        self.begun.insert(entry.id, entry);
        Some(entry.id)
    }

    fn may_pass(&self, index: usize) -> bool {
        if self.exclusive == 0 {
            return true;
        }
        let entry = &self.waiting[index];
        !self.waiting.iter().take(index).any(|before| entry.excludes(before))
            && !self.begun.values().any(|before| entry.excludes(before))
    }

    /// A write is logged, or has failed.
    pub(super) fn leave(&mut self, id: u64) {
        if let Some(entry) = self.begun.remove(&id) {
            self.begun_handles -= entry.handles;
            self.exclusive -= usize::from(entry.is_exclusive);
        } else if let Some(index) = self.waiting.iter().position(|entry| entry.id == id) {
            self.exclusive -= usize::from(self.waiting[index].is_exclusive);
            self.waiting.remove(index);
        }
    }

    /// Whether no write has begun that is not logged.
    pub(super) fn is_quiet(&self) -> bool {
        self.begun.is_empty()
    }

    /// Writes that wait.
    pub(super) fn waiting_len(&self) -> usize {
        self.waiting.len()
    }

    /// Takes out everyone who waits.
    pub(super) fn drain(&mut self) -> Vec<u64> {
        let waiting = std::mem::take(&mut self.waiting);
        self.exclusive -= waiting.iter().filter(|entry| entry.is_exclusive).count();
        waiting.into_iter().map(|entry| entry.id).collect()
    }
}

/// How far behind a write that must wait others may pass it.
const LOOKED_AT: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::Lba;

    fn push(lock: &mut RangeLock, id: u64, first: u64, is_exclusive: bool) {
        lock.push(id, Extent { first: Lba(first), blocks: 2 }, is_exclusive, 2);
    }

    #[test]
    fn exclusive_writes_to_the_same_blocks_keep_their_order() {
        let mut lock = RangeLock::default();
        push(&mut lock, 1, 0, false);
        push(&mut lock, 2, 1, true);
        push(&mut lock, 3, 2, false);
        push(&mut lock, 4, 9, true);
        assert_eq!([0; 3].map(|_| lock.pass(99)), [Some(1), Some(4), None]);
        lock.leave(1);
        assert_eq!([0; 2].map(|_| lock.pass(99)), [Some(2), None], "3 waits for 2");
        lock.leave(2);
        assert_eq!(lock.pass(99), Some(3));
        lock.leave(3);
        lock.leave(4);
        assert!(lock.is_quiet() && lock.waiting_len() == 0);
    }

    #[test]
    fn writes_that_exclude_nobody_pass_together_as_far_as_handles_reach() {
        let mut lock = RangeLock::default();
        (1..=3).for_each(|id| push(&mut lock, id, 0, false));
        assert_eq!([0; 3].map(|_| lock.pass(4)), [Some(1), Some(2), None]);
        lock.leave(1);
        assert_eq!(lock.pass(4), Some(3));
        // One that needs more than there is passes alone.
        push(&mut lock, 4, 0, false);
        assert_eq!(lock.pass(1), None);
        lock.leave(2);
        lock.leave(3);
        assert_eq!(lock.pass(1), Some(4));
    }

    #[test]
    fn who_is_taken_out_excludes_nobody() {
        let mut lock = RangeLock::default();
        push(&mut lock, 1, 0, true);
        push(&mut lock, 2, 0, true);
        assert_eq!(lock.pass(99), Some(1));
        assert_eq!(lock.drain(), [2]);
        lock.leave(1);
        push(&mut lock, 3, 0, true);
        assert_eq!(lock.pass(99), Some(3));
    }
}
