//! The text formats of columns: one table per format says where what is and in which unit.

use super::fields::{self, Devices, blanks, commas, hexadecimal, number, scaled, shown};
use super::named::{self, ColumnMap};
use super::records::ParseLine;
use super::{Bad, Extent, Format, Op, Parsed, Raw};

/// Where a value stands and what it is multiplied by: nanoseconds for times, bytes for places and sizes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Column {
    pub(super) index: usize,
    pub(super) scale: u64,
}

/// How a column says what a request does.
#[derive(Clone, Copy, Debug)]
pub(super) enum OpCode {
    /// By a word or letter: `R`, `write`, `discard`, `F`.
    Word,
    /// By a word as before; a line without one is no request.
    WordOrNone,
    /// 0 for a read, 1 for a write.
    WriteIsOne,
    /// 1 for a read, 0 for a write.
    ReadIsOne,
    /// Hexadecimal flags, of which the lowest bit means a read.
    Flags,
    /// A command of a key-value cache.
    Cache,
}

/// The columns of a format.
#[derive(Clone, Debug)]
pub(super) struct Layout {
    pub(super) by_blanks: bool,
    /// Fewest columns of a line.
    pub(super) columns_min: usize,
    pub(super) time: Option<Column>,
    pub(super) op: Option<(usize, OpCode)>,
    /// Columns that name the device together.
    pub(super) device: Vec<usize>,
    /// `None` for a trace of objects, whose key is in the first of `device`.
    pub(super) offset: Option<Column>,
    /// Columns whose sum is the size.
    pub(super) size: Vec<Column>,
    pub(super) host: Option<usize>,
    pub(super) thread: Option<usize>,
}

/// A format of columns, and what it has learnt so far.
#[derive(Debug)]
pub(super) struct Columns {
    layout: Layout,
    devices: Devices,
    header: Header,
    /// A line that is no comment has come.
    is_begun: bool,
    device_name: Vec<u8>,
}

/// Whether the first line is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Header {
    No,
    Yes,
    /// If its first column is no number.
    IfNoNumber,
    /// If where the size is, no number is.
    IfNoSize,
}

pub(super) const SECOND: u64 = 1_000_000_000;
pub(super) const SECTOR: u64 = 512;
/// Most columns of a line that are looked at.
pub(super) const COLUMNS_MAX: usize = 64;

impl Columns {
    /// With the columns that are named, if the format is the own one.
    pub(super) fn new(format: Format, head: &[u8], map: &ColumnMap) -> Result<Self, Bad> {
        let (layout, header) = match format {
            Format::Csv if map.is_empty() => (named::of_header(head)?, Header::Yes),
            Format::Csv => map.layout(head)?,
            Format::Systor17 => (layout(format), Header::IfNoNumber),
            _ => (layout(format), Header::No),
        };
        let devices = Devices::default();
        Ok(Self { layout, devices, header, is_begun: false, device_name: Vec::new() })
    }
}

impl ParseLine for Columns {
    fn parse(&mut self, line: &[u8], _number: u64) -> Result<Parsed, Bad> {
        if named::is_comment(line) {
            return Ok(Parsed::Nothing);
        }
        let is_first = !std::mem::replace(&mut self.is_begun, true);
        let is_header = match self.header {
            Header::Yes => true,
            Header::IfNoNumber => !is_data(line),
            Header::No | Header::IfNoSize => false,
        };
        if is_first && is_header {
            return Ok(Parsed::Nothing);
        }
        let mut places = [&b""[..]; COLUMNS_MAX];
        let count = if self.layout.by_blanks {
            fill(&mut places, blanks(line))
        } else {
            fill(&mut places, commas(line))
        };
        if count < self.layout.columns_min {
            let wanted = self.layout.columns_min;
            return Err(format!("{count} columns, fewer than {wanted}").into());
        }
        let is_header = self.header == Header::IfNoSize
            && value(&places[..count], self.layout.size[0], "size").is_err();
        if is_first && is_header {
            return Ok(Parsed::Nothing);
        }
        self.request(&places[..count])
    }

    fn devices(&self) -> &Devices {
        &self.devices
    }
}

