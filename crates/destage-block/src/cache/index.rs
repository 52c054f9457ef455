//! Which block each handle holds, and the handle of each block: the largest part of what a cached block costs in memory,
//! 12.6 bytes at full load.
//!
//! A handle is a slot of the cache device. The table of handles is a cuckoo hash by block number: each block has two buckets
//! of one cache line and is in one of them, so that a look-up touches two lines however full the table is and however long
//! it has been, and a removal moves nothing. Bits of an entry that the handle does not need hold a part of the hash, so
//! that look-ups rarely compare a block number in vain.

use super::bytes::u32_at;
use crate::block::Lba;
use std::collections::BTreeMap;

/// A slot of the cache device, and the block that it stands for while it is in use.
pub type Handle = u32;

/// What a handle's slot holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotState {
    /// Nothing: the handle stands for no block.
    Free,
    /// The handle stands for no block any more and cannot be had yet: see [`Index::detach`].
    Detached,
    /// Undefined bytes: the handle's block is dirty, or on its way from the origin.
    Reserved,
    /// The block as it is at the origin, with this CRC32C; to be compared at each read.
    Clean(u32),
}

/// The index in memory. Iterates over nothing and so is deterministic.
#[derive(Debug)]
pub struct Index {
    buckets: Vec<Bucket>,
    /// Blocks that found no place in the table.
    homeless: BTreeMap<u32, Handle>,
    /// Block numbers by handle.
    lbas: Vec<u32>,
    /// By handle: the checksum of a clean one; the next free handle of a free one.
    words: Vec<u32>,
    /// One bit a handle: clean or, without a block, detached.
    marked: Vec<u64>,
    /// The first handle in the chain of freed ones.
    freed: u32,
    /// Handles from here on have never been used.
    fresh: u32,
    used: u32,
    /// How many bits of an entry are the handle.
    handle_bits: u32,
}

/// One cache line.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct Bucket([u32; WAYS]);

impl Index {
    /// The highest block number that it takes, so volumes of up to 16 TiB.
    pub const LBA_MAX: Lba = Lba(NONE as u64 - 1);

    /// An empty index for this many slots, all of its memory taken at once.
    ///
    /// # Panics
    /// Above [`Index::SLOTS_MAX`] slots, which the geometry of a cache device does not allow.
    pub fn new(slots: u32) -> Self {
        assert!(slots <= Self::SLOTS_MAX, "the geometry bounds the slots");
        let buckets = (slots as usize * LOAD_DIVISOR).div_ceil(LOAD_DIVIDEND * WAYS).max(1);
        Self {
            buckets: vec![Bucket([NONE; WAYS]); buckets],
            homeless: BTreeMap::new(),
            lbas: vec![NONE; slots as usize],
            words: vec![0; slots as usize],
            marked: vec![0; (slots as usize).div_ceil(64)],
            freed: NONE,
            fresh: 0,
            used: 0,
            handle_bits: u32::BITS - slots.leading_zeros(),
        }
    }

    /// The most slots that an index takes: 8 TiB of them.
    pub const SLOTS_MAX: u32 = destage_engine::VOLUME_SLOTS_MAX;

    /// How many handles there are.
    pub fn slots(&self) -> u32 {
        self.lbas.len() as u32
    }

    /// How many are not free.
    pub fn used(&self) -> u32 {
        self.used
    }

    /// The handle of a block, if it has one.
    pub fn get(&self, lba: Lba) -> Option<Handle> {
        let lba = u32::try_from(lba.0).ok()?;
        Some(self.find(lba)?.handle)
    }

    /// The block of a handle, if it has one.
    pub fn lba(&self, handle: Handle) -> Option<Lba> {
        let lba = *self.lbas.get(handle as usize)?;
        (lba != NONE).then_some(Lba(u64::from(lba)))
    }

    /// What a handle's slot holds.
    ///
    /// # Panics
    /// If there is no such handle; so for every method that takes one.
    pub fn state(&self, handle: Handle) -> SlotState {
        match (self.lbas[handle as usize] != NONE, self.is_marked(handle)) {
            (false, false) => SlotState::Free,
            (false, true) => SlotState::Detached,
            (true, false) => SlotState::Reserved,
            (true, true) => SlotState::Clean(self.words[handle as usize]),
        }
    }

    /// Gives a block a handle, reserved. `None` if all handles are in use: evict one first.
    ///
    /// # Panics
    /// If the block has a handle, or lies above [`Index::LBA_MAX`].
    pub fn insert(&mut self, lba: Lba) -> Option<Handle> {
        let handle = self.take_free()?;
        self.attach(handle, lba);
        Some(handle)
    }

