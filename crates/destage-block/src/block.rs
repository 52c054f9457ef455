//! Blocks: the units of a volume.

/// Bytes in a block: the unit of caching and of order.
pub const BLOCK: usize = 4096;

/// The number of a block: its byte offset in the volume divided by [`BLOCK`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lba(pub u64);

impl Lba {
    /// The block that holds a byte of the volume.
    pub const fn of(offset: u64) -> Self {
        Self(offset / BLOCK as u64)
    }

    /// Where the block begins in the volume, bytes.
    pub const fn offset(self) -> u64 {
        self.0 * BLOCK as u64
    }
}

/// Consecutive blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Extent {
    /// The first of them.
    pub first: Lba,
    /// How many; at least 1.
    pub blocks: u32,
}

impl Extent {
    /// The block after the last one.
    pub const fn end(self) -> Lba {
        Lba(self.first.0 + self.blocks as u64)
    }

    /// Bytes in it, as far as the volume's end does not cut the last block.
    pub const fn bytes(self) -> u64 {
        self.blocks as u64 * BLOCK as u64
    }

    /// Each of its blocks, in order.
    pub fn iter(self) -> impl ExactSizeIterator<Item = Lba> {
        (0..self.blocks).map(move |index| Lba(self.first.0 + u64::from(index)))
    }
}
