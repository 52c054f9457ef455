//! Extents as blocks: each distinct block gets a dense number, in the order of first appearance.

use crate::numbers::{NONE, Numbers};
use crate::trace::{Extent, Op, Request};
use std::hint::black_box;

pub use destage_core::replace::spread as mix;

/// So many requests are looked at ahead.
pub(crate) const AHEAD: usize = 128;

/// Default block size, bytes.
pub const BLOCK_BYTES: u32 = 4_096;

/// One block that a request touches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// Its number.
    pub id: u32,
    /// How many of its bytes the request touches.
    pub bytes: u32,
}

/// More distinct blocks than there are numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the trace touches more than 4294967294 distinct blocks: use larger ones with --block")]
pub struct TooManyBlocks;

/// The numbers given so far. Memory goes with the blocks touched: 5 to 7 bytes each where neighbours are touched too, about 100
/// where they lie alone; 21 to 43 for an object, or a block of a sample.
#[derive(Debug)]
pub struct Blocks {
    /// The logarithm of a block's bytes.
    shift: u32,
    sample: Option<Sample>,
    /// Where the numbers of sixteen neighbours are.
    groups: Numbers,
    ids: Vec<[u32; GROUP]>,
    objects: Numbers,
    next: u32,
}

/// A part of all blocks, chosen by a hash of their places: every access to a chosen block is seen, none to another.
#[derive(Debug)]
struct Sample {
    /// Hashes up to this one are chosen.
    limit: u64,
    /// The hash of each number.
    hashes: Vec<u64>,
}

/// Blocks that share an entry; their numbers fill one cache line.
const GROUP: usize = 16;
/// Bits for a block's place on its device.
const PLACE_BITS: u32 = 47;

impl Blocks {
    /// Blocks of so many bytes.
    ///
    /// # Panics
    /// If that is not a power of two from 512 to 2^20.
    pub fn new(block_bytes: u32) -> Self {
        let is_size = block_bytes.is_power_of_two() && (512..=1 << 20).contains(&block_bytes);
        assert!(is_size, "a block is a power of two, from 512 bytes to 1 MiB");
        Self {
            shift: block_bytes.trailing_zeros(),
            sample: None,
            groups: Numbers::default(),
            ids: Vec::new(),
            objects: Numbers::default(),
            next: 0,
        }
    }

    /// Only a part of the blocks, chosen by a hash of their places, so that all accesses to a block are seen or none.
    ///
    /// # Panics
    /// As [`Blocks::new`], and if `rate` is not above 0 and at most 1.
    pub fn sampled(block_bytes: u32, rate: f64) -> Self {
        assert!(rate > 0.0 && rate <= 1.0, "a part of all blocks, but not none");
        // The largest float below 2^64 and 2^64 itself are both cut to fit.
        let limit = (rate * u64::MAX as f64) as u64;
        Self { sample: Some(Sample { limit, hashes: Vec::new() }), ..Self::new(block_bytes) }
    }

    /// The share of the blocks that is seen, above 0 and at most 1.
    pub fn rate(&self) -> f64 {
        self.sample.as_ref().map_or(1.0, |sample| sample.limit as f64 / u64::MAX as f64)
    }

    /// From now on only blocks whose hash is below this one are seen. Numbers given remain.
    ///
    /// # Panics
    /// If not made by [`Blocks::sampled`].
    pub fn sample_below(&mut self, hash: u64) {
        let sample = self.sample.as_mut().expect("only a sample can be made smaller");
        sample.limit = sample.limit.min(hash.saturating_sub(1));
    }

    /// Whether the block is seen still.
    ///
    /// # Panics
    /// If there is no such number.
    pub fn sees(&self, id: u32) -> bool {
        self.sample.as_ref().is_none_or(|sample| sample.hashes[id as usize] <= sample.limit)
    }

    /// The hash by which a block of a sample was chosen.
    ///
    /// # Panics
    /// If not made by [`Blocks::sampled`], or there is no such number.
    pub fn hash_of(&self, id: u32) -> u64 {
        let sample = self.sample.as_ref().expect("only a sample has hashes");
        sample.hashes[id as usize]
    }

    /// Blocks that a request touches, seen or not; none for discards and flushes.
    pub fn accesses_of(&self, request: &Request) -> u64 {
        match request.extent {
            _ if matches!(request.op, Op::Discard | Op::Flush) => 0,
            Extent::Object { .. } => 1,
            Extent::Range { bytes: 0, .. } => 0,
            Extent::Range { offset, bytes, .. } => {
                ((offset + bytes - 1) >> self.shift) - (offset >> self.shift) + 1
            }
        }
    }

    /// Distinct blocks so far.
    pub fn len(&self) -> u32 {
        self.next
    }