impl Columns {
    fn request(&mut self, fields: &[&[u8]]) -> Result<Parsed, Bad> {
        let layout = &self.layout;
        let op = match layout.op {
            None => Op::Read,
            Some((index, code)) => match op(field(fields, index)?, code)? {
                Some(op) => op,
                None => return Ok(Parsed::Nothing),
            },
        };
        let time_ns = layout.time.map_or(Ok(0), |column| value(fields, column, "time"))?;
        let mut bytes = 0u64;
        for &column in layout.size.iter().filter(|_| op != Op::Flush) {
            let part = value(fields, column, "size")?;
            bytes = bytes.checked_add(part).ok_or("a size beyond all disks")?;
        }
        let extent = match layout.offset {
            _ if op == Op::Flush => Extent::Range { device: 0, offset: 0, bytes: 0 },
            None => {
                let key = field(fields, layout.device[0])?;
                // A deleted object has no size of its own.
                Extent::Object { id: fields::hash(key), bytes: bytes.max(1) }
            }
            Some(column) => {
                let offset = value(fields, column, "offset")?;
                Extent::Range { device: self.device(fields)?, offset, bytes }
            }
        };
        let small = |index: Option<usize>, what: &str| match index {
            None => Ok(0),
            Some(index) => {
                let field = field(fields, index)?;
                let value = number(field).and_then(|value| u16::try_from(value).ok());
                value.ok_or_else(|| not(field, &format!("a {what} from 0 to 65535")))
            }
        };
        let host = small(self.layout.host, "host")?;
        let thread = small(self.layout.thread, "thread")?;
        Ok(Parsed::Request(Raw { time_ns, op, extent, host, thread }))
    }

    fn device(&mut self, fields: &[&[u8]]) -> Result<u32, Bad> {
        match self.layout.device[..] {
            [] => Ok(0),
            [index] => self.devices.number(field(fields, index)?),
            _ => {
                self.device_name.clear();
                for &index in &self.layout.device {
                    self.device_name.extend(field(fields, index)?);
                    self.device_name.push(b',');
                }
                self.devices.number(&self.device_name)
            }
        }
    }
}

fn fill<'a>(places: &mut [&'a [u8]], fields: impl Iterator<Item = &'a [u8]>) -> usize {
    places.iter_mut().zip(fields).map(|(place, field)| *place = field).count()
}

fn field<'a>(fields: &[&'a [u8]], index: usize) -> Result<&'a [u8], Bad> {
    let found = fields.get(index).copied();
    found.ok_or_else(|| {
        format!("{} columns, and column {} is missing", fields.len(), index + 1).into()
    })
}

fn value(fields: &[&[u8]], column: Column, what: &str) -> Result<u64, Bad> {
    let field = field(fields, column.index)?;
    scaled(field, column.scale).ok_or_else(|| not(field, &format!("a {what}")))
}

fn not(field: &[u8], what: &str) -> Bad {
    format!("'{}' is not {what}", shown(field)).into()
}

fn op(field: &[u8], code: OpCode) -> Result<Option<Op>, Bad> {
    let op = match code {
        OpCode::WordOrNone if field.is_empty() => return Ok(None),
        OpCode::Word | OpCode::WordOrNone => word(field),
        OpCode::WriteIsOne => [Op::Read, Op::Write].get(digit(field)).copied(),
        OpCode::ReadIsOne => [Op::Write, Op::Read].get(digit(field)).copied(),
        OpCode::Flags => {
            let op = |flags| if flags & 1 == 1 { Op::Read } else { Op::Write };
            hexadecimal(field).map(op)
        }
        OpCode::Cache => cache_command(field),
    };
    op.map(Some).ok_or_else(|| not(field, "an operation"))
}

fn digit(field: &[u8]) -> usize {
    number(field).map_or(usize::MAX, |value| value.min(2) as usize)
}

/// A read, a write, a discard or a flush, by its word or letter in either case.
pub(super) fn word(field: &[u8]) -> Option<Op> {
    const WORDS: [(&str, Op); 13] = [
        ("r", Op::Read),
        ("read", Op::Read),
        ("rs", Op::Read),
        ("w", Op::Write),
        ("write", Op::Write),
        ("ws", Op::Write),
        ("d", Op::Discard),
        ("discard", Op::Discard),
        ("trim", Op::Discard),
        ("unmap", Op::Discard),
        ("f", Op::Flush),
        ("flush", Op::Flush),
        ("sync", Op::Flush),
    ];
    let found = WORDS.iter().find(|(word, _)| field.eq_ignore_ascii_case(word.as_bytes()));
    found.map(|&(_, op)| op)
}

