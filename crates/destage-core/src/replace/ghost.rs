//! Recently evicted units, by fingerprint, in a fixed amount of memory.

use alloc::vec;
use alloc::vec::Vec;

/// A set-free ghost queue: one slot per fingerprint bucket holds the fingerprint and the eviction's number. An entry is
/// as old as the evictions since; it counts while it is younger than the queue's length. Colliding entries overwrite one
/// another, which forgets some ghosts early and costs hit ratio, never correctness.
#[derive(Debug, Default)]
pub(super) struct Ghost {
    slots: Vec<(u32, u32)>,
    evictions: u32,
}

const SLOTS_MIN: usize = 1_024;

impl Ghost {
    /// Remembers an eviction among about `length` entries.
    pub(super) fn insert(&mut self, identity: u64, length: usize) {
        let wanted = length.max(SLOTS_MIN).next_power_of_two();
        if self.slots.len() < wanted {
            // Ghosts are only hints: starting empty after growth is cheaper than moving them.
            self.slots = vec![(0, 0); wanted];
        }
        self.evictions = self.evictions.wrapping_add(1);
        let slot = self.slot(identity);
        self.slots[slot] = (fingerprint(identity), self.evictions);
    }

    /// Whether the unit was evicted within the last `length` evictions; forgets it.
    pub(super) fn take(&mut self, identity: u64, length: usize) -> bool {
        if self.slots.is_empty() {
            return false;
        }
        let slot = self.slot(identity);
        let (print, evicted) = self.slots[slot];
        let age = self.evictions.wrapping_sub(evicted) as usize;
        let known = print == fingerprint(identity) && age < length;
        if known {
            self.slots[slot] = (0, 0);
        }
        known
    }

    fn slot(&self, identity: u64) -> usize {
        identity as usize & (self.slots.len() - 1)
    }
}

/// Never 0, which marks an empty slot.
fn fingerprint(identity: u64) -> u32 {
    (identity >> 32) as u32 | 1
}
