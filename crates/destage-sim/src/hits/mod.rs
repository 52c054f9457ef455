//! Hit ratios: the core's replacement policies on a trace, without time.
//!
//! Reads and writes both bring their blocks into the cache; a discard drops its blocks. Every block takes one place, whatever
//! part of it a request touches, and so does an object. With RAM before flash, what misses in RAM is looked up in flash, writes
//! go through to flash, and what leaves RAM is in flash already.

mod batch;
mod belady;
mod recording;
mod tier;

pub use recording::Recording;
pub use tier::Replacements;

use crate::blocks::{Block, Blocks, TooManyBlocks};
use crate::trace::{Op, Request};
use batch::Batch;
use recording::Recorder;
use serde::Serialize;
use std::hint::black_box;
use std::slice;
use tier::{Place, Tier};

/// A cache to be simulated. At least one of the two has places.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Setup {
    /// Which units leave the flash, or the RAM if there is no flash.
    pub replacement: Replacements,
    /// Which units leave the RAM before the flash.
    pub ram_replacement: Replacements,
    /// Places in RAM, blocks; 0 for none.
    pub ram_blocks: u64,
    /// Places in flash, blocks; 0 for none.
    pub flash_blocks: u64,
}

impl Setup {
    /// Whether it can be simulated.
    ///
    /// # Errors
    /// As [`Hits::new`].
    pub fn check(&self) -> Result<(), SetupError> {
        match (self.ram_blocks, self.flash_blocks) {
            (0, 0) => Err(SetupError::NoRoom),
            (0, _) | (_, 0) => Ok(()),
            _ if [self.replacement, self.ram_replacement].contains(&Replacements::Belady) => {
                Err(SetupError::BeladyBelow)
            }
            _ => Ok(()),
        }
    }

    /// Places of the only tier.
    fn places(&self) -> u64 {
        self.ram_blocks.max(self.flash_blocks)
    }
}

/// Why a cache cannot be simulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SetupError {
    /// Neither tier has places.
    #[error("the cache has no room for a single block: give it more --ram or --flash")]
    NoRoom,
    /// Belady with two tiers.
    #[error(
        "belady needs to know the future, which RAM before flash would change: give it one tier"
    )]
    BeladyBelow,
}

/// How many of something there were, and how many of them the cache held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Count {
    /// All of them.
    pub all: u64,
    /// Those that were in RAM or flash.
    pub hits: u64,
}

impl Count {
    /// Hits over all; 0 if there were none.
    pub fn ratio(self) -> f64 {
        if self.all == 0 { 0.0 } else { self.hits as f64 / self.all as f64 }
    }

    pub(crate) fn add(&mut self, all: u64, hits: u64) {
        self.all += all;
        self.hits += hits;
    }
}

/// Requests, blocks and bytes, which give three different ratios.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Requests; one is a hit if every block of it was.
    pub requests: Count,
    /// Block accesses.
    pub blocks: Count,
    /// Bytes that the requests touched.
    pub bytes: Count,
    /// Block accesses that found their block in RAM.
    pub ram_block_hits: u64,
}

impl Counts {
    pub(crate) fn add(&mut self, other: &Self) {
        self.requests.add(other.requests.all, other.requests.hits);
        self.blocks.add(other.blocks.all, other.blocks.hits);
        self.bytes.add(other.bytes.all, other.bytes.hits);
        self.ram_block_hits += other.ram_block_hits;
    }
}

/// What a cache came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Outcome {
    /// Reads.
    pub reads: Counts,
    /// Writes.
    pub writes: Counts,
    /// Blocks dropped by discards.
    pub discarded_blocks: u64,
    /// Blocks that left the last tier to make room.
    pub evicted_blocks: u64,
    /// Those of them that were dirty: what a cache writes to the origin that writes a block when it leaves and no sooner. Dirty is
    /// what was written since it entered.
    pub evicted_dirty_blocks: u64,
    /// Blocks that are dirty at the end, and so not written.
    pub dirty_left_blocks: u64,
}

