//! The store behind a volume.

use destage_core::Fault;
use std::fmt::Debug;
use std::io;
use std::sync::Arc;

pub mod file;
mod holders;
pub(crate) mod losses;
pub mod nbd;
pub mod part;
pub mod place;
mod snapshot;
mod turns;

pub use file::FileOrigin;
pub use nbd::{NbdOptions, NbdOrigin};
pub use part::Part;
pub use place::{absent, is_blank, open, open_or_create, open_replaceable, sidecar};
pub use snapshot::{SnapshotNote, SnapshotOrigin};
pub use turns::{InTurn, Turns};

/// A slow disk: a file, a device, another server's export. Calls block and may run at the same time on many threads;
/// writes that overlap are never under way together.
///
/// Bytes are durable after an [`Origin::flush`] that began after their write returned has succeeded; before that, any
/// subset of sectors of 512 bytes may survive a crash of the store.
pub trait Origin: Send + Sync + Debug {
    /// Its size in bytes. Changes by [`Origin::take_up_growth`] only.
    fn size(&self) -> u64;

    /// Uses what was added to the store's end since it was opened: its size now, which a crash of the store does not take
    /// back.
    ///
    /// # Errors
    /// `Denied` if it is smaller than it was. The size stays what it was after any error.
    fn take_up_growth(&self) -> Result<u64, OriginIoError> {
        Ok(self.size())
    }

    /// Fills `buf` from `offset` on.
    ///
    /// # Errors
    /// As the store reports them; so for every method here. See [`OriginIoError`] for what may be tried again.
    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<(), OriginIoError>;

    /// Writes all of `bytes`. After an error any part may have been written.
    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), OriginIoError>;

    /// Makes a range read as zeros; with `punch` its space may be given back.
    fn zero(&self, offset: u64, len: u64, punch: bool) -> Result<(), OriginIoError>;

    /// Makes every write that returned before durable, over all connections that carried them. A failed flush is never
    /// made good by a later one that succeeds: what was written since the last good one must be written again.
    fn flush(&self) -> Result<(), OriginIoError>;

    /// How often writes that no successful flush covered may have been lost: by a failed flush, by a connection that broke.
    /// Who writes beside others notes it before the first write and compares it after the flush: if it has changed, the
    /// flush says nothing about these writes, even if it succeeded, since it may have been another caller's that failed.
    fn losses(&self) -> u64;

    /// Whether [`Origin::flush`] makes anything durable. An origin that says no is durable at each write or never.
    fn can_flush(&self) -> bool {
        true
    }

    /// How many requests it is worth sending at a time; at least 1.
    fn parallelism(&self) -> usize;

    /// Which parts of a range take no space and read as zeros, from its start on; it may stop before the end. What is not known
    /// is no hole. Writes under way may or may not be seen.
    fn allocation(&self, offset: u64, len: u64) -> Result<Vec<Run>, OriginIoError> {
        let _ = offset;
        Ok(vec![Run { len, is_hole: false }])
    }

    /// What tells this store from another one, and a changed one from the one that was left: see the attach record.
    fn identity(&self) -> Result<Identity, OriginIoError>;

    /// Puts a copy of itself in its own place, after `change` has been at it: whole or not at all, durably, with this note.
    /// Who looks at the store sees the one or the other at any moment. Other writes wait meanwhile.
    ///
    /// # Errors
    /// `Denied` for a store that cannot; else as the store or `change` report them. The store then is as it was, or as it
    /// will be; doing the same again is safe.
    fn replace(&self, note: &SnapshotNote, change: &Change<'_>) -> Result<(), OriginIoError> {
        let _ = (note, change);
        let message = "this origin cannot be replaced as a whole: use --atomic redo";
        Err(OriginIoError::new(OriginIoErrorKind::Denied, message))
    }

    /// What the last [`Origin::replace`] noted, if the store is still the one that it made.
    fn snapshot_note(&self) -> Option<SnapshotNote> {
        None
    }
}

/// A part of an origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Bytes; at least 1.
    pub len: u64,
    /// Takes no space and reads as zeros.
    pub is_hole: bool,
}

/// What is done to a copy of an origin.
pub type Change<'a> = dyn Fn(&dyn Origin) -> Result<(), OriginIoError> + 'a;

/// What an origin says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// How the user named it, without secrets.
    pub name: String,
    /// Bytes.
    pub size: u64,
    /// Device and inode, export name or whatever else stays the same for as long as it is the same store.
    pub store: String,
    /// Time of the last change in ns since 1970, where the store tells.
    pub modified_ns: Option<u64>,
}

impl<O: Origin + ?Sized> Origin for Arc<O> {
    fn size(&self) -> u64 {
        (**self).size()
    }

