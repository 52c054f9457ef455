//! Belady's policy: the block whose next use is farthest away leaves.
//!
//! Source: Belady, "A study of replacement algorithms for a virtual-storage computer", IBM Systems Journal 1966. It has to know
//! the future, so the trace is held in memory: 4 bytes per block access and 20 per request. A run takes 8 bytes per block access
//! for the next uses, 16 per distinct block, and up to 32 per block in the cache.

use super::recording::Recorder;
use super::{Dirty, Outcome, Place};
use crate::trace::Op;
use std::collections::BinaryHeap;

/// Not used again.
const NEVER: u64 = u64::MAX;

/// So many entries that are out of date are not worth the work.
const OUTDATED_MIN: usize = 64;

/// Runs the policy over what was recorded: so many places.
pub(super) fn replay(recorder: &Recorder, places: u64) -> Outcome {
    let next_uses = next_uses(recorder);
    let mut cache = Farthest::new(recorder.distinct(), places);
    let mut outcome = Outcome::default();
    recorder.each(|op, blocks, start| match op {
        Op::Discard => outcome.discard(blocks, |id| cache.discard(id)),
        op => {
            let mut uses = next_uses[start..start + blocks.len()].iter();
            outcome.request(op, blocks, |id| {
                let next_use = uses.next().copied().unwrap_or(NEVER);
                let hit = cache.access(id, 1, next_use);
                if op == Op::Write {
                    cache.dirty.write(id);
                }
                if hit { Place::Flash } else { Place::Origin }
            });
        }
    });
    outcome.evicted_blocks = cache.evicted;
    cache.dirty.tell(&mut outcome);
    outcome
}

/// For each access, the place of the next one to the same block; never, if it is discarded before.
fn next_uses(recorder: &Recorder) -> Vec<u64> {
    let mut upcoming = vec![NEVER; recorder.distinct() as usize];
    let mut next_uses = vec![NEVER; recorder.accesses()];
    recorder.each_backwards(|op, ids, start| {
        for (index, &id) in ids.iter().enumerate().rev() {
            let place = start + index;
            let later = if op == Op::Discard { NEVER } else { place as u64 };
            next_uses[place] = std::mem::replace(&mut upcoming[id as usize], later);
        }
    });
    next_uses
}

/// The cache: present blocks by their next use.
#[derive(Debug)]
pub(super) struct Farthest {
    /// The next use of each present block and its size; size 0 for absent ones.
    present: Vec<(u64, u32)>,
    /// How many are present.
    count: usize,
    /// Next uses with their blocks; those that are not the block's current one are out of date.
    heap: BinaryHeap<(u64, u32)>,
    bytes: u64,
    bytes_max: u64,
    pub(super) evicted: u64,
    dirty: Dirty,
}

impl Farthest {
    pub(super) fn new(distinct: u32, bytes_max: u64) -> Self {
        Self {
            present: vec![(NEVER, 0); distinct as usize],
            count: 0,
            heap: BinaryHeap::new(),
            bytes: 0,
            bytes_max,
            evicted: 0,
            dirty: Dirty::default(),
        }
    }

    /// Whether the block was present; it is afterwards. `bytes` is not 0.
    pub(super) fn access(&mut self, id: u32, bytes: u32, next_use: u64) -> bool {
        let hit = self.present[id as usize].1 != 0;
        if !hit {
            while self.bytes + u64::from(bytes) > self.bytes_max && self.evict() {}
            self.bytes += u64::from(bytes);
            self.present[id as usize].1 = bytes;
            self.count += 1;
        }
        self.present[id as usize].0 = next_use;
        self.heap.push((next_use, id));
        if self.heap.len() > 2 * self.count + OUTDATED_MIN {
            self.forget_outdated();
        }
        hit
    }

    /// Each access leaves an entry behind: only those that count are kept, each once.
    fn forget_outdated(&mut self) {
        let mut entries = std::mem::take(&mut self.heap).into_vec();
        entries.retain(|&entry| self.is_current(entry));
        entries.sort_unstable();
        entries.dedup();
        entries.shrink_to(2 * self.count + OUTDATED_MIN);
        self.heap = entries.into();
    }

    fn is_current(&self, (next_use, id): (u64, u32)) -> bool {
        self.present[id as usize].1 != 0 && self.present[id as usize].0 == next_use
    }

    fn evict(&mut self) -> bool {
        while let Some((next_use, id)) = self.heap.pop() {
            if self.is_current((next_use, id)) {
                self.evicted += 1;
                self.dirty.evict(id);
                return self.discard(id);
            }
        }
        false
    }

    fn discard(&mut self, id: u32) -> bool {
        self.dirty.clear(id);
        let (_, bytes) = std::mem::replace(&mut self.present[id as usize], (NEVER, 0));
        self.bytes -= u64::from(bytes);
        self.count -= usize::from(bytes != 0);
        bytes != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_out_of_date_takes_no_room_and_the_farthest_still_leaves() {
        let mut cache = Farthest::new(5, 3);
        for n in 0..10_000 {
            // Three blocks in turns.
            let id = (n % 3) as u32;
            cache.access(id, 1, n + 3);
            cache.access(id, 1, NEVER);
            cache.access(id, 1, n + 3);
            assert!(cache.heap.len() <= 2 * 3 + OUTDATED_MIN, "{}", cache.heap.len());
        }
        cache.access(3, 1, 10_000);
        let left: Vec<usize> = (0..4).filter(|&id| cache.present[id].1 == 0).collect();
        assert_eq!(left, [0], "block 0 was to be used last");
        // One is discarded and comes back, as one that is not used again.
        for _ in 0..1_000 {
            cache.discard(3);
            cache.access(3, 1, NEVER);
            assert!(cache.heap.len() <= 2 * 3 + OUTDATED_MIN, "{}", cache.heap.len());
        }
        assert_eq!((cache.count, cache.bytes, cache.evicted), (3, 3, 1));
    }
}
