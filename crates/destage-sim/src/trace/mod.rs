//! I/O traces of many formats as one stream of requests, in bounded memory.
//!
//! A trace keeps its file's order. Times count from the first request; a time that goes back counts as the one before it. A
//! damaged record ends the reading with its position, or is passed over if the caller allows so many.

mod binary;
mod columns;
mod detect;
mod error;
mod fields;
mod format;
mod named;
mod octf;
mod recording;
mod records;
mod source;
mod text;

pub use error::{Position, TraceError};
pub use format::Format;
pub use named::ColumnMap;

use crate::machine::Devices;
use crate::replay::RecordedRun;
use destage_core::{Span, Time};
use records::{Records, Step};
use source::Source;
use std::io::Read;
use std::path::Path;

/// What a request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// Reads its extent.
    Read,
    /// Writes its extent.
    Write,
    /// Gives its extent up (discard, trim, delete).
    Discard,
    /// Asks for durability; has no extent.
    Flush,
}

/// What a request touches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// Bytes of a device.
    Range {
        /// Numbered from 0 in the order of appearance; at most [`DEVICES_MAX`].
        device: u32,
        /// The first byte; below 2^56.
        offset: u64,
        /// How many bytes.
        bytes: u64,
    },
    /// A whole object of a key-value or object trace, which is cached as one unit.
    Object {
        /// Its key, or a hash of it.
        id: u64,
        /// Its size in bytes.
        bytes: u64,
    },
}

/// One request of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// When it arrived, since the first request of the trace; always 0 in formats without times.
    pub time: Time,
    /// What it does.
    pub op: Op,
    /// What it touches; empty for a flush.
    pub extent: Extent,
    /// The host that issued it; 0 in formats without hosts.
    pub host: u16,
    /// The thread that issued it; 0 in formats without threads.
    pub thread: u16,
}

/// How to read a trace.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The format; recognised from the content if not given.
    pub format: Option<Format>,
    /// What its columns are, if it is a text separated by commas: then it is read as [`Format::Csv`]; default none.
    pub columns: ColumnMap,
    /// So many damaged records are passed over; default 0.
    pub skip_bad_max: u64,
    /// Which events of blktrace and blkparse are requests.
    pub block_event: BlockEvent,
    /// Of a recording: for so long from the first request on, what became of it is not counted; default 0.
    pub warmup: Span,
}

/// The events that the block layer traces for each request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BlockEvent {
    /// Q: it was handed to the block layer.
    #[default]
    Queued,
    /// D: it was issued to the driver.
    Issued,
    /// C: it was completed.
    Completed,
}

/// What was met while reading.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Requests.
    pub requests: u64,
    /// Damaged records that were passed over.
    pub bad: u64,
    /// Reads, writes and discards of nothing, which are left out.
    pub empty: u64,
    /// Requests whose time was before that of an earlier one.
    pub late: u64,
}

/// Most devices of one trace.
pub const DEVICES_MAX: u32 = 1 << 16;
/// Offsets are below this.
pub const OFFSET_MAX: u64 = 1 << 56;
/// Largest read, write or object.
pub const REQUEST_BYTES_MAX: u64 = 1 << 30;
/// Largest discard.
pub const DISCARD_BYTES_MAX: u64 = 1 << 36;

/// A trace that is being read.
pub struct Trace {
    name: String,
    format: Format,
    records: Records,
    source_bytes: source::Counter,
    skip_bad_max: u64,
    counts: Counts,
    first_ns: Option<u64>,
    last: Time,
    note: Option<String>,
    devices: Option<Devices>,
    run: Option<RecordedRun>,
    volume: Option<String>,
}

impl std::fmt::Debug for Trace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Trace")
            .field("name", &self.name)
            .field("format", &self.format)
            .field("counts", &self.counts)
            .finish_non_exhaustive()
    }
}

impl Trace {
    /// Opens a file, `-` for the standard input. Compression by zstd, gzip or xz is recognised.
    ///
    /// # Errors
    /// The file cannot be read, or its format is not recognised or contradicts its first bytes.
    pub fn open(path: &Path, options: &Options) -> Result<Self, TraceError> {
        let name = if path.as_os_str() == "-" {
            source::STANDARD_INPUT.to_owned()
        } else {
            path.display().to_string()
        };
        if Self::is_recording(path, options) {
            return Self::of_recording(path, name, options.warmup);
        }
        Self::new(Source::open(path)?, name, options)
    }

    /// Whether it is read as the recording of a live run: it is told to the core then, which panics if it was changed into what
    /// cannot have happened.
    pub fn is_recording(path: &Path, options: &Options) -> bool {
        options.format == Some(Format::Recording)
            || options.format.is_none()
                && options.columns.is_empty()
                && (recording::has_parts(path) || recording::is_part(path))
    }

    /// A recording is read as a whole.
    fn of_recording(path: &Path, name: String, warmup: Span) -> Result<Self, TraceError> {
        let recorded = recording::read(path, warmup)?;
        Ok(Self {
            records: Records::Loaded(recorded.requests.into_iter()),
            name,
            format: Format::Recording,
            source_bytes: source::Counter::none(),
            skip_bad_max: 0,
            counts: Counts::default(),
            first_ns: None,
            last: Time::ZERO,
            note: recorded.note,
            devices: recorded.devices,
            run: recorded.run,
            volume: recorded.volume,
        })
    }

