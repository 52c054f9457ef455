//! What the device says of itself.

use super::CacheError;
use super::bytes::{u32_at, u64_at};
use super::geometry::{Geometry, PAGE, SUPERBLOCKS};
use super::medium::Medium;
use crc32c::crc32c;
use uuid::Uuid;

/// The store that a cache belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OriginId {
    /// From the attach record; nil if the origin has none. Decides whether it is the same origin; between two nil ones the
    /// names do.
    pub uuid: Uuid,
    /// How the user named it, without secrets; at most [`ORIGIN_NAME_BYTES_MAX`] bytes.
    pub name: String,
    /// Bytes of the volume.
    pub volume_bytes: u64,
}

/// The superblock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// Names this cache for ever. Checksums of all other parts start from it, so that what an earlier cache has left on
    /// the device never fits.
    pub uuid: Uuid,
    /// Counts the writings of the superblock, from 1; the copy with the higher one holds.
    pub generation: u64,
    /// When the cache was made, nanoseconds since the Unix epoch.
    pub created_ns: u64,
    /// Where everything lies.
    pub geometry: Geometry,
    /// Whose cache it is.
    pub origin: OriginId,
    /// When it was last attached there.
    pub attachment: Attachment,
}

/// Numbers of the cache's own attachments at its origin, as the origin's attach record counts them: by them a start tells
/// an older copy of the cache, or of the record. Zeros: none yet, or by a release that did not note them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attachment {
    /// The last one that was begun; the record may hold it or not.
    pub begun: u64,
    /// The last one that the record is known to hold.
    pub made: u64,
}

/// What is at the place of a superblock's copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Copy {
    /// A whole one.
    Sound(Superblock),
    /// One of another format version.
    Version(u32),
    /// One that does not agree with its checksum.
    Damaged,
    /// A cache was being made here, and that came to no end.
    Unfinished,
    /// Something else.
    Foreign,
}

impl OriginId {
    /// Whether this is the origin that the cache was made for.
    pub fn is_same(&self, other: &Self) -> bool {
        if self.uuid.is_nil() && other.uuid.is_nil() {
            return self.name == other.name;
        }
        self.uuid == other.uuid
    }
}

impl Superblock {
    /// Where checksums of this cache's other parts start.
    pub(crate) fn seed(&self) -> u32 {
        crc32c(self.uuid.as_bytes())
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(PAGE as usize);
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&CACHE_VERSION.to_le_bytes());
        out.extend_from_slice(&crc32c(&out).to_le_bytes());
        out.extend_from_slice(self.uuid.as_bytes());
        let geometry = &self.geometry;
        for word in [self.generation, self.created_ns, geometry.total_bytes, geometry.segment_bytes]
        {
            out.extend_from_slice(&word.to_le_bytes());
        }
        out.extend_from_slice(&geometry.extents.to_le_bytes());
        out.extend_from_slice(&geometry.slots.to_le_bytes());
        out.extend_from_slice(self.origin.uuid.as_bytes());
        out.extend_from_slice(&self.origin.volume_bytes.to_le_bytes());
        let name = self.origin.name.as_bytes();
        let len = u16::try_from(name.len()).expect("the name's length was checked");
        out.extend_from_slice(&len.to_le_bytes());
        out.extend_from_slice(name);
        assert!(out.len() <= ATTACHMENT_OFFSET, "the name's length was checked");
        out.resize(ATTACHMENT_OFFSET, 0);
        out.extend_from_slice(&self.attachment.begun.to_le_bytes());
        out.extend_from_slice(&self.attachment.made.to_le_bytes());
        out.resize(CRC_OFFSET, 0);
        out.extend_from_slice(&crc32c(&out[16..]).to_le_bytes());
        out
    }

    fn decode(page: &[u8]) -> Copy {
        if page.starts_with(MAGIC_UNFINISHED) {
            return Copy::Unfinished;
        }
        if !page.starts_with(MAGIC) {
            return Copy::Foreign;
        }
        // These 16 bytes keep their meaning in every version, so that another version is told apart from damage.
        if u32_at(page, 12) != crc32c(&page[..12]) {
            return Copy::Damaged;
        }
        if u32_at(page, 8) != CACHE_VERSION {
            return Copy::Version(u32_at(page, 8));
        }
        if u32_at(page, CRC_OFFSET) != crc32c(&page[16..CRC_OFFSET]) {
            return Copy::Damaged;
        }
        let geometry = Geometry {
            total_bytes: u64_at(page, 48),
            segment_bytes: u64_at(page, 56),
            extents: u32_at(page, 64),
            slots: u32_at(page, 68),
        };
        let name_len = usize::from(u16::from_le_bytes([page[96], page[97]]));
        let name = page[..ATTACHMENT_OFFSET].get(98..98 + name_len).map(<[u8]>::to_vec);
        let name = name.and_then(|bytes| String::from_utf8(bytes).ok());
        let (Some(name), true) = (name, geometry.is_sound()) else { return Copy::Damaged };
        Copy::Sound(Self {
            uuid: uuid_at(page, 16),
            generation: u64_at(page, 32),
            created_ns: u64_at(page, 40),
            geometry,
            origin: OriginId { uuid: uuid_at(page, 72), name, volume_bytes: u64_at(page, 88) },
            attachment: Attachment {
                begun: u64_at(page, ATTACHMENT_OFFSET),
                made: u64_at(page, ATTACHMENT_OFFSET + 8),
            },
        })
    }
}

