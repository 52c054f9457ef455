//! Groups in portions that fit in memory, handled side by side.

use super::RedoError;
use super::group::Run;
use crate::block::{BLOCK, Extent, Lba};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// Consecutive blocks of one data run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Chunk {
    /// The index of its run.
    pub(super) run: usize,
    /// How many blocks of the run stand before it.
    pub(super) skip: usize,
    pub(super) extent: Extent,
    /// Where its bytes begin in the group's payload.
    pub(super) payload: u64,
}

impl Chunk {
    /// The chunks of all data runs, in order.
    pub(super) fn of(runs: impl IntoIterator<Item = Run>) -> Vec<Self> {
        let mut chunks = Vec::new();
        let mut payload = 0;
        for (index, run) in runs.into_iter().enumerate() {
            let blocks = run.data_blocks() as u32;
            for skip in (0..blocks).step_by(CHUNK_BLOCKS as usize) {
                let first = Lba(run.extent.first.0 + u64::from(skip));
                let extent = Extent { first, blocks: CHUNK_BLOCKS.min(blocks - skip) };
                chunks.push(Self { run: index, skip: skip as usize, extent, payload });
                payload += extent.bytes();
            }
        }
        chunks
    }

    /// Chunks whose bytes are neighbours in the group's payload, up to the size of the longest chunk: a scattered group is
    /// written to the store in as few and as long writes as one that is not.
    pub(super) fn runs(chunks: &[Self]) -> Vec<Range<usize>> {
        let mut runs: Vec<Range<usize>> = Vec::new();
        let mut blocks = 0;
        for (index, chunk) in chunks.iter().enumerate() {
            blocks += chunk.extent.blocks;
            match runs.last_mut() {
                Some(run) if blocks <= CHUNK_BLOCKS => run.end = index + 1,
                _ => {
                    blocks = chunk.extent.blocks;
                    runs.push(index..index + 1);
                }
            }
        }
        runs
    }

    /// A buffer for its bytes.
    pub(super) fn buffer(&self) -> Vec<u8> {
        vec![0; self.extent.blocks as usize * BLOCK]
    }
}

/// How many bytes of an extent lie before the origin's end.
pub(super) fn clipped(extent: Extent, origin_bytes: u64) -> usize {
    extent.bytes().min(origin_bytes.saturating_sub(extent.first.offset())) as usize
}

/// Runs `job` for each index below `count`, up to `parallelism` at a time, and gives the results in order. After an error
/// no further one is begun; the one with the lowest index is told.
pub(super) fn in_parallel<T: Send>(
    parallelism: usize,
    count: usize,
    job: impl Fn(usize) -> Result<T, RedoError> + Sync,
) -> Result<Vec<T>, RedoError> {
    if parallelism <= 1 || count <= 1 {
        return (0..count).map(job).collect();
    }
    let next = AtomicUsize::new(0);
    let is_failed = AtomicBool::new(false);
    let results = Mutex::new((0..count).map(|_| None).collect::<Vec<_>>());
    let work = || {
        while !is_failed.load(Ordering::Relaxed) {
            let index = next.fetch_add(1, Ordering::Relaxed);
            if index >= count {
                return;
            }
            let result = job(index);
            is_failed.fetch_or(result.is_err(), Ordering::Relaxed);
            results.lock().unwrap_or_else(PoisonError::into_inner)[index] = Some(result);
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..parallelism.min(count) {
            scope.spawn(work);
        }
        work();
    });
    let results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
    results.into_iter().flatten().collect()
}

/// One megabyte: large enough for any disk, small enough to have many under way.
const CHUNK_BLOCKS: u32 = 256;

#[cfg(test)]
mod tests {
    use super::super::group::Content;
    use super::*;

    #[test]
    fn runs_hold_every_chunk_once_and_lie_in_one_stretch() {
        let mut first = 0;
        let run = |blocks: u32| {
            first += 1_000;
            Run { extent: Extent { first: Lba(first), blocks }, content: Content::Data }
        };
        let chunks = Chunk::of([1, 2, 250, 3, 1, 600, 255, 1, 1].map(run));
        let runs = Chunk::runs(&chunks);
        let covered: Vec<usize> = runs.iter().cloned().flatten().collect();
        assert_eq!(covered, (0..chunks.len()).collect::<Vec<_>>());
        assert_eq!(runs.len(), 7, "{runs:?}");
        let mut payload = 0;
        for run in runs {
            let blocks: u32 = chunks[run.clone()].iter().map(|chunk| chunk.extent.blocks).sum();
            assert!((1..=CHUNK_BLOCKS).contains(&blocks), "{blocks}");
            assert_eq!(chunks[run.start].payload, payload);
            payload += u64::from(blocks) * BLOCK as u64;
        }
        assert_eq!(payload, 1_114 * BLOCK as u64);
        assert!(Chunk::runs(&[]).is_empty());
    }
}