/// A command of a cache server: those that store count as writes.
pub(super) fn cache_command(field: &[u8]) -> Option<Op> {
    match field {
        b"get" | b"gets" => Some(Op::Read),
        b"set" | b"add" | b"replace" | b"cas" | b"append" | b"prepend" | b"incr" | b"decr" => {
            Some(Op::Write)
        }
        b"delete" => Some(Op::Discard),
        _ => None,
    }
}

/// Whether the first column is a number, as in no header.
fn is_data(line: &[u8]) -> bool {
    line.trim_ascii_start().first().is_some_and(|byte| byte.is_ascii_digit() || *byte == b'.')
}

fn layout(format: Format) -> Layout {
    let column = |index, scale| Column { index, scale };
    let commas = Layout {
        by_blanks: false,
        columns_min: 5,
        time: None,
        op: None,
        device: Vec::new(),
        offset: None,
        size: Vec::new(),
        host: None,
        thread: None,
    };
    match format {
        // Time (100 ns since 1601), host, disk, Read or Write, offset, size, response time.
        Format::Msr => Layout {
            columns_min: 6,
            time: Some(column(0, 100)),
            op: Some((3, OpCode::Word)),
            device: vec![1, 2],
            offset: Some(column(4, 1)),
            size: vec![column(5, 1)],
            ..commas
        },
        // Application unit, sector, bytes, r or w, seconds.
        Format::Spc => Layout {
            time: Some(column(4, SECOND)),
            op: Some((3, OpCode::Word)),
            device: vec![0],
            offset: Some(column(1, SECTOR)),
            size: vec![column(2, 1)],
            ..commas
        },
        // Seconds, response, R or W or nothing, logical unit, offset, size.
        Format::Systor17 => Layout {
            columns_min: 6,
            time: Some(column(0, SECOND)),
            op: Some((2, OpCode::WordOrNone)),
            device: vec![3],
            offset: Some(column(4, 1)),
            size: vec![column(5, 1)],
            ..commas
        },
        // Device, R or W, offset, size, microseconds.
        Format::Alibaba => Layout {
            time: Some(column(4, 1_000)),
            op: Some((1, OpCode::Word)),
            device: vec![0],
            offset: Some(column(2, 1)),
            size: vec![column(3, 1)],
            ..commas
        },
        // Seconds, sector, sectors, 0 or 1, volume.
        Format::Tencent => Layout {
            time: Some(column(0, SECOND)),
            op: Some((3, OpCode::WriteIsOne)),
            device: vec![4],
            offset: Some(column(1, SECTOR)),
            size: vec![column(2, SECTOR)],
            ..commas
        },
        // Seconds, key, key size, value size, client, command, lifetime.
        Format::Twitter => Layout {
            columns_min: 6,
            time: Some(column(0, SECOND)),
            op: Some((5, OpCode::Cache)),
            device: vec![1],
            size: vec![column(2, 1), column(3, 1)],
            ..commas
        },
        // First block, blocks, ignored, request; blocks of 512 bytes.
        Format::Lis => Layout {
            by_blanks: true,
            columns_min: 2,
            offset: Some(column(0, SECTOR)),
            size: vec![column(1, SECTOR)],
            ..commas
        },
        // Milliseconds, device, block, blocks, flags.
        Format::Disksim => Layout {
            by_blanks: true,
            time: Some(column(0, 1_000_000)),
            op: Some((4, OpCode::Flags)),
            device: vec![1],
            offset: Some(column(2, SECTOR)),
            size: vec![column(3, SECTOR)],
            ..commas
        },
        // Nanoseconds, device, sector, sectors, 1 for a read and 0 for a write.
        _ => Layout {
            by_blanks: true,
            time: Some(column(0, 1)),
            op: Some((4, OpCode::ReadIsOne)),
            device: vec![1],
            offset: Some(column(2, SECTOR)),
            size: vec![column(3, SECTOR)],
            ..commas
        },
    }
}
