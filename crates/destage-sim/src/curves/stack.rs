//! Stack distances: under LRU a cache of so many places holds the blocks used last, so one pass gives the hits of all sizes.
//!
//! Source: Mattson, Gecsei, Slutz, Traiger, "Evaluation techniques for storage hierarchies", IBM Systems Journal 1970; the
//! count of more recent blocks is kept in a tree of sums over the order of use (Fenwick, Software: Practice and Experience 1994).
//! A discarded block leaves a hole: caches that held it have a place to spare until a miss fills it.

use std::collections::BTreeSet;

/// Blocks in the order of their last use.
#[derive(Debug, Default)]
pub(super) struct Stack {
    /// The slot of each present block, by number.
    slot_of: Vec<u32>,
    /// What is in each slot; later slots were used later.
    slots: Vec<u32>,
    /// Sums over the occupied slots, from 1.
    sums: Vec<u32>,
    holes: BTreeSet<u32>,
    /// Slots that hold a block or a hole.
    occupied: u32,
    /// The slot for the next use.
    next: u32,
}

/// Not present.
const NONE: u32 = u32::MAX;
/// In `slots`: a hole.
const HOLE: u32 = u32::MAX;
/// In `slots`: nothing.
const EMPTY: u32 = u32::MAX - 1;
/// Fewest slots.
const SLOTS_MIN: u32 = 1_024;

impl Stack {
    /// Uses a block. Caches with at least so many places held it; none did without a number.
    pub(super) fn access(&mut self, id: u32) -> Option<u32> {
        self.make_room();
        self.know(id);
        let old = self.slot_of[id as usize];
        let is_present = old != NONE;
        let depth = is_present.then(|| self.occupied - self.sum_to(old) + 1);
        let top_hole = self.holes.last().copied().filter(|&hole| !is_present || hole > old);
        match top_hole {
            // Caches that reach the hole but not the block miss and fill the hole; the others now have it where the block was.
            Some(hole) => {
                self.vacate(hole);
                if is_present {
                    self.slots[old as usize] = HOLE;
                    self.holes.insert(old);
                }
            }
            None if is_present => self.vacate(old),
            None => {}
        }
        self.occupy(self.next, id);
        self.slot_of[id as usize] = self.next;
        self.next += 1;
        depth
    }

    /// Discards a block.
    pub(super) fn discard(&mut self, id: u32) {
        self.know(id);
        let slot = std::mem::replace(&mut self.slot_of[id as usize], NONE);
        if slot != NONE {
            self.slots[slot as usize] = HOLE;
            self.holes.insert(slot);
        }
    }

    /// Forgets a block as if it had never been used.
    pub(super) fn forget(&mut self, id: u32) {
        self.know(id);
        let slot = std::mem::replace(&mut self.slot_of[id as usize], NONE);
        if slot != NONE {
            self.vacate(slot);
        }
    }

    fn know(&mut self, id: u32) {
        if self.slot_of.len() <= id as usize {
            self.slot_of.resize(id as usize + 1, NONE);
        }
    }

    fn occupy(&mut self, slot: u32, content: u32) {
        self.slots[slot as usize] = content;
        self.occupied += 1;
        let mut index = slot as usize + 1;
        while index < self.sums.len() {
            self.sums[index] += 1;
            index += index & index.wrapping_neg();
        }
    }

    fn vacate(&mut self, slot: u32) {
        if self.slots[slot as usize] == HOLE {
            self.holes.remove(&slot);
        }
        self.slots[slot as usize] = EMPTY;
        self.occupied -= 1;
        let mut index = slot as usize + 1;
        while index < self.sums.len() {
            self.sums[index] -= 1;
            index += index & index.wrapping_neg();
        }
    }

    /// Occupied slots up to this one, with it.
    fn sum_to(&self, slot: u32) -> u32 {
        let mut index = slot as usize + 1;
        let mut sum = 0;
        while index > 0 {
            sum += self.sums[index];
            index -= index & index.wrapping_neg();
        }
        sum
    }

    /// Closes up the slots when the last is taken; at least as many as are occupied are free afterwards.
    fn make_room(&mut self) {
        if (self.next as usize) < self.slots.len() {
            return;
        }
        let mut contents: Vec<u32> =
            self.slots.iter().copied().filter(|&content| content != EMPTY).collect();
        self.next = contents.len() as u32;
        let capacity = self.next.saturating_mul(2).max(SLOTS_MIN);
        contents.resize(capacity as usize, EMPTY);
        self.slots = contents;
        self.sums = vec![0; capacity as usize + 1];
        self.holes.clear();
        self.occupied = 0;
        for slot in 0..self.next {
            let content = self.slots[slot as usize];
            match content {
                HOLE => drop(self.holes.insert(slot)),
                id => self.slot_of[id as usize] = slot,
            }
            self.occupy(slot, content);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blocks::mix;

    /// LRU of so many places, from the definition.
    struct Naive {
        places: usize,
        list: Vec<u32>,
    }

    impl Naive {
        fn access(&mut self, id: u32) -> bool {
            let found = self.list.iter().position(|&other| other == id);
            found.map(|place| self.list.remove(place));
            self.list.insert(0, id);
            self.list.truncate(self.places);
            found.is_some()
        }

        fn discard(&mut self, id: u32) {
            self.list.retain(|&other| other != id);
        }
    }

    #[test]
    fn depths_are_the_sizes_that_hit_discards_included() {
        for seed in 0..20u64 {
            let mut stack = Stack::default();
            let mut caches: Vec<Naive> =
                (1..40).map(|places| Naive { places, list: Vec::new() }).collect();
            for step in 0..2_000u64 {
                let random = mix(seed << 32 | step);
                let id = (random >> 8) as u32 % (1 + (random >> 40) as u32 % 50);
                if random.is_multiple_of(8) {
                    stack.discard(id);
                    caches.iter_mut().for_each(|cache| cache.discard(id));
                    continue;
                }
                let depth = stack.access(id);
                for cache in &mut caches {
                    let hits = depth.is_some_and(|depth| cache.places >= depth as usize);
                    assert_eq!(cache.access(id), hits, "seed {seed} step {step}, {}", cache.places);
                }
            }
        }
    }

    #[test]
    fn a_forgotten_block_leaves_no_hole() {
        let mut stack = Stack::default();
        for id in 0..3 {
            assert_eq!(stack.access(id), None);
        }
        stack.forget(1);
        assert_eq!((stack.access(0), stack.access(1)), (Some(2), None));
        assert_eq!(stack.access(2), Some(3));
    }
}
