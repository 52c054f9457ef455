//! Evicted units by identity, in exact order: the ghost lists of 2Q and ARC.
//!
//! Unlike [`super::ghost::Ghost`] this forgets nothing early, for about 40 bytes an entry.

use super::queues::Queues;
use alloc::vec::Vec;
use core::hash::{BuildHasherDefault, Hasher};
use hashbrown::HashMap;

/// `N` ghost lists; an identity is in at most one of them.
#[derive(Clone, Debug, Default)]
pub(super) struct Recall<const N: usize> {
    slots: HashMap<u64, u32, BuildHasherDefault<Identity>>,
    /// The identity in each slot.
    identities: Vec<u64>,
    free: Vec<u32>,
    queues: Queues<N>,
}

impl<const N: usize> Recall<N> {
    /// Remembers a unit at the new end of a list.
    pub(super) fn push(&mut self, list: usize, identity: u64, bytes: u32) {
        let slot = self.free.pop().unwrap_or(self.identities.len() as u32);
        match self.identities.get_mut(slot as usize) {
            Some(place) => *place = identity,
            None => self.identities.push(identity),
        }
        // Two units may share an identity; the later one counts.
        if let Some(other) = self.slots.insert(identity, slot) {
            self.queues.remove(other);
            self.free.push(other);
        }
        self.queues.push(list, slot, bytes);
    }

    /// Which list remembers the unit, and its size.
    pub(super) fn find(&self, identity: u64) -> Option<(usize, u32)> {
        let slot = *self.slots.get(&identity)?;
        self.queues.queue_of(slot).zip(self.queues.bytes_of(slot))
    }

    /// Forgets a unit.
    pub(super) fn take(&mut self, identity: u64) {
        if let Some(slot) = self.slots.remove(&identity) {
            self.queues.remove(slot);
            self.free.push(slot);
        }
    }

    /// Forgets the oldest of a list; false if the list is empty.
    pub(super) fn drop_oldest(&mut self, list: usize) -> bool {
        let oldest = self.queues.oldest(list);
        if let Some(slot) = oldest {
            self.take(self.identities[slot as usize]);
        }
        oldest.is_some()
    }

    /// Bytes that the units of a list had.
    pub(super) fn bytes_in(&self, list: usize) -> u64 {
        self.queues.bytes_in(list)
    }

    /// Bytes that the units of all lists had.
    pub(super) fn bytes(&self) -> u64 {
        self.queues.bytes()
    }
}

/// Identities are hashes already.
#[derive(Clone, Debug, Default)]
struct Identity(u64);

impl Hasher for Identity {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.0 = self.0.rotate_left(8) ^ u64::from(byte));
    }

    fn write_u64(&mut self, identity: u64) {
        self.0 = identity;
    }
}
