//! The bytes of format version 2. `docs/FORMAT.md` draws them; a test compares its example with what this writes. Version 1
//! lacks what a header says of groups that span several volumes, and is read as well.
//!
//! Decoding takes any bytes and never panics. All checksums but those of the first 16 bytes and of payload start from the
//! store's UUID, so that bytes of another store never fit.

use super::group::{Content, Run};
use crate::block::{BLOCK, Extent, Lba};
use crc32c::{crc32c, crc32c_append};
use destage_core::Lsn;

/// The version that this build writes. It reads version 1 as well.
pub const FORMAT_VERSION: u32 = 2;
/// Longer names of hosts are cut.
pub const HOST_BYTES_MAX: usize = 64;

/// What is written at a time, so that stores on devices with large sectors never read before they write.
pub(super) const PAGE: u64 = 4096;
/// Where the first half for groups begins, behind two headers and two copies of the evidence.
pub(super) const HALVES_OFFSET: u64 = 10 * PAGE;

/// The unit that a medium writes whole or not at all.
pub(super) const SECTOR: usize = 512;
const SECTORS: usize = BLOCK / SECTOR;
/// Checksums of a block's sectors: a crash may leave some of them new and others old.
pub(super) type SectorSums = [u32; SECTORS];

const MAGIC: &[u8; 8] = b"DESTAGER";
const GROUP_MAGIC: &[u8; 4] = b"DSTG";
const COMMIT_MAGIC: &[u8; 4] = b"DSTC";
const HEADER_V1: usize = 196;
/// One sector, which is written whole or not at all.
const HEADER: usize = SECTOR;
/// Where the bytes begin that version 1 lacks.
const CONSISTENCY: usize = 192;
/// Longer names of places are not kept.
pub(super) const PLACE_BYTES_MAX: usize = WHOLE_FROM - CONSISTENCY - 36;
/// Where the last number before the checksum stands.
const WHOLE_FROM: usize = HEADER - 4 - 8;
const GROUP_FIXED: usize = 80;
const RUN: usize = 16;
const COMMIT: usize = 40;
const ATTACHED: u32 = 1;
const RUN_ZERO: u32 = 1;
const RUN_PUNCH: u32 = 2;
const RUN_BEFORE: u32 = 4;

/// Who writes to the origin.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AttachRecord {
    /// UUID of the cache; zeros: none was ever attached.
    pub cache: [u8; 16],
    /// One more at each attachment; 0 before the first.
    pub generation: u64,
    /// Since when, ns since 1970.
    pub since_ns: u64,
    /// Name of its host, at most [`HOST_BYTES_MAX`] bytes.
    pub host: String,
    /// Not detached since: it may hold writes that the origin lacks.
    pub attached: bool,
}

impl AttachRecord {
    /// As much of a host's name as is kept.
    pub(crate) fn cut_host(host: &str) -> &str {
        cut(host, HOST_BYTES_MAX)
    }
}

/// The newest of two copies is the store's state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) uuid: [u8; 16],
    /// One more each time a header is written.
    pub(super) generation: u64,
    pub(super) store_bytes: u64,
    pub(super) origin_bytes: u64,
    pub(super) half_bytes: u64,
    pub(super) done_group: u64,
    pub(super) done_lsn: Lsn,
    pub(super) attach: AttachRecord,
    /// The attachment by which the present cache came. Groups of earlier ones count in another log.
    pub(super) log_since: u64,
    /// The last group of several volumes that was committed by this store's commit record; zeros: none ever was.
    pub(super) decided: [u8; 16],
    /// Whose commit record decides this store's groups of several volumes.
    pub(super) coordinator: CoordinatorRecord,
    /// The store took a lost one's place: before the origin has come so far it may be no state that existed. Zero: it always
    /// is one.
    pub(super) whole_from: Lsn,
}

/// Where to ask whether a group of several volumes is committed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CoordinatorRecord {
    /// UUID of its redo store; zeros: the volume was never in a consistency group.
    pub store: [u8; 16],
    /// Where that store is, as the server that wrote this was told; empty if that is too long to be kept.
    pub place: String,
}

/// Why a page is no header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HeaderProblem {
    /// Not a redo store's.
    Foreign,
    /// Torn or damaged.
    Broken,
    /// Intact, of another format version.
    Version(u32),
}

