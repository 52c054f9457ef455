//! The cache device: one file or block device that holds the log of writes, the clean blocks and what is needed to take
//! both up again after a crash.
//!
//! It owns the layout and the order in which parts become durable. It survives power lost at any write, with any part of
//! what was not synced lost or torn, and tells damage apart from that. What is in the log and in the slots is its user's
//! business. `docs/FORMAT.md` describes the bytes.

mod bytes;
mod check;
mod checkpoint;
mod error;
mod geometry;
pub mod index;
mod inspect;
mod marks;
mod media;
mod medium;
pub mod record;
mod region;
mod resize;
mod sealed;
mod superblock;

pub use check::{Against, CacheCheck, CheckError, check};
pub use checkpoint::CheckpointWriter;
pub use error::CacheError;
pub use geometry::{Geometry, Sizing};
pub use index::{Handle, Index, SlotState};
pub use inspect::{Inspection, LogFile, inspect};
pub use media::FileMedia;
pub use region::RegionDisk;
pub use resize::{Resized, resize};
pub use superblock::{
    Attachment, CACHE_VERSION, Copy, ORIGIN_NAME_BYTES_MAX, OriginId, Superblock,
};

use crate::block::BLOCK;
use checkpoint::Checkpoints;
use crc32c::crc32c;
use destage_journal::{Disk, DiskFile, Options};
use marks::Marks;
use medium::Medium;
use std::borrow::Cow;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// An open cache device. Every method may be called from any thread at any time.
///
/// # Examples
/// ```
/// # use destage_block::cache::{CacheDevice, Creation, FileMedia, OriginId, Sizing};
/// # use destage_journal::Journal;
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("volume.cache");
/// let origin = OriginId {
///     uuid: uuid::Uuid::new_v4(),
///     name: "nbd://storage/volume".to_owned(),
///     volume_bytes: 1 << 40,
/// };
/// let sizing = Sizing { total_bytes: 8 << 20, log_bytes: None, segment_bytes: None };
/// let creation = Creation { sizing, origin: origin.clone(), created_ns: 0, overwrite: false };
/// let media = FileMedia::create(&path, sizing.total_bytes)?;
/// drop(CacheDevice::create(Box::new(media), &creation)?);
///
/// let cache = CacheDevice::open(Box::new(FileMedia::open(&path)?), &origin)?;
/// let (journal, recovery) = Journal::open(cache.log(), cache.log_options())?;
/// let (index, _lsn) = cache.load_checkpoint(recovery.first_lsn)?;
/// assert_eq!((index.used(), cache.decided(), journal.last()), (0, 0, 0));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct CacheDevice {
    medium: Medium,
    geometry: Geometry,
    superblock: Mutex<Superblock>,
    log: RegionDisk,
    marks: Marks,
    checkpoints: Checkpoints,
}

/// What a new cache device is to be.
#[derive(Clone, Debug)]
pub struct Creation {
    /// How large its parts are.
    pub sizing: Sizing,
    /// Whose cache it is.
    pub origin: OriginId,
    /// The time, nanoseconds since the Unix epoch.
    pub created_ns: u64,
    /// Whatever is there may be lost, another cache's undestaged writes included.
    pub overwrite: bool,
}

impl CacheDevice {
    /// Makes a cache on an empty device.
    ///
    /// # Errors
    /// [`CacheError::Exists`] and [`CacheError::NotEmpty`] if something is there, unless it may be overwritten;
    /// [`CacheError::TooSmall`] and [`CacheError::Invalid`] for sizes; [`CacheError::Io`] for the medium's trouble.
    pub fn create(file: Box<dyn DiskFile>, creation: &Creation) -> Result<Self, CacheError> {
        let geometry = Geometry::plan(&creation.sizing)?;
        check_origin(&creation.origin)?;
        let medium = Medium::new(file);
        check_size(&medium, &geometry)?;
        if !creation.overwrite {
            check_empty(&medium)?;
        }
        let superblock = Superblock {
            uuid: uuid::Uuid::new_v4(),
            generation: 1,
            created_ns: creation.created_ns,
            geometry,
            origin: creation.origin.clone(),
            attachment: Attachment::default(),
        };
        Self::format(medium, superblock)
    }

    /// Refuses a file or device that is not empty, for [`CacheDevice::create`]; changes nothing.
    ///
    /// # Errors
    /// [`CacheError::Exists`], [`CacheError::NotEmpty`], or what reading it gave.
    pub fn check_empty(file: Box<dyn DiskFile>) -> Result<(), CacheError> {
        check_empty(&Medium::new(file))
    }

