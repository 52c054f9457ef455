//! One opaque error whose kind says what the caller can do.

use std::fmt;
use std::io;

/// Why an operation on the journal failed. The message says what happened, to what, and what to do.
#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    message: String,
    position: Option<Position>,
    source: Option<io::Error>,
}

/// What the caller does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// The medium or another process stood in the way; nothing was changed. Try again later.
    Retry,
    /// No space for a further segment. Nothing is lost: the same flush may run again once there is space.
    Full,
    /// A write or sync failed, now or earlier: what the medium holds is unknown. Stop, then recover in a new process.
    Fenced,
    /// A wrong option or argument, a file of another format version, or records that are no longer retained.
    Invalid,
    /// The journal is damaged where it was known durable. See [`Error::position`] and [`crate::repair`].
    Corrupt,
    /// The handle was opened for reading only.
    Closed,
}

/// A place in the journal. Shown as `segment:offset`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position {
    /// The segment's number, as in its file name.
    pub segment: u64,
    /// Bytes from the start of the segment's file.
    pub offset: u64,
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.segment, self.offset)
    }
}

impl std::str::FromStr for Position {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let parts = text.split_once(':');
        let parsed = parts.and_then(|(s, o)| Some((s.parse().ok()?, o.parse().ok()?)));
        let Some((segment, offset)) = parsed else {
            return Err(Error::invalid(format!("\"{text}\" is no position: write SEGMENT:OFFSET")));
        };
        Ok(Self { segment, offset })
    }
}

impl Error {
    /// What the caller does next.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// Where the damage is, for [`ErrorKind::Corrupt`].
    pub fn position(&self) -> Option<Position> {
        self.position
    }

    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), position: None, source: None }
    }

    pub(crate) fn corrupt_parcel(why: &str) -> Self {
        Self::new(
            ErrorKind::Corrupt,
            format!("an entry of the replicated log cannot be read: {why}"),
        )
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Invalid, message)
    }

    pub(crate) fn fenced() -> Self {
        Self::new(
            ErrorKind::Fenced,
            "the journal is fenced since a write or sync failed: restart to recover what is durable",
        )
    }

    /// Damage at a place that was known durable.
    pub(crate) fn corrupt(segment: u64, offset: u64, what: impl fmt::Display) -> Self {
        let at = Position { segment, offset };
        let message = format!(
            "the journal is damaged in segment {segment} at offset {offset}: {what}; restore the file, \
             or give up what follows with `destage journal repair --cut {at}`"
        );
        Self { position: Some(at), ..Self::new(ErrorKind::Corrupt, message) }
    }

    /// Trouble with a file outside the write path, where nothing needs fencing.
    pub(crate) fn io(what: impl fmt::Display, source: io::Error) -> Self {
        let kind = match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => ErrorKind::Full,
            io::ErrorKind::PermissionDenied | io::ErrorKind::NotFound => ErrorKind::Invalid,
            _ => ErrorKind::Retry,
        };
        Self { source: Some(source), ..Self::new(kind, format!("failed to {what}")) }
    }

    /// Trouble that leaves the medium's content unknown.
    pub(crate) fn fencing(what: impl fmt::Display, source: io::Error) -> Self {
        let message = format!("failed to {what}; the journal is fenced");
        Self { source: Some(source), ..Self::new(ErrorKind::Fenced, message) }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        match &self.source {
            Some(source) => write!(f, ": {source}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_ref().map(|s| s as _)
    }
}