impl Outcome {
    /// Reads and writes together.
    pub fn total(&self) -> Counts {
        let mut total = self.reads;
        total.add(&self.writes);
        total
    }
}

/// Several caches on one pass over a trace.
pub struct Hits {
    blocks: Blocks,
    batch: Batch,
    caches: Vec<Box<dyn Cache>>,
    /// The requests, for caches that need to know the future.
    recorder: Option<Recorder>,
    setups: Vec<Setup>,
}

impl std::fmt::Debug for Hits {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hits").field("setups", &self.setups).finish_non_exhaustive()
    }
}

impl Hits {
    /// Empty caches.
    ///
    /// # Errors
    /// A setup has no places, or Belady's policy below RAM.
    ///
    /// # Panics
    /// If the block size is no power of two from 512 bytes to 1 MiB.
    pub fn new(block_bytes: u32, setups: &[Setup]) -> Result<Self, SetupError> {
        setups.iter().try_for_each(Setup::check)?;
        let needs_future = setups.iter().any(|setup| setup.replacement == Replacements::Belady);
        Ok(Self {
            blocks: Blocks::new(block_bytes),
            batch: Batch::default(),
            caches: setups.iter().filter_map(cache).collect(),
            recorder: needs_future.then(Recorder::default),
            setups: setups.to_vec(),
        })
    }

    /// Takes the next request. Many at once take less time: see [`Hits::requests`].
    ///
    /// # Errors
    /// [`TooManyBlocks`].
    pub fn request(&mut self, request: &Request) -> Result<(), TooManyBlocks> {
        self.requests(slice::from_ref(request))
    }

    /// Takes the next requests.
    ///
    /// # Errors
    /// [`TooManyBlocks`].
    pub fn requests(&mut self, requests: &[Request]) -> Result<(), TooManyBlocks> {
        let Self { blocks, batch, caches, recorder, .. } = self;
        batch.each(requests, blocks, |batch| {
            caches.iter_mut().for_each(|cache| cache.requests(batch));
            if let Some(recorder) = recorder {
                batch.requests().for_each(|(op, blocks)| recorder.request(op, blocks));
            }
        })
    }

    /// Distinct blocks so far.
    pub fn distinct_blocks(&self) -> u32 {
        self.blocks.len()
    }

    /// What each cache came to, in the order of the setups.
    pub fn finish(self) -> Vec<(Setup, Outcome)> {
        let mut outcomes = self.caches.iter().map(|cache| cache.outcome());
        let outcome_of = |setup: &Setup| match (setup.replacement, &self.recorder) {
            (Replacements::Belady, Some(recorder)) => belady::replay(recorder, setup.places()),
            _ => outcomes.next().expect("every other setup has its cache"),
        };
        let outcomes: Vec<_> = self.setups.iter().map(outcome_of).collect();
        self.setups.iter().copied().zip(outcomes).collect()
    }
}

/// The blocks that were written since they entered.
#[derive(Debug, Default)]
struct Dirty {
    words: Vec<u64>,
    count: u64,
    evicted: u64,
}

impl Dirty {
    fn write(&mut self, id: u32) {
        let word = id as usize / 64;
        if self.words.len() <= word {
            self.words.resize((word + 1).next_power_of_two(), 0);
        }
        let bit = 1 << (id % 64);
        self.count += u64::from(self.words[word] & bit == 0);
        self.words[word] |= bit;
    }

    /// The block is no longer in the cache; whether it was dirty.
    fn clear(&mut self, id: u32) -> bool {
        let Some(word) = self.words.get_mut(id as usize / 64) else { return false };
        let was_dirty = *word & 1 << (id % 64) != 0;
        *word &= !(1 << (id % 64));
        self.count -= u64::from(was_dirty);
        was_dirty
    }

    fn evict(&mut self, id: u32) {
        self.evicted += u64::from(self.clear(id));
    }

    fn tell(&self, outcome: &mut Outcome) {
        (outcome.evicted_dirty_blocks, outcome.dirty_left_blocks) = (self.evicted, self.count);
    }
}

