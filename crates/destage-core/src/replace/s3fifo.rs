//! S3-FIFO: two FIFO queues and a ghost queue.
//!
//! Source: Yang, Zhang, Qiu, Yue, Rashmi, "FIFO queues are all you need for cache eviction", SOSP 2023: new units enter a
//! small queue of 10 % of the memory; those touched again before they reach its end move to the main queue, the others
//! leave and are remembered as ghosts; a ghost that returns enters the main queue at once; the main queue gives touched
//! units another round.

use super::ghost::Ghost;
use super::list::{Nodes, Queue, TOUCHES_MAX};
use crate::id::UnitId;

const SMALL: u8 = 1;
const MAIN: u8 = 2;
/// The small queue's share of the memory, in percent.
const SMALL_PERCENT: u64 = 10;

/// S3-FIFO over units of varying size.
#[derive(Debug)]
pub struct S3Fifo {
    nodes: Nodes,
    small: Queue,
    main: Queue,
    ghost: Ghost,
}

impl Default for S3Fifo {
    fn default() -> Self {
        Self {
            nodes: Nodes::default(),
            small: Queue::new(SMALL),
            main: Queue::new(MAIN),
            ghost: Ghost::default(),
        }
    }
}

impl S3Fifo {
    /// Adds a unit of `bytes` that is not present. `identity` is a hash of what the unit stands for; without it (a unit
    /// that comes back from being pinned, hence in use) it enters the main queue.
    pub fn insert(&mut self, unit: UnitId, bytes: u32, identity: Option<u64>) {
        let ghosts = self.len();
        let seen = identity.is_none_or(|identity| self.ghost.take(identity, ghosts));
        let queue = if seen { &mut self.main } else { &mut self.small };
        queue.push(&mut self.nodes, unit.0, bytes);
    }

    /// Notes a hit.
    #[inline]
    pub fn touch(&mut self, unit: UnitId) {
        if let Some(node) = self.nodes.get_mut(unit.0)
            && node.touches() < TOUCHES_MAX
        {
            node.set_touches(node.touches() + 1);
        }
    }

    /// Takes a unit out, for instance because it became dirty; its size is returned, `None` if it is not present.
    pub fn remove(&mut self, unit: UnitId) -> Option<u32> {
        match self.nodes.get(unit.0)?.queue() {
            SMALL => Some(self.small.remove(&mut self.nodes, unit.0)),
            _ => Some(self.main.remove(&mut self.nodes, unit.0)),
        }
    }

    /// Changes a present unit's size.
    pub fn resize(&mut self, unit: UnitId, bytes: u32) {
        match self.nodes.get(unit.0).map(|node| node.queue()) {
            Some(SMALL) => self.small.resize(&mut self.nodes, unit.0, bytes),
            Some(_) => self.main.resize(&mut self.nodes, unit.0, bytes),
            None => {}
        }
    }

    /// Chooses a unit to leave and takes it out, for a memory of `bytes_max`. `None` if nothing is present.
    pub fn evict(&mut self, bytes_max: u64) -> Option<UnitId> {
        loop {
            let small_full = self.small.bytes > bytes_max / 100 * SMALL_PERCENT;
            if let Some(unit) = self.small.oldest()
                && (small_full || self.main.len == 0)
            {
                let touches = self.nodes.get(unit).map_or(0, |node| node.touches());
                let bytes = self.small.remove(&mut self.nodes, unit);
                if touches == 0 {
                    return Some(UnitId(unit));
                }
                self.main.push(&mut self.nodes, unit, bytes);
                continue;
            }
            let unit = self.main.oldest()?;
            let touches = self.nodes.get(unit).map_or(0, |node| node.touches());
            let bytes = self.main.remove(&mut self.nodes, unit);
            if touches == 0 {
                return Some(UnitId(unit));
            }
            self.main.push(&mut self.nodes, unit, bytes);
            if let Some(node) = self.nodes.get_mut(unit) {
                node.set_touches(touches - 1);
            }
        }
    }

    /// Remembers what an evicted unit stood for.
    pub fn evicted(&mut self, identity: u64) {
        self.ghost.insert(identity, self.len());
    }

    /// Bytes present.
    pub fn bytes(&self) -> u64 {
        self.small.bytes + self.main.bytes
    }

    /// Units present.
    pub fn len(&self) -> usize {
        self.small.len + self.main.len
    }

    /// Whether nothing is present.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The size of a present unit.
    pub fn bytes_of(&self, unit: UnitId) -> Option<u32> {
        self.nodes.get(unit.0).map(|node| node.bytes())
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
        (0..5).for_each(|u| cache.touch(UnitId(u)));
        for u in 5..1_000 {
            cache.insert(UnitId(u), 10, identity(u));
            while cache.bytes() > 100 {
                assert!(evict(&mut cache, 100) >= 5, "a unit in use left during a scan");
            }
        }
        assert!((0..5).all(|u| cache.bytes_of(UnitId(u)) == Some(10)));
    }

    #[test]
    fn ghosts_return_to_the_main_queue() {
        let mut cache = S3Fifo::default();
        (0..20).for_each(|u| cache.insert(UnitId(u), 10, identity(u)));
        assert_eq!(evict(&mut cache, 100), 0);
        cache.insert(UnitId(0), 10, identity(0));
        assert_eq!(cache.main.len, 1);
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