/// Both copies, as they are.
pub(crate) fn read_copies(medium: &Medium) -> Result<[Copy; 2], CacheError> {
    let len = medium.len().map_err(CacheError::io("measure the cache device"))?;
    let mut copies = [Copy::Foreign, Copy::Foreign];
    for (copy, offset) in copies.iter_mut().zip(SUPERBLOCKS) {
        if len < offset + PAGE {
            continue;
        }
        let mut page = vec![0; PAGE as usize];
        medium.read(offset, &mut page).map_err(CacheError::io("read the superblock"))?;
        *copy = Superblock::decode(&page);
    }
    Ok(copies)
}

/// The superblock in force.
pub(crate) fn choose(copies: &[Copy; 2]) -> Result<Superblock, CacheError> {
    let sound = copies.iter().filter_map(|c| if let Copy::Sound(s) = c { Some(s) } else { None });
    if let Some(newest) = sound.max_by_key(|s| s.generation) {
        return Ok(newest.clone());
    }
    for copy in copies {
        if let Copy::Version(found) = *copy {
            return Err(CacheError::Version { found, known: CACHE_VERSION });
        }
    }
    // Beside an unfinished copy a damaged one is the first that was being written.
    if copies.contains(&Copy::Damaged) && !copies.contains(&Copy::Unfinished) {
        return Err(CacheError::Damaged("superblock"));
    }
    Err(CacheError::NotACache)
}

/// Writes both copies, one after the other: whenever the power goes, one of them is whole.
pub(crate) fn write_copies(medium: &Medium, superblock: &Superblock) -> Result<(), CacheError> {
    let page = superblock.encode();
    for offset in SUPERBLOCKS {
        let written = medium.write(offset, &page).and_then(|()| medium.sync());
        written.map_err(CacheError::io("write the superblock"))?;
    }
    Ok(())
}

/// Writes those copies again, not synced, that hold what is in force already.
pub(crate) fn write_again(
    medium: &Medium,
    superblock: &Superblock,
    copies: &[Copy; 2],
) -> Result<(), CacheError> {
    let page = superblock.encode();
    for (copy, offset) in copies.iter().zip(SUPERBLOCKS) {
        if *copy == Copy::Sound(superblock.clone()) {
            let written = medium.write(offset, &page);
            written.map_err(CacheError::io("write the superblock again"))?;
        }
    }
    Ok(())
}

/// Makes sure that nothing is taken for a cache until the new one is complete, and that what a crash leaves of it is not
/// taken for someone's data.
pub(crate) fn begin(medium: &Medium) -> Result<(), CacheError> {
    let mut page = vec![0; PAGE as usize];
    page[..MAGIC_UNFINISHED.len()].copy_from_slice(MAGIC_UNFINISHED);
    for offset in SUPERBLOCKS {
        let begun = medium.write(offset, &page);
        begun.map_err(CacheError::io("begin the new cache"))?;
    }
    medium.sync().map_err(CacheError::io("begin the new cache"))
}

fn uuid_at(bytes: &[u8], at: usize) -> Uuid {
    Uuid::from_bytes(bytes[at..at + 16].try_into().expect("sixteen bytes"))
}

/// The format version that this build writes and reads.
pub const CACHE_VERSION: u32 = 1;
/// The longest name of an origin.
pub const ORIGIN_NAME_BYTES_MAX: usize = 2048;

const MAGIC: &[u8; 8] = b"DESTAGEC";
const MAGIC_UNFINISHED: &[u8; 8] = b"DESTAGEU";
/// Behind the longest name.
const ATTACHMENT_OFFSET: usize = 2_160;
const CRC_OFFSET: usize = PAGE as usize - 4;
