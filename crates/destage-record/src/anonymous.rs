//! What stands in a recording in place of addresses and keys, so that nobody reads them from it.
//!
//! The key is drawn for each recording and kept in memory alone. So nobody can undo it later, who recorded included.

use crate::is_of_volume;
use destage_core::replace::{spread, unspread};
use std::hash::{BuildHasher, RandomState};

/// What stays together: blocks of a volume move by so many bytes at a time.
pub(crate) const EXTENT: u64 = 1 << 20;
/// Bytes of a volume's block.
const BLOCK: u64 = 4_096;
/// Addresses of volumes are below 2^56, and so are those in their place: extents have numbers of so many bits.
const EXTENT_BITS: u32 = 36;
/// A round changes one half of a number by the other one.
const HALF_BITS: u32 = EXTENT_BITS / 2;
/// Four are the least that leave nothing of the order.
const ROUNDS: u8 = 6;

/// A recording's own order of addresses and keys.
#[derive(Clone, Debug)]
pub(crate) struct Anonymous {
    key: RandomState,
    is_volume: bool,
}

impl Anonymous {
    /// Another one each time, for what the subject says is recorded.
    pub(crate) fn new(subject: &str) -> Self {
        Self { key: RandomState::new(), is_volume: is_of_volume(subject) }
    }

    /// In place of a byte of a volume.
    pub(crate) fn offset(&self, offset: u64) -> u64 {
        self.extent(offset / EXTENT) * EXTENT + offset % EXTENT
    }

    /// In place of what a unit is known by.
    pub(crate) fn identity(&self, identity: u64) -> u64 {
        let block = unspread(identity);
        // What is no block of a volume is nothing that lies beside another one.
        if self.is_volume && block < (1 << EXTENT_BITS) * (EXTENT / BLOCK) {
            spread(self.offset(block * BLOCK) / BLOCK)
        } else {
            self.key.hash_one(identity)
        }
    }

    /// Feistel's network: each extent has one place, and each place one extent.
    fn extent(&self, extent: u64) -> u64 {
        let mask = (1 << HALF_BITS) - 1;
        let (mut left, mut right) = (extent >> HALF_BITS & mask, extent & mask);
        for round in 0..ROUNDS {
            (left, right) = (right, left ^ (self.key.hash_one((round, right)) & mask));
        }
        left << HALF_BITS | right
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn extents_change_places_and_blocks_stay_together_in_them() {
        let anonymous = Anonymous::new("block");
        let places: HashSet<u64> = (0..10_000).map(|at| anonymous.offset(at * EXTENT)).collect();
        assert_eq!(places.len(), 10_000, "no two are in one place");
        assert!(places.iter().all(|place| place % EXTENT == 0 && *place < 1 << 56));
        let neighbours = (1..10_000).filter(|at| {
            anonymous.offset(at * EXTENT) == anonymous.offset((at - 1) * EXTENT) + EXTENT
        });
        assert!(neighbours.count() < 10, "their order is gone");
        let (first, last) = (anonymous.offset(7 * EXTENT), anonymous.offset(8 * EXTENT - 1));
        assert_eq!(first + EXTENT - 1, last);
        // Blocks are known by their places.
        assert_eq!(unspread(anonymous.identity(spread(7 * 256 + 3))) * BLOCK, first + 3 * BLOCK);
        // Another recording has another order.
        let other = Anonymous::new("block");
        assert!((0..100).any(|at| other.offset(at * EXTENT) != anonymous.offset(at * EXTENT)));
    }

    #[test]
    fn rows_are_known_by_another_hash_in_each_recording() {
        let [one, other] = [Anonymous::new("serve"), Anonymous::new("serve")];
        assert_eq!(one.identity(spread(3)), one.identity(spread(3)));
        assert_ne!(one.identity(spread(3)), other.identity(spread(3)));
        assert_ne!(one.identity(spread(3)), spread(3));
    }
}
