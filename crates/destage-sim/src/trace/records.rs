//! Records into which a file falls, each with its position.

use super::binary::{self, Blktrace, Fixed};
use super::columns::Columns;
use super::fields::Devices;
use super::octf::Octf;
use super::source::Source;
use super::text::{Blkparse, Fio};
use super::{Bad, Format, Options, Parsed, Position, Raw, TraceError};
use std::io::{self, BufRead, Read};

/// What comes next.
pub(super) enum Step {
    Request(Raw),
    /// A record that is no request.
    Nothing,
    /// A request for nothing.
    Empty,
    Bad(Position, Bad),
    End,
}

/// The records of a trace.
pub(super) enum Records {
    Lines(Lines, Box<dyn ParseLine + Send>),
    Fixed(FixedRecords, Fixed),
    Blktrace(FixedRecords, Blktrace),
    Octf(Octf),
    /// What was read as a whole.
    Loaded(std::vec::IntoIter<Raw>),
}

/// A format of one record per line.
pub(super) trait ParseLine {
    /// Takes a line without its end; the first line has the number 1.
    fn parse(&mut self, line: &[u8], number: u64) -> Result<Parsed, Bad>;

    /// Those that were met so far.
    fn devices(&self) -> &Devices;
}

impl Records {
    pub(super) fn new(
        source: Source,
        format: Format,
        options: &Options,
        name: &str,
    ) -> Result<Self, TraceError> {
        let wrong = |reason: Bad| TraceError::Format { name: name.into(), format, reason };
        let head = source.head();
        let line: Box<dyn ParseLine + Send> = match format {
            Format::Vscsi | Format::OracleGeneral | Format::Srt => {
                let (fixed, skip) = Fixed::new(format, head).map_err(wrong)?;
                return Ok(Self::Fixed(FixedRecords::new(source, skip, name)?, fixed));
            }
            Format::Blktrace => {
                let blktrace = Blktrace::new(head, options.block_event).map_err(wrong)?;
                return Ok(Self::Blktrace(FixedRecords::new(source, 0, name)?, blktrace));
            }
            Format::Octf => return Octf::read(source, options.skip_bad_max, name).map(Self::Octf),
            Format::Recording => {
                return Err(wrong("it is a file or several of them, not a stream".into()));
            }
            Format::Blkparse => Box::new(Blkparse::new(options.block_event)),
            Format::Fio => Box::new(Fio::new(head).map_err(wrong)?),
            Format::Csv
            | Format::Msr
            | Format::Spc
            | Format::Systor17
            | Format::Alibaba
            | Format::Tencent
            | Format::Twitter
            | Format::Lis
            | Format::Disksim
            | Format::Mqsim => {
                Box::new(Columns::new(format, head, &options.columns).map_err(wrong)?)
            }
        };
        Ok(Self::Lines(Lines::new(source), line))
    }

    /// What a device is called, where the trace says so.
    pub(super) fn device_name(&self, number: u32) -> Option<String> {
        match self {
            Self::Lines(_, parser) => parser.devices().shown(number),
            Self::Blktrace(_, blktrace) => blktrace.device_name(number),
            Self::Octf(octf) => octf.device_name(number),
            Self::Fixed(..) | Self::Loaded(_) => None,
        }
    }

    /// The next record; `name` is used in messages.
    pub(super) fn next(&mut self, name: &str) -> Result<Step, TraceError> {
        let (position, parsed) = match self {
            Self::Lines(lines, parser) => match lines.next(name)? {
                Line::End => return Ok(Step::End),
                Line::TooLong(position) => {
                    return Ok(Step::Bad(position, format!("longer than {LINE_MAX} bytes").into()));
                }
                Line::Whole(position, line) => (position, parser.parse(line, position.record)),
            },
            Self::Fixed(records, fixed) => match records.next(fixed.size(), name)? {
                None => return Ok(Step::End),
                Some((position, record)) => (position, whole(record, |record| fixed.parse(record))),
            },
            Self::Blktrace(records, blktrace) => {
                match records.next(binary::BLKTRACE_BYTES, name)? {
                    None => return Ok(Step::End),
                    Some((position, record)) => {
                        let parsed = whole(record, |record| blktrace.parse(record));
                        let payload = blktrace.payload_bytes(record);
                        records.pass_over(payload, name)?;
                        (position, parsed)
                    }
                }
            }
            Self::Octf(octf) => return Ok(octf.next()),
            Self::Loaded(requests) => {
                return Ok(requests.next().map_or(Step::End, Step::Request));
            }
        };
        Ok(step(position, parsed))
    }
}

