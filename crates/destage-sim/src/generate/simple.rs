//! Loads of single requests: a working set, Mogul's reader and writer.

use super::random::chance;
use super::{Access, BLOCKS_MAX, GenerateError, Load, Operations};
use crate::event::Stream;
use crate::trace::Op;
use std::collections::VecDeque;

/// [`Load::WorkingSet`].
pub(super) struct WorkingSet {
    /// Where the regions begin.
    regions: Vec<u64>,
    region_blocks: u64,
    skew: u8,
    all_blocks: u64,
    outside_percent: u8,
    outside_halvings: u8,
    write_percent: u8,
    request_blocks: u64,
    random: Stream,
}

impl WorkingSet {
    pub(super) fn new(load: &Load, seed: u64, random: Stream) -> Result<Self, GenerateError> {
        let &Load::WorkingSet {
            set_blocks,
            all_blocks,
            region_blocks,
            skew,
            outside_percent,
            outside_halvings,
            write_percent,
            request_blocks,
        } = load
        else {
            return Err(GenerateError("the load is no working set"));
        };
        let percents = outside_percent <= 100 && write_percent <= 100;
        let sizes = region_blocks >= 1 && region_blocks <= set_blocks;
        let nested = set_blocks <= all_blocks && all_blocks <= BLOCKS_MAX;
        if !(percents && sizes && nested) {
            return Err(GenerateError(
                "a region lies in the working set, that in a file system below 2^56 bytes; shares are 0 to 100 percent",
            ));
        }
        if !(1..=1 << 15).contains(&request_blocks) {
            return Err(GenerateError("a request has 1 to 32768 blocks on average"));
        }
        if !(1..=16).contains(&skew) {
            return Err(GenerateError("a skew is 1, which is even, to 16"));
        }
        if outside_halvings > 40 {
            return Err(GenerateError("a file system is halved 0 to 40 times"));
        }
        let mut places = Stream::new(seed, "regions");
        // Regions may overlap, as in a file system whose files share nothing they hardly do.
        let place = |_| places.below(all_blocks / region_blocks) * region_blocks;
        Ok(Self {
            regions: (0..set_blocks / region_blocks).map(place).collect(),
            region_blocks,
            skew,
            all_blocks,
            outside_percent,
            outside_halvings,
            write_percent,
            request_blocks,
            random,
        })
    }
}

impl Operations for WorkingSet {
    fn next(&mut self, accesses: &mut VecDeque<Access>) {
        let random = &mut self.random;
        let is_outside = random.below(100) < u64::from(self.outside_percent);
        let op = chance(random, self.write_percent, Op::Write, Op::Read);
        let (from, len) = if is_outside {
            let halvings = match self.outside_halvings {
                0 => 0,
                most => random.below(u64::from(most) + 1),
            };
            (0, (self.all_blocks >> halvings).max(1))
        } else {
            let count = self.regions.len() as u64;
            let drawn = (0..self.skew).map(|_| random.below(count));
            let region = drawn.min().expect("at least one is drawn");
            (self.regions[region as usize], self.region_blocks)
        };
        let first = random.below(len);
        let blocks = (1 + random.below(2 * self.request_blocks - 1)).min(len - first);
        accesses.push_back(Access::blocks(op, from + first, blocks));
    }
}

/// [`Load::Mogul`]: the file that is read lies first.
pub(super) struct Mogul {
    read_blocks: u64,
    write_blocks: u64,
    write_percent: u64,
    /// Hundredths of a write that are due.
    due: u64,
    next_write: u64,
    random: Stream,
}

impl Mogul {
    pub(super) fn new(blocks: [u64; 2], write_percent: u8, random: Stream) -> Self {
        let [read_blocks, write_blocks] = blocks;
        let write_percent = write_percent.into();
        Self { read_blocks, write_blocks, write_percent, due: 0, next_write: 0, random }
    }
}

impl Operations for Mogul {
    /// Writes come as evenly as their share allows: the paper's generator has a rate.
    fn next(&mut self, accesses: &mut VecDeque<Access>) {
        self.due += self.write_percent;
        if self.due < 100 {
            let block = self.random.below(self.read_blocks);
            return accesses.push_back(Access::blocks(Op::Read, block, 1));
        }
        self.due -= 100;
        let block = self.read_blocks + self.next_write;
        self.next_write = (self.next_write + 1) % self.write_blocks;
        accesses.push_back(Access::blocks(Op::Write, block, 1));
    }
}
