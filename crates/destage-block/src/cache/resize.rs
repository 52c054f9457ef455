//! A cache of another size: its clean blocks move to a new device, which then is the same cache. The old one is only read,
//! so whatever happens in between, it still holds everything.

use super::check::check_log;
use super::geometry::{Geometry, Sizing};
use super::index::{Index, SlotState};
use super::medium::Medium;
use super::superblock::{self, Superblock};
use super::{CacheDevice, CacheError, check_empty, check_size};
use crate::block::BLOCK;
use destage_journal::DiskFile;
use destage_runtime::progress::Progress;

/// What was moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resized {
    /// Slots of the new cache.
    pub slots: u32,
    /// Clean blocks that it holds.
    pub blocks: u64,
    /// Clean blocks that found no room there or were not what the index said.
    pub dropped: u64,
}

/// Makes `to` the same cache with other sizes. To be called while nobody uses `from`, which must not be used afterwards.
///
/// # Errors
/// [`CacheError::Dirty`] if the log holds writes that may not be at the origin; [`CacheError::Exists`] and
/// [`CacheError::NotEmpty`] if something is at `to`; for sizes as [`CacheDevice::create`].
pub fn resize(
    from: Box<dyn DiskFile>,
    to: Box<dyn DiskFile>,
    sizing: &Sizing,
) -> Result<Resized, CacheError> {
    let medium = Medium::new(from);
    let superblock = superblock::choose(&superblock::read_copies(&medium)?)?;
    check_size(&medium, &superblock.geometry)?;
    let old = CacheDevice::take_up(medium, superblock.clone())?;
    let (first, last) = check_log(&old)?;
    // A log that nothing was written to yet, as a resize leaves it, goes on behind what is decided.
    let last = if last == 0 { old.decided() } else { last };
    if last > old.decided() {
        return Err(CacheError::Dirty { groups: last - old.decided() });
    }
    let geometry = Geometry::plan(sizing)?;
    let target = Medium::new(to);
    check_size(&target, &geometry)?;
    check_empty(&target)?;
    let generation = superblock.generation + 1;
    let new = CacheDevice::format(target, Superblock { generation, geometry, ..superblock })?;
    let (index, checkpoint) = old.load_checkpoint(first)?;
    // Blocks that a later group changed are not in the checkpoint's slots any more; a killed server leaves such ones.
    let is_current = checkpoint == last;
    let mut resized = Resized { slots: new.slots(), blocks: 0, dropped: 0 };
    let mut moved = Index::new(new.slots());
    if is_current {
        move_blocks(&old, &index, &new, &mut moved, &mut resized)?;
    }
    resized.dropped = u64::from(index.used()) - resized.blocks;
    let mut writer = new.begin_checkpoint(last);
    while let Some(chunk) = writer.next_chunk() {
        writer.write(&moved.chunk(chunk))?;
    }
    writer.commit()?;
    new.set_decided(last)?;
    new.sync()?;
    Ok(resized)
}

fn move_blocks(
    old: &CacheDevice,
    index: &Index,
    new: &CacheDevice,
    moved: &mut Index,
    resized: &mut Resized,
) -> Result<(), CacheError> {
    let room = u64::from(new.slots() - new.slots() / SPARE_DIVISOR);
    let mut block = vec![0; BLOCK];
    let mut bar = Progress::new("moving clean blocks", u64::from(index.slots()));
    for handle in 0..index.slots() {
        bar.set(u64::from(handle));
        if resized.blocks == room {
            return Ok(());
        }
        let (SlotState::Clean(crc), Some(lba)) = (index.state(handle), index.lba(handle)) else {
            continue;
        };
        if !old.read_slot(handle, crc, &mut block)? {
            continue;
        }
        let Some(target) = moved.insert(lba) else { return Ok(()) };
        new.write_slots(&[(target, &block)])?;
        moved.set_clean(target, crc);
        resized.blocks += 1;
    }
    bar.finish();
    Ok(())
}

/// This share of the new slots is left free for what is written first.
const SPARE_DIVISOR: u32 = 8;
