//! The rows' bytes: entries of one size side by side in larger allocations, the *chunks*.
//!
//! An allocation per row would cost the allocator's header and rounding and a pointer, more than everything else that a
//! cached row costs. Here sizes are rounded up to eight bytes, the length is told by the handle, and a handle takes six
//! bytes. Entries never move by themselves; the owner moves them, one chunk at a time, where the lengths of rows have
//! changed and left too much room behind ([`Slabs::retire_sparse`]).

/// Bytes by which sizes differ. A handle tells how much of an entry's last step is not used.
const STEP: usize = 1 << SPARE_BITS;
const SPARE_BITS: u32 = 3;
/// Most entries of a chunk, and hence moved at once: some 0.1 ms.
const ENTRIES_MAX: usize = 1 << ENTRY_BITS;
const ENTRY_BITS: u32 = 10;
/// Most bytes of a chunk, less than the allocator's header short of whole pages. Larger than most of what is allocated only
/// for a while: a chunk as small as that would take its place, and leave holes of no use for either.
const CHUNK_BYTES_MAX: usize = (1 << 20) - 64;
/// Longer contents get an allocation of just their size.
const SHARED_BYTES_MAX: usize = 16 << 10;
/// A new chunk has room for this share (1/128) of the entries of its size, so that rare sizes take little.
const GROWTH_DIVISOR: usize = 128;
const GROWTH_MIN: usize = 4;
/// Room for this share (1/8) of the entries of a size may stay free; beyond it chunks are emptied.
const FREE_DIVISOR: u32 = 8;

/// No chunk.
const NIL: u32 = u32::MAX;
/// No entry.
const NO_ENTRY: u16 = u16::MAX;

/// Where a content lies, and how long it is: from the lowest bit, what is unused of the entry (3 bits), the entry in its
/// chunk (10 bits), the chunk (32 bits).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Handle([u16; 3]);

impl Handle {
    /// No content.
    pub(crate) const NONE: Self = Self([u16::MAX; 3]);

    fn new(place: Place, spare: usize) -> Self {
        let low = u64::from(place.entry) << SPARE_BITS | spare as u64;
        let bits = u64::from(place.chunk) << (ENTRY_BITS + SPARE_BITS) | low;
        Self([bits as u16, (bits >> 16) as u16, (bits >> 32) as u16])
    }

    #[inline]
    fn bits(self) -> u64 {
        u64::from(self.0[0]) | u64::from(self.0[1]) << 16 | u64::from(self.0[2]) << 32
    }

    /// Where the content lies.
    #[inline]
    pub(crate) fn place(self) -> Place {
        let bits = self.bits();
        let entry = (bits >> SPARE_BITS) as u16 & (ENTRIES_MAX - 1) as u16;
        Place { chunk: (bits >> (ENTRY_BITS + SPARE_BITS)) as u32, entry }
    }

    #[inline]
    fn spare(self) -> usize {
        self.bits() as usize & (STEP - 1)
    }
}

/// Where a content lies, whatever its length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    chunk: u32,
    entry: u16,
}

/// Entries of one size.
#[derive(Debug)]
struct Chunk {
    bytes: Box<[u8]>,
    entry_size: u32,
    used: u16,
    /// Entries from this one on were never used, so their pages may not have been touched.
    fresh: u16,
    /// The first free entry before those; each holds the next one's number in its first two bytes.
    free: u16,
    /// Neighbours among the chunks of this size that have room.
    newer: u32,
    older: u32,
}

impl Chunk {
    /// All entries free.
    fn new(entry_size: usize, entries: usize) -> Self {
        Self {
            bytes: vec![0; entry_size * entries].into_boxed_slice(),
            entry_size: u32::try_from(entry_size).expect("requests are shorter than 4 GiB"),
            used: 0,
            fresh: 0,
            free: NO_ENTRY,
            newer: NIL,
            older: NIL,
        }
    }

    fn entries(&self) -> usize {
        self.bytes.len() / self.entry_size as usize
    }

    #[inline]
    fn entry(&self, entry: u16) -> &[u8] {
        let size = self.entry_size as usize;
        &self.bytes[usize::from(entry) * size..][..size]
    }

    fn entry_mut(&mut self, entry: u16) -> &mut [u8] {
        let size = self.entry_size as usize;
        &mut self.bytes[usize::from(entry) * size..][..size]
    }

    fn push_free(&mut self, entry: u16) {
        let next = self.free.to_le_bytes();
        self.entry_mut(entry)[..next.len()].copy_from_slice(&next);
        self.free = entry;
        self.used -= 1;
    }

