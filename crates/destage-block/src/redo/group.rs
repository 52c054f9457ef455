//! What is written atomically.

use crate::block::{BLOCK, Extent, Lba};
use crate::origin::OriginError;
use destage_core::Lsn;

/// Changes that reach the origin together. Its blocks' bytes are fetched piece by piece from a [`Payload`], so that a group
/// need not fit in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// The first Lsn in it.
    pub from: Lsn,
    /// The last Lsn in it; the origin is the log up to here once the group is done.
    pub to: Lsn,
    /// Disjoint, in rising order.
    pub pieces: Vec<Piece>,
}

/// Consecutive blocks of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
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
    /// Fills `buf` with the blocks from `first` on, which lie in one data piece of the group. Called twice for each block,
    /// from several threads, and gives the same bytes each time. What lies behind the origin's end is ignored.
    ///
    /// # Errors
    /// As the medium that holds them reports them.
    fn fill(&self, first: Lba, buf: &mut [u8]) -> Result<(), OriginError>;

    /// Fills `buf` with what the origin holds of these blocks before the group, if that is known without asking it; with
    /// anything otherwise. What lies behind the origin's end is zeros. A wrong answer makes a replay refuse the blocks as
    /// another writer's.
    fn before(&self, extent: Extent, buf: &mut [u8]) -> bool {
        let _ = (extent, buf);
        false
    }
}

impl<F: Fn(Lba, &mut [u8]) -> Result<(), OriginError> + Sync> Payload for F {
    fn fill(&self, first: Lba, buf: &mut [u8]) -> Result<(), OriginError> {
        self(first, buf)
    }
}

impl Piece {
    /// Blocks whose bytes the payload gives.
    pub(super) fn data_blocks(&self) -> u64 {
        match self.content {
            Content::Data => u64::from(self.extent.blocks),
            Content::Zero { .. } => 0,
        }
    }
}

impl Group {
    /// Bytes of payload in it.
    pub fn payload_bytes(&self) -> u64 {
        self.pieces.iter().map(Piece::data_blocks).sum::<u64>() * BLOCK as u64
    }

    /// Why it cannot be written, if so.
    pub(super) fn check(&self, origin_bytes: u64) -> Result<(), String> {
        if self.from > self.to {
            return Err(format!("a group from Lsn {} to {} is empty", self.from.0, self.to.0));
        }
        let mut next = Lba(0);
        for piece in &self.pieces {
            if piece.extent.first < next || piece.extent.blocks == 0 {
                return Err(format!(
                    "the pieces of a group overlap at block {}",
                    piece.extent.first.0
                ));
            }
            next = piece.extent.end();
        }
        if next.0 > origin_bytes.div_ceil(BLOCK as u64) {
            return Err(format!("block {} lies behind the origin's end", next.0 - 1));
        }
        Ok(())
    }
}