    /// Takes up the clean handles of a checkpoint's chunk, as [`Index::chunk`] wrote them; `first` is the handle of the first
    /// entry. Chunks come in ascending order, before any other use of the index. A block that another handle has already
    /// is passed over, and the handle stays free: chunks are of different moments, and a block that moved meanwhile is
    /// listed twice.
    ///
    /// # Panics
    /// If handles come out of order, or there are more of them than slots.
    pub fn restore(&mut self, first: Handle, entries: &[u8]) {
        assert!(first >= self.fresh, "a checkpoint lists its handles in ascending order");
        let handles = (first..self.slots()).zip(entries.chunks_exact(ENTRY_BYTES));
        let clean = handles.filter_map(|(handle, entry)| match u32_at(entry, 0) {
            NONE => None,
            lba => Some(Restored { handle, lba, crc: u32_at(entry, 4), hash: hash(lba) }),
        });
        let mut together = Vec::with_capacity(RESTORED_TOGETHER);
        for restored in clean {
            together.push(restored);
            if together.len() == RESTORED_TOGETHER {
                self.restore_together(&together);
                together.clear();
            }
        }
        self.restore_together(&together);
    }

    /// Most of the time goes by while lines of the table come from memory, so the lines of several blocks are asked for at
    /// once.
    fn restore_together(&mut self, together: &[Restored]) {
        let homes = together.iter().flat_map(|restored| self.homes(restored.hash));
        std::hint::black_box(homes.fold(0, |seen, home| seen ^ self.buckets[home].0[0]));
        for &Restored { handle, lba, crc, hash } in together {
            if self.find_hashed(lba, hash).is_some() {
                continue;
            }
            while self.fresh < handle {
                self.push_free(self.fresh);
                self.fresh += 1;
            }
            self.fresh += 1;
            self.used += 1;
            self.enter(handle, lba, hash);
            self.set_clean(handle, crc);
        }
    }

    /// The slot holds the block's clean contents from now on.
    ///
    /// # Panics
    /// If the handle has no block.
    pub fn set_clean(&mut self, handle: Handle, crc: u32) {
        assert!(self.lbas[handle as usize] != NONE, "only a handle with a block is clean");
        self.words[handle as usize] = crc;
        self.marked[handle as usize / 64] |= 1 << (handle % 64);
    }

    /// The slot's contents are undefined from now on: the block is being written.
    ///
    /// # Panics
    /// If the handle has no block.
    pub fn set_reserved(&mut self, handle: Handle) {
        assert!(self.lbas[handle as usize] != NONE, "only a handle with a block is reserved");
        self.marked[handle as usize / 64] &= !(1 << (handle % 64));
    }

    /// Takes the block from its handle; the handle stays in use until [`Index::release`], so that reads of its slot that
    /// are under way end before another block's contents appear there.
    ///
    /// # Panics
    /// If the handle has no block.
    pub fn detach(&mut self, handle: Handle) {
        let lba = self.lbas[handle as usize];
        assert!(lba != NONE, "only a handle with a block is detached");
        let found = self.find(lba).expect("each block of a handle is in the table");
        match found.place {
            Some((bucket, way)) => self.buckets[bucket].0[way] = NONE,
            None => drop(self.homeless.remove(&lba)),
        }
        self.lbas[handle as usize] = NONE;
        self.marked[handle as usize / 64] |= 1 << (handle % 64);
    }

    /// A detached handle can be had again.
    ///
    /// # Panics
    /// If the handle is not detached.
    pub fn release(&mut self, handle: Handle) {
        assert_eq!(
            self.state(handle),
            SlotState::Detached,
            "a handle is released once, after its block"
        );
        self.marked[handle as usize / 64] &= !(1 << (handle % 64));
        self.used -= 1;
        self.push_free(handle);
    }

    /// Detaches and releases at once, when nobody reads the slot.
    ///
    /// # Panics
    /// If the handle has no block.
    pub fn remove(&mut self, handle: Handle) {
        self.detach(handle);
        self.release(handle);
    }

    /// The clean handles of one chunk, for a checkpoint: block and checksum of each handle in turn, [`ENTRY_BYTES`] each.
    /// `chunk` counts from 0; how many handles it has, [`chunk_handles`] says.
    pub fn chunk(&self, chunk: u32) -> Vec<u8> {
        let handles = chunk_handles(self.slots());
        let from = chunk.saturating_mul(handles).min(self.slots());
        let to = from.saturating_add(handles).min(self.slots());
        let mut out = Vec::with_capacity((to - from) as usize * ENTRY_BYTES);
        for handle in from..to {
            let entry = match self.state(handle) {
                SlotState::Clean(crc) => (self.lbas[handle as usize], crc),
                _ => (NONE, 0),
            };
            out.extend_from_slice(&entry.0.to_le_bytes());
            out.extend_from_slice(&entry.1.to_le_bytes());
        }
        out
    }

    fn is_marked(&self, handle: Handle) -> bool {
        self.marked[handle as usize / 64] >> (handle % 64) & 1 == 1
    }

    fn take_free(&mut self) -> Option<Handle> {
        let handle = if self.freed != NONE {
            let handle = self.freed;
            self.freed = self.words[handle as usize];
            handle
        } else if self.fresh < self.slots() {
            self.fresh += 1;
            self.fresh - 1
        } else {
            return None;
        };
        self.used += 1;
        Some(handle)
    }

    fn push_free(&mut self, handle: Handle) {
        self.words[handle as usize] = self.freed;
        self.freed = handle;
    }

