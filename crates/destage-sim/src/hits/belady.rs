//! Belady's policy: the block whose next use is farthest away leaves.
//!
//! Source: Belady, "A study of replacement algorithms for a virtual-storage computer", IBM Systems Journal 1966. It has to know
//! the future, so the trace is held in memory: 4 bytes per block access and 16 per request.

use super::{Outcome, Place};
use crate::blocks::Block;
use crate::trace::Op;
use std::collections::BinaryHeap;

/// The requests of a trace.
#[derive(Debug, Default)]
pub(super) struct Recorder {
    requests: Vec<Recorded>,
    ids: Vec<u32>,
}

/// Only the first and last block of a request are touched in part.
#[derive(Clone, Copy, Debug)]
struct Recorded {
    op: Op,
    count: u32,
    first_bytes: u32,
    last_bytes: u32,
    middle_bytes: u32,
}

/// Not used again.
const NEVER: u64 = u64::MAX;

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
    }

    /// Runs the policy over what was recorded: so many places, so many distinct blocks.
    pub(super) fn replay(&self, places: u64, distinct: u32) -> Outcome {
        let next_uses = self.next_uses(distinct);
        let mut cache = Farthest::new(distinct, places);
        let mut outcome = Outcome::default();
        let mut blocks = Vec::new();
        let mut start = 0;
        for request in &self.requests {
            let end = start + request.count as usize;
            blocks.clear();
            blocks.extend(
                self.ids[start..end]
                    .iter()
                    .enumerate()
                    .map(|(index, &id)| Block { id, bytes: request.bytes_of(index as u32) }),
            );
            let mut uses = next_uses[start..end].iter();
            match request.op {
                Op::Discard => outcome.discard(&blocks, |id| cache.discard(id)),
                op => outcome.request(op, &blocks, |id| {
                    let next_use = uses.next().copied().unwrap_or(NEVER);
                    if cache.access(id, 1, next_use) { Place::Flash } else { Place::Origin }
                }),
            }
            start = end;
        }
        outcome.evicted_blocks = cache.evicted;
        outcome
    }

    /// For each access, the place of the next one to the same block; never, if it is discarded before.
    fn next_uses(&self, distinct: u32) -> Vec<u64> {
        let mut upcoming = vec![NEVER; distinct as usize];
        let mut next_uses = vec![NEVER; self.ids.len()];
        let mut end = self.ids.len();
        for request in self.requests.iter().rev() {
            let start = end - request.count as usize;
            for place in (start..end).rev() {
                let next = &mut upcoming[self.ids[place] as usize];
                let later = if request.op == Op::Discard { NEVER } else { place as u64 };
                next_uses[place] = std::mem::replace(next, later);
            }
            end = start;
        }
        next_uses
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

/// The cache: present blocks by their next use.
#[derive(Debug)]
pub(super) struct Farthest {
    /// The next use of each present block and its size; size 0 for absent ones.
    present: Vec<(u64, u32)>,
    /// Next uses with their blocks; those that are not the block's current one are out of date.
    heap: BinaryHeap<(u64, u32)>,
    bytes: u64,
    bytes_max: u64,
    pub(super) evicted: u64,
}

impl Farthest {
    pub(super) fn new(distinct: u32, bytes_max: u64) -> Self {
        Self {
            present: vec![(NEVER, 0); distinct as usize],
            heap: BinaryHeap::new(),
            bytes: 0,
            bytes_max,
            evicted: 0,
        }
    }

    /// Whether the block was present; it is afterwards. `bytes` is not 0.
    pub(super) fn access(&mut self, id: u32, bytes: u32, next_use: u64) -> bool {
        let hit = self.present[id as usize].1 != 0;
        if !hit {
            while self.bytes + u64::from(bytes) > self.bytes_max && self.evict() {}
            self.bytes += u64::from(bytes);
            self.present[id as usize].1 = bytes;
        }
        self.present[id as usize].0 = next_use;
        self.heap.push((next_use, id));
        hit
    }

    fn evict(&mut self) -> bool {
        while let Some((next_use, id)) = self.heap.pop() {
            if self.present[id as usize].1 != 0 && self.present[id as usize].0 == next_use {
                self.evicted += 1;
                return self.discard(id);
            }
        }
        false
    }

    fn discard(&mut self, id: u32) -> bool {
        let (_, bytes) = std::mem::replace(&mut self.present[id as usize], (NEVER, 0));
        self.bytes -= u64::from(bytes);
        bytes != 0
    }
}