    /// Takes a free entry; there is one.
    fn pop_free(&mut self) -> u16 {
        self.used += 1;
        if self.free == NO_ENTRY {
            self.fresh += 1;
            return self.fresh - 1;
        }
        let entry = self.free;
        self.free = self.next_free(entry);
        entry
    }

    fn next_free(&self, entry: u16) -> u16 {
        let bytes = self.entry(entry);
        u16::from_le_bytes([bytes[0], bytes[1]])
    }

    fn is_full(&self) -> bool {
        usize::from(self.used) == self.entries()
    }

    /// The entries in use, by number.
    fn used_entries(&self) -> Vec<u16> {
        let mut is_used = vec![true; usize::from(self.fresh)];
        let mut free = self.free;
        while free != NO_ENTRY {
            is_used[usize::from(free)] = false;
            free = self.next_free(free);
        }
        (0..).zip(is_used).filter_map(|(entry, is_used)| is_used.then_some(entry)).collect()
    }
}

/// All entries of one size.
#[derive(Clone, Debug)]
struct Class {
    /// The newest chunk with room.
    roomy: u32,
    used: u32,
    free: u32,
}

/// Contents of at least two bytes.
#[derive(Debug, Default)]
pub(crate) struct Slabs {
    chunks: Vec<Chunk>,
    /// Numbers of chunks that are gone.
    vacant: Vec<u32>,
    /// By size in steps.
    classes: Vec<Class>,
    /// A chunk to be emptied.
    sparse: Option<u32>,
}

impl Slabs {
    /// A content.
    ///
    /// # Panics
    /// If the handle is of none.
    #[inline]
    pub(crate) fn get(&self, handle: Handle) -> &[u8] {
        let entry = self.entry(handle.place());
        &entry[..entry.len() - handle.spare()]
    }

    /// A content, to be overwritten.
    ///
    /// # Panics
    /// If the handle is of none.
    pub(crate) fn get_mut(&mut self, handle: Handle) -> &mut [u8] {
        let entry = self.entry_mut(handle.place());
        let len = entry.len() - handle.spare();
        &mut entry[..len]
    }

    /// A content, and behind it the little that is left of its entry.
    #[inline]
    pub(crate) fn entry(&self, place: Place) -> &[u8] {
        self.chunks[place.chunk as usize].entry(place.entry)
    }

    fn entry_mut(&mut self, place: Place) -> &mut [u8] {
        self.chunks[place.chunk as usize].entry_mut(place.entry)
    }

    /// Bytes that a content takes.
    pub(crate) fn size(&self, handle: Handle) -> usize {
        self.chunks[handle.place().chunk as usize].entry_size as usize
    }

    /// Stores the concatenation of two runs of bytes.
    pub(crate) fn insert(&mut self, head: &[u8], tail: &[u8]) -> Handle {
        let place = self.take(entry_size(head.len() + tail.len()));
        self.write(place, head, tail)
    }

    /// Stores it in another content's stead.
    pub(crate) fn replace(&mut self, old: Handle, head: &[u8], tail: &[u8]) -> Handle {
        if entry_size(head.len() + tail.len()) == self.size(old) {
            return self.write(old.place(), head, tail);
        }
        self.remove(old);
        self.insert(head, tail)
    }

    fn write(&mut self, place: Place, head: &[u8], tail: &[u8]) -> Handle {
        let entry = self.entry_mut(place);
        let len = head.len() + tail.len();
        entry[..head.len()].copy_from_slice(head);
        entry[head.len()..len].copy_from_slice(tail);
        Handle::new(place, entry.len() - len)
    }

    /// Drops a content. Then [`Slabs::retire_sparse`] may have something to be done.
    pub(crate) fn remove(&mut self, handle: Handle) {
        let Place { chunk: index, entry } = handle.place();
        let chunk = &mut self.chunks[index as usize];
        let was_full = chunk.is_full();
        chunk.push_free(entry);
        let (used, entries) = (chunk.used, chunk.entries() as u32);
        let class = self.class_of(index);
        class.used -= 1;
        class.free += 1;
        let is_sparse = class.free > class.used / FREE_DIVISOR && class.free >= 2 * entries;
        if was_full {
            self.link(index);
        }
        if used == 0 {
            self.unlink(index);
            self.discard(index);
        } else if is_sparse {
            self.sparse = Some(index);
        }
    }

    /// Takes a chunk out of use if too much room is free in the chunks of its size. All contents, whose places are returned
    /// with it, must be moved by [`Slabs::relocate`] before anything else is done; then [`Slabs::discard`] frees it.
    pub(crate) fn retire_sparse(&mut self) -> Option<(u32, Vec<Place>)> {
        let index = self.sparse.take()?;
        let chunk = &self.chunks[index as usize];
        // What was stored since may have filled it.
        if chunk.is_full() {
            return None;
        }
        let used = chunk.used_entries().into_iter();
        let places = used.map(|entry| Place { chunk: index, entry }).collect();
        self.unlink(index);
        Some((index, places))
    }

