//! The binary formats of fixed records: vscsi, oracleGeneral, SRT; and blktrace, whose records have a payload.

use super::fields::Devices;
use super::records::FixedRecord;
use super::{Bad, BlockEvent, Extent, Format, Op, Parsed, Raw};

const SECTOR: u64 = 512;

/// A format of fixed records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fixed {
    /// `u32 number, length; u32 segments; u16 command, version; u64 block, microseconds`.
    Vscsi1,
    /// `u16 command, version; u32 number, length, segments; u64 block, microseconds, response`.
    Vscsi2,
    /// `u32 seconds; u64 object; u32 size; i64 next access`.
    OracleGeneral,
    /// Big-endian words behind a text header.
    Srt,
}

/// The end of SRT's text header.
const SRT_HEADER_END: &[u8] = b"\n\x0c";
const SRT_BYTES: usize = 56;
/// Sectors of the disks in SRT traces.
const SRT_SECTOR: u64 = 256;

impl Fixed {
    /// The format and how many bytes stand before its first record.
    pub(super) fn new(format: Format, head: &[u8]) -> Result<(Self, u64), Bad> {
        match format {
            Format::Srt => {
                let end = memchr::memmem::find(head, SRT_HEADER_END)
                    .ok_or("its text header has no end in the first 64 KiB")?;
                Ok((Self::Srt, (end + SRT_HEADER_END.len()) as u64))
            }
            Format::OracleGeneral => Ok((Self::OracleGeneral, 0)),
            _ => match vscsi_version(head) {
                Some(fixed) => Ok((fixed, 0)),
                None if head.is_empty() => Ok((Self::Vscsi1, 0)),
                None => Err("its first records carry neither version 1 nor version 2".into()),
            },
        }
    }

    /// Bytes of a record.
    pub(super) fn size(self) -> usize {
        match self {
            Self::Vscsi1 => 32,
            Self::Vscsi2 => 40,
            Self::OracleGeneral => 24,
            Self::Srt => SRT_BYTES,
        }
    }

    /// Takes one whole record.
    pub(super) fn parse(self, record: &[u8]) -> Result<Parsed, Bad> {
        match self {
            Self::Vscsi1 => vscsi(
                [u16_at(record, 12), u16_at(record, 14) >> 8, 1],
                u32_at(record, 4),
                [u64_at(record, 16), u64_at(record, 24)],
            ),
            Self::Vscsi2 => vscsi(
                [u16_at(record, 0), u16_at(record, 2) >> 8, 2],
                u32_at(record, 8),
                [u64_at(record, 16), u64_at(record, 24)],
            ),
            Self::OracleGeneral => {
                let time_ns = u64::from(u32_at(record, 0)) * 1_000_000_000;
                let bytes = u64::from(u32_at(record, 12));
                let extent = Extent::Object { id: u64_at(record, 4), bytes };
                Ok(Parsed::Request(Raw::new(time_ns, Op::Read, extent)))
            }
            Self::Srt => srt(record),
        }
    }
}

/// Tells version 1 from 2 by the version fields of the first two records.
pub(super) fn vscsi_version(head: &[u8]) -> Option<Fixed> {
    let versions = |size: usize, at: usize, version: u16| {
        let mut records = head.chunks_exact(size).take(2).peekable();
        records.peek().is_some() && records.all(|record| u16_at(record, at) >> 8 == version)
    };
    if versions(32, 14, 1) {
        return Some(Fixed::Vscsi1);
    }
    versions(40, 2, 2).then_some(Fixed::Vscsi2)
}

fn vscsi(
    [command, version, expected]: [u16; 3],
    bytes: u32,
    [block, time_us]: [u64; 2],
) -> Result<Parsed, Bad> {
    if version != expected {
        return Err(format!("version {version} among records of version {expected}").into());
    }
    // SCSI operation codes of 6, 10, 12 and 16 bytes.
    let op = match command {
        0x08 | 0x28 | 0xa8 | 0x88 => Op::Read,
        0x0a | 0x2a | 0xaa | 0x8a => Op::Write,
        0x42 => Op::Discard,
        0x35 | 0x91 => Op::Flush,
        0..=0xff => return Ok(Parsed::Nothing),
        _ => return Err(format!("command {command:#x} is none of SCSI").into()),
    };
    let offset = block.checked_mul(SECTOR).ok_or("a block beyond all disks")?;
    let time_ns = time_us.checked_mul(1_000).ok_or("a time beyond all clocks")?;
    let bytes = if op == Op::Flush { 0 } else { u64::from(bytes) };
    Ok(Parsed::Request(Raw::new(time_ns, op, Extent::Range { device: 0, offset, bytes })))
}