    /// Reads what `input` gives; `name` is used in messages.
    ///
    /// # Errors
    /// As for [`Trace::open`].
    pub fn from_reader(
        input: impl Read + Send + 'static,
        name: &str,
        options: &Options,
    ) -> Result<Self, TraceError> {
        let source = Source::new(Box::new(input), None, name)?;
        Self::new(source, name.to_owned(), options)
    }

    fn new(source: Source, name: String, options: &Options) -> Result<Self, TraceError> {
        if source.head().is_empty() {
            return Err(TraceError::Empty { name });
        }
        let unknown = || TraceError::UnknownFormat {
            name: name.clone(),
            beginning: error::beginning(source.head()),
        };
        let format = match options.format {
            Some(format) => format,
            None if !options.columns.is_empty() => Format::Csv,
            None => detect::detect(source.head()).ok_or_else(unknown)?,
        };
        let source_bytes = source.counter();
        Ok(Self {
            records: Records::new(source, format, options, &name)?,
            name,
            format,
            source_bytes,
            skip_bad_max: options.skip_bad_max,
            counts: Counts::default(),
            first_ns: None,
            last: Time::ZERO,
            note: None,
            devices: None,
            run: None,
            volume: None,
        })
    }

    /// The format that is read.
    pub fn format(&self) -> Format {
        self.format
    }

    /// The name used in messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What is to be known of the trace as a whole, for people.
    pub fn note(&self) -> Option<&str> {
        self.note.as_deref()
    }

    /// How slow devices were, if the trace is a recording.
    pub fn devices(&self) -> Option<&Devices> {
        self.devices.as_ref()
    }

    /// What became of the requests, if the trace is a recording.
    pub fn recorded_run(&self) -> Option<&RecordedRun> {
        self.run.as_ref()
    }

    /// What a device is called, where the trace says so; of a recording, the name of the volume.
    pub fn device_name(&self, number: u32) -> Option<String> {
        let volume = self.volume.as_ref().filter(|_| number == 0);
        volume.cloned().or_else(|| self.records.device_name(number))
    }

    /// What was met so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Bytes of the file that were read so far, before decompression, and its length where it is known.
    pub fn progress(&self) -> (u64, Option<u64>) {
        self.source_bytes.get()
    }

    /// The next request; `None` at the end.
    ///
    /// # Errors
    /// The file cannot be read, or a record is damaged and no more of them may be passed over.
    pub fn next_request(&mut self) -> Result<Option<Request>, TraceError> {
        loop {
            match self.records.next(&self.name)? {
                Step::End => return Ok(None),
                Step::Nothing => {}
                Step::Empty => self.counts.empty += 1,
                Step::Request(request) => return Ok(Some(self.timed(request))),
                Step::Bad(position, reason) => {
                    if self.counts.bad >= self.skip_bad_max {
                        return Err(TraceError::Bad { name: self.name.clone(), position, reason });
                    }
                    self.counts.bad += 1;
                }
            }
        }
    }

    /// Puts the next requests in place of those in `requests`, as many as there is room for without growing. There are none at the
    /// end.
    ///
    /// # Errors
    /// As for [`Trace::next_request`].
    pub fn next_requests(&mut self, requests: &mut Vec<Request>) -> Result<(), TraceError> {
        requests.clear();
        while requests.len() < requests.capacity()
            && let Some(request) = self.next_request()?
        {
            requests.push(request);
        }
        Ok(())
    }

    fn timed(&mut self, raw: Raw) -> Request {
        let first = *self.first_ns.get_or_insert(raw.time_ns);
        let time = Time(raw.time_ns.saturating_sub(first));
        if raw.time_ns < first || time < self.last {
            self.counts.late += 1;
        }
        self.last = self.last.max(time);
        self.counts.requests += 1;
        let Raw { op, extent, host, thread, .. } = raw;
        Request { time: self.last, op, extent, host, thread }
    }
}

impl Iterator for Trace {
    type Item = Result<Request, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.next_request().transpose()
    }
}

/// A request with the time of its own format's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Raw {
    time_ns: u64,
    op: Op,
    extent: Extent,
    host: u16,
    thread: u16,
}

/// What a record came to.
#[derive(Debug, PartialEq, Eq)]
enum Parsed {
    /// A request.
    Request(Raw),
    /// A header, a comment, an event that is no request.
    Nothing,
}

/// Why a record is damaged.
type Bad = std::borrow::Cow<'static, str>;

impl Raw {
    /// A request of one host and thread.
    fn new(time_ns: u64, op: Op, extent: Extent) -> Self {
        Self { time_ns, op, extent, host: 0, thread: 0 }
    }

    /// Whether it touches nothing although it should.
    fn is_empty(&self) -> bool {
        let (Extent::Range { bytes, .. } | Extent::Object { bytes, .. }) = self.extent;
        bytes == 0 && self.op != Op::Flush
    }

    /// Checks the bounds that later stages rely on.
    fn check(&self) -> Result<(), Bad> {
        let bytes_max = match self.op {
            Op::Discard => DISCARD_BYTES_MAX,
            _ => REQUEST_BYTES_MAX,
        };
        let (Extent::Range { bytes, .. } | Extent::Object { bytes, .. }) = self.extent;
        if bytes > bytes_max {
            return Err(format!("a request of {bytes} bytes, more than {bytes_max}").into());
        }
        match self.extent {
            Extent::Range { device, .. } if device >= DEVICES_MAX => {
                Err(format!("device {device}, more than {DEVICES_MAX} devices").into())
            }
            Extent::Range { offset, .. } if offset > OFFSET_MAX - bytes => {
                Err(format!("offset {offset} is beyond 2^56").into())
            }
            _ => Ok(()),
        }
    }
}
