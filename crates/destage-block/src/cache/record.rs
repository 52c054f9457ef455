//! Write groups as the log holds them: the payload of one record of the journal. `docs/FORMAT.md` draws the bytes.
//!
//! The journal's checksum covers a record as a whole while the log is scanned. Each block carries its own besides, so that
//! one block can be read alone at any later time.

use super::bytes::{u32_at, u64_at};
use crate::block::{BLOCK, Extent, Lba};
use crc32c::crc32c;

/// What a write group does to its extents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupKind {
    /// New contents follow.
    Write,
    /// The extents read as zeros; their space stays reserved.
    Zero,
    /// The extents read as zeros; their space may be given back.
    Trim,
    /// No change: a point at which the volume was consistent, as an application says. Has no extents.
    Mark,
}

/// What stands before a group's blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupHeader {
    /// What the group does.
    pub kind: GroupKind,
    /// The level or epoch of the order policy that was in force.
    pub level: u64,
    /// Where, in the order of the blocks that follow.
    pub extents: Vec<Extent>,
    /// The next group is another part of the same request: the origin never stays between them.
    pub continues: bool,
}

/// A group as it lies in a record, borrowed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupRecord<'a> {
    /// What stands before its blocks.
    pub header: GroupHeader,
    /// Checksum and contents of each block; empty unless it is a write.
    blocks: &'a [u8],
}

/// Why a payload is no group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// Shorter or longer than its header says.
    #[error(
        "the record of {found} bytes should have {expected}: the log was damaged before it was sealed"
    )]
    Length {
        /// Bytes that the header asks for.
        expected: u64,
        /// Bytes that are there.
        found: u64,
    },
    /// Of another version.
    #[error(
        "the record has version {0}, this build reads {RECORD_VERSION}: drain the cache with the build that wrote it"
    )]
    Version(u8),
    /// Of no known kind.
    #[error(
        "the record is of kind {0}, which does not exist: the log was damaged before it was sealed"
    )]
    Kind(u8),
    /// Flags that this build does not know.
    #[error(
        "the record has the unknown flags {0:#06x}: drain the cache with the build that wrote it"
    )]
    Flags(u16),
    /// Extents that no volume has: empty, or beyond the largest offset; or extents in a mark.
    #[error("the record's extent {0} makes no sense: the log was damaged before it was sealed")]
    Extent(u16),
}

impl GroupHeader {
    /// Blocks in all extents.
    pub fn blocks(&self) -> u64 {
        self.extents.iter().map(|extent| u64::from(extent.blocks)).sum()
    }

    /// Bytes of the whole payload.
    pub fn payload_bytes(&self) -> u64 {
        let blocks = if self.kind == GroupKind::Write { self.blocks() } else { 0 };
        header_bytes(self.extents.len()) + blocks * STORED_BLOCK as u64
    }

    /// Appends the payload to `out`; `data` holds the blocks of a write in the order of the extents. `crcs` gets the
    /// checksum of each of them.
    ///
    /// # Panics
    /// If `data` does not have the length that kind and extents ask for, or there are more than [`EXTENTS_MAX`] extents.
    pub fn encode(&self, data: &[u8], out: &mut Vec<u8>, crcs: &mut Vec<u32>) {
        let blocks = if self.kind == GroupKind::Write { self.blocks() } else { 0 };
        assert_eq!(data.len() as u64, blocks * BLOCK as u64, "contents for each block");
        let count = u16::try_from(self.extents.len()).expect("the caller cuts long requests");
        out.reserve(self.payload_bytes() as usize);
        out.extend_from_slice(&[RECORD_VERSION, self.kind.code()]);
        let flags = if self.continues { CONTINUES } else { 0 };
        out.extend_from_slice(&flags.to_le_bytes());
        out.extend_from_slice(&self.level.to_le_bytes());
        out.extend_from_slice(&count.to_le_bytes());
        for extent in &self.extents {
            out.extend_from_slice(&extent.first.0.to_le_bytes());
            out.extend_from_slice(&extent.blocks.to_le_bytes());
        }
        for block in data.chunks_exact(BLOCK) {
            let crc = crc32c(block);
            out.extend_from_slice(&crc.to_le_bytes());
            out.extend_from_slice(block);
            crcs.push(crc);
        }
    }
}

impl GroupHeader {
    /// The header at the start of `bytes`, and what follows it.
    fn decode(bytes: &[u8]) -> Result<(Self, &[u8]), RecordError> {
        let short = |expected| RecordError::Length { expected, found: bytes.len() as u64 };
        let fixed = bytes.get(..FIXED_HEADER).ok_or_else(|| short(FIXED_HEADER as u64))?;
        if fixed[0] != RECORD_VERSION {
            return Err(RecordError::Version(fixed[0]));
        }
        let kind = GroupKind::of(fixed[1]).ok_or(RecordError::Kind(fixed[1]))?;
        let flags = u16::from_le_bytes([fixed[2], fixed[3]]);
        if flags & !CONTINUES != 0 {
            return Err(RecordError::Flags(flags));
        }
        let count = usize::from(u16::from_le_bytes([fixed[12], fixed[13]]));
        let len = header_bytes(count);
        let listed = bytes.get(FIXED_HEADER..len as usize).ok_or_else(|| short(len))?;
        let header = Self {
            kind,
            level: u64_at(fixed, 4),
            extents: extents(kind, listed)?,
            continues: flags & CONTINUES != 0,
        };
        Ok((header, &bytes[len as usize..]))
    }
}

impl GroupKind {
    fn code(self) -> u8 {
        match self {
            Self::Write => 1,
            Self::Zero => 2,
            Self::Trim => 3,
            Self::Mark => 4,
        }
    }