/// `size, id, seconds, microseconds, start, stop, bytes, sector, device, driver, cylinder, flags, info, queue`.
fn srt(record: &[u8]) -> Result<Parsed, Bad> {
    let word = |index: usize| {
        let bytes = record[4 * index..].first_chunk().expect("the record has 14 words");
        u64::from(u32::from_be_bytes(*bytes))
    };
    if word(0) != SRT_BYTES as u64 {
        return Err(format!("a record of {} bytes, not {SRT_BYTES}", word(0)).into());
    }
    if word(3) >= 1_000_000 {
        return Err(format!("{} microseconds", word(3)).into());
    }
    const READ: u64 = 1;
    let op = if word(11) & READ != 0 { Op::Read } else { Op::Write };
    // The low byte names a section of a disk; 7 lies on the second disk, and offsets are absolute on their disk.
    let device = u32::from(word(8) & 0xff == 7);
    let extent = Extent::Range { device, offset: word(7) * SRT_SECTOR, bytes: word(6) };
    Ok(Parsed::Request(Raw::new(word(2) * 1_000_000_000 + word(3) * 1_000, op, extent)))
}

/// Bytes of a blktrace record before its payload.
pub(super) const BLKTRACE_BYTES: usize = 48;
const BLKTRACE_MAGIC: u32 = 0x6561_7400;
const BLKTRACE_VERSION: u32 = 7;
/// Categories, in the upper half of an action.
const BLK_WRITE: u32 = 1 << 1;
const BLK_FLUSH: u32 = 1 << 2;
const BLK_NOTIFY: u32 = 1 << 10;
const BLK_DISCARD: u32 = 1 << 13;

/// `u32 magic, sequence; u64 nanoseconds, sector; u32 bytes, action, process, device, processor; u16 error, payload`.
#[derive(Debug)]
pub(super) struct Blktrace {
    is_little: bool,
    event: BlockEvent,
    devices: Devices,
}

impl Blktrace {
    /// Takes the byte order from the first record.
    pub(super) fn new(head: &[u8], event: BlockEvent) -> Result<Self, Bad> {
        let is_little = match blktrace_is_little(head) {
            None if !head.is_empty() => return Err("its first record has no magic number".into()),
            order => order.unwrap_or(true),
        };
        Ok(Self { is_little, event, devices: Devices::default() })
    }

    fn word(&self, record: &[u8], at: usize) -> u32 {
        let word = u32_at(record, at);
        if self.is_little { word } else { word.swap_bytes() }
    }

    fn long(&self, record: &[u8], at: usize) -> u64 {
        let long = u64_at(record, at);
        if self.is_little { long } else { long.swap_bytes() }
    }

    /// Takes one record without its payload.
    pub(super) fn parse(&mut self, record: &[u8]) -> Result<Parsed, Bad> {
        let magic = self.word(record, 0);
        if magic != BLKTRACE_MAGIC | BLKTRACE_VERSION {
            return Err(format!("magic number {magic:#x}, not that of version 7").into());
        }
        let action = self.word(record, 28);
        let wanted = match self.event {
            BlockEvent::Queued => 1,
            BlockEvent::Issued => 7,
            BlockEvent::Completed => 8,
        };
        let category = action >> 16;
        if action & 0xffff != wanted || category & BLK_NOTIFY != 0 {
            return Ok(Parsed::Nothing);
        }
        let bytes = u64::from(self.word(record, 24));
        let op = match () {
            () if category & BLK_DISCARD != 0 => Op::Discard,
            () if category & BLK_FLUSH != 0 && bytes == 0 => Op::Flush,
            () if category & BLK_WRITE != 0 => Op::Write,
            () => Op::Read,
        };
        let sector = self.long(record, 16);
        let offset = if op == Op::Flush { Some(0) } else { sector.checked_mul(SECTOR) };
        let offset = offset.ok_or("a sector beyond all disks")?;
        let device = self.devices.number(&self.word(record, 36).to_le_bytes())?;
        let extent = Extent::Range { device, offset, bytes };
        Ok(Parsed::Request(Raw::new(self.long(record, 8), op, extent)))
    }

    /// As the kernel numbers it: major and minor.
    pub(super) fn device_name(&self, number: u32) -> Option<String> {
        let device = u32::from_le_bytes(self.devices.name(number)?.try_into().ok()?);
        Some(format!("{}:{}", device >> 20, device & 0xf_ffff))
    }

    /// Bytes of the payload behind the record.
    pub(super) fn payload_bytes(&self, fixed: FixedRecord<'_>) -> u64 {
        let FixedRecord::Whole(record) = fixed else { return 0 };
        if self.word(record, 0) & !0xff != BLKTRACE_MAGIC {
            return 0;
        }
        let bytes = u16_at(record, 46);
        u64::from(if self.is_little { bytes } else { bytes.swap_bytes() })
    }
}

/// The byte order of a blktrace file; `None` if it is none.
pub(super) fn blktrace_is_little(head: &[u8]) -> Option<bool> {
    let first: &[u8; 4] = head.first_chunk()?;
    let is_magic = |word: u32| word & !0xff == BLKTRACE_MAGIC;
    match () {
        () if is_magic(u32::from_le_bytes(*first)) => Some(true),
        () if is_magic(u32::from_be_bytes(*first)) => Some(false),
        () => None,
    }
}

fn u16_at(record: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(*record[at..].first_chunk().expect("records are whole"))
}

fn u32_at(record: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(*record[at..].first_chunk().expect("records are whole"))
}

pub(super) fn u64_at(record: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(*record[at..].first_chunk().expect("records are whole"))
}
