//! Handles: which block has which, which hold a clean copy in their slot, and which are free.

use super::install::{CleanBlock, Installs};
use super::job::InstallItem;
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
    installs: Installs,
}

impl Slots {
    pub(super) fn new(index: Index) -> Self {
        Self {
            index,
            loaded: HashMap::new(),
            pins: HashMap::new(),
            leaving: HashSet::new(),
            next_install: 0,
            installs: Installs::default(),
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
    fn load(&mut self, unit: UnitId, data: Shared, at: usize) -> u64 {
        self.next_install += 1;
        self.index.set_reserved(unit.0);
        self.loaded.insert(unit, Loaded { data, at, install: self.next_install });
        self.next_install
    }

    /// Keeps a block's clean bytes in memory and has them written into its slot.
    pub(super) fn keep(&mut self, unit: UnitId, content: CleanBlock) {
        let CleanBlock { data, at, crc } = content;
        let install = self.load(unit, data.clone(), at);
        self.pin(unit);
        self.installs.push(InstallItem { unit, install, data, at, crc });
    }

    /// What a job is to write into slots now, as far as it is still wanted.
    pub(super) fn next_install(&mut self) -> Option<Vec<InstallItem>> {
        while let Some(taken) = self.installs.take() {
            let (mut items, outdated): (Vec<_>, Vec<_>) =
                taken.into_iter().partition(|item| self.is_current(item));
            outdated.iter().for_each(|item| self.unpin(item.unit));
            if !items.is_empty() {
                // Neighbours go in one write.
                items.sort_unstable_by_key(|item| item.unit);
                self.installs.started();
                return Some(items);
            }
        }
        None
    }

    /// A job has written blocks into their slots, or not. Returns those that were still wanted.
    pub(super) fn installed(&mut self, items: &[InstallItem], is_written: bool) -> Vec<UnitId> {
        self.installs.ended();
        let mut current = Vec::new();
        for item in items {
            if self.is_current(item) {
                current.push(item.unit);
                if is_written {
                    self.set_clean(item.unit, item.crc);
                }
            }
            self.unpin(item.unit);
        }
        current
    }

    fn is_current(&self, item: &InstallItem) -> bool {
        self.loaded(item.unit).is_some_and(|loaded| loaded.install == item.install)
    }

    /// Whether blocks wait to be written into their slots.
    pub(super) fn has_installs(&self) -> bool {
        !self.installs.is_empty()
    }

    /// Whether so many wait that further blocks should rather be dropped.
    pub(super) fn has_many_installs(&self) -> bool {
        self.installs.is_full()
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::BLOCK;
    use std::sync::Arc;

    fn slots(kept: &[u64]) -> Slots {
        let mut slots = Slots::new(Index::new(64));
        for &lba in kept {
            let unit = slots.take(Lba(lba));
            slots.keep(unit, content(lba as u32));
        }
        slots
    }

    fn content(crc: u32) -> CleanBlock {
        CleanBlock { data: Arc::new(vec![0; BLOCK]), at: 0, crc }
    }

    #[test]
    fn a_block_is_read_from_memory_until_its_slot_holds_it() {
        let mut slots = slots(&[5]);
        let unit = slots.find(Lba(5)).expect("it has a handle");
        let items = slots.next_install().expect("one waits");
        assert!(slots.loaded(unit).is_some() && slots.crc(unit).is_none());
        assert_eq!(slots.installed(&items, true), [unit]);
        assert!(slots.loaded(unit).is_none());
        assert_eq!(slots.crc(unit), Some(5));
    }

    #[test]
    fn an_outdated_install_changes_nothing() {
        let mut slots = slots(&[5, 6]);
        let [first, second] = [5, 6].map(|lba| slots.find(Lba(lba)).expect("it has a handle"));
        // Before the job begins, and while it runs.
        slots.set_undefined(first);
        let items = slots.next_install().expect("one is wanted");
        assert_eq!(items.len(), 1);
        slots.keep(second, content(60));
        assert!(slots.installed(&items, true).is_empty());
        assert!(slots.loaded(second).is_some() && slots.crc(second).is_none());
        let items = slots.next_install().expect("the newer one");
        assert_eq!(slots.installed(&items, true), [second]);
        assert_eq!(slots.crc(second), Some(60));
        assert!(!slots.has_installs());
    }

    #[test]
    fn a_handle_is_free_again_once_no_job_uses_its_slot() {
        let mut slots = slots(&[5]);
        let unit = slots.find(Lba(5)).expect("it has a handle");
        let items = slots.next_install().expect("one waits");
        slots.evict(unit);
        assert_eq!((slots.find(Lba(5)), slots.free_len()), (None, 63));
        assert!(slots.installed(&items, true).is_empty());
        assert_eq!(slots.free_len(), 64);
    }
}
