//! The text formats that are more than columns: what blkparse prints, and fio's iologs.

use super::columns::word;
use super::fields::{Devices, blanks, number, scaled, shown};
use super::records::ParseLine;
use super::{Bad, BlockEvent, Extent, Op, Parsed, Raw};

const SECTOR: u64 = 512;

/// Lines like `8,0 3 1 0.000000000 697 Q W 223490 + 8 [kjournald]`; all others (the summary, messages) are no requests.
#[derive(Debug)]
pub(super) struct Blkparse {
    event: BlockEvent,
    devices: Devices,
}

impl Blkparse {
    pub(super) fn new(event: BlockEvent) -> Self {
        Self { event, devices: Devices::default() }
    }
}

impl ParseLine for Blkparse {
    fn parse(&mut self, line: &[u8], _number: u64) -> Result<Parsed, Bad> {
        let mut fields = blanks(line);
        let device = fields.next().unwrap_or_default();
        if !is_device(device) {
            return Ok(Parsed::Nothing);
        }
        let mut next = || fields.next().unwrap_or_default();
        let [_cpu, _sequence, time, _process, event, kind] = [(); 6].map(|()| next());
        let wanted = match self.event {
            BlockEvent::Queued => b"Q",
            BlockEvent::Issued => b"D",
            BlockEvent::Completed => b"C",
        };
        if event != wanted {
            return Ok(Parsed::Nothing);
        }
        let time_ns = scaled(time, 1_000_000_000)
            .ok_or_else(|| format!("'{}' is not a time in seconds", shown(time)))?;
        let has = |letter: u8| kind.contains(&letter);
        let [sector, plus, sectors] = [(); 3].map(|()| next());
        let op = match () {
            () if has(b'D') => Op::Discard,
            () if has(b'W') => Op::Write,
            () if has(b'R') => Op::Read,
            // A flush without data has no sectors.
            () if has(b'F') => Op::Flush,
            () => return Ok(Parsed::Nothing),
        };
        if op == Op::Flush || (has(b'F') && plus != b"+") {
            let extent = Extent::Range { device: 0, offset: 0, bytes: 0 };
            return Ok(Parsed::Request(Raw::new(time_ns, Op::Flush, extent)));
        }
        if plus != b"+" {
            // Commands that are not about sectors.
            return Ok(Parsed::Nothing);
        }
        let in_bytes = |field: &[u8]| {
            let bytes = scaled(field, SECTOR);
            bytes.ok_or_else(|| Bad::from(format!("'{}' is not a number of sectors", shown(field))))
        };
        let (offset, bytes) = (in_bytes(sector)?, in_bytes(sectors)?);
        let device = self.devices.number(device)?;
        Ok(Parsed::Request(Raw::new(time_ns, op, Extent::Range { device, offset, bytes })))
    }

    fn devices(&self) -> &Devices {
        &self.devices
    }
}

/// Whether a field is like `259,0`.
pub(super) fn is_device(field: &[u8]) -> bool {
    let mut parts = field.split(|&byte| byte == b',');
    let mut is_number = || parts.next().and_then(number).is_some();
    is_number() && is_number() && parts.next().is_none()
}

/// The first lines of iologs.
const FIO: [&[u8]; 2] = [b"fio version 2 iolog", b"fio version 3 iolog"];

/// fio's iologs: `file action [offset length]`, in version 3 with the microseconds since the start in front.
#[derive(Debug)]
pub(super) struct Fio {
    has_times: bool,
    /// Version 2 has waits instead of times.
    waited_ns: u64,
    devices: Devices,
}

/// The version that the first line names.
pub(super) fn fio_version(head: &[u8]) -> Option<usize> {
    FIO.iter().position(|first| head.starts_with(first)).map(|index| index + 2)
}

impl Fio {
    pub(super) fn new(head: &[u8]) -> Result<Self, Bad> {
        let version = fio_version(head).unwrap_or(3);
        if !head.is_empty() && fio_version(head).is_none() {
            return Err("its first line is not 'fio version 2 iolog' or that of version 3".into());
        }
        Ok(Self { has_times: version == 3, waited_ns: 0, devices: Devices::default() })
    }

    fn wait(&mut self, microseconds: &[u8]) -> Result<Parsed, Bad> {
        let wait = scaled(microseconds, 1_000)
            .ok_or_else(|| format!("'{}' is not a time in microseconds", shown(microseconds)))?;
        self.waited_ns = self.waited_ns.saturating_add(wait);
        Ok(Parsed::Nothing)
    }
}

impl ParseLine for Fio {
    fn parse(&mut self, line: &[u8], line_number: u64) -> Result<Parsed, Bad> {
        let mut fields = blanks(line);
        let mut next = || fields.next().unwrap_or_default();
        let time = if self.has_times && line_number > 1 { next() } else { b"" };
        let [file, action, offset, length] = [(); 4].map(|()| next());
        if line_number == 1 || file.is_empty() {
            return Ok(Parsed::Nothing);
        }
        let op = match action {
            b"add" | b"open" | b"close" => return Ok(Parsed::Nothing),
            b"wait" => return self.wait(offset),
            b"datasync" => Op::Flush,
            _ => word(action)
                .ok_or_else(|| format!("'{}' is not an action of fio", shown(action)))?,
        };
        let time_ns = if self.has_times {
            scaled(time, 1_000)
                .ok_or_else(|| format!("'{}' is not a time in microseconds", shown(time)))?
        } else {
            self.waited_ns
        };
        let amount = |field: &[u8], what: &str| {
            number(field).ok_or_else(|| Bad::from(format!("'{}' is not {what}", shown(field))))
        };
        let extent = match op {
            Op::Flush => Extent::Range { device: 0, offset: 0, bytes: 0 },
            _ => Extent::Range {
                device: self.devices.number(file)?,
                offset: amount(offset, "an offset")?,
                bytes: amount(length, "a length")?,
            },
        };
        Ok(Parsed::Request(Raw::new(time_ns, op, extent)))
    }

    fn devices(&self) -> &Devices {
        &self.devices
    }
}
