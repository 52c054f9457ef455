//! S3-FIFO: two FIFO queues and a ghost queue.
//!
//! Source: Yang, Zhang, Qiu, Yue, Rashmi, "FIFO queues are all you need for cache eviction", SOSP 2023: new units enter a
//! small queue of 10 % of the memory; those touched at least twice before they reach its end move to the main queue, the
//! others leave and are remembered as ghosts, as many as the main queue has units; a ghost that returns enters the main queue
//! at once; the main queue gives touched units another round, and what leaves it is not remembered.

use super::Replacement;
use super::fifos::Fifos;
use super::ghost::Ghost;
use crate::id::UnitId;
use serde::{Deserialize, Serialize};

const SMALL: usize = 0;
const MAIN: usize = 1;
/// The small queue's share of the memory, in percent.
const SMALL_PERCENT: u64 = 10;

/// So often a unit is touched in the small queue before it moves to the main one.
const TOUCHES_TO_MAIN: u8 = 2;

/// S3-FIFO over units of varying size.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct S3Fifo {
    queues: Fifos<2>,
    ghost: Ghost,
    /// Whether the unit evicted last left the small queue, until its ghost is remembered.
    left_small: bool,
}

impl Replacement for S3Fifo {
    fn insert(&mut self, unit: UnitId, bytes: u32, identity: Option<u64>) {
        let ghosts = self.ghosts();
        let seen = identity.is_none_or(|identity| self.ghost.take(identity, ghosts));
        self.queues.push(if seen { MAIN } else { SMALL }, unit, bytes);
    }

    #[inline]
    fn foresee(&self, unit: UnitId) -> u32 {
        self.queues.foresee(unit)
    }

    #[inline]
    fn touch(&mut self, unit: UnitId) -> bool {
        self.queues.count_touch(unit)
    }

    fn remove(&mut self, unit: UnitId) -> Option<u32> {
        self.queues.remove(unit)
    }

    fn resize(&mut self, unit: UnitId, bytes: u32) {
        self.queues.resize(unit, bytes);
    }

    fn evict(&mut self, bytes_max: u64) -> Option<UnitId> {
        loop {
            let main_full =
                self.queues.bytes_in(MAIN) > bytes_max - bytes_max / 100 * SMALL_PERCENT;
            let [from, otherwise] = if main_full { [MAIN, SMALL] } else { [SMALL, MAIN] };
            let (queue, unit) = match self.queues.oldest(from) {
                Some(unit) => (from, unit),
                None => (otherwise, self.queues.oldest(otherwise)?),
            };
            match (queue, self.queues.touches(unit)) {
                (SMALL, TOUCHES_TO_MAIN..) => self.queues.renew_oldest(SMALL, MAIN, 0),
                (MAIN, touches @ 1..) => self.queues.renew_oldest(MAIN, MAIN, touches - 1),
                _ => {
                    self.queues.remove(unit);
                    self.left_small = queue == SMALL;
                    return Some(unit);
                }
            }
        }
    }

    fn evicted(&mut self, identity: u64) {
        if core::mem::take(&mut self.left_small) {
            self.ghost.insert(identity, self.ghosts());
        }
    }

    fn bytes(&self) -> u64 {
        self.queues.bytes()
    }

    fn len(&self) -> usize {
        self.queues.len()
    }

    fn bytes_of(&self, unit: UnitId) -> Option<u32> {
        self.queues.bytes_of(unit)
    }
}

impl S3Fifo {
    /// How many evictions a ghost is remembered for: the main queue's share of the units.
    fn ghosts(&self) -> usize {
        let percent = 100 - SMALL_PERCENT as usize;
        (self.len() * percent / 100).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(unit: u32) -> Option<u64> {
        Some(u64::from(unit + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    fn evict(cache: &mut S3Fifo, bytes_max: u64) -> u32 {
        let unit = cache.evict(bytes_max).unwrap();
        cache.evicted(identity(unit.0).unwrap());
        unit.0
    }

    #[test]
    fn untouched_units_leave_in_the_order_they_came() {
        let mut cache = S3Fifo::default();
        (0..10).for_each(|u| cache.insert(UnitId(u), 10, identity(u)));
        assert_eq!((cache.len(), cache.bytes()), (10, 100));
        let left: [u32; 10] = core::array::from_fn(|_| evict(&mut cache, 50));
        assert_eq!(left, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
        assert!(cache.is_empty() && cache.bytes() == 0 && cache.evict(50).is_none());
    }

    #[test]
    fn touched_units_outlive_a_scan() {
        let mut cache = S3Fifo::default();
        (0..5).for_each(|u| cache.insert(UnitId(u), 10, identity(u)));
        for _ in 0..2 {
            (0..5).for_each(|u| assert!(cache.touch(UnitId(u))));
        }
        for u in 5..1_000 {
            cache.insert(UnitId(u), 10, identity(u));
            while cache.bytes() > 100 {
                assert!(evict(&mut cache, 100) >= 5, "a unit in use left during a scan");
            }
        }
        assert!((0..5).all(|u| cache.bytes_of(UnitId(u)) == Some(10)));
    }

    #[test]
    fn one_touch_is_not_enough_to_stay() {
        let mut cache = S3Fifo::default();
        (0..10).for_each(|u| cache.insert(UnitId(u), 10, identity(u)));
        cache.touch(UnitId(0));
        (0..2).for_each(|_| assert!(cache.touch(UnitId(1))));
        assert_eq!([evict(&mut cache, 100), evict(&mut cache, 100)], [0, 2]);
        assert_eq!(cache.queues.len_in(MAIN), 1);
    }

    #[test]
    fn what_leaves_the_main_queue_is_not_remembered() {
        let mut cache = S3Fifo::default();
        cache.insert(UnitId(0), 100, None);
        assert_eq!(evict(&mut cache, 100), 0);
        cache.insert(UnitId(0), 10, identity(0));
        assert_eq!(cache.queues.len_in(SMALL), 1);
    }

    #[test]
    fn ghosts_return_to_the_main_queue() {
        let mut cache = S3Fifo::default();
        (0..20).for_each(|u| cache.insert(UnitId(u), 10, identity(u)));
        assert_eq!(evict(&mut cache, 100), 0);
        cache.insert(UnitId(0), 10, identity(0));
        assert_eq!(cache.queues.len_in(MAIN), 1);
    }

    #[test]
    fn sizes_follow_inserts_removals_and_resizes() {
        let mut cache = S3Fifo::default();
        cache.insert(UnitId(3), 10, identity(3));
        cache.insert(UnitId(7), 20, None);
        cache.resize(UnitId(3), 15);
        assert_eq!(cache.bytes(), 35);
        assert_eq!(cache.remove(UnitId(7)), Some(20));
        assert_eq!(cache.remove(UnitId(7)), None);
        assert_eq!((cache.bytes(), cache.len()), (15, 1));
    }
}
