//! What the origin has room for: a change is answered only if it fits there as well, besides all that is on its way.
//!
//! The room is asked for elsewhere, and takes its time. What lands meanwhile may be missing in the answer, so it counts as
//! if it were still on its way: room is never counted twice, at most too little for a moment.

use super::extents::Content;
use super::plan::FileWork;
use super::tree::Tree;
use crate::ask::{Ask, Space};

/// Room that all ranges of one file take, in ascending order.
fn taken<'a>(ranges: impl Iterator<Item = (u64, u64, &'a Content)>) -> u64 {
    let (mut blocks, mut upto) = (0, 0);
    for (offset, len, _) in ranges.filter(|(.., content)| content.is_bytes()) {
        let end = (offset + len).div_ceil(BLOCK_BYTES);
        blocks += end - upto.clamp(offset / BLOCK_BYTES, end);
        upto = end;
    }
    blocks * BLOCK_BYTES
}

/// The same of what goes to the origin with a file.
fn brought(file: &FileWork) -> u64 {
    let xattrs = file.xattrs.iter().filter_map(|(_, value)| value.as_ref());
    let writes = file.writes.iter().map(|(at, len, content)| (*at, *len, content));
    taken(writes) + xattrs.map(|value| value.len() as u64).sum::<u64>()
}

/// Room that what is asked for may take at the origin.
pub(super) fn wanted(ask: &Ask) -> u64 {
    match ask {
        Ask::Write { data, .. } if !data.is_empty() => {
            // Wherever it begins within a block.
            (data.len() as u64).next_multiple_of(BLOCK_BYTES) + BLOCK_BYTES
        }
        Ask::SetXattr { value, .. } => value.len() as u64,
        Ask::Make { .. } | Ask::Link { .. } => NAME_BYTES,
        Ask::Fallocate { len, mode, .. } if mode & libc::FALLOC_FL_PUNCH_HOLE == 0 => *len,
        _ => 0,
    }
}

/// The part of it that may be used; `None` where the origin does not say.
pub(super) fn usable(space: &Space) -> Option<u64> {
    let bytes = space.available.saturating_mul(space.block_bytes.into());
    (space.blocks > 0).then_some(bytes / RESERVE_PART * (RESERVE_PART - 1))
}

impl Tree {
    /// Room that is still to be taken at an origin that was asked for its room when [`Tree::landed`] was so much.
    pub(super) fn on_its_way(&self, landed: u64) -> u64 {
        let names = self.log.len() as u64 * NAME_BYTES;
        let dirty = self.dirty.iter().filter_map(|&ino| self.node(ino));
        let files = dirty.filter(|node| !node.is_gone()).map(|node| {
            let xattrs = node.xattrs.values().filter_map(|(value, _)| value.as_ref());
            let xattrs: u64 = xattrs.map(|value| value.len() as u64).sum();
            taken(node.content.extents.all()) + xattrs
        });
        names + files.sum::<u64>() + (self.landed - landed)
    }

    /// A batch has landed with these files and so many changes of names.
    pub(super) fn count_landed(&mut self, files: &[FileWork], names: usize) {
        self.landed += files.iter().map(brought).sum::<u64>() + names as u64 * NAME_BYTES;
    }
}

/// A file's bytes take whole ones, on the usual origins.
const BLOCK_BYTES: u64 = 4096;
/// A name with what the origin knows of its file, at most.
const NAME_BYTES: u64 = 512;
/// One of so many parts is left for what the origin itself needs, and for what others take before it is asked again.
const RESERVE_PART: u64 = 20;
