//! Cached entries of one kind within a limit of bytes; which of them leaves, S3-FIFO says, as for rows.

use destage_core::UnitId;
use destage_core::replace::{Replacement, S3Fifo};
use hashbrown::DefaultHashBuilder;
use std::collections::HashMap;
use std::hash::BuildHasher;
use std::sync::Arc;

/// What an entry takes besides its name and value, in bytes: its slot, its place by name, the replacement's node and ghost.
const OVERHEAD: usize = 112;

/// Entries by name.
pub(super) struct Shelf<V> {
    bytes_max: u64,
    places: HashMap<Arc<str>, UnitId>,
    slots: Vec<Option<(Arc<str>, V)>>,
    free: Vec<UnitId>,
    order: S3Fifo,
    hasher: DefaultHashBuilder,
}

impl<V> Shelf<V> {
    /// Nothing yet, and never more than `bytes_max` bytes.
    pub(super) fn new(bytes_max: u64) -> Self {
        Self {
            bytes_max,
            places: HashMap::new(),
            slots: Vec::new(),
            free: Vec::new(),
            order: S3Fifo::default(),
            hasher: DefaultHashBuilder::default(),
        }
    }

    /// An entry that is used.
    pub(super) fn hit(&mut self, name: &str) -> Option<&V> {
        let unit = *self.places.get(name)?;
        self.order.touch(unit);
        self.slots[unit.0 as usize].as_ref().map(|(_, value)| value)
    }

    /// An entry that is looked at.
    pub(super) fn get_mut(&mut self, name: &str) -> Option<&mut V> {
        let unit = *self.places.get(name)?;
        self.slots[unit.0 as usize].as_mut().map(|(_, value)| value)
    }

    pub(super) fn contains(&self, name: &str) -> bool {
        self.places.contains_key(name)
    }

    /// Puts an entry in its place, whose value takes so many bytes; others leave for it. One that is larger than the limit is
    /// not kept.
    pub(super) fn insert(&mut self, name: &str, value: V, bytes: usize) {
        self.remove(name);
        let unit = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            UnitId(u32::try_from(self.slots.len() - 1).expect("memory ends before 2^32 entries"))
        });
        let name: Arc<str> = name.into();
        self.slots[unit.0 as usize] = Some((name.clone(), value));
        let identity = self.hasher.hash_one(&*name);
        self.order.insert(unit, size(&name, bytes), Some(identity));
        self.places.insert(name, unit);
        self.make_room();
    }

    /// The entry's value takes another number of bytes now.
    pub(super) fn resize(&mut self, name: &str, bytes: usize) {
        if let Some(&unit) = self.places.get(name) {
            self.order.resize(unit, size(name, bytes));
            self.make_room();
        }
    }

    fn make_room(&mut self) {
        while self.order.bytes() > self.bytes_max
            && let Some(unit) = self.order.evict(self.bytes_max)
        {
            if let Some((name, _)) = self.slots[unit.0 as usize].take() {
                self.order.evicted(self.hasher.hash_one(&*name));
                self.places.remove(&name);
            }
            self.free.push(unit);
        }
    }

    pub(super) fn remove(&mut self, name: &str) {
        if let Some(unit) = self.places.remove(name) {
            self.order.remove(unit);
            self.slots[unit.0 as usize] = None;
            self.free.push(unit);
        }
    }

    /// Removes everything.
    pub(super) fn clear(&mut self) {
        *self = Self::new(self.bytes_max);
    }

    /// How many there are, and the bytes that they take.
    pub(super) fn size(&self) -> (usize, u64) {
        (self.places.len(), self.order.bytes())
    }
}

fn size(name: &str, bytes: usize) -> u32 {
    // The name is here and in the place by name, once.
    u32::try_from(bytes.saturating_add(name.len() + OVERHEAD)).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_stays_within_the_limit_and_what_is_used_outlives_what_is_not() {
        let mut shelf = Shelf::new(100 * 1_000);
        shelf.insert("hot", 0, 800);
        for n in 1..10_000 {
            assert_eq!(shelf.hit("hot"), Some(&0), "it left before entry {n}");
            shelf.insert(&format!("cold {n}"), n, 800);
            let (count, bytes) = shelf.size();
            assert!(bytes <= 100_000 && count <= 125, "{count} entries of {bytes} bytes");
        }
        assert!(shelf.size().0 > 90);
        assert!(!shelf.contains("cold 1"));
        shelf.resize("hot", 99_999);
        assert!(shelf.size().1 <= 100_000);
        shelf.clear();
        assert_eq!(shelf.size(), (0, 0));
        shelf.insert("too large", 0, 100_001);
        assert!(!shelf.contains("too large"));
    }

    #[test]
    fn an_entry_is_replaced_and_removed_by_its_name() {
        let mut shelf = Shelf::new(10_000);
        shelf.insert("a", 1, 10);
        let once = shelf.size();
        shelf.insert("a", 2, 10);
        assert_eq!((shelf.hit("a").copied(), shelf.size()), (Some(2), once));
        shelf.remove("a");
        shelf.remove("a");
        assert_eq!((shelf.hit("a").copied(), shelf.size()), (None, (0, 0)));
    }
}
