//! Numbers by key, in a table whose places can be looked at ahead of their use.

use crate::blocks::mix;

/// A table of open addressing. The upper bits of a key's hash are its place; what finds it taken goes to the next free one. So
/// the places of all keys stand in the order of their hashes, and a larger table is filled from its beginning to its end.
///
/// Memory: 16 bytes a place, of which three quarters are used at most.
#[derive(Debug)]
pub(crate) struct Numbers {
    /// A power of two, and one in four at least is free.
    slots: Vec<Slot>,
    used: usize,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    key: u64,
    /// [`NONE`] if the slot is free.
    number: u32,
}

/// No number.
pub(crate) const NONE: u32 = u32::MAX;
const FREE: Slot = Slot { key: 0, number: NONE };
/// Fewest slots, a power of two.
const SLOTS_MIN: usize = 64;

impl Default for Numbers {
    fn default() -> Self {
        Self { slots: vec![FREE; SLOTS_MIN], used: 0 }
    }
}

impl Numbers {
    /// What stands where the key's search begins. It means nothing: reading it for many keys brings their places into the
    /// processor's caches, all at once instead of one after the other.
    #[inline]
    pub(crate) fn foresee(&self, key: u64) -> u32 {
        self.slots[self.home(mix(key))].number
    }

    /// The key's number.
    #[inline]
    pub(crate) fn get(&self, key: u64) -> Option<u32> {
        let slot = self.slots[self.find(key, mix(key))];
        (slot.number != NONE).then_some(slot.number)
    }

    /// The key's number, and whether it has one only now: `number` gives it, which is not [`NONE`].
    ///
    /// # Errors
    /// What `number` fails with.
    #[inline]
    pub(crate) fn get_or_insert<E>(
        &mut self,
        key: u64,
        number: impl FnOnce() -> Result<u32, E>,
    ) -> Result<(u32, bool), E> {
        let place = self.find(key, mix(key));
        let found = self.slots[place].number;
        if found != NONE {
            return Ok((found, false));
        }
        let number = number()?;
        self.slots[place] = Slot { key, number };
        self.used += 1;
        if self.used > self.slots.len() / 4 * 3 {
            self.grow();
        }
        Ok((number, true))
    }

    #[inline]
    fn home(&self, hash: u64) -> usize {
        (hash >> (u64::BITS - self.slots.len().trailing_zeros())) as usize
    }

    /// The key's slot, or the free one that it would take.
    #[inline]
    fn find(&self, key: u64, hash: u64) -> usize {
        let mut place = self.home(hash);
        loop {
            let slot = self.slots[place];
            // A free slot has the key 0, which may be the one that is asked for: the search ends there all the same.
            if slot.key == key || slot.number == NONE {
                return place;
            }
            place = (place + 1) & (self.slots.len() - 1);
        }
    }

    #[cold]
    fn grow(&mut self) {
        let larger = vec![FREE; 2 * self.slots.len()];
        for slot in std::mem::replace(&mut self.slots, larger) {
            if slot.number != NONE {
                let place = self.find(slot.key, mix(slot.key));
                self.slots[place] = slot;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;
    use std::convert::Infallible;

    #[test]
    fn numbers_are_those_of_a_map() {
        let mut numbers = Numbers::default();
        let mut map = HashMap::new();
        for n in 0..100_000_u64 {
            // Small keys with 0 among them, neighbours, and keys that differ in their upper bits only.
            let key = match n % 3 {
                0 => mix(n) % 40_000,
                1 => n,
                _ => (mix(n) % 1_000) << 47,
            };
            let next = map.len() as u32;
            assert_eq!(numbers.get(key), map.get(&key).copied());
            let is_new = !map.contains_key(&key);
            let number = *map.entry(key).or_insert(next);
            let found = numbers.get_or_insert(key, || Ok::<_, Infallible>(next));
            assert_eq!(found, Ok((number, is_new)));
        }
        assert!(map.iter().all(|(&key, &number)| numbers.get(key) == Some(number)));
        assert_eq!((numbers.used, numbers.get(1 << 60)), (map.len(), None));
        assert!(numbers.slots.len() < 3 * map.len(), "{} slots", numbers.slots.len());
    }

    #[test]
    fn a_key_without_a_number_is_not_taken_in() {
        let mut numbers = Numbers::default();
        assert_eq!(numbers.get_or_insert(0, || Err("full")), Err("full"));
        assert_eq!((numbers.get(0), numbers.used), (None, 0));
    }
}
