//! The store behind a volume.

use std::fmt::Debug;

/// A slow disk: a file, a device, another server's export. Calls block and may run at the same time on many threads;
/// writes that overlap are never under way together.
///
/// Bytes are durable after an [`Origin::flush`] that began after their write returned has succeeded; before that, any
/// subset of sectors of 512 bytes may survive a crash of the store.
pub trait Origin: Send + Sync + Debug {
    /// Its size in bytes.
    fn size(&self) -> u64;

    /// Fills `buf` from `offset` on.
    ///
    /// # Errors
    /// As the store reports them; so for every method here. See [`OriginError`] for what may be tried again.
    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<(), OriginError>;

    /// Writes all of `bytes`. After an error any part may have been written.
    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), OriginError>;

    /// Makes a range read as zeros; with `punch` its space may be given back.
    fn zero(&self, offset: u64, len: u64, punch: bool) -> Result<(), OriginError>;

    /// Makes every write that returned before durable, over all connections that carried them. A failed flush is never
    /// made good by a later one that succeeds: what was written since the last good one must be written again.
    fn flush(&self) -> Result<(), OriginError>;

    /// How many requests it is worth sending at a time; at least 1.
    fn parallelism(&self) -> usize;

    /// What tells this store from another one, and a changed one from the one that was left: see the attach record.
    fn identity(&self) -> Result<Identity, OriginError>;
}

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

/// Why an origin did not do what it was asked.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{message}")]
pub struct OriginError {
    /// What follows from it.
    pub kind: OriginErrorKind,
    /// What happened, to what, and what to do.
    pub message: String,
}

/// What follows from an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OriginErrorKind {
    /// Out of reach for now: the same call may succeed later.
    Unavailable,
    /// Permission, read-only, too small: nothing works until someone mends it.
    Denied,
    /// Another host has taken the origin over.
    Fenced,
    /// A medium error at this place.
    Failed,
}
