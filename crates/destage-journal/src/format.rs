//! The bytes of format version 1. `docs/FORMAT.md` draws them; a test compares its example with what this writes.
//!
//! Decoding takes any bytes and never panics: a journal may hold anything after a crash.

use crc32c::{crc32c, crc32c_append};

/// The version that this build writes and reads.
pub const FORMAT_VERSION: u32 = 1;

/// The unit that the medium writes whole or not at all. Batches start at multiples of it, so that no sector that holds
/// durable bytes is ever given other ones.
pub(crate) const SECTOR: usize = 512;
/// Writes are filled up to this, so that the file system need not read the rest of a page first.
pub(crate) const PAGE: usize = 4096;
pub(crate) const BATCH_HEADER: usize = 56;
pub(crate) const RECORD_HEADER: usize = 14;
/// The catalog follows the header's sector.
pub(crate) const CATALOG_OFFSET: usize = SECTOR;

/// The batch's first number leaves a gap after the last one: numbering was told to go on elsewhere.
pub(crate) const FLAG_SKIP: u64 = 1;
/// The journal was closed after this batch.
pub(crate) const FLAG_CLOSE: u64 = 2;
/// The mark that stands where the next segment takes over: that one has been begun, so its file cannot be missing.
pub(crate) const FLAG_FOLLOWED: u64 = 4;

const SEGMENT_MAGIC: &[u8; 8] = b"DESTAGEJ";
const BATCH_MAGIC: &[u8; 4] = b"DSTB";
const SEGMENT_HEADER: usize = 84;

/// What the first sector of a segment says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentHeader {
    pub(crate) uuid: [u8; 16],
    pub(crate) number: u64,
    /// Of the process that began the segment.
    pub(crate) incarnation: u64,
    /// The next group's number when it was begun.
    pub(crate) first_lsn: u64,
    /// Of its first batch.
    pub(crate) first_sequence: u64,
    pub(crate) segment_bytes: u64,
    pub(crate) catalog_len: u32,
    pub(crate) catalog_crc: u32,
}

/// Why a segment's first sector is no header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HeaderProblem {
    /// Never written, torn or damaged.
    Broken,
    /// Intact, of another format version.
    Version(u32),
}

impl SegmentHeader {
    /// Header, catalog and padding: everything before the first batch.
    pub(crate) fn encode(&self, catalog: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.data_start() as usize);
        out.extend_from_slice(SEGMENT_MAGIC);
        out.extend_from_slice(&FORMAT_VERSION.to_le_bytes());
        let crc = crc32c(&out);
        out.extend_from_slice(&crc.to_le_bytes());
        out.extend_from_slice(&self.uuid);
        for word in
            [self.number, self.incarnation, self.first_lsn, self.first_sequence, self.segment_bytes]
        {
            out.extend_from_slice(&word.to_le_bytes());
        }
        out.extend_from_slice(&self.catalog_len.to_le_bytes());
        out.extend_from_slice(&self.catalog_crc.to_le_bytes());
        let crc = crc32c(&out[16..]);
        out.extend_from_slice(&crc.to_le_bytes());
        assert_eq!(out.len(), SEGMENT_HEADER, "the header has a fixed length");
        out.resize(CATALOG_OFFSET, 0);
        out.extend_from_slice(catalog);
        out.resize(self.data_start() as usize, 0);
        out
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, HeaderProblem> {
        let bytes = bytes.get(..SEGMENT_HEADER).ok_or(HeaderProblem::Broken)?;
        if &bytes[..8] != SEGMENT_MAGIC || u32_at(bytes, 12) != crc32c(&bytes[..12]) {
            return Err(HeaderProblem::Broken);
        }
        // These 16 bytes keep their meaning in every version, so that another version is told apart from damage.
        let version = u32_at(bytes, 8);
        if version != FORMAT_VERSION {
            return Err(HeaderProblem::Version(version));
        }
        if u32_at(bytes, 80) != crc32c(&bytes[16..80]) {
            return Err(HeaderProblem::Broken);
        }
        // Both count from 1.
        if u64_at(bytes, 48) == 0 || u64_at(bytes, 56) == 0 {
            return Err(HeaderProblem::Broken);
        }
        let mut uuid = [0; 16];
        uuid.copy_from_slice(&bytes[16..32]);
        Ok(Self {
            uuid,
            number: u64_at(bytes, 32),
            incarnation: u64_at(bytes, 40),
            first_lsn: u64_at(bytes, 48),
            first_sequence: u64_at(bytes, 56),
            segment_bytes: u64_at(bytes, 64),
            catalog_len: u32_at(bytes, 72),
            catalog_crc: u32_at(bytes, 76),
        })
    }

    /// Where the first batch starts.
    pub(crate) fn data_start(&self) -> u64 {
        (CATALOG_OFFSET as u64 + u64::from(self.catalog_len)).next_multiple_of(PAGE as u64)
    }

    /// The catalog, if its checksum holds. `bytes` is the segment from its start.
    pub(crate) fn catalog<'a>(&self, bytes: &'a [u8]) -> Option<&'a [u8]> {
        let end = CATALOG_OFFSET.checked_add(self.catalog_len as usize)?;
        let catalog = bytes.get(CATALOG_OFFSET..end)?;
        (crc32c(catalog) == self.catalog_crc).then_some(catalog)
    }
}

