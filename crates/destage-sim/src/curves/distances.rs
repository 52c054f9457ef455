//! LRU's curve from stack distances: of all blocks, or of a sample whose distances are scaled up (SHARDS).
//!
//! Source: Waldspurger, Park, Garthwaite, Ahmad, "Efficient MRC construction with SHARDS", FAST 2015: spatial sampling by hash
//! at a fixed rate or with a fixed number of blocks, and SHARDS-adj, which counts the difference between the accesses expected
//! in the sample and those seen as hits of the smallest cache.

use super::stack::Stack;
use super::{Accesses, Sample};
use crate::blocks::{Block, Blocks, TooManyBlocks};
use crate::trace::{Op, Request};
use hashbrown::HashMap;
use std::collections::BinaryHeap;

/// One pass over a trace.
#[derive(Debug)]
pub(super) struct Distances {
    blocks: Blocks,
    found: Vec<Block>,
    stack: Stack,
    /// The weight of the hits by the size from which on they hit.
    hits: Hits,
    /// The accesses of the whole trace.
    accesses: Accesses,
    /// The weight of the accesses in the sample.
    seen: Weights,
    sampled: u64,
    fixed_size: Option<FixedSize>,
}

/// At most so many blocks in the sample.
#[derive(Debug)]
struct FixedSize {
    blocks_max: usize,
    /// Blocks of the sample, the highest hash on top.
    tracked: BinaryHeap<(u64, u32)>,
    is_tracked: Vec<bool>,
}

/// Weights of accesses, all and reads.
type Weights = [f64; 2];

/// The weight of hits by the least size that has them.
#[derive(Debug)]
enum Hits {
    /// By depth in the stack, all of one scale.
    Depths(Vec<Weights>),
    /// By scaled depth, since the scale changes on the way.
    Sizes(HashMap<u64, Weights>),
}

impl Distances {
    pub(super) fn new(block_bytes: u32, sample: Sample) -> Self {
        let (blocks, hits, fixed_size) = match sample {
            Sample::All => (Blocks::new(block_bytes), Hits::Depths(Vec::new()), None),
            Sample::Rate(rate) => {
                (Blocks::sampled(block_bytes, rate), Hits::Depths(Vec::new()), None)
            }
            Sample::Blocks(blocks_max) => {
                let fixed_size = FixedSize {
                    blocks_max: blocks_max as usize,
                    tracked: BinaryHeap::new(),
                    is_tracked: Vec::new(),
                };
                let blocks = Blocks::sampled(block_bytes, 1.0);
                (blocks, Hits::Sizes(HashMap::new()), Some(fixed_size))
            }
        };
        Self {
            blocks,
            found: Vec::new(),
            stack: Stack::default(),
            hits,
            accesses: Accesses::default(),
            seen: [0.0; 2],
            sampled: 0,
            fixed_size,
        }
    }

    pub(super) fn blocks(&self) -> &Blocks {
        &self.blocks
    }

    pub(super) fn request(&mut self, request: &Request) -> Result<(), TooManyBlocks> {
        self.accesses.add(request.op, self.blocks.accesses_of(request));
        let mut found = std::mem::take(&mut self.found);
        let numbered = self.blocks.of(request, &mut found);
        for block in &found {
            self.block(request.op, block.id);
        }
        self.found = found;
        numbered
    }

    fn block(&mut self, op: Op, id: u32) {
        // An earlier block of the same request may have made the sample smaller.
        if !self.blocks.sees(id) {
            return;
        }
        if op == Op::Discard {
            return self.stack.discard(id);
        }
        let scale = 1.0 / self.blocks.rate();
        self.sampled += 1;
        add(&mut self.seen, op, scale);
        match self.stack.access(id) {
            Some(depth) => add(self.hits.at(depth, scale), op, scale),
            None => self.track(id),
        }
    }

    /// Takes a block into a sample of fixed size; what has the highest hash leaves it for ever.
    fn track(&mut self, id: u32) {
        let Some(fixed_size) = &mut self.fixed_size else { return };
        if fixed_size.is_tracked.len() <= id as usize {
            fixed_size.is_tracked.resize(id as usize + 1, false);
        }
        // A block that returns after a discard is tracked already.
        if std::mem::replace(&mut fixed_size.is_tracked[id as usize], true) {
            return;
        }
        fixed_size.tracked.push((self.blocks.hash_of(id), id));
        if fixed_size.tracked.len() > fixed_size.blocks_max {
            let Some((hash, left)) = fixed_size.tracked.pop() else { return };
            self.blocks.sample_below(hash);
            self.stack.forget(left);
        }
    }

    /// Distinct blocks of the whole trace, an estimate where it was sampled.
    pub(super) fn distinct(&self) -> u64 {
        let seen = match &self.fixed_size {
            Some(fixed_size) => fixed_size.tracked.len() as u64,
            None => self.blocks.len().into(),
        };
        (seen as f64 / self.blocks.rate()).round() as u64
    }

    pub(super) fn rate(&self) -> f64 {
        self.blocks.rate()
    }

    pub(super) fn sampled(&self) -> u64 {
        self.sampled
    }

    pub(super) fn accesses(&self) -> Accesses {
        self.accesses
    }

    /// The miss ratios, all and of reads, at rising sizes in blocks.
    ///
    /// What the sample has fewer or more accesses than expected counts as hits, or as hits less (SHARDS-adj).
    pub(super) fn miss_ratios(&self, sizes: &[u64]) -> Vec<[f64; 2]> {
        let total = self.accesses.weights();
        let mut steps = self.hits.steps(1.0 / self.blocks.rate()).into_iter().peekable();
        let mut misses = self.seen;
        let at_size = |&size: &u64| {
            while let Some((_, hits)) = steps.next_if(|(least, _)| *least <= size) {
                misses = [misses[0] - hits[0], misses[1] - hits[1]];
            }
            [0, 1].map(|kind| super::ratio(misses[kind], total[kind]))
        };
        sizes.iter().map(at_size).collect()
    }
}

fn add(weights: &mut Weights, op: Op, weight: f64) {
    weights[0] += weight;
    if op == Op::Read {
        weights[1] += weight;
    }
}

impl Hits {
    fn at(&mut self, depth: u32, scale: f64) -> &mut Weights {
        match self {
            Self::Depths(weights) => {
                let index = depth as usize;
                if weights.len() <= index {
                    weights.resize(index + 1, [0.0; 2]);
                }
                &mut weights[index]
            }
            Self::Sizes(weights) => {
                let least = (f64::from(depth) * scale).round() as u64;
                weights.entry(rounded_up(least)).or_default()
            }
        }
    }

    /// By rising size.
    fn steps(&self, scale: f64) -> Vec<(u64, Weights)> {
        match self {
            Self::Depths(weights) => {
                let size = |depth: usize| (depth as f64 * scale).round() as u64;
                weights.iter().enumerate().map(|(depth, &weights)| (size(depth), weights)).collect()
            }
            Self::Sizes(weights) => {
                let mut steps: Vec<_> = weights.iter().map(|(&size, &sum)| (size, sum)).collect();
                steps.sort_unstable_by_key(|&(size, _)| size);
                steps
            }
        }
    }
}

/// To twelve significant bits, so that there are few sizes.
fn rounded_up(size: u64) -> u64 {
    let spare = (u64::BITS - size.leading_zeros()).saturating_sub(12);
    (size >> spare << spare) + if size.trailing_zeros() < spare { 1 << spare } else { 0 }
}
