//! What can go wrong with a trace.

use super::{Bad, Format};
use std::fmt;
use std::io;

/// Where a record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// Its number in the file, from 1: the line of a text, the record of a binary file.
    pub record: u64,
    /// Where it begins, in bytes of the decompressed file.
    pub byte: u64,
    /// Whether records are lines.
    pub is_line: bool,
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = if self.is_line { "line" } else { "record" };
        write!(f, "{unit} {} (byte {})", self.record, self.byte)
    }
}

/// Why a trace cannot be read, or not further.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The file cannot be opened.
    #[error("failed to open the trace {name}: {error}")]
    Open {
        /// The file.
        name: String,
        /// Why.
        error: io::Error,
    },
    /// The file cannot be read, or its compression is damaged.
    #[error("failed to read the trace {name} after {byte} bytes: {error}{}", cut_short(error))]
    Read {
        /// The file.
        name: String,
        /// Bytes that were read, decompressed.
        byte: u64,
        /// Why.
        error: io::Error,
    },
    /// There is nothing in it.
    #[error("the trace {name} is empty")]
    Empty {
        /// The file.
        name: String,
    },
    /// The content is of no known format.
    #[error(
        "the format of {name} is not recognised from its beginning, {beginning}: name it with --trace-format, one of {}",
        Format::names()
    )]
    UnknownFormat {
        /// The file.
        name: String,
        /// Its first line or bytes, for people.
        beginning: String,
    },
    /// A record is damaged.
    #[error("{name} is damaged at {position}: {reason}; --skip-bad N passes over N such records")]
    Bad {
        /// The file.
        name: String,
        /// Where.
        position: Position,
        /// What is wrong.
        reason: Bad,
    },
    /// The file as a whole is not of its format.
    #[error("{name} cannot be read as {format}: {reason}")]
    Format {
        /// The file.
        name: String,
        /// The format.
        format: Format,
        /// What is wrong.
        reason: Bad,
    },
}

/// What an end before the end of a compressed file means.
fn cut_short(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => ": the file was cut short",
        _ => "",
    }
}

/// Most bytes that are shown of a file that is not recognised.
const SHOWN_MAX: usize = 40;

/// The first line of a text, or the first bytes of anything else.
pub(super) fn beginning(head: &[u8]) -> String {
    let line = head.split(|&byte| byte == b'\n').next().unwrap_or_default();
    let shown = &line[..line.len().min(SHOWN_MAX)];
    let dots = if shown.len() < line.len() { "..." } else { "" };
    if shown.iter().all(|byte| byte.is_ascii_graphic() || *byte == b' ' || *byte == b'\t') {
        format!("'{}{dots}'", String::from_utf8_lossy(shown))
    } else {
        let bytes = head.iter().take(SHOWN_MAX / 5).map(|byte| format!("{byte:02x}"));
        format!("the bytes {}", bytes.collect::<Vec<_>>().join(" "))
    }
}