/// What stands before a batch's records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BatchHeader {
    pub(crate) payload_len: u32,
    /// 0 for a mark, which only says what is durable.
    pub(crate) records: u32,
    pub(crate) incarnation: u64,
    pub(crate) sequence: u64,
    /// The first record's number; of a mark, the number that comes next.
    pub(crate) first_lsn: u64,
    /// Every group up to this one was durable when the batch was written.
    pub(crate) durable: u64,
    pub(crate) flags: u64,
}

impl BatchHeader {
    /// Writes the header over the first bytes of `batch`, whose payload is in place behind it.
    pub(crate) fn seal(&self, batch: &mut [u8], seed: u32) {
        assert_eq!(batch.len(), BATCH_HEADER + self.payload_len as usize, "payload in place");
        batch[..4].copy_from_slice(BATCH_MAGIC);
        batch[8..12].copy_from_slice(&self.payload_len.to_le_bytes());
        batch[12..16].copy_from_slice(&self.records.to_le_bytes());
        let words = [self.incarnation, self.sequence, self.first_lsn, self.durable, self.flags];
        for (slot, word) in batch[16..BATCH_HEADER].chunks_exact_mut(8).zip(words) {
            slot.copy_from_slice(&word.to_le_bytes());
        }
        let crc = crc32c_append(seed, &batch[8..]);
        batch[4..8].copy_from_slice(&crc.to_le_bytes());
    }

    /// What the bytes claim to be, unchecked but for the magic.
    pub(crate) fn peek(bytes: &[u8]) -> Option<Self> {
        let bytes = bytes.get(..BATCH_HEADER)?;
        if &bytes[..4] != BATCH_MAGIC {
            return None;
        }
        Some(Self {
            payload_len: u32_at(bytes, 8),
            records: u32_at(bytes, 12),
            incarnation: u64_at(bytes, 16),
            sequence: u64_at(bytes, 24),
            first_lsn: u64_at(bytes, 32),
            durable: u64_at(bytes, 40),
            flags: u64_at(bytes, 48),
        })
    }

    /// The batch at the start of `bytes`, if its checksum and records hold.
    pub(crate) fn decode(bytes: &[u8], seed: u32) -> Option<(Self, &[u8])> {
        let header = Self::peek(bytes)?;
        let end = BATCH_HEADER.checked_add(header.payload_len as usize)?;
        let covered = bytes.get(8..end)?;
        if u32_at(bytes, 4) != crc32c_append(seed, covered) {
            return None;
        }
        let payload = &bytes[BATCH_HEADER..end];
        let mut records = RecordReader::new(payload);
        for _ in 0..header.records {
            records.read()?;
        }
        header.first_lsn.checked_add(u64::from(header.records))?;
        records.is_empty().then_some((header, payload))
    }

    /// The number after the last of its records.
    pub(crate) fn next_lsn(&self) -> u64 {
        self.first_lsn + u64::from(self.records)
    }
}

/// The checksums of a journal's batches start from its UUID, so that bytes of another journal never fit.
pub(crate) fn seed(uuid: &[u8; 16]) -> u32 {
    crc32c(uuid)
}

/// Appends one record.
pub(crate) fn push_record(out: &mut Vec<u8>, stamp_ns: u64, domain: u16, payload: &[u8]) {
    let mut header = [0; RECORD_HEADER];
    header[..8].copy_from_slice(&stamp_ns.to_le_bytes());
    header[8..12].copy_from_slice(&(payload.len() as u32).to_le_bytes());
    header[12..].copy_from_slice(&domain.to_le_bytes());
    out.extend_from_slice(&header);
    out.extend_from_slice(payload);
}

/// One record as it stands in a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RawRecord<'a> {
    pub(crate) stamp_ns: u64,
    pub(crate) domain: u16,
    pub(crate) payload: &'a [u8],
}

/// Walks the records of a batch's payload.
#[derive(Clone, Debug)]
pub(crate) struct RecordReader<'a> {
    rest: &'a [u8],
}

impl<'a> RecordReader<'a> {
    pub(crate) fn new(payload: &'a [u8]) -> Self {
        Self { rest: payload }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    pub(crate) fn rest_len(&self) -> usize {
        self.rest.len()
    }

    pub(crate) fn read(&mut self) -> Option<RawRecord<'a>> {
        let header = self.rest.get(..RECORD_HEADER)?;
        let end = RECORD_HEADER.checked_add(u32_at(header, 8) as usize)?;
        let payload = self.rest.get(RECORD_HEADER..end)?;
        let record = RawRecord {
            stamp_ns: u64_at(header, 0),
            domain: u16::from_le_bytes([header[12], header[13]]),
            payload,
        };
        self.rest = &self.rest[end..];
        Some(record)
    }
}

/// Bytes that a batch takes on disk.
pub(crate) fn padded(len: usize) -> usize {
    len.next_multiple_of(SECTOR)
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

#[cfg(test)]
mod tests;
