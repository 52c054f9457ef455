//! What is written atomically.

use crate::block::{BLOCK, Extent, Lba};
use crate::origin::OriginIoError;
use destage_core::Lsn;

/// Changes that reach the origin together. Its blocks' bytes are fetched bit by bit from a [`Payload`], so that a group
/// need not fit in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AtomicGroup {
    /// The first Lsn in it.
    pub from: Lsn,
    /// The last Lsn in it; the origin is the log up to here once the group is done.
    pub to: Lsn,
    /// Disjoint, in rising order.
    pub runs: Vec<Run>,
}

/// Consecutive blocks of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Where.
    pub extent: Extent,
    /// What they become.
    pub content: Content,
}

/// What blocks become.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// What the payload says.
    Data,
    /// Zeros. What was there before is not compared at a replay.
    Zero {
        /// The origin may give the space back.
        punch: bool,
    },
}

/// Where the bytes of a group's blocks come from.
pub trait Payload: Sync {
    /// Fills `buf` with the blocks from `first` on, which lie in one data run of the group. Called twice for each block,
    /// from several threads, and gives the same bytes each time. What lies behind the origin's end is ignored.
    ///
    /// # Errors
    /// As the medium that holds them reports them.
    fn fill(&self, first: Lba, buf: &mut [u8]) -> Result<(), OriginIoError>;

    /// Fills `buf` with what the origin holds of these blocks before the group, if that is known without asking it; with
    /// anything otherwise. What lies behind the origin's end is zeros. A wrong answer makes a replay refuse the blocks as
    /// another writer's.
    fn before(&self, extent: Extent, buf: &mut [u8]) -> bool {
        let _ = (extent, buf);
        false
    }
}

impl<F: Fn(Lba, &mut [u8]) -> Result<(), OriginIoError> + Sync> Payload for F {
    fn fill(&self, first: Lba, buf: &mut [u8]) -> Result<(), OriginIoError> {
        self(first, buf)
    }
}

impl Run {
    /// Blocks whose bytes the payload gives.
    pub(super) fn data_blocks(&self) -> u64 {
        match self.content {
            Content::Data => u64::from(self.extent.blocks),
            Content::Zero { .. } => 0,
        }
    }
}

impl AtomicGroup {
    /// Bytes of payload in it.
    pub fn payload_bytes(&self) -> u64 {
        self.runs.iter().map(Run::data_blocks).sum::<u64>() * BLOCK as u64
    }

    /// Why it cannot be written, if so.
    pub(super) fn check(&self, origin_bytes: u64) -> Result<(), String> {
        if self.from > self.to {
            return Err(format!("a group from Lsn {} to {} is empty", self.from.0, self.to.0));
        }
        let mut next = Lba(0);
        for run in &self.runs {
            if run.extent.first < next || run.extent.blocks == 0 {
                return Err(format!("the runs of a group overlap at block {}", run.extent.first.0));
            }
            next = run.extent.end();
        }
        if next.0 > origin_bytes.div_ceil(BLOCK as u64) {
            return Err(format!("block {} lies behind the origin's end", next.0 - 1));
        }
        Ok(())
    }
}