    fn format(medium: Medium, superblock: Superblock) -> Result<Self, CacheError> {
        let seed = superblock.seed();
        superblock::begin(&medium)?;
        RegionDisk::format(&medium, &superblock.geometry, seed)?;
        Marks::format(&medium, seed)?;
        // Last: what has a superblock is complete.
        medium.sync().map_err(CacheError::io("write the new cache"))?;
        superblock::write_copies(&medium, &superblock)?;
        Self::take_up(medium, superblock)
    }

    /// Opens the cache of this origin.
    ///
    /// # Errors
    /// [`CacheError`] tells what is there instead, or what is wrong with it.
    pub fn open(file: Box<dyn DiskFile>, origin: &OriginId) -> Result<Self, CacheError> {
        Self::open_if(file, |found| {
            if found.is_same(origin) {
                Ok(())
            } else {
                Err(CacheError::OtherOrigin {
                    cache_name: found.name.clone(),
                    cache_uuid: found.uuid,
                    wanted_name: origin.name.clone(),
                    wanted_uuid: origin.uuid,
                })
            }
        })
    }

    /// Opens a cache whatever origin its superblock names. Whoever calls this finds out by other means whether it is the right
    /// one before anything is sent, and notes it by [`CacheDevice::set_origin`].
    ///
    /// # Errors
    /// As [`CacheDevice::open`].
    pub fn open_of_any_origin(file: Box<dyn DiskFile>) -> Result<Self, CacheError> {
        Self::open_if(file, |_| Ok(()))
    }

    fn open_if(
        file: Box<dyn DiskFile>,
        is_right: impl FnOnce(&OriginId) -> Result<(), CacheError>,
    ) -> Result<Self, CacheError> {
        let medium = Medium::new(file);
        let copies = superblock::read_copies(&medium)?;
        let superblock = superblock::choose(&copies)?;
        check_size(&medium, &superblock.geometry)?;
        is_right(&superblock.origin)?;
        let cache = Self::take_up(medium, superblock)?;
        cache.settle(&copies)?;
        Ok(cache)
    }

    /// Makes durable what counts, on the strength of which the older copies are overwritten later. It may be in the system's
    /// cache only, even after a sync that succeeds, if an earlier one failed; the same bytes written once more are not. The
    /// log and the slots see to themselves: the journal writes its end again, and slots have checksums.
    fn settle(&self, copies: &[Copy; 2]) -> Result<(), CacheError> {
        let superblock = self.superblock();
        superblock::write_again(&self.medium, &superblock, copies)?;
        self.log.write_again()?;
        self.marks.write_again()?;
        self.checkpoints.write_again()?;
        self.sync()?;
        if copies.iter().any(|copy| *copy != Copy::Sound(superblock.clone())) {
            tracing::warn!(
                "one copy of the cache's superblock was out of date or damaged; written again"
            );
            superblock::write_copies(&self.medium, &superblock)?;
        }
        Ok(())
    }

    fn take_up(medium: Medium, superblock: Superblock) -> Result<Self, CacheError> {
        let (geometry, seed) = (superblock.geometry, superblock.seed());
        Ok(Self {
            log: RegionDisk::open(medium.clone(), geometry, seed)?,
            marks: Marks::open(medium.clone(), seed)?,
            checkpoints: Checkpoints::open(medium.clone(), geometry, seed)?,
            superblock: Mutex::new(superblock),
            geometry,
            medium,
        })
    }