impl Header {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(PAGE as usize);
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&FORMAT_VERSION.to_le_bytes());
        let crc = crc32c(&out);
        out.extend_from_slice(&crc.to_le_bytes());
        out.extend_from_slice(&self.uuid);
        let words = [
            self.generation,
            self.store_bytes,
            self.origin_bytes,
            self.half_bytes,
            self.done_group,
            self.done_lsn.0,
        ];
        push_words(&mut out, &words);
        out.extend_from_slice(&self.attach.cache);
        push_words(&mut out, &[self.attach.generation, self.attach.since_ns]);
        let flags = if self.attach.attached { ATTACHED } else { 0 };
        out.extend_from_slice(&flags.to_le_bytes());
        let host = AttachRecord::cut_host(&self.attach.host).as_bytes();
        out.extend_from_slice(&(host.len() as u32).to_le_bytes());
        out.extend_from_slice(host);
        out.resize(CONSISTENCY - 8, 0);
        push_words(&mut out, &[self.log_since]);
        out.extend_from_slice(&self.decided);
        out.extend_from_slice(&self.coordinator.store);
        let place = Some(self.coordinator.place.as_bytes());
        let place = place.filter(|place| place.len() <= PLACE_BYTES_MAX).unwrap_or_default();
        out.extend_from_slice(&(place.len() as u32).to_le_bytes());
        out.extend_from_slice(place);
        out.resize(WHOLE_FROM, 0);
        push_words(&mut out, &[self.whole_from.0]);
        let crc = crc32c(&out[16..]);
        out.extend_from_slice(&crc.to_le_bytes());
        out.resize(PAGE as usize, 0);
        out
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self, HeaderProblem> {
        let bytes = bytes.get(..PAGE as usize).ok_or(HeaderProblem::Foreign)?;
        if &bytes[..8] != MAGIC {
            return Err(HeaderProblem::Foreign);
        }
        if u32_at(bytes, 12) != crc32c(&bytes[..12]) {
            return Err(HeaderProblem::Broken);
        }
        // These 16 bytes keep their meaning in every version, so that another version is told apart from damage.
        let version = u32_at(bytes, 8);
        let len = match version {
            1 => HEADER_V1,
            FORMAT_VERSION => HEADER,
            _ => return Err(HeaderProblem::Version(version)),
        };
        if u32_at(bytes, len - 4) != crc32c(&bytes[16..len - 4]) {
            return Err(HeaderProblem::Broken);
        }
        let (decided, coordinator, whole_from) = match version {
            1 => ([0; 16], CoordinatorRecord::default(), 0),
            _ => (
                array(bytes, CONSISTENCY),
                CoordinatorRecord::decode(bytes),
                u64_at(bytes, WHOLE_FROM),
            ),
        };
        let host = (u32_at(bytes, 116) as usize).min(HOST_BYTES_MAX);
        Ok(Self {
            uuid: array(bytes, 16),
            generation: u64_at(bytes, 32),
            store_bytes: u64_at(bytes, 40),
            origin_bytes: u64_at(bytes, 48),
            half_bytes: u64_at(bytes, 56),
            done_group: u64_at(bytes, 64),
            done_lsn: Lsn(u64_at(bytes, 72)),
            attach: AttachRecord {
                cache: array(bytes, 80),
                generation: u64_at(bytes, 96),
                since_ns: u64_at(bytes, 104),
                host: String::from_utf8_lossy(&bytes[120..120 + host]).into_owned(),
                attached: u32_at(bytes, 112) & ATTACHED != 0,
            },
            log_since: u64_at(bytes, CONSISTENCY - 8),
            decided,
            coordinator,
            whole_from: Lsn(whole_from),
        })
    }
}

impl CoordinatorRecord {
    fn decode(header: &[u8]) -> Self {
        let at = CONSISTENCY + 16;
        let len = (u32_at(header, at + 16) as usize).min(PLACE_BYTES_MAX);
        let place = &header[at + 20..at + 20 + len];
        Self { store: array(header, at), place: String::from_utf8_lossy(place).into_owned() }
    }
}

/// What stands before a group's payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct GroupHeader {
    pub(super) number: u64,
    pub(super) attach_generation: u64,
    pub(super) from: Lsn,
    pub(super) to: Lsn,
    pub(super) reach: Reach,
    pub(super) runs: Vec<RunSums>,
}

/// Which volumes a group spans.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Reach {
    /// The same in each of the volumes; zeros where there is one only.
    pub(super) uuid: [u8; 16],
    /// UUIDs of the volumes' stores; empty where there is one only.
    pub(super) members: Vec<[u8; 16]>,
    /// Which of them holds the commit record.
    pub(super) coordinator: u16,
}