    fn attach(&mut self, handle: Handle, lba: Lba) {
        assert!(lba <= Self::LBA_MAX, "the volume's size was checked when the cache was made");
        let lba = lba.0 as u32;
        let hash = hash(lba);
        assert!(self.find_hashed(lba, hash).is_none(), "a block has one handle");
        self.enter(handle, lba, hash);
    }

    /// Gives a block without a handle this one, reserved.
    fn enter(&mut self, handle: Handle, lba: u32, hash: u64) {
        self.lbas[handle as usize] = lba;
        self.marked[handle as usize / 64] &= !(1 << (handle % 64));
        let [first, second] = self.homes(hash);
        let bucket = if self.room(second) > self.room(first) { second } else { first };
        if let Some(homeless) = self.place(bucket, self.tag(hash) | handle) {
            let handle = self.handle_of(homeless);
            self.homeless.insert(self.lbas[handle as usize], handle);
        }
    }

    /// Puts an entry into one of its buckets. If that is full, another entry goes to its own other bucket, and so on; what
    /// has no place after some rounds is returned. That takes blocks chosen for it, or an unheard-of chance.
    fn place(&mut self, mut bucket: usize, mut entry: u32) -> Option<u32> {
        for round in 0..ROUNDS_MAX {
            let ways = &mut self.buckets[bucket].0;
            if let Some(way) = ways.iter().position(|&e| e == NONE) {
                ways[way] = entry;
                return None;
            }
            std::mem::swap(&mut ways[(entry as usize + round) % WAYS], &mut entry);
            let [first, second] = self.homes(hash(self.lbas[self.handle_of(entry) as usize]));
            bucket = if bucket == first { second } else { first };
        }
        Some(entry)
    }

    fn room(&self, bucket: usize) -> usize {
        self.buckets[bucket].0.iter().filter(|&&entry| entry == NONE).count()
    }

    fn find(&self, lba: u32) -> Option<Found> {
        self.find_hashed(lba, hash(lba))
    }

    fn find_hashed(&self, lba: u32, hash: u64) -> Option<Found> {
        let tag = self.tag(hash);
        for bucket in self.homes(hash) {
            for (way, &entry) in self.buckets[bucket].0.iter().enumerate() {
                let handle = self.handle_of(entry);
                if entry != NONE && entry - handle == tag && self.lbas[handle as usize] == lba {
                    return Some(Found { handle, place: Some((bucket, way)) });
                }
            }
        }
        if self.homeless.is_empty() {
            return None;
        }
        self.homeless.get(&lba).map(|&handle| Found { handle, place: None })
    }

    /// The two buckets of a block; perhaps the same one twice.
    fn homes(&self, hash: u64) -> [usize; 2] {
        let other = hash.wrapping_mul(0xD6E8_FEB8_6659_FD93);
        [hash, other].map(|h| (((h >> 32) * self.buckets.len() as u64) >> 32) as usize)
    }

    /// The part of the hash that an entry holds beside the handle.
    fn tag(&self, hash: u64) -> u32 {
        (hash as u32).checked_shl(self.handle_bits).unwrap_or(0)
    }

    fn handle_of(&self, entry: u32) -> Handle {
        entry & ((1u32 << self.handle_bits) - 1)
    }
}

/// A clean handle of a checkpoint.
struct Restored {
    handle: Handle,
    lba: u32,
    crc: u32,
    hash: u64,
}

/// Where a block's entry is.
struct Found {
    handle: Handle,
    /// Bucket and way; `None` among the homeless.
    place: Option<(usize, usize)>,
}

/// Mixes all bits: the finaliser of SplitMix64.
fn hash(lba: u32) -> u64 {
    let mut z = u64::from(lba).wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// Handles in each run of a checkpoint but the last, for this many slots: few enough that copying them from the index
/// holds nothing up.
pub const fn chunk_handles(slots: u32) -> u32 {
    let handles = (slots / CHUNKS_USUAL).next_power_of_two();
    if handles < CHUNK_HANDLES_MIN {
        CHUNK_HANDLES_MIN
    } else if handles > CHUNK_HANDLES_MAX {
        CHUNK_HANDLES_MAX
    } else {
        handles
    }
}

const CHUNKS_USUAL: u32 = 64;
const CHUNK_HANDLES_MIN: u32 = 16;
const CHUNK_HANDLES_MAX: u32 = 8192;
/// Bytes of a handle in a checkpoint: block number (all ones if it is not clean) and checksum.
pub const ENTRY_BYTES: usize = 8;

/// No block, no entry, no handle.
pub(crate) const NONE: u32 = u32::MAX;
const WAYS: usize = 16;
/// Entries moved for one insertion. At nine places in ten taken, hardly one in a thousand insertions moves any.
const ROUNDS_MAX: usize = 100;
/// Blocks of a checkpoint whose lines of the table are asked for at once.
const RESTORED_TOGETHER: usize = 32;
/// At most nine in ten places are taken.
const LOAD_DIVIDEND: usize = 9;
const LOAD_DIVISOR: usize = 10;

#[cfg(test)]
mod tests;