    /// What the superblock says.
    pub fn superblock(&self) -> Superblock {
        self.superblock.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Where everything lies.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Slots for clean blocks: the handles that there are.
    pub fn slots(&self) -> u32 {
        self.geometry.slots
    }

    /// Notes another name or size of the same origin, durably.
    ///
    /// # Errors
    /// [`CacheError::Invalid`] for an origin that no cache can have, [`CacheError::Io`] for the medium's trouble.
    pub fn set_origin(&self, origin: OriginId) -> Result<(), CacheError> {
        check_origin(&origin)?;
        self.change_superblock(|current| Superblock { origin, ..current })
    }

    /// Notes how far an attachment has come, durably.
    ///
    /// # Errors
    /// [`CacheError::Io`] for the medium's trouble.
    pub fn set_attachment(&self, attachment: Attachment) -> Result<(), CacheError> {
        self.change_superblock(|current| Superblock { attachment, ..current })
    }

    fn change_superblock(
        &self,
        change: impl FnOnce(Superblock) -> Superblock,
    ) -> Result<(), CacheError> {
        let mut current = self.superblock.lock().unwrap_or_else(PoisonError::into_inner);
        let next = Superblock { generation: current.generation + 1, ..change(current.clone()) };
        superblock::write_copies(&self.medium, &next)?;
        *current = next;
        Ok(())
    }

    /// Where the journal keeps its files.
    pub fn log(&self) -> Arc<dyn Disk> {
        Arc::new(self.log.clone())
    }

    /// How the journal is to be opened there: it lets go of decided groups at once, and keeps all files for use again.
    pub fn log_options(&self) -> Options {
        Options {
            segment_bytes: self.geometry.segment_bytes,
            journal_bytes_max: self.geometry.log_bytes(),
            retain: Duration::ZERO,
            spares_max: self.geometry.extents as usize,
            summarise: Some(record::summarise),
            ..Options::default()
        }
    }

    /// Extents of the log that hold no file of the journal, not even a spare one.
    pub fn log_free_extents(&self) -> u32 {
        self.log.free_extents()
    }

    /// Reads a slot into `block`, [`BLOCK`] bytes. False, and any bytes in `block`, if they are not those with this
    /// checksum: a miss, for whatever reason.
    ///
    /// # Errors
    /// As the medium reports them. A miss as well; to be counted as trouble.
    ///
    /// # Panics
    /// If there is no such handle; so for all methods that take one.
    pub fn read_slot(
        &self,
        handle: Handle,
        crc: u32,
        block: &mut [u8],
    ) -> Result<bool, CacheError> {
        assert!(
            handle < self.slots() && block.len() == BLOCK,
            "a slot of this device, a block's room"
        );
        let read = self.medium.read(self.geometry.slot(handle), block);
        read.map_err(CacheError::io(format!("read slot {handle} of the cache")))?;
        Ok(crc32c(block) == crc)
    }

    /// As [`CacheDevice::read_slot`], if it takes no waiting; `None` if it would.
    ///
    /// # Errors
    /// As [`CacheDevice::read_slot`].
    pub fn read_slot_now(
        &self,
        handle: Handle,
        crc: u32,
        block: &mut [u8],
    ) -> Result<Option<bool>, CacheError> {
        assert!(
            handle < self.slots() && block.len() == BLOCK,
            "a slot of this device, a block's room"
        );
        let read = self.medium.read_now(self.geometry.slot(handle), block);
        let is_read = read.map_err(CacheError::io(format!("read slot {handle} of the cache")))?;
        Ok(is_read.then(|| crc32c(block) == crc))
    }

    /// Writes blocks into their slots; adjacent handles that follow one another in one write. Not synced: until a sync the
    /// old or any torn contents may come back after a crash, which their checksums show.
    ///
    /// # Errors
    /// As the medium reports them. Any of the slots may then hold anything.
    pub fn write_slots(&self, blocks: &[(Handle, &[u8])]) -> Result<(), CacheError> {
        let Some((first, _)) = blocks.first() else { return Ok(()) };
        let adjacent = |a: &(Handle, &[u8]), b: &(Handle, &[u8])| a.0 + 1 == b.0;
        let runs = || blocks.chunk_by(adjacent).flat_map(|run| run.chunks(SLOTS_PER_WRITE));
        let joined: Vec<Cow<'_, [u8]>> = runs().map(joined).collect();
        let mut writes = Vec::with_capacity(joined.len());
        for (run, bytes) in runs().zip(&joined) {
            assert!(run[run.len() - 1].0 < self.slots(), "slots of this device");
            assert!(run.iter().all(|(_, block)| block.len() == BLOCK), "whole blocks");
            writes.push((self.geometry.slot(run[0].0), &bytes[..]));
        }
        let written = self.medium.write_each(&writes);
        written.map_err(CacheError::io(format!("write slots from {first} on of the cache")))
    }

    /// Up to where the origin is known to have come.
    pub fn decided(&self) -> u64 {
        self.marks.decided()
    }

    /// Notes how far the origin has come, durably. A lower number than before changes nothing.
    ///
    /// # Errors
    /// As the medium reports them.
    pub fn set_decided(&self, lsn: u64) -> Result<(), CacheError> {
        self.marks.set(lsn)
    }

    /// Begins a checkpoint of the index at `lsn`: the newest group appended at this moment or an older one. Its chunks may
    /// be copied from the index one by one, at any later moment each.
    ///
    /// # Panics
    /// If another one is being written.
    pub fn begin_checkpoint(&self, lsn: u64) -> CheckpointWriter {
        self.checkpoints.begin(lsn)
    }

    /// Forgets every clean block, durably and in both places: something else has changed the origin. `lsn` is the newest group
    /// of the log.
    ///
    /// # Errors
    /// As the medium reports them; the blocks may then come back at the next start.
    pub fn drop_clean(&self, lsn: u64) -> Result<(), CacheError> {
        let empty = Index::new(self.slots());
        for _area in 0..2 {
            let mut writer = self.begin_checkpoint(lsn);
            while let Some(chunk) = writer.next_chunk() {
                writer.write(&empty.chunk(chunk))?;
            }
            writer.commit()?;
        }
        Ok(())
    }

    /// The Lsn of the checkpoint in force; the log must keep all groups after it. Which one is in force,
    /// [`CacheDevice::load_checkpoint`] has found out.
    pub fn checkpoint_lsn(&self) -> Option<u64> {
        self.checkpoints.lsn()
    }

    /// The incarnation of the log (the lower half of its number) in which the volume was closed with the checkpoint in force, if
    /// it was: unless there was a later one, the checkpoint tells exactly what the slots hold.
    pub fn closed_by(&self) -> Option<u32> {
        self.checkpoints.closed_by()
    }

    /// The index as the newest checkpoint has it, and that checkpoint's Lsn; an empty one and 0 if there is none, or none
    /// that the log, whose oldest retained group is `log_first_lsn`, reaches back to. The caller drops the handle of each
    /// block that a group after that Lsn changes.
    ///
    /// # Errors
    /// As the medium reports them.
    pub fn load_checkpoint(&self, log_first_lsn: u64) -> Result<(Index, u64), CacheError> {
        let found = self.checkpoints.load(log_first_lsn)?;
        Ok(found.map_or_else(|| (Index::new(self.slots()), 0), |(lsn, index)| (index, lsn)))
    }

    /// Makes everything on the device durable.
    ///
    /// # Errors
    /// As the medium reports them: after a failed sync nothing is written any more.
    pub fn sync(&self) -> Result<(), CacheError> {
        self.medium.sync().map_err(CacheError::io("sync the cache device"))
    }
}

fn check_origin(origin: &OriginId) -> Result<(), CacheError> {
    if origin.name.len() > ORIGIN_NAME_BYTES_MAX {
        return Err(CacheError::Invalid(format!(
            "the origin's name has {} bytes: use at most {ORIGIN_NAME_BYTES_MAX}",
            origin.name.len()
        )));
    }
    let bytes_max = (Index::LBA_MAX.0 + 1) * BLOCK as u64;
    if origin.volume_bytes > bytes_max {
        return Err(CacheError::Invalid(format!(
            "the volume has {} bytes: a cache takes volumes of up to {bytes_max}",
            origin.volume_bytes
        )));
    }
    Ok(())
}

fn check_size(medium: &Medium, geometry: &Geometry) -> Result<(), CacheError> {
    let found = medium.len().map_err(CacheError::io("measure the cache device"))?;
    if found < geometry.total_bytes {
        return Err(CacheError::TooSmall { expected: geometry.total_bytes, found });
    }
    Ok(())
}

/// Refuses what may be someone's data.
fn check_empty(medium: &Medium) -> Result<(), CacheError> {
    let copies = superblock::read_copies(medium)?;
    match superblock::choose(&copies) {
        Err(CacheError::NotACache) if copies.contains(&Copy::Unfinished) => return Ok(()),
        Err(CacheError::NotACache) => {}
        _ => return Err(CacheError::Exists),
    }
    let len = medium.len().map_err(CacheError::io("measure the cache device"))?;
    let mut head = vec![0; len.min(geometry::HEAD_BYTES) as usize];
    medium.read(0, &mut head).map_err(CacheError::io("read the cache device"))?;
    if head.iter().any(|&byte| byte != 0) {
        return Err(CacheError::NotEmpty);
    }
    Ok(())
}

/// The bytes of neighbours, one after the other.
fn joined<'a>(run: &[(Handle, &'a [u8])]) -> Cow<'a, [u8]> {
    match run {
        [(_, block)] => Cow::Borrowed(block),
        _ => Cow::Owned(run.iter().flat_map(|(_, block)| block.iter().copied()).collect()),
    }
}

const SLOTS_PER_WRITE: usize = (1 << 20) / BLOCK;

#[cfg(test)]
mod tests;