    /// Copies a content out of a chunk that is out of use.
    pub(crate) fn relocate(&mut self, old: Handle) -> Handle {
        let place = self.take(self.size(old));
        let indices = [old.place().chunk as usize, place.chunk as usize];
        let chunks = self.chunks.get_disjoint_mut(indices);
        let [from, to] = chunks.expect("nothing is stored in a chunk that is out of use");
        to.entry_mut(place.entry).copy_from_slice(from.entry(old.place().entry));
        Handle::new(place, old.spare())
    }

    /// Frees a chunk that is out of use, with everything in it.
    pub(crate) fn discard(&mut self, index: u32) {
        let chunk = &self.chunks[index as usize];
        let (used, entries) = (u32::from(chunk.used), chunk.entries() as u32);
        let class = self.class_of(index);
        class.used -= used;
        class.free -= entries - used;
        let chunk = &mut self.chunks[index as usize];
        (chunk.bytes, chunk.used) = (Box::default(), 0);
        self.vacant.push(index);
        self.sparse.take_if(|sparse| *sparse == index);
    }

    /// A free entry of this size, which is free no more.
    fn take(&mut self, entry_size: usize) -> Place {
        let number = class_number(entry_size);
        if self.classes.len() <= number {
            self.classes.resize(number + 1, Class { roomy: NIL, used: 0, free: 0 });
        }
        if self.classes[number].roomy == NIL {
            self.add_chunk(entry_size);
        }
        let class = &mut self.classes[number];
        let index = class.roomy;
        class.used += 1;
        class.free -= 1;
        let chunk = &mut self.chunks[index as usize];
        let entry = chunk.pop_free();
        if chunk.is_full() {
            self.unlink(index);
        }
        Place { chunk: index, entry }
    }

    fn add_chunk(&mut self, entry_size: usize) {
        let class = &mut self.classes[class_number(entry_size)];
        let entries = if entry_size <= SHARED_BYTES_MAX {
            let entries_max = (CHUNK_BYTES_MAX / entry_size).min(ENTRIES_MAX);
            (class.used as usize / GROWTH_DIVISOR).max(GROWTH_MIN).min(entries_max)
        } else {
            1
        };
        class.free += entries as u32;
        let chunk = Chunk::new(entry_size, entries);
        let index = match self.vacant.pop() {
            Some(index) => {
                self.chunks[index as usize] = chunk;
                index
            }
            None => {
                self.chunks.push(chunk);
                u32::try_from(self.chunks.len() - 1).expect("memory ends before 2^32 chunks")
            }
        };
        self.link(index);
    }

    fn class_of(&mut self, index: u32) -> &mut Class {
        &mut self.classes[class_number(self.chunks[index as usize].entry_size as usize)]
    }

    /// Puts a chunk among those with room.
    fn link(&mut self, index: u32) {
        let older = std::mem::replace(&mut self.class_of(index).roomy, index);
        let chunk = &mut self.chunks[index as usize];
        (chunk.newer, chunk.older) = (NIL, older);
        if older != NIL {
            self.chunks[older as usize].newer = index;
        }
    }

    /// Takes it from there.
    fn unlink(&mut self, index: u32) {
        let Chunk { newer, older, .. } = self.chunks[index as usize];
        match newer {
            NIL => self.class_of(index).roomy = older,
            _ => self.chunks[newer as usize].older = older,
        }
        if older != NIL {
            self.chunks[older as usize].newer = newer;
        }
    }
}

/// The size of the entry for a content.
fn entry_size(len: usize) -> usize {
    if len <= SHARED_BYTES_MAX { len.next_multiple_of(STEP).max(STEP) } else { len }
}

