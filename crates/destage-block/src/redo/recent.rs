//! The blocks destaged last.

use crate::block::{Extent, Lba};
use std::collections::{HashMap, VecDeque};

/// The blocks destaged last, with their checksums; at most [`RecentBlocks::MAX`], each once.
#[derive(Clone, Debug, Default)]
pub struct RecentBlocks {
    sums: HashMap<Lba, (u32, u64)>,
    /// With the number of the entry; older numbers of a block stand for nothing.
    order: VecDeque<(Lba, u64)>,
    next: u64,
}

impl RecentBlocks {
    /// How many are kept.
    pub const MAX: usize = 1_024;

    /// None yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// A block has reached the origin with these contents: the checksum of the whole block, of which what lies behind the
    /// origin's end is zeros.
    pub fn push(&mut self, lba: Lba, crc: u32) {
        self.next += 1;
        self.sums.insert(lba, (crc, self.next));
        self.order.push_back((lba, self.next));
        while self.sums.len() > Self::MAX || self.order.len() > 4 * Self::MAX {
            let Some((lba, number)) = self.order.pop_front() else { return };
            if self.sums.get(&lba).is_some_and(|(_, newest)| *newest == number) {
                self.sums.remove(&lba);
            }
        }
    }

    /// Blocks that no longer hold what was noted.
    pub fn forget(&mut self, extent: Extent) {
        self.sums.retain(|lba, _| *lba < extent.first || extent.end() <= *lba);
    }

    /// Each block with its checksum, the oldest first.
    pub fn iter(&self) -> impl Iterator<Item = (Lba, u32)> {
        self.order.iter().filter_map(|(lba, number)| {
            let (crc, newest) = self.sums.get(lba)?;
            (newest == number).then_some((*lba, *crc))
        })
    }
}