    /// Whether there are none yet.
    pub fn is_empty(&self) -> bool {
        self.next == 0
    }

    /// Bytes of a block.
    pub fn block_bytes(&self) -> u64 {
        1 << self.shift
    }

    /// Puts the blocks of a request into `found`, in rising order; an object counts as one. Discards find only blocks that are
    /// known already.
    ///
    /// # Errors
    /// [`TooManyBlocks`].
    pub fn of(&mut self, request: &Request, found: &mut Vec<Block>) -> Result<(), TooManyBlocks> {
        found.clear();
        self.append(request, found)
    }

    /// As [`Blocks::of`], behind what is in `found` already.
    ///
    /// # Errors
    /// [`TooManyBlocks`].
    pub(crate) fn append(
        &mut self,
        request: &Request,
        found: &mut Vec<Block>,
    ) -> Result<(), TooManyBlocks> {
        let is_new = request.op != Op::Discard;
        match request.extent {
            _ if request.op == Op::Flush => {}
            Extent::Object { id, bytes } => {
                let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
                let number = self.single(id, is_new)?;
                found.extend(number.map(|id| Block { id, bytes }));
            }
            Extent::Range { bytes: 0, .. } => {}
            Extent::Range { device, offset, bytes } => match self.sample {
                None => self.range(device, offset, bytes, is_new, found)?,
                Some(_) => self.sampled_range(device, offset, bytes, is_new, found)?,
            },
        }
        Ok(())
    }

    /// Looks at where the number of each request's first block is, ahead of [`Blocks::of`], so that the processor reads all of
    /// them into its caches at once.
    pub(crate) fn foresee(&self, requests: &[Request]) {
        let first = |request: &Request| match request.extent {
            Extent::Object { id, .. } => self.objects.foresee(id),
            Extent::Range { device, offset, .. } => {
                let block = offset >> self.shift;
                match self.sample {
                    None => self.groups.foresee(place(device, block / GROUP as u64)),
                    Some(_) => self.objects.foresee(place(device, block)),
                }
            }
        };
        black_box(requests.iter().fold(0, |all, request| all ^ first(request)));
    }

    /// The number of what stands alone: an object, or a block of a sample.
    fn single(&mut self, key: u64, is_new: bool) -> Result<Option<u32>, TooManyBlocks> {
        if self.sample.as_ref().is_some_and(|sample| mix(key) > sample.limit) {
            return Ok(None);
        }
        if !is_new {
            return Ok(self.objects.get(key));
        }
        let next = &mut self.next;
        let (number, is_new) = self.objects.get_or_insert(key, || take_number(next))?;
        if is_new && let Some(sample) = &mut self.sample {
            sample.hashes.push(mix(key));
        }
        Ok(Some(number))
    }

    fn sampled_range(
        &mut self,
        device: u32,
        offset: u64,
        bytes: u64,
        is_new: bool,
        found: &mut Vec<Block>,
    ) -> Result<(), TooManyBlocks> {
        let size = self.block_bytes();
        let end = offset + bytes;
        for block in offset >> self.shift..=(end - 1) >> self.shift {
            let key = place(device, block);
            if let Some(id) = self.single(key, is_new)? {
                let touched = end.min((block + 1) * size) - offset.max(block * size);
                found.push(Block { id, bytes: touched as u32 });
            }
        }
        Ok(())
    }

    fn range(
        &mut self,
        device: u32,
        offset: u64,
        bytes: u64,
        is_new: bool,
        found: &mut Vec<Block>,
    ) -> Result<(), TooManyBlocks> {
        let size = self.block_bytes();
        let end = offset + bytes;
        let (first, last) = (offset >> self.shift, (end - 1) >> self.shift);
        let group_of = |block: u64| block / GROUP as u64;
        for group in group_of(first)..=group_of(last) {
            let key = place(device, group);
            let slot = if is_new {
                let ids = &mut self.ids;
                let number = || {
                    ids.push([NONE; GROUP]);
                    Ok(ids.len() as u32 - 1)
                };
                self.groups.get_or_insert(key, number)?.0
            } else {
                let Some(slot) = self.groups.get(key) else { continue };
                slot
            };
            let start = group * GROUP as u64;
            for block in first.max(start)..=last.min(start + GROUP as u64 - 1) {
                let id = &mut self.ids[slot as usize][(block - start) as usize];
                if *id == NONE {
                    if !is_new {
                        continue;
                    }
                    *id = take_number(&mut self.next)?;
                }
                let from = offset.max(block * size);
                let upto = end.min((block + 1) * size);
                found.push(Block { id: *id, bytes: (upto - from) as u32 });
            }
        }
        Ok(())
    }
}