/// Contents that lie alone are of one class, whatever their sizes: their chunks never have room.
fn class_number(entry_size: usize) -> usize {
    if entry_size <= SHARED_BYTES_MAX { entry_size / STEP } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    /// Contents and where they are, against what they should be.
    #[derive(Default)]
    struct Model {
        slabs: Slabs,
        contents: Vec<(Handle, Vec<u8>)>,
        moved: usize,
        numbers: u32,
    }

    impl Model {
        fn content(&mut self, len: usize) -> Vec<u8> {
            self.numbers += 1;
            let mut content = vec![self.numbers as u8; len];
            content[..4].copy_from_slice(&self.numbers.to_le_bytes());
            content
        }

        fn insert(&mut self, len: usize) {
            let content = self.content(len);
            let (head, tail) = content.split_at(len / 3);
            self.contents.push((self.slabs.insert(head, tail), content));
        }

        fn replace(&mut self, index: usize, len: usize) {
            let content = self.content(len);
            let (head, tail) = content.split_at(len / 2);
            let handle = self.slabs.replace(self.contents[index].0, head, tail);
            self.contents[index] = (handle, content);
            self.compact();
        }

        fn remove(&mut self, index: usize) {
            let (handle, _) = self.contents.swap_remove(index);
            self.slabs.remove(handle);
            self.compact();
        }

        fn compact(&mut self) {
            let Some((chunk, places)) = self.slabs.retire_sparse() else { return };
            self.moved += places.len();
            for place in places {
                let number = &self.slabs.entry(place)[..4];
                let found = self.contents.iter_mut().find(|(_, content)| content[..4] == *number);
                let (handle, _) = found.expect("only what is in use is to be moved");
                *handle = self.slabs.relocate(*handle);
            }
            self.slabs.discard(chunk);
        }

        fn check(&mut self) {
            let mut places = HashMap::new();
            for (handle, content) in &self.contents {
                assert_eq!(self.slabs.get(*handle), content);
                let place = handle.place();
                assert!(places.insert((place.chunk, place.entry), ()).is_none());
            }
            self.slabs.contents_check(self.contents.len());
        }
    }

    impl Slabs {
        /// Compares what the classes count with the chunks.
        fn contents_check(&self, len: usize) {
            let used: usize = self.chunks.iter().map(|chunk| usize::from(chunk.used)).sum();
            let counted: u32 = self.classes.iter().map(|class| class.used).sum();
            assert_eq!((used, counted as usize), (len, len));
            let entries = self.chunks.iter().filter(|chunk| !chunk.bytes.is_empty());
            let free: usize = entries.map(|chunk| chunk.entries() - usize::from(chunk.used)).sum();
            let counted: u32 = self.classes.iter().map(|class| class.free).sum();
            assert_eq!(free, counted as usize);
        }

        fn bytes(&self) -> usize {
            self.chunks.iter().map(|chunk| chunk.bytes.len()).sum()
        }
    }

    struct Random(u64);

    impl Random {
        fn below(&mut self, limit: usize) -> usize {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (self.0 >> 33) as usize % limit
        }
    }

    #[test]
    fn contents_of_every_length_read_back() {
        assert_eq!(size_of::<Handle>(), 6);
        let mut model = Model::default();
        for len in (4..300).chain(SHARED_BYTES_MAX - 9..SHARED_BYTES_MAX + 9).chain([100_000]) {
            model.insert(len);
            let (handle, content) = model.contents.last_mut().unwrap();
            assert_eq!(model.slabs.get(*handle), content);
            model.slabs.get_mut(*handle)[len - 1] = 7;
            content[len - 1] = 7;
        }
        model.check();
        (0..model.contents.len()).rev().for_each(|index| model.remove(index));
        assert_eq!(model.slabs.bytes(), 0);
    }

    #[test]
    fn contents_stay_what_they_are_whatever_is_stored_and_dropped() {
        let mut model = Model::default();
        let mut random = Random(1);
        let lens = |random: &mut Random| match random.below(20) {
            0 => SHARED_BYTES_MAX - 100 + random.below(200),
            _ => 4 + random.below(60),
        };
        for round in 0..12_000 {
            let (len, limit) = (lens(&mut random), [900, 100][round / 2_000 % 2]);
            let count = model.contents.len();
            match random.below(3) {
                0 if count > 0 => model.replace(random.below(count), len),
                1 if count > random.below(limit) => model.remove(random.below(count)),
                _ => model.insert(len),
            }
            if round % 500 == 0 {
                model.check();
            }
        }
        model.check();
        assert!(model.moved > 100, "{}", model.moved);
        (0..model.contents.len()).rev().for_each(|index| model.remove(index));
        assert_eq!(model.slabs.bytes(), 0);
    }

    /// Without moving, room for both lengths would be held when half of the contents have changed theirs.
    #[test]
    fn room_left_by_changed_lengths_is_given_back() {
        let mut model = Model::default();
        (0..3_000).for_each(|_| model.insert(500));
        let mut random = Random(2);
        let mut order: Vec<usize> = (0..3_000).collect();
        (0..3_000).for_each(|at| order.swap(at, random.below(3_000)));
        for index in order {
            model.replace(index, 600);
            let held: usize = model.contents.iter().map(|(_, content)| content.len()).sum();
            let bytes = model.slabs.bytes();
            assert!(bytes < held + held / 5 + 2 * CHUNK_BYTES_MAX, "{bytes} for {held}");
        }
        // Each content that went made room that one more was moved for, at most.
        assert!(model.moved <= 3_000, "{}", model.moved);
        model.check();
    }
}
