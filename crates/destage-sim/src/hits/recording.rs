//! A trace's block accesses in memory, so that many caches can be run over them, side by side on all cores.
//!
//! They take 4 bytes per block access and 20 per request.

use super::batch::Batch;
use super::{Outcome, Setup, SetupError, belady, cache};
use crate::blocks::{Block, Blocks, TooManyBlocks};
use crate::trace::{Op, Request};

/// The block accesses of a trace.
#[derive(Debug)]
pub struct Recording {
    blocks: Blocks,
    found: Vec<Block>,
    recorder: Recorder,
}

impl Recording {
    /// Nothing yet; `blocks` numbers the blocks, all or a sample of them.
    pub fn new(blocks: Blocks) -> Self {
        Self { blocks, found: Vec::new(), recorder: Recorder::default() }
    }

    /// Takes the next request.
    ///
    /// # Errors
    /// [`TooManyBlocks`].
    pub fn request(&mut self, request: &Request) -> Result<(), TooManyBlocks> {
        self.blocks.of(request, &mut self.found)?;
        // Flushes, and requests of which the sample has no block.
        if !self.found.is_empty() {
            self.recorder.request(request.op, &self.found);
        }
        Ok(())
    }

    /// The blocks.
    pub fn blocks(&self) -> &Blocks {
        &self.blocks
    }

    /// Makes the sample smaller until it has at most so many blocks; later requests are sampled likewise.
    ///
    /// # Panics
    /// If the blocks are not a sample.
    pub fn keep_at_most(&mut self, blocks: u32) {
        let mut hashes: Vec<u64> =
            self.recorder.present().map(|id| self.blocks.hash_of(id)).collect();
        let index = blocks as usize;
        if hashes.len() <= index {
            return;
        }
        let (_, &mut limit, _) = hashes.select_nth_unstable(index);
        self.blocks.sample_below(limit);
        let numbers = &self.blocks;
        self.recorder.retain(|id| numbers.hash_of(id) < limit);
    }

    /// Distinct blocks that were accessed and belong to the sample.
    pub fn distinct(&self) -> u64 {
        self.recorder.present().count() as u64
    }

    /// Block accesses, and blocks discarded.
    pub fn accesses(&self) -> u64 {
        self.recorder.accesses() as u64
    }

    /// Runs one cache over all of it.
    ///
    /// # Errors
    /// As [`Hits::new`](super::Hits::new).
    pub fn run(&self, setup: &Setup) -> Result<Outcome, SetupError> {
        setup.check()?;
        let Some(mut cache) = cache(setup) else {
            return Ok(belady::replay(&self.recorder, setup.places()));
        };
        self.recorder.batches(|batch| cache.requests(batch));
        Ok(cache.outcome())
    }
}

/// The requests themselves.
#[derive(Debug, Default)]
pub(super) struct Recorder {
    requests: Vec<Recorded>,
    ids: Vec<u32>,
    distinct: u32,
}

/// Only the first and last block of a request are touched in part, except in a sample, whose bytes are not looked at.
#[derive(Clone, Copy, Debug)]
struct Recorded {
    op: Op,
    count: u32,
    first_bytes: u32,
    last_bytes: u32,
    middle_bytes: u32,
}

impl Recorder {
    pub(super) fn request(&mut self, op: Op, blocks: &[Block]) {
        let bytes = |index: usize| blocks.get(index).map_or(0, |block| block.bytes);
        self.requests.push(Recorded {
            op,
            count: blocks.len() as u32,
            first_bytes: bytes(0),
            last_bytes: bytes(blocks.len().wrapping_sub(1)),
            middle_bytes: if blocks.len() > 2 { bytes(1) } else { 0 },
        });
        self.ids.extend(blocks.iter().map(|block| block.id));
        let highest = blocks.iter().map(|block| block.id + 1).max().unwrap_or(0);
        self.distinct = self.distinct.max(highest);
    }

    /// Above all numbers that occur.
    pub(super) fn distinct(&self) -> u32 {
        self.distinct
    }

    /// Block accesses and discarded blocks.
    pub(super) fn accesses(&self) -> usize {
        self.ids.len()
    }

    /// Shows each request: its blocks, and how many accesses were before it.
    pub(super) fn each(&self, mut show: impl FnMut(Op, &[Block], usize)) {
        let mut blocks = Vec::new();
        let mut start = 0;
        for request in &self.requests {
            let ids = &self.ids[start..start + request.count as usize];
            let bytes = |index: usize| request.bytes_of(index as u32);
            blocks.clear();
            blocks.extend(ids.iter().enumerate().map(|(at, &id)| Block { id, bytes: bytes(at) }));
            show(request.op, &blocks, start);
            start += ids.len();
        }
    }

    /// As [`Recorder::each`], some requests at a time.
    fn batches(&self, mut show: impl FnMut(&Batch)) {
        let mut batch = Batch::default();
        let mut rest = self.ids.as_slice();
        for request in &self.requests {
            let (ids, others) = rest.split_at(request.count as usize);
            rest = others;
            let blocks = ids.iter().zip(0..);
            batch.push(
                request.op,
                blocks.map(|(&id, index)| Block { id, bytes: request.bytes_of(index) }),
            );
            batch.show_full(&mut show);
        }
        batch.show(&mut show);
    }

    /// As [`Recorder::each`], the last request first, with the numbers of its blocks.
    pub(super) fn each_backwards(&self, mut show: impl FnMut(Op, &[u32], usize)) {
        let mut end = self.ids.len();
        for request in self.requests.iter().rev() {
            let start = end - request.count as usize;
            show(request.op, &self.ids[start..end], start);
            end = start;
        }
    }

    /// The numbers that occur, each once, rising.
    fn present(&self) -> impl Iterator<Item = u32> + use<> {
        let mut is_present = vec![false; self.distinct as usize];
        self.ids.iter().for_each(|&id| is_present[id as usize] = true);
        is_present.into_iter().zip(0..).filter(|(is_present, _)| *is_present).map(|(_, id)| id)
    }

    /// Leaves out the accesses to other blocks, and requests that then have none.
    fn retain(&mut self, keep: impl Fn(u32) -> bool) {
        let mut kept = 0;
        let mut start = 0;
        for request in &mut self.requests {
            let end = start + request.count as usize;
            let before = kept;
            for place in start..end {
                let id = self.ids[place];
                if keep(id) {
                    self.ids[kept] = id;
                    kept += 1;
                }
            }
            request.count = (kept - before) as u32;
            start = end;
        }
        self.ids.truncate(kept);
        self.requests.retain(|request| request.count > 0);
    }
}

impl Recorded {
    fn bytes_of(&self, index: u32) -> u32 {
        match index {
            0 => self.first_bytes,
            _ if index + 1 == self.count => self.last_bytes,
            _ => self.middle_bytes,
        }
    }
}