impl Reach {
    /// The store whose commit record decides; `None` for the group's own.
    pub(super) fn decider(&self, own: &[u8; 16]) -> Option<[u8; 16]> {
        let decider = *self.members.get(usize::from(self.coordinator))?;
        (decider != *own).then_some(decider)
    }
}

/// A run with the checksums of its blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RunSums {
    pub(super) run: Run,
    /// Of each block as it will be; empty for zeros.
    pub(super) after: Vec<u32>,
    /// Of each block's sectors as they were, where known.
    pub(super) before: Option<Vec<SectorSums>>,
}

impl GroupHeader {
    /// Bytes that it takes at most, with padding.
    pub(super) fn bytes_max(runs: &[Run], members: usize) -> u64 {
        let blocks: u64 = runs.iter().map(Run::data_blocks).sum();
        let tables = blocks * (4 + 4 * SECTORS as u64);
        let fixed = GROUP_FIXED + members * 16 + runs.len() * RUN;
        (fixed as u64 + tables).next_multiple_of(PAGE)
    }

    /// As [`GroupHeader::bytes_max`] for this group.
    pub(super) fn padded_len(&self) -> u64 {
        let runs: Vec<Run> = self.runs.iter().map(|sums| sums.run).collect();
        Self::bytes_max(&runs, self.reach.members.len())
    }

    /// The bytes, padded, and their checksum.
    pub(super) fn encode(&self, seed: u32) -> (Vec<u8>, u32) {
        let len = self.padded_len();
        let mut out = Vec::with_capacity(len as usize);
        out.extend_from_slice(GROUP_MAGIC);
        out.extend_from_slice(&[0; 4]);
        out.extend_from_slice(&(len as u32).to_le_bytes());
        out.extend_from_slice(&(self.runs.len() as u32).to_le_bytes());
        out.extend_from_slice(&self.reach.uuid);
        let payload = self.runs.iter().map(|p| p.after.len() as u64 * BLOCK as u64).sum();
        let words = [self.number, self.attach_generation, self.from.0, self.to.0, payload];
        push_words(&mut out, &words);
        out.extend_from_slice(&(self.reach.members.len() as u16).to_le_bytes());
        out.extend_from_slice(&self.reach.coordinator.to_le_bytes());
        out.extend_from_slice(&[0; 4]);
        assert_eq!(out.len(), GROUP_FIXED, "the fixed part has a fixed length");
        out.extend(self.reach.members.iter().flatten());
        for run in &self.runs {
            run.encode(&mut out);
        }
        for sum in self.runs.iter().flat_map(|p| &p.after) {
            out.extend_from_slice(&sum.to_le_bytes());
        }
        for sum in self.runs.iter().filter_map(|p| p.before.as_ref()).flatten().flatten() {
            out.extend_from_slice(&sum.to_le_bytes());
        }
        assert!(out.len() as u64 <= len, "the tables fit in what was reserved for them");
        out.resize(len as usize, 0);
        let crc = crc32c_append(seed, &out[8..]);
        out[4..8].copy_from_slice(&crc.to_le_bytes());
        (out, crc)
    }

    /// How long the header says it is, if it looks like one.
    pub(super) fn peek_len(page: &[u8], half_bytes: u64) -> Option<u64> {
        let len = u64::from(u32_at(page.get(..GROUP_FIXED)?, 8));
        let fits = len >= PAGE && len.is_multiple_of(PAGE) && len <= half_bytes;
        (&page[..4] == GROUP_MAGIC && fits).then_some(len)
    }

    /// The header in `bytes`, which are as long as it says, and its checksum.
    pub(super) fn decode(bytes: &[u8], seed: u32) -> Option<(Self, u32)> {
        let crc = u32_at(bytes.get(..GROUP_FIXED)?, 4);
        if &bytes[..4] != GROUP_MAGIC || crc != crc32c_append(seed, &bytes[8..]) {
            return None;
        }
        let mut reader = Reader { rest: &bytes[GROUP_FIXED..] };
        let members = usize::from(u16::from_le_bytes([bytes[72], bytes[73]]));
        let members = (0..members).map(|_| reader.take().copied());
        let members = members.collect::<Option<Vec<[u8; 16]>>>()?;
        let mut runs = Vec::new();
        for _ in 0..u32_at(bytes, 12) {
            runs.push(RunSums::decode(reader.take::<RUN>()?)?);
        }
        for run in &mut runs {
            for _ in 0..run.run.data_blocks() {
                run.after.push(u32::from_le_bytes(*reader.take()?));
            }
        }
        for run in &mut runs {
            let blocks = run.run.data_blocks();
            for before in run.before.iter_mut() {
                for _ in 0..blocks {
                    let sums = reader.take::<{ SECTORS * 4 }>()?;
                    before.push(std::array::from_fn(|i| u32_at(sums, i * 4)));
                }
            }
        }
        let coordinator = u16::from_le_bytes([bytes[74], bytes[75]]);
        if !members.is_empty() && usize::from(coordinator) >= members.len() {
            return None;
        }
        let header = Self {
            number: u64_at(bytes, 32),
            attach_generation: u64_at(bytes, 40),
            from: Lsn(u64_at(bytes, 48)),
            to: Lsn(u64_at(bytes, 56)),
            reach: Reach { uuid: array(bytes, 16), members, coordinator },
            runs,
        };
        Some((header, crc))
    }
}

