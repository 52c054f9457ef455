//! Recently evicted units, by fingerprint, in a fixed amount of memory.

use alloc::vec;
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

/// A ghost queue without links: each slot holds a fingerprint and when it was written, counted in evictions. A ghost is
/// as old as the evictions since; it counts while it is younger than the queue's length. Units that fall into one slot
/// overwrite one another, which forgets some ghosts early, and one in 2^11 units is taken for another (2^15 in a short
/// queue): both cost hit ratio, never correctness.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(super) struct Ghost {
    /// Of each slot one word, because there is one per cached unit, or in a short queue, which can afford it, two.
    words: Vec<u16>,
    slots: usize,
    evictions: u64,
}

/// What a slot holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Entry {
    /// 0 for an empty slot.
    print: u16,
    stamp: u16,
}

/// How a slot is divided.
struct Shape {
    stamp_bits: u32,
    /// So many steps of a stamp make a queue's length. A stamp wraps after some lengths, when hardly a ghost is left.
    steps: usize,
}

const SLOTS_MIN: usize = 1_024;
/// Slots of a short queue, at most.
const SHORT_MAX: usize = 1 << 16;
/// One word for the fingerprint, one for the stamp.
const SHORT: Shape = Shape { stamp_bits: 16, steps: 4_096 };
/// One word for both.
const LONG: Shape = Shape { stamp_bits: 5, steps: 8 };

impl Ghost {
    /// Remembers an eviction among about `length` entries.
    pub(super) fn insert(&mut self, identity: u64, length: usize) {
        if self.slots < length.max(SLOTS_MIN) {
            // Ghosts are only hints: starting empty after growth is cheaper than moving them.
            self.slots = (length + length / 8).max(SLOTS_MIN);
            self.words = vec![0; self.slots * if self.is_short() { 2 } else { 1 }];
        }
        self.evictions += 1;
        let entry = Entry { print: self.print(identity), stamp: self.stamp() };
        self.put(self.slot(identity), entry);
    }

    /// Whether the unit was evicted within the last `length` evictions; forgets it.
    pub(super) fn take(&mut self, identity: u64, length: usize) -> bool {
        if self.slots == 0 {
            return false;
        }
        let slot = self.slot(identity);
        let entry = self.entry(slot);
        let steps = self.stamp().wrapping_sub(entry.stamp) & self.stamp_max();
        // Half a step more, because both stamps are rounded down.
        let age = u64::from(steps) * self.step() + self.step() / 2;
        let known = entry.print == self.print(identity) && age < length as u64;
        if known {
            self.put(slot, Entry::default());
        }
        known
    }

    fn is_short(&self) -> bool {
        self.slots <= SHORT_MAX
    }

    fn shape(&self) -> Shape {
        if self.is_short() { SHORT } else { LONG }
    }

    fn entry(&self, slot: usize) -> Entry {
        if self.is_short() {
            return Entry { print: self.words[2 * slot], stamp: self.words[2 * slot + 1] };
        }
        let word = self.words[slot];
        Entry { print: word >> LONG.stamp_bits, stamp: word & self.stamp_max() }
    }

    fn put(&mut self, slot: usize, Entry { print, stamp }: Entry) {
        if self.is_short() {
            (self.words[2 * slot], self.words[2 * slot + 1]) = (print, stamp);
        } else {
            self.words[slot] = print << LONG.stamp_bits | stamp;
        }
    }

    /// Evictions between two stamps.
    fn step(&self) -> u64 {
        self.slots.div_ceil(self.shape().steps) as u64
    }

    fn stamp(&self) -> u16 {
        (self.evictions / self.step()) as u16 & self.stamp_max()
    }

    fn stamp_max(&self) -> u16 {
        u16::MAX >> (u16::BITS - self.shape().stamp_bits)
    }

    /// The lower half of the identity, scaled to the number of slots.
    fn slot(&self, identity: u64) -> usize {
        (((identity & 0xffff_ffff) * self.slots as u64) >> 32) as usize
    }

    /// Never 0, which marks an empty slot.
    fn print(&self, identity: u64) -> u16 {
        let print = (identity >> 48) as u16;
        if self.is_short() { print | 1 } else { (print >> LONG.stamp_bits).max(1) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(unit: u64) -> u64 {
        (unit + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    #[test]
    fn ghosts_are_known_for_a_queues_length_of_evictions() {
        [40_000, 100_000].into_iter().for_each(known_for_a_length);
    }

    fn known_for_a_length(length: usize) {
        let mut ghost = Ghost::default();
        assert!(!ghost.take(identity(0), length));
        (0..3 * length as u64).for_each(|unit| ghost.insert(identity(unit), length));
        let mut known = |from: usize| {
            let units = from as u64..(from + length) as u64;
            units.filter(|&unit| ghost.take(identity(unit), length)).count()
        };
        // Slots are shared: of the youngest most are left, of the others only what is taken for another unit.
        let (oldest, old, young, never) =
            (known(0), known(length), known(2 * length), known(3 * length));
        assert!(young > length / 2, "{young} of {length}");
        let few = length / 1_000;
        assert!(oldest < few && old < 2 * few && never < few, "{oldest} {old} {never} of {length}");
        assert_eq!(known(2 * length), 0, "a ghost returns once");
    }

    #[test]
    fn a_ghost_of_a_long_queue_takes_two_bytes_and_an_eighth_of_room() {
        let mut ghost = Ghost::default();
        ghost.insert(identity(1), 1_000_000);
        assert_eq!(ghost.words.capacity(), 1_125_000);
    }
}