fn whole(
    record: FixedRecord<'_>,
    parse: impl FnOnce(&[u8]) -> Result<Parsed, Bad>,
) -> Result<Parsed, Bad> {
    match record {
        FixedRecord::Whole(bytes) => parse(bytes),
        FixedRecord::Cut(found, wanted) => {
            Err(format!("the file ends after {found} of the record's {wanted} bytes").into())
        }
    }
}

/// Checks a parsed record.
pub(super) fn step(position: Position, parsed: Result<Parsed, Bad>) -> Step {
    let checked = parsed.and_then(|parsed| match &parsed {
        Parsed::Request(raw) => raw.check().map(|()| parsed),
        Parsed::Nothing => Ok(parsed),
    });
    match checked {
        Ok(Parsed::Request(raw)) if raw.is_empty() => Step::Empty,
        Ok(Parsed::Request(raw)) => Step::Request(raw),
        Ok(Parsed::Nothing) => Step::Nothing,
        Err(reason) => Step::Bad(position, reason),
    }
}

fn failed(name: &str, byte: u64, error: io::Error) -> TraceError {
    TraceError::Read { name: name.into(), byte, error }
}

/// Longest line, bytes.
const LINE_MAX: u64 = 64 << 10;

/// The lines of a text.
pub(super) struct Lines {
    reader: Box<dyn BufRead + Send>,
    line: Vec<u8>,
    number: u64,
    byte: u64,
}

enum Line<'a> {
    Whole(Position, &'a [u8]),
    TooLong(Position),
    End,
}

impl Lines {
    fn new(source: Source) -> Self {
        Self { reader: source.into_reader(), line: Vec::new(), number: 0, byte: 0 }
    }

    fn next(&mut self, name: &str) -> Result<Line<'_>, TraceError> {
        self.number += 1;
        let position = Position { record: self.number, byte: self.byte, is_line: true };
        match self.read() {
            Ok(0) => Ok(Line::End),
            Ok(_) if self.line.len() as u64 >= LINE_MAX => {
                self.read_rest().map_err(|error| failed(name, self.byte, error))?;
                Ok(Line::TooLong(position))
            }
            Ok(_) => {
                let line = self.line.strip_suffix(b"\n").unwrap_or(&self.line);
                Ok(Line::Whole(position, line.strip_suffix(b"\r").unwrap_or(line)))
            }
            Err(error) => Err(failed(name, self.byte, error)),
        }
    }

    fn read(&mut self) -> io::Result<usize> {
        self.line.clear();
        let count = (&mut self.reader).take(LINE_MAX).read_until(b'\n', &mut self.line)?;
        self.byte += count as u64;
        Ok(count)
    }

    /// Passes over what remains of a line that is too long.
    fn read_rest(&mut self) -> io::Result<()> {
        while self.line.last() != Some(&b'\n') && self.read()? > 0 {}
        Ok(())
    }
}

/// The records of a binary file.
pub(super) struct FixedRecords {
    reader: Box<dyn BufRead + Send>,
    record: Vec<u8>,
    number: u64,
    byte: u64,
}

#[derive(Clone, Copy)]
pub(super) enum FixedRecord<'a> {
    Whole(&'a [u8]),
    /// The file ends: so many bytes are there of so many.
    Cut(usize, usize),
}

impl FixedRecords {
    /// Begins after `skip` bytes.
    fn new(source: Source, skip: u64, name: &str) -> Result<Self, TraceError> {
        let mut records =
            Self { reader: source.into_reader(), record: Vec::new(), number: 0, byte: 0 };
        records.pass_over(skip, name)?;
        Ok(records)
    }

    fn pass_over(&mut self, bytes: u64, name: &str) -> Result<(), TraceError> {
        let passed = io::copy(&mut (&mut self.reader).take(bytes), &mut io::sink());
        self.byte += passed.map_err(|error| failed(name, self.byte, error))?;
        Ok(())
    }

    fn next(
        &mut self,
        size: usize,
        name: &str,
    ) -> Result<Option<(Position, FixedRecord<'_>)>, TraceError> {
        let count = self.read(size).map_err(|error| failed(name, self.byte, error))?;
        self.number += 1;
        let position = Position { record: self.number, byte: self.byte, is_line: false };
        self.byte += count as u64;
        Ok(match count {
            0 => None,
            _ if count < size => Some((position, FixedRecord::Cut(count, size))),
            _ => Some((position, FixedRecord::Whole(&self.record))),
        })
    }

    /// Most records lie in the buffer as a whole.
    fn read(&mut self, size: usize) -> io::Result<usize> {
        self.record.clear();
        if let Some(record) = self.reader.fill_buf()?.get(..size) {
            self.record.extend_from_slice(record);
            self.reader.consume(size);
            return Ok(size);
        }
        (&mut self.reader).take(size as u64).read_to_end(&mut self.record)
    }
}