impl RunSums {
    fn encode(&self, out: &mut Vec<u8>) {
        let mut flags = match self.run.content {
            Content::Data => 0,
            Content::Zero { punch: false } => RUN_ZERO,
            Content::Zero { punch: true } => RUN_ZERO | RUN_PUNCH,
        };
        if self.before.is_some() {
            flags |= RUN_BEFORE;
        }
        out.extend_from_slice(&self.run.extent.first.0.to_le_bytes());
        out.extend_from_slice(&self.run.extent.blocks.to_le_bytes());
        out.extend_from_slice(&flags.to_le_bytes());
    }

    fn decode(bytes: &[u8; RUN]) -> Option<Self> {
        let flags = u32_at(bytes, 12);
        let content = match flags & (RUN_ZERO | RUN_PUNCH) {
            0 => Content::Data,
            RUN_ZERO => Content::Zero { punch: false },
            _ => Content::Zero { punch: true },
        };
        let extent = Extent { first: Lba(u64_at(bytes, 0)), blocks: u32_at(bytes, 8) };
        // Or its end, or its offset in bytes, would not be a number.
        if extent.first.0 > u64::MAX / BLOCK as u64 - u64::from(u32::MAX) || extent.blocks == 0 {
            return None;
        }
        let before = (flags & RUN_BEFORE != 0).then(Vec::new);
        Some(Self { run: Run { extent, content }, after: Vec::new(), before })
    }
}

/// Says that a group is durable in the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Commit {
    pub(super) number: u64,
    pub(super) uuid: [u8; 16],
    /// Checksum of the group's header.
    pub(super) header_crc: u32,
}

impl Commit {
    pub(super) fn encode(&self, seed: u32) -> Vec<u8> {
        let mut out = Vec::with_capacity(PAGE as usize);
        out.extend_from_slice(COMMIT_MAGIC);
        out.extend_from_slice(&[0; 4]);
        out.extend_from_slice(&self.number.to_le_bytes());
        out.extend_from_slice(&self.uuid);
        out.extend_from_slice(&self.header_crc.to_le_bytes());
        out.resize(COMMIT, 0);
        let crc = crc32c_append(seed, &out[8..]);
        out[4..8].copy_from_slice(&crc.to_le_bytes());
        out.resize(PAGE as usize, 0);
        out
    }

    pub(super) fn decode(bytes: &[u8], seed: u32) -> Option<Self> {
        let bytes = bytes.get(..COMMIT)?;
        if &bytes[..4] != COMMIT_MAGIC || u32_at(bytes, 4) != crc32c_append(seed, &bytes[8..]) {
            return None;
        }
        Some(Self {
            number: u64_at(bytes, 8),
            uuid: array(bytes, 16),
            header_crc: u32_at(bytes, 32),
        })
    }
}

/// Checksums start from it.
pub(super) fn seed(uuid: &[u8; 16]) -> u32 {
    crc32c(uuid)
}

/// Checksums of a block's sectors.
pub(super) fn sector_sums(block: &[u8]) -> SectorSums {
    std::array::from_fn(|i| crc32c(&block[i * SECTOR..(i + 1) * SECTOR]))
}

/// At most `max` bytes of a text, at a character's border.
pub(super) fn cut(text: &str, max: usize) -> &str {
    &text[..text.floor_char_boundary(max)]
}

struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    fn take<const N: usize>(&mut self) -> Option<&'a [u8; N]> {
        let (taken, rest) = self.rest.split_first_chunk()?;
        self.rest = rest;
        Some(taken)
    }
}

fn push_words(out: &mut Vec<u8>, words: &[u64]) {
    out.extend(words.iter().flat_map(|word| word.to_le_bytes()));
}

pub(super) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(array(bytes, at))
}

pub(super) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(array(bytes, at))
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes[at..at + N].try_into().expect("the slice has N bytes")
}