/// One cache of one or two tiers.
trait Cache {
    fn requests(&mut self, batch: &Batch);
    fn outcome(&self) -> Outcome;
}

/// `None` for Belady, which is simulated at the end; the setup was checked.
fn cache(setup: &Setup) -> Option<Box<dyn Cache>> {
    let &Setup { replacement, ram_replacement, ram_blocks, flash_blocks } = setup;
    if ram_blocks == 0 || flash_blocks == 0 {
        return replacement.single(setup.places(), flash_blocks == 0);
    }
    let (ram, flash) = ram_replacement.tier(ram_blocks).zip(replacement.tier(flash_blocks))?;
    Some(Box::new(Two { ram, flash, outcome: Outcome::default() }))
}

/// One tier.
struct One<T> {
    tier: T,
    is_ram: bool,
    outcome: Outcome,
}

/// RAM before flash.
struct Two {
    ram: Box<dyn Tier>,
    flash: Box<dyn Tier>,
    outcome: Outcome,
}

/// Looks at what the tier has of all blocks of the batch.
fn foresee<T: Tier>(tier: &T, batch: &Batch) {
    black_box(batch.blocks().iter().fold(0, |all, block| all ^ tier.foresee(block.id)));
}

impl<T: Tier> Cache for One<T> {
    fn requests(&mut self, batch: &Batch) {
        let hit = if self.is_ram { Place::Ram } else { Place::Flash };
        let tier = &mut self.tier;
        foresee(tier, batch);
        for (op, blocks) in batch.requests() {
            match op {
                Op::Discard => self.outcome.discard(blocks, |id| tier.discard(id)),
                _ => self.outcome.request(op, blocks, |id| {
                    if tier.access(id, op == Op::Write) { hit } else { Place::Origin }
                }),
            }
        }
    }

    fn outcome(&self) -> Outcome {
        let mut outcome = self.outcome;
        self.tier.tell(&mut outcome);
        outcome
    }
}

impl Cache for Two {
    fn requests(&mut self, batch: &Batch) {
        let (ram, flash) = (&mut self.ram, &mut self.flash);
        for (op, blocks) in batch.requests() {
            match op {
                Op::Discard => self.outcome.discard(blocks, |id| {
                    let was_in_ram = ram.discard(id);
                    flash.discard(id) || was_in_ram
                }),
                _ => self.outcome.request(op, blocks, |id| {
                    let is_write = op == Op::Write;
                    let in_ram = ram.access(id, is_write);
                    let in_flash = (is_write || !in_ram) && flash.access(id, is_write);
                    match (in_ram, in_flash) {
                        (true, _) => Place::Ram,
                        (_, true) => Place::Flash,
                        _ => Place::Origin,
                    }
                }),
            }
        }
    }

    fn outcome(&self) -> Outcome {
        let mut outcome = self.outcome;
        self.flash.tell(&mut outcome);
        outcome
    }
}

impl Outcome {
    /// Counts a read or write; `place_of` accesses a block.
    #[inline]
    fn request(&mut self, op: Op, blocks: &[Block], mut place_of: impl FnMut(u32) -> Place) {
        if blocks.is_empty() {
            return;
        }
        let mut counts = Counts::default();
        for &Block { id, bytes } in blocks {
            let place = place_of(id);
            let hit = u64::from(place != Place::Origin);
            counts.ram_block_hits += u64::from(place == Place::Ram);
            counts.blocks.add(1, hit);
            counts.bytes.add(bytes.into(), u64::from(bytes) * hit);
        }
        counts.requests.add(1, u64::from(counts.blocks.hits == counts.blocks.all));
        match op {
            Op::Write => self.writes.add(&counts),
            _ => self.reads.add(&counts),
        }
    }

    fn discard(&mut self, blocks: &[Block], mut discard: impl FnMut(u32) -> bool) {
        let present = blocks.iter().filter(|block| discard(block.id));
        self.discarded_blocks += present.count() as u64;
    }
}

#[cfg(test)]
mod tests;
