//! The archive of Open CAS telemetry: one file of events per processor, which are put in order of time.
//!
//! The only format that is not streamed: the requests of all files are held and sorted, 40 bytes each.

use super::fields::Devices;
use super::records::{Step, step};
use super::source::Source;
use super::{Bad, Extent, Op, Parsed, Position, Raw, TraceError};
use hashbrown::HashMap;
use prost::Message;
use std::io::{self, Read};
use std::vec::IntoIter;

/// The sorted requests, then what is damaged.
pub(super) struct Octf {
    steps: IntoIter<(u64, u64, Option<Raw>)>,
    bad: IntoIter<(Position, Bad)>,
    devices: Devices,
    names: HashMap<u64, String>,
}

#[derive(Clone, PartialEq, Message)]
struct Event {
    #[prost(message, optional, tag = "1")]
    header: Option<Header>,
    #[prost(message, optional, tag = "2")]
    io: Option<Io>,
    #[prost(message, optional, tag = "3")]
    device: Option<Device>,
}

#[derive(Clone, PartialEq, Message)]
struct Header {
    #[prost(uint64, tag = "1")]
    sid: u64,
    #[prost(uint64, tag = "2")]
    timestamp: u64,
}

#[derive(Clone, PartialEq, Message)]
struct Device {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(string, tag = "2")]
    name: String,
}

#[derive(Clone, PartialEq, Message)]
struct Io {
    #[prost(uint64, tag = "1")]
    lba: u64,
    #[prost(uint32, tag = "2")]
    len: u32,
    #[prost(uint64, tag = "4")]
    device: u64,
    #[prost(int32, tag = "5")]
    operation: i32,
    #[prost(bool, tag = "6")]
    flush: bool,
    /// Only in the schema of 2020, which also numbers the operations from 1.
    #[prost(uint64, optional, tag = "9")]
    id: Option<u64>,
}

const SECTOR: u64 = 512;
/// Most requests that are held.
const REQUESTS_MAX: usize = 100_000_000;
/// Longest event, bytes; file names are the longest part of one.
const EVENT_BYTES_MAX: u64 = 64 << 10;
/// What the files of events are called.
const FILE_NAME: &str = "octf.trace.";

impl Octf {
    /// Reads the whole archive.
    pub(super) fn read(source: Source, skip_bad_max: u64, name: &str) -> Result<Self, TraceError> {
        let mut reading = Reading {
            requests: Vec::new(),
            bad: Vec::new(),
            devices: Devices::default(),
            names: HashMap::new(),
            skip_bad_max,
        };
        let mut archive = tar::Archive::new(source.into_reader());
        let mut read = || -> io::Result<()> {
            for entry in archive.entries()? {
                let mut entry = entry?;
                let start = entry.raw_file_position();
                let is_events = entry.path()?.file_name().is_some_and(|file| {
                    file.to_str().is_some_and(|file| file.starts_with(FILE_NAME))
                });
                if is_events && !reading.events(&mut entry, start)? {
                    break;
                }
            }
            Ok(())
        };
        read().map_err(|error| TraceError::Read { name: name.into(), byte: 0, error })?;
        let Reading { mut requests, bad, devices, names, .. } = reading;
        requests.sort_by_key(|&(time, sid, _)| (time, sid));
        Ok(Self { steps: requests.into_iter(), bad: bad.into_iter(), devices, names })
    }

    /// As an event describes it; else its number there.
    pub(super) fn device_name(&self, number: u32) -> Option<String> {
        let id = u64::from_le_bytes(self.devices.name(number)?.try_into().ok()?);
        Some(self.names.get(&id).map_or_else(|| id.to_string(), Clone::clone))
    }

    /// What is damaged comes first, so that nobody works on half a trace unknowingly.
    pub(super) fn next(&mut self) -> Step {
        if let Some((position, reason)) = self.bad.next() {
            return Step::Bad(position, reason);
        }
        match self.steps.next() {
            None => Step::End,
            Some((_, _, None)) => Step::Empty,
            Some((_, _, Some(raw))) => Step::Request(raw),
        }
    }
}

