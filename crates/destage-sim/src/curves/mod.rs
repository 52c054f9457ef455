//! Miss-ratio curves: what a cache of each size would have missed, by one pass over a trace.
//!
//! LRU's comes from stack distances (the file `distances.rs`), exact or from a sample. The other policies have none; each of their
//! sizes is simulated, on the whole trace or in miniature: a cache of a hundredth of the size on a hundredth of the blocks
//! (Waldspurger, Saemundsson, Ahmad, Park, "Cache modeling and optimization using miniature simulations", USENIX ATC 2017).

mod distances;
mod stack;

use crate::blocks::{AHEAD, Blocks, TooManyBlocks};
use crate::hits::{Recording, Replacements, Setup};
use crate::trace::{Op, Request};
use distances::Distances;
use rayon::prelude::*;
use serde::Serialize;
use std::sync::atomic::{AtomicU64, Ordering};

/// Which blocks of the trace are looked at.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Sample {
    /// All: the curves are exact.
    All,
    /// This share, above 0 and at most 1.
    Rate(f64),
    /// At most so many, at least one, whatever the length of the trace.
    Blocks(u32),
}

/// The sizes of a curve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sizes {
    /// These, in blocks, rising.
    Given(Vec<u64>),
    /// So many, each larger than the last by the same factor, from a thousandth of the distinct blocks to all of them.
    Spread(u32),
}

/// How a curve was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Method {
    /// Stack distances of all blocks.
    StackDistances,
    /// Stack distances of a sample.
    Shards,
    /// A simulation of each size.
    Simulation,
    /// A simulation of each size on a sample, with caches smaller likewise.
    Miniature,
}

/// A miss ratio by size of the cache.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Curve {
    /// The policy's name.
    pub replacement: &'static str,
    /// How it was made.
    pub method: Method,
    /// The share of the blocks that was looked at.
    pub sample_rate: f64,
    /// Accesses to them.
    pub sampled_accesses: u64,
    /// By rising size.
    pub points: Vec<Point>,
}

/// One size.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Point {
    /// Places of the cache, blocks.
    pub blocks: u64,
    /// Block accesses that miss, over all block accesses.
    pub block_miss_ratio: f64,
    /// Blocks read that miss, over all blocks read.
    pub read_block_miss_ratio: f64,
}

/// Curves of several policies on one pass over a trace.
#[derive(Debug)]
pub struct Curves {
    replacements: Vec<Replacements>,
    distances: Option<Distances>,
    recording: Option<Recording>,
    sample: Sample,
    accesses: Accesses,
    /// From so many blocks on, a sample of a fixed size is made smaller.
    recorded_max: u64,
}

/// Block accesses of the whole trace.
#[derive(Clone, Copy, Debug, Default)]
struct Accesses {
    all: u64,
    reads: u64,
}

/// The fewest blocks of a sample by which a cache's size is judged; smaller sizes are left out of the curve.
const SAMPLED_PLACES_MIN: u64 = 16;

impl Curves {
    /// Nothing read yet.
    ///
    /// # Panics
    /// If the block size or the sample is out of its range.
    pub fn new(block_bytes: u32, replacements: &[Replacements], sample: Sample) -> Self {
        let blocks = match sample {
            Sample::All => Blocks::new(block_bytes),
            Sample::Rate(rate) => Blocks::sampled(block_bytes, rate),
            Sample::Blocks(_) => Blocks::sampled(block_bytes, 1.0),
        };
        let is_lru = |replacement: &Replacements| *replacement == Replacements::Lru;
        let has_lru = replacements.iter().any(is_lru);
        let has_others = !replacements.iter().all(is_lru);
        Self {
            replacements: replacements.to_vec(),
            distances: has_lru.then(|| Distances::new(block_bytes, sample)),
            recording: has_others.then(|| Recording::new(blocks)),
            sample,
            accesses: Accesses::default(),
            recorded_max: match sample {
                Sample::Blocks(blocks) => 2 * u64::from(blocks),
                _ => u64::MAX,
            },
        }
    }

    /// Takes the next requests.
    ///
    /// # Errors
    /// [`TooManyBlocks`].
    pub fn requests(&mut self, requests: &[Request]) -> Result<(), TooManyBlocks> {
        for requests in requests.chunks(AHEAD) {
            if let Some(distances) = &self.distances {
                distances.blocks().foresee(requests);
            }
            if let Some(recording) = &self.recording {
                recording.blocks().foresee(requests);
            }
            requests.iter().try_for_each(|request| self.request(request))?;
        }
        Ok(())
    }

    /// Takes the next request. Many at once take less time: see [`Curves::requests`].
    ///
    /// # Errors
    /// [`TooManyBlocks`].
    pub fn request(&mut self, request: &Request) -> Result<(), TooManyBlocks> {
        if let Some(distances) = &mut self.distances {
            distances.request(request)?;
        }
        let Some(recording) = &mut self.recording else { return Ok(()) };
        self.accesses.add(request.op, recording.blocks().accesses_of(request));
        recording.request(request)?;
        let numbered = u64::from(recording.blocks().len());
        if let Sample::Blocks(blocks) = self.sample
            && numbered > self.recorded_max
        {
            recording.keep_at_most(blocks);
            // As many again, so that what is thrown away pays for the work.
            self.recorded_max = numbered + u64::from(blocks);
        }
        Ok(())
    }