/// A number for a place on a device, its own.
fn place(device: u32, place: u64) -> u64 {
    u64::from(device) << PLACE_BITS | place
}

fn take_number(next: &mut u32) -> Result<u32, TooManyBlocks> {
    let number = *next;
    *next = number.checked_add(1).filter(|&next| next < NONE).ok_or(TooManyBlocks)?;
    Ok(number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use destage_core::Time;

    fn request(op: Op, device: u32, offset: u64, bytes: u64) -> Request {
        let extent = Extent::Range { device, offset, bytes };
        Request { time: Time::ZERO, op, extent, host: 0, thread: 0 }
    }

    fn of(blocks: &mut Blocks, request: &Request) -> Vec<(u32, u32)> {
        let mut found = Vec::new();
        blocks.of(request, &mut found).unwrap();
        found.iter().map(|block| (block.id, block.bytes)).collect()
    }

    #[test]
    fn extents_are_split_at_blocks_and_numbered_by_appearance() {
        let mut blocks = Blocks::new(4_096);
        let mut touched =
            |op, device, offset, bytes| of(&mut blocks, &request(op, device, offset, bytes));
        assert_eq!(touched(Op::Write, 0, 4_000, 200), [(0, 96), (1, 104)]);
        assert_eq!(touched(Op::Read, 0, 4_096, 4_096), [(1, 4_096)]);
        assert_eq!(touched(Op::Read, 1, 4_096, 1), [(2, 1)]);
        // Over a group's end.
        let long = touched(Op::Read, 0, 14 * 4_096, 4 * 4_096);
        assert_eq!(long, [(3, 4_096), (4, 4_096), (5, 4_096), (6, 4_096)]);
        assert_eq!(touched(Op::Discard, 0, 0, 40 * 4_096).len(), 6);
        assert_eq!(touched(Op::Discard, 7, 0, 1 << 36), []);
        assert_eq!(touched(Op::Read, 0, 9, 0), []);
        assert_eq!(blocks.len(), 7);
    }

    #[test]
    fn the_last_place_of_the_last_device_is_its_own() {
        let mut blocks = Blocks::new(512);
        let last = request(Op::Read, (1 << 16) - 1, (1 << 56) - 512, 512);
        assert_eq!(of(&mut blocks, &last), [(0, 512)]);
        assert_eq!(of(&mut blocks, &request(Op::Read, 0, (1 << 56) - 512, 512)), [(1, 512)]);
        assert_eq!(of(&mut blocks, &last), [(0, 512)]);
    }

    #[test]
    fn a_sample_sees_all_accesses_to_a_block_or_none() {
        let mut whole = Blocks::new(4_096);
        let mut sample = Blocks::sampled(4_096, 0.1);
        let mut uses = std::collections::HashMap::new();
        let mut accesses = 0;
        for place in (0..20_000u64).chain(0..20_000) {
            let request = request(Op::Read, 3, place * 8_192, 8_192);
            accesses += whole.accesses_of(&request);
            of(&mut whole, &request);
            for (id, bytes) in of(&mut sample, &request) {
                assert_eq!(bytes, 4_096);
                *uses.entry(id).or_insert(0) += 1;
            }
        }
        assert_eq!((accesses, whole.len()), (80_000, 40_000));
        assert!((3_700..4_300).contains(&sample.len()), "{}", sample.len());
        assert!(uses.values().all(|&uses| uses == 2) && uses.len() == sample.len() as usize);
        // Half of the hashes are below the middle one.
        let mut hashes: Vec<u64> = (0..sample.len()).map(|id| sample.hash_of(id)).collect();
        hashes.sort_unstable();
        sample.sample_below(hashes[hashes.len() / 2]);
        let all = request(Op::Read, 3, 0, 40_000 * 4_096);
        assert_eq!(of(&mut sample, &all).len(), hashes.len() / 2);
        assert!((sample.rate() - 0.05).abs() < 0.01, "{}", sample.rate());
        assert_eq!(of(&mut sample, &request(Op::Discard, 4, 0, 1 << 30)), []);
    }

    #[test]
    fn an_object_is_one_block() {
        let mut blocks = Blocks::new(4_096);
        let extent = Extent::Object { id: 1, bytes: 10_000 };
        let request = Request { time: Time::ZERO, op: Op::Read, extent, host: 0, thread: 0 };
        assert_eq!(of(&mut blocks, &request), [(0, 10_000)]);
        assert_eq!(of(&mut blocks, &request), [(0, 10_000)]);
        let never =
            Request { op: Op::Discard, extent: Extent::Object { id: 2, bytes: 1 }, ..request };
        assert_eq!(of(&mut blocks, &never), []);
    }
}
