//! Recently evicted units, by fingerprint, in a fixed amount of memory.

use alloc::vec;
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

/// A ghost queue without links: each slot holds a fingerprint and when it was written, counted in evictions. A ghost is
/// as old as the evictions since; it counts while it is younger than the queue's length. Units that fall into one slot
/// overwrite one another, which forgets some ghosts early, and one in 2^15 units is taken for another: both cost hit
/// ratio, never correctness.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(super) struct Ghost {
    /// Fingerprint (upper half, 0 for an empty slot) and stamp. Four bytes, because there is one per cached unit.
    slots: Vec<u32>,
    evictions: u64,
}

const SLOTS_MIN: usize = 1_024;
/// So many steps of a stamp make a queue's length. A stamp wraps after sixteen lengths, when hardly a ghost is left.
const STEPS: usize = 4_096;

impl Ghost {
    /// Remembers an eviction among about `length` entries.
    pub(super) fn insert(&mut self, identity: u64, length: usize) {
        if self.slots.len() < length.max(SLOTS_MIN) {
            // Ghosts are only hints: starting empty after growth is cheaper than moving them.
            self.slots = vec![0; (length + length / 8).max(SLOTS_MIN)];
        }
        self.evictions += 1;
        let slot = self.slot(identity);
        self.slots[slot] = u32::from(fingerprint(identity)) << 16 | u32::from(self.stamp());
    }

    /// Whether the unit was evicted within the last `length` evictions; forgets it.
    pub(super) fn take(&mut self, identity: u64, length: usize) -> bool {
        if self.slots.is_empty() {
            return false;
        }
        let slot = self.slot(identity);
        let [print, stamp] = [(self.slots[slot] >> 16) as u16, self.slots[slot] as u16];
        let age = u64::from(self.stamp().wrapping_sub(stamp)) * self.step();
        let known = print == fingerprint(identity) && age < length as u64;
        if known {
            self.slots[slot] = 0;
        }
        known
    }

    /// Evictions between two stamps.
    fn step(&self) -> u64 {
        self.slots.len().div_ceil(STEPS) as u64
    }

    fn stamp(&self) -> u16 {
        (self.evictions / self.step()) as u16
    }

    /// The lower half of the identity, scaled to the number of slots.
    fn slot(&self, identity: u64) -> usize {
        (((identity & 0xffff_ffff) * self.slots.len() as u64) >> 32) as usize
    }
}

/// Never 0, which marks an empty slot.
fn fingerprint(identity: u64) -> u16 {
    (identity >> 48) as u16 | 1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(unit: u64) -> u64 {
        (unit + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    #[test]
    fn ghosts_are_known_for_a_queues_length_of_evictions() {
        const LENGTH: usize = 100_000;
        let mut ghost = Ghost::default();
        assert!(!ghost.take(identity(0), LENGTH));
        (0..3 * LENGTH as u64).for_each(|unit| ghost.insert(identity(unit), LENGTH));
        let mut known = |from: usize| {
            let units = from as u64..(from + LENGTH) as u64;
            units.filter(|&unit| ghost.take(identity(unit), LENGTH)).count()
        };
        // Slots are shared: of the youngest most are left, of the others only what is taken for another unit.
        let (oldest, old, young, never) =
            (known(0), known(LENGTH), known(2 * LENGTH), known(3 * LENGTH));
        assert!(young > LENGTH / 2, "{young}");
        assert!(oldest < 50 && old < LENGTH / 500 && never < 50, "{oldest} {old} {never}");
        assert_eq!(known(2 * LENGTH), 0, "a ghost returns once");
    }
}