    fn of(code: u8) -> Option<Self> {
        [Self::Write, Self::Zero, Self::Trim, Self::Mark].into_iter().find(|k| k.code() == code)
    }
}

impl<'a> GroupRecord<'a> {
    /// Takes a record's payload apart. Any bytes are safe to pass. The blocks' own checksums are not compared: the
    /// journal's has covered them.
    ///
    /// # Errors
    /// If it is not a group of this version.
    pub fn decode(payload: &'a [u8]) -> Result<Self, RecordError> {
        let (header, blocks) = GroupHeader::decode(payload)?;
        if header.payload_bytes() != payload.len() as u64 {
            let (expected, found) = (header.payload_bytes(), payload.len() as u64);
            return Err(RecordError::Length { expected, found });
        }
        Ok(Self { header, blocks })
    }

    /// Checksum and contents of each block of a write, in the order of the extents; nothing for other kinds.
    pub fn blocks(&self) -> impl ExactSizeIterator<Item = (u32, &'a [u8])> + use<'a> {
        self.blocks
            .chunks_exact(STORED_BLOCK)
            .map(|stored| (u32_at(stored, 0), &stored[CRC_BYTES..]))
    }
}

/// What a start needs of a group: what stands before its blocks, and their checksums.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupSummary {
    /// What stands before the group's blocks.
    pub header: GroupHeader,
    /// The checksum of each block of a write, in the order of the extents.
    pub crcs: Vec<u32>,
}

/// Takes the summary from a group's payload: its header, then the checksums. Of what is no group as much is taken as
/// [`GroupSummary::decode`] needs to find the same fault.
pub fn summarise(payload: &[u8], out: &mut Vec<u8>) {
    let decoded = GroupRecord::decode(payload);
    let needed = match (&decoded, payload.get(EXTENTS_AT..FIXED_HEADER)) {
        (Ok(_) | Err(RecordError::Length { .. } | RecordError::Extent(_)), Some(count)) => {
            header_bytes(usize::from(u16::from_le_bytes([count[0], count[1]]))) as usize
        }
        _ => FIXED_HEADER,
    };
    out.extend_from_slice(&payload[..needed.min(payload.len())]);
    let Ok(group) = decoded else { return };
    group.blocks().for_each(|(crc, _)| out.extend_from_slice(&crc.to_le_bytes()));
}

impl GroupSummary {
    /// Takes the summary of a payload of `payload_bytes` apart. Any bytes are safe to pass.
    ///
    /// # Errors
    /// If the payload was not a group of this version, or it was and this is not its summary.
    pub fn decode(summary: &[u8], payload_bytes: u32) -> Result<Self, RecordError> {
        let (header, crcs) = GroupHeader::decode(summary)?;
        let wrong = |expected, found| Err(RecordError::Length { expected, found });
        if header.payload_bytes() != u64::from(payload_bytes) {
            return wrong(header.payload_bytes(), u64::from(payload_bytes));
        }
        let blocks = if header.kind == GroupKind::Write { header.blocks() } else { 0 };
        if crcs.len() as u64 != blocks * CRC_BYTES as u64 {
            return wrong(blocks * CRC_BYTES as u64, crcs.len() as u64);
        }
        Ok(Self { header, crcs: crcs.chunks_exact(CRC_BYTES).map(|crc| u32_at(crc, 0)).collect() })
    }
}

fn extents(kind: GroupKind, listed: &[u8]) -> Result<Vec<Extent>, RecordError> {
    let mut extents = Vec::with_capacity(listed.len() / EXTENT_BYTES);
    for (index, bytes) in (0..).zip(listed.chunks_exact(EXTENT_BYTES)) {
        let extent = Extent { first: Lba(u64_at(bytes, 0)), blocks: u32_at(bytes, 8) };
        let end = extent.first.0.checked_add(u64::from(extent.blocks));
        let inside = end.is_some_and(|end| end <= u64::MAX / BLOCK as u64);
        if kind == GroupKind::Mark || extent.blocks == 0 || !inside {
            return Err(RecordError::Extent(index));
        }
        extents.push(extent);
    }
    Ok(extents)
}

/// Where the stored form of a block begins in the payload of a write with this many extents, bytes: its checksum, then its
/// contents, [`STORED_BLOCK`] in all. Blocks are counted over all extents, from 0.
pub fn stored_block_offset(extents: usize, block: u32) -> u64 {
    header_bytes(extents) + u64::from(block) * STORED_BLOCK as u64
}

/// The contents in the stored form of a block, if they are those that were logged: both the checksum beside them and
/// `crc`, as the reader remembers it, hold.
pub fn check_stored_block(stored: &[u8], crc: u32) -> Option<&[u8]> {
    let block = stored.get(CRC_BYTES..STORED_BLOCK)?;
    (u32_at(stored, 0) == crc && crc32c(block) == crc).then_some(block)
}

fn header_bytes(extents: usize) -> u64 {
    (FIXED_HEADER + extents * EXTENT_BYTES) as u64
}

/// The version of records that this build writes and reads.
pub const RECORD_VERSION: u8 = 1;
/// Bytes of a block with its checksum.
pub const STORED_BLOCK: usize = CRC_BYTES + BLOCK;
/// Extents that one group may have.
pub const EXTENTS_MAX: usize = u16::MAX as usize;

const CONTINUES: u16 = 1;
const CRC_BYTES: usize = 4;
const FIXED_HEADER: usize = 14;
/// Where the number of extents stands.
const EXTENTS_AT: usize = 12;
const EXTENT_BYTES: usize = 12;

#[cfg(test)]
mod tests;