    /// Distinct blocks of the whole trace, an estimate where it was sampled.
    pub fn distinct_blocks(&self) -> u64 {
        match (&self.distances, &self.recording) {
            (Some(distances), _) => distances.distinct(),
            (_, Some(recording)) => {
                (recording.distinct() as f64 / recording.blocks().rate()).round() as u64
            }
            _ => 0,
        }
    }

    /// Block accesses of the whole trace.
    pub fn accesses(&self) -> u64 {
        match &self.distances {
            Some(distances) => distances.accesses().all,
            None => self.accesses.all,
        }
    }

    /// The curves, in the order of the policies. Simulations run on all cores.
    pub fn finish(self, sizes: &Sizes) -> Vec<Curve> {
        self.finish_with(sizes, &|_, _| {})
    }

    /// As [`Curves::finish`]; `progress` hears of every simulation that has ended, by how many have and how many there are.
    /// Several threads call it.
    pub fn finish_with(
        mut self,
        sizes: &Sizes,
        progress: &(dyn Fn(u64, u64) + Sync),
    ) -> Vec<Curve> {
        if let (Sample::Blocks(blocks), Some(recording)) = (self.sample, &mut self.recording) {
            recording.keep_at_most(blocks);
        }
        let sizes = match sizes {
            Sizes::Given(sizes) => sizes.clone(),
            Sizes::Spread(count) => spread(self.distinct_blocks(), *count),
        };
        let simulations = self.recording.as_ref().map_or(0, |recording| {
            let others = self.replacements.iter().filter(|&&other| other != Replacements::Lru);
            others.count() * self.judged(&sizes, recording.blocks().rate()).len()
        });
        let done = AtomicU64::new(0);
        let step = || progress(done.fetch_add(1, Ordering::Relaxed) + 1, simulations as u64);
        let curve = |&replacement: &Replacements| match (&self.distances, &self.recording) {
            (Some(distances), _) if replacement == Replacements::Lru => {
                of_distances(distances, self.sample, self.judged(&sizes, distances.rate()))
            }
            (_, Some(recording)) => {
                let sizes = self.judged(&sizes, recording.blocks().rate());
                self.simulated(recording, replacement, sizes, &step)
            }
            _ => unreachable!("every other policy has the recording"),
        };
        self.replacements.iter().map(curve).collect()
    }

    /// The sizes that the sample is large enough for.
    fn judged<'a>(&self, sizes: &'a [u64], rate: f64) -> &'a [u64] {
        let smallest = match self.sample {
            Sample::All => 0.0,
            _ => SAMPLED_PLACES_MIN as f64 / rate,
        };
        let left_out = sizes.partition_point(|&blocks| (blocks as f64) < smallest);
        &sizes[left_out..]
    }

    fn simulated(
        &self,
        recording: &Recording,
        replacement: Replacements,
        sizes: &[u64],
        step: &(impl Fn() + Sync),
    ) -> Curve {
        let rate = recording.blocks().rate();
        let total = self.accesses.weights();
        let point = |&blocks: &u64| {
            let places = (blocks as f64 * rate).round() as u64;
            let setup = Setup {
                replacement,
                ram_replacement: replacement,
                ram_blocks: 0,
                flash_blocks: places.max(1),
            };
            let outcome = recording.run(&setup).expect("a cache of one tier has places");
            step();
            let reads = outcome.reads.blocks;
            let all = outcome.total().blocks;
            let misses = [all, reads].map(|count| (count.all - count.hits) as f64 / rate);
            Point {
                blocks,
                block_miss_ratio: ratio(misses[0], total[0]),
                read_block_miss_ratio: ratio(misses[1], total[1]),
            }
        };
        let is_exact = self.sample == Sample::All;
        Curve {
            replacement: replacement.name(),
            method: if is_exact { Method::Simulation } else { Method::Miniature },
            sample_rate: rate,
            sampled_accesses: recording.accesses(),
            points: sizes.par_iter().map(point).collect(),
        }
    }
}

fn of_distances(distances: &Distances, sample: Sample, sizes: &[u64]) -> Curve {
    let ratios = distances.miss_ratios(sizes);
    let point = |(&blocks, ratios): (&u64, [f64; 2])| {
        let [block_miss_ratio, read_block_miss_ratio] = ratios;
        Point { blocks, block_miss_ratio, read_block_miss_ratio }
    };
    Curve {
        replacement: Replacements::Lru.name(),
        method: if sample == Sample::All { Method::StackDistances } else { Method::Shards },
        sample_rate: distances.rate(),
        sampled_accesses: distances.sampled(),
        points: sizes.iter().zip(ratios).map(point).collect(),
    }
}

/// Sizes up to `distinct`, each once.
fn spread(distinct: u64, count: u32) -> Vec<u64> {
    const DECADES: f64 = 3.0;
    let steps = f64::from(count.max(2) - 1);
    let size = |step: u32| {
        let share = 10f64.powf(-DECADES * (1.0 - f64::from(step) / steps));
        ((distinct as f64 * share).round() as u64).max(1)
    };
    let mut sizes: Vec<u64> = (0..count.max(2)).map(size).collect();
    sizes.dedup();
    sizes
}

/// A share that a sample may put outside of 0 to 1; 0 of nothing.
fn ratio(part: f64, total: f64) -> f64 {
    if total == 0.0 { 0.0 } else { (part / total).clamp(0.0, 1.0) }
}

impl Accesses {
    fn add(&mut self, op: Op, blocks: u64) {
        self.all += blocks;
        self.reads += if op == Op::Read { blocks } else { 0 };
    }

    fn weights(self) -> [f64; 2] {
        [self.all as f64, self.reads as f64]
    }
}

#[cfg(test)]
mod tests;
