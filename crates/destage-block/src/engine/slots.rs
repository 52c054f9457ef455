//! Handles: which block has which, which hold a clean copy in their slot, and which are free.

use super::overlay::Shared;
use crate::block::{Extent, Lba};
use crate::cache::index::{Index, SlotState};
use destage_core::UnitId;
use destage_core::replace::spread;
use hashbrown::{HashMap, HashSet};

/// A block's clean bytes that are still on their way into its slot.
#[derive(Clone, Debug)]
pub(super) struct Loaded {
    pub(super) data: Shared,
    pub(super) at: usize,
    /// Tells an install that ends from a later one of the same handle.
    pub(super) install: u64,
}

/// All handles.
#[derive(Debug)]
pub(super) struct Slots {
    index: Index,
    loaded: HashMap<UnitId, Loaded>,
    /// Jobs that read or write a slot now; its handle gets no other block before they ended.
    pins: HashMap<UnitId, u32>,
    /// Handles whose block is gone and whose slot is pinned.
    leaving: HashSet<UnitId>,
    next_install: u64,
}

impl Slots {
    pub(super) fn new(index: Index) -> Self {
        Self {
            index,
            loaded: HashMap::new(),
            pins: HashMap::new(),
            leaving: HashSet::new(),
            next_install: 0,
        }
    }

    pub(super) fn index(&self) -> &Index {
        &self.index
    }

    /// Handles that may be given to further blocks.
    pub(super) fn free_len(&self) -> usize {
        (self.index.slots() - self.index.used()) as usize
    }

    pub(super) fn find(&self, lba: Lba) -> Option<UnitId> {
        self.index.get(lba).map(UnitId)
    }

    /// The block's handle; it gets one if it has none.
    ///
    /// # Panics
    /// If none is free: ask [`Slots::free_len`] first.
    pub(super) fn take(&mut self, lba: Lba) -> UnitId {
        if let Some(unit) = self.find(lba) {
            return unit;
        }
        self.take_new(lba)
    }

    /// A handle for a block that has none.
    ///
    /// # Panics
    /// As [`Slots::take`].
    pub(super) fn take_new(&mut self, lba: Lba) -> UnitId {
        UnitId(self.index.insert(lba).expect("the caller made sure that a handle is free"))
    }

    /// The handles of an extent's blocks, as far as these have any. Looks at the blocks or at the handles, whatever is less.
    pub(super) fn within(&self, extent: Extent) -> Vec<UnitId> {
        if extent.blocks <= self.index.slots() {
            return extent.iter().filter_map(|lba| self.find(lba)).collect();
        }
        let is_inside = |lba: Lba| extent.first <= lba && lba < extent.end();
        let handles = 0..self.index.slots();
        handles
            .filter(|&handle| self.index.lba(handle).is_some_and(is_inside))
            .map(UnitId)
            .collect()
    }

    /// The block that has this handle.
    pub(super) fn lba(&self, unit: UnitId) -> Lba {
        self.index.lba(unit.0).expect("a handle in use has a block")
    }

    /// By which the block is recognised when it returns: the core remembers evicted blocks by it.
    pub(super) fn identity(&self, unit: UnitId) -> u64 {
        spread(self.lba(unit).0)
    }

    /// The checksum of the clean copy in the slot, if it holds one.
    pub(super) fn crc(&self, unit: UnitId) -> Option<u32> {
        match self.index.state(unit.0) {
            SlotState::Clean(crc) => Some(crc),
            _ => None,
        }
    }

    /// The slot now holds the block's clean bytes.
    pub(super) fn set_clean(&mut self, unit: UnitId, crc: u32) {
        self.loaded.remove(&unit);
        self.index.set_clean(unit.0, crc);
    }

    /// Whatever is cached of the block is not its content any more.
    pub(super) fn set_undefined(&mut self, unit: UnitId) {
        self.loaded.remove(&unit);
        self.index.set_reserved(unit.0);
    }

    /// Keeps clean bytes in memory until their slot holds them.
    pub(super) fn load(&mut self, unit: UnitId, data: Shared, at: usize) -> u64 {
        self.next_install += 1;
        self.index.set_reserved(unit.0);
        self.loaded.insert(unit, Loaded { data, at, install: self.next_install });
        self.next_install
    }

    pub(super) fn loaded(&self, unit: UnitId) -> Option<&Loaded> {
        self.loaded.get(&unit)
    }

    /// Blocks on their way into their slots.
    pub(super) fn loaded_len(&self) -> usize {
        self.loaded.len()
    }

    pub(super) fn pin(&mut self, unit: UnitId) {
        *self.pins.entry(unit).or_insert(0) += 1;
    }

    pub(super) fn unpin(&mut self, unit: UnitId) {
        let count = self.pins.get_mut(&unit).expect("what is unpinned was pinned");
        *count -= 1;
        if *count == 0 {
            self.pins.remove(&unit);
            if self.leaving.remove(&unit) {
                self.index.release(unit.0);
            }
        }
    }

    /// The block gives its handle back.
    pub(super) fn evict(&mut self, unit: UnitId) {
        self.loaded.remove(&unit);
        if self.pins.contains_key(&unit) {
            self.index.detach(unit.0);
            self.leaving.insert(unit);
        } else {
            self.index.remove(unit.0);
        }
    }
}