    fn take_up_growth(&self) -> Result<u64, OriginIoError> {
        (**self).take_up_growth()
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<(), OriginIoError> {
        (**self).read(offset, buf)
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), OriginIoError> {
        (**self).write(offset, bytes)
    }

    fn zero(&self, offset: u64, len: u64, punch: bool) -> Result<(), OriginIoError> {
        (**self).zero(offset, len, punch)
    }

    fn flush(&self) -> Result<(), OriginIoError> {
        (**self).flush()
    }

    fn losses(&self) -> u64 {
        (**self).losses()
    }

    fn can_flush(&self) -> bool {
        (**self).can_flush()
    }

    fn parallelism(&self) -> usize {
        (**self).parallelism()
    }

    fn allocation(&self, offset: u64, len: u64) -> Result<Vec<Run>, OriginIoError> {
        (**self).allocation(offset, len)
    }

    fn identity(&self) -> Result<Identity, OriginIoError> {
        (**self).identity()
    }

    fn replace(&self, note: &SnapshotNote, change: &Change<'_>) -> Result<(), OriginIoError> {
        (**self).replace(note, change)
    }

    fn snapshot_note(&self) -> Option<SnapshotNote> {
        (**self).snapshot_note()
    }
}

/// Why an origin did not do what it was asked.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{message}")]
pub struct OriginIoError {
    /// What follows from it.
    pub kind: OriginIoErrorKind,
    /// What happened, to what, and what to do.
    pub message: String,
}

/// What follows from an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OriginIoErrorKind {
    /// Out of reach for now: the same call may succeed later.
    Unavailable,
    /// Permission, read-only, too small: nothing works until someone mends it.
    Denied,
    /// Another host has taken the origin over.
    Fenced,
    /// A medium error at this place.
    Failed,
}

impl OriginIoErrorKind {
    /// What the core makes of it.
    pub(crate) fn fault(self) -> Fault {
        match self {
            Self::Unavailable => Fault::Unavailable,
            // A medium error stays until someone mends it, like a refusal: tried again, but not often.
            Self::Denied | Self::Failed => Fault::Denied,
            Self::Fenced => Fault::Fenced,
        }
    }
}

impl OriginIoError {
    /// An error whose message says what happened, to what, and what to do.
    pub fn new(kind: OriginIoErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }

    /// An error of the operating system during `what`, which completes "failed to ...".
    pub(crate) fn io(what: &str, error: &io::Error) -> Self {
        let kind = OriginIoErrorKind::of(error);
        let advice = match kind {
            OriginIoErrorKind::Unavailable => "it is tried again",
            OriginIoErrorKind::Denied => "nothing is written until this is mended",
            OriginIoErrorKind::Fenced => "another host holds a reservation of the device",
            OriginIoErrorKind::Failed => "look into the system's log for the device's own words",
        };
        Self::new(kind, format!("failed to {what}: {error}; {advice}"))
    }

    /// A store that was cut.
    pub(crate) fn shrunk(name: &str, then: u64, now: u64) -> Self {
        let message = format!(
            "{name} has shrunk from {then} to {now} bytes: someone else has changed it; nothing is written until this is \
             mended"
        );
        Self::new(OriginIoErrorKind::Denied, message)
    }

    /// A request that reaches beyond the end.
    pub(crate) fn beyond(name: &str, offset: u64, len: u64, size: u64) -> Self {
        let message = format!("{name} holds {size} bytes: {len} bytes at {offset} reach beyond");
        Self::new(OriginIoErrorKind::Denied, message)
    }
}

impl OriginIoErrorKind {
    /// What an error of the operating system means for an origin.
    pub fn of(error: &io::Error) -> Self {
        match error.raw_os_error() {
            Some(code) if DENIED.contains(&code) => Self::Denied,
            Some(code) if UNAVAILABLE.contains(&code) => Self::Unavailable,
            // What the kernel makes of a SCSI reservation conflict.
            Some(libc::EBADE) => Self::Fenced,
            Some(_) => Self::Failed,
            None => Self::of_kind(error.kind()),
        }
    }

    fn of_kind(kind: io::ErrorKind) -> Self {
        match kind {
            io::ErrorKind::StorageFull
            | io::ErrorKind::QuotaExceeded
            | io::ErrorKind::FileTooLarge
            | io::ErrorKind::PermissionDenied
            | io::ErrorKind::ReadOnlyFilesystem => Self::Denied,
            io::ErrorKind::TimedOut
            | io::ErrorKind::NotConnected
            | io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionRefused
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::BrokenPipe
            | io::ErrorKind::UnexpectedEof
            | io::ErrorKind::NetworkDown
            | io::ErrorKind::NetworkUnreachable
            | io::ErrorKind::HostUnreachable
            | io::ErrorKind::StaleNetworkFileHandle
            | io::ErrorKind::WouldBlock
            | io::ErrorKind::Interrupted => Self::Unavailable,
            _ => Self::Failed,
        }
    }
}

const DENIED: &[i32] = &[
    libc::EACCES,
    libc::EPERM,
    libc::EROFS,
    libc::ENOSPC,
    libc::EDQUOT,
    libc::EFBIG,
    libc::ENOENT,
    libc::EBUSY,
];

const UNAVAILABLE: &[i32] = &[
    libc::ENODEV,
    libc::ENXIO,
    libc::ESTALE,
    libc::ETIMEDOUT,
    libc::ENOLINK,
    libc::EAGAIN,
    libc::EINTR,
    libc::ENOMEM,
    libc::EPIPE,
    libc::ENOTCONN,
    libc::ESHUTDOWN,
    libc::ECONNABORTED,
    libc::ECONNREFUSED,
    libc::ECONNRESET,
    libc::EHOSTDOWN,
    libc::EHOSTUNREACH,
    libc::ENETDOWN,
    libc::ENETRESET,
    libc::ENETUNREACH,
];