struct Reading {
    requests: Vec<(u64, u64, Option<Raw>)>,
    bad: Vec<(Position, Bad)>,
    devices: Devices,
    names: HashMap<u64, String>,
    skip_bad_max: u64,
}

impl Reading {
    /// Reads the events of one file; false if no further one is wanted.
    fn events(&mut self, file: &mut impl Read, start: u64) -> io::Result<bool> {
        let mut file = CountedRead { input: file, count: 0 };
        let mut bytes = Vec::new();
        for record in 1.. {
            let position = Position { record, byte: start + file.count, is_line: false };
            let length = match varint(&mut file)? {
                Varint::End => return Ok(true),
                Varint::Value(length) if length <= EVENT_BYTES_MAX => length,
                _ => return Ok(self.lost(position, "the length of an event is damaged".into())),
            };
            bytes.clear();
            if (&mut file).take(length).read_to_end(&mut bytes)? as u64 != length {
                return Ok(self.lost(position, "the file ends inside an event".into()));
            }
            let parsed = Event::decode(&bytes[..]).map_err(|error| Bad::from(error.to_string()));
            let (sid, parsed) = match parsed {
                Ok(event) => self.request(event),
                Err(reason) => (0, Err(reason)),
            };
            match step(position, parsed) {
                Step::Request(raw) => self.requests.push((raw.time_ns, sid, Some(raw))),
                Step::Empty => self.requests.push((0, sid, None)),
                Step::Bad(position, reason) => {
                    if !self.lost(position, reason) {
                        return Ok(false);
                    }
                }
                Step::Nothing | Step::End => {}
            }
            if self.requests.len() > REQUESTS_MAX {
                return Err(io::Error::other(format!(
                    "it holds more than {REQUESTS_MAX} requests, which would not fit in memory"
                )));
            }
        }
        Ok(true)
    }

    /// Notes a damaged record; false once there are too many.
    fn lost(&mut self, position: Position, reason: Bad) -> bool {
        self.bad.push((position, reason));
        self.bad.len() as u64 <= self.skip_bad_max
    }
}

impl Reading {
    /// The event's number and what it is.
    fn request(&mut self, event: Event) -> (u64, Result<Parsed, Bad>) {
        let header = event.header.unwrap_or_default();
        if let Some(Device { id, name }) = event.device {
            self.names.insert(id, name);
        }
        let parsed = match event.io {
            None => Ok(Parsed::Nothing),
            Some(io) => self.io(&io, header.timestamp),
        };
        (header.sid, parsed)
    }

    fn io(&mut self, io: &Io, time_ns: u64) -> Result<Parsed, Bad> {
        let first = i32::from(io.id.is_some());
        let op = match io.operation.wrapping_sub(first) {
            _ if io.flush && io.len == 0 => Op::Flush,
            0 => Op::Read,
            1 => Op::Write,
            2 => Op::Discard,
            _ => return Err(format!("operation {}", io.operation).into()),
        };
        let offset = io.lba.checked_mul(SECTOR).ok_or("a sector beyond all disks")?;
        let device = self.devices.number(&io.device.to_le_bytes())?;
        let extent = Extent::Range { device, offset, bytes: u64::from(io.len) * SECTOR };
        Ok(Parsed::Request(Raw::new(time_ns, op, extent)))
    }
}

struct CountedRead<'a, R> {
    input: &'a mut R,
    count: u64,
}

impl<R: Read> Read for CountedRead<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.input.read(buffer)?;
        self.count += count as u64;
        Ok(count)
    }
}

enum Varint {
    Value(u64),
    Damaged,
    End,
}

fn varint(input: &mut impl Read) -> io::Result<Varint> {
    let mut value = 0u64;
    for shift in (0..64).step_by(7) {
        let mut byte = [0];
        if input.read(&mut byte)? == 0 {
            return Ok(if shift == 0 { Varint::End } else { Varint::Damaged });
        }
        value |= u64::from(byte[0] & 0x7f) << shift;
        if byte[0] & 0x80 == 0 {
            return Ok(Varint::Value(value));
        }
    }
    Ok(Varint::Damaged)
}
