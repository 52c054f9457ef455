//! Evicted units by identity, in exact order: the ghost lists of 2Q and ARC.
//!
//! Unlike [`super::ghost::Ghost`] these forget nothing early.

use super::queues::Queues;
use crate::id::UnitId;
use alloc::vec::Vec;
use core::hash::{BuildHasherDefault, Hasher};
use hashbrown::HashMap;

/// `N` ghost lists; an identity is in at most one of them.
pub trait Remember<const N: usize>: Default {
    /// Remembers a unit at the new end of a list.
    fn push(&mut self, list: usize, identity: u64, bytes: u32);

    /// Which list remembers the unit, and its size.
    fn find(&self, identity: u64) -> Option<(usize, u32)>;

    /// Forgets a unit.
    fn take(&mut self, identity: u64);

    /// Forgets the oldest of a list; false if the list is empty.
    fn drop_oldest(&mut self, list: usize) -> bool;

    /// Bytes that the units of a list had.
    fn bytes_in(&self, list: usize) -> u64;

    /// Bytes that the units of all lists had.
    fn bytes(&self) -> u64;

    /// See [`super::Replacement::foresee`].
    fn foresee(&self, _unit: UnitId) -> u32 {
        0
    }
}

/// Lists of any identities, through a table: about 40 bytes an entry.
#[derive(Clone, Debug, Default)]
pub struct Recall<const N: usize> {
    slots: HashMap<u64, u32, BuildHasherDefault<Identity>>,
    /// The identity in each slot.
    identities: Vec<u64>,
    free: Vec<u32>,
    queues: Queues<N>,
}

/// Lists where each unit is its own identity, for ever: no table, 12 bytes for each unit that there ever was.
#[derive(Clone, Debug, Default)]
pub struct Numbered<const N: usize> {
    queues: Queues<N>,
}

impl<const N: usize> Remember<N> for Recall<N> {
    fn push(&mut self, list: usize, identity: u64, bytes: u32) {
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

    fn find(&self, identity: u64) -> Option<(usize, u32)> {
        let slot = *self.slots.get(&identity)?;
        self.queues.queue_of(slot).zip(self.queues.bytes_of(slot))
    }

    fn take(&mut self, identity: u64) {
        if let Some(slot) = self.slots.remove(&identity) {
            self.queues.remove(slot);
            self.free.push(slot);
        }
    }

    fn drop_oldest(&mut self, list: usize) -> bool {
        let oldest = self.queues.oldest(list);
        if let Some(slot) = oldest {
            self.take(self.identities[slot as usize]);
        }
        oldest.is_some()
    }

    fn bytes_in(&self, list: usize) -> u64 {
        self.queues.bytes_in(list)
    }

    fn bytes(&self) -> u64 {
        self.queues.bytes()
    }
}

impl<const N: usize> Remember<N> for Numbered<N> {
    fn push(&mut self, list: usize, identity: u64, bytes: u32) {
        let unit = identity as u32;
        self.queues.remove(unit);
        self.queues.push(list, unit, bytes);
    }

    fn find(&self, identity: u64) -> Option<(usize, u32)> {
        let unit = identity as u32;
        self.queues.queue_of(unit).zip(self.queues.bytes_of(unit))
    }

    fn take(&mut self, identity: u64) {
        self.queues.remove(identity as u32);
    }

    fn drop_oldest(&mut self, list: usize) -> bool {
        let oldest = self.queues.oldest(list);
        oldest.is_some_and(|unit| self.queues.remove(unit).is_some())
    }

    fn bytes_in(&self, list: usize) -> u64 {
        self.queues.bytes_in(list)
    }

    fn bytes(&self) -> u64 {
        self.queues.bytes()
    }

    #[inline]
    fn foresee(&self, unit: UnitId) -> u32 {
        self.queues.foresee(unit.0)
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
