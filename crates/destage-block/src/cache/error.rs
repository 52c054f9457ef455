//! What can be wrong with a cache device.

use std::io;

/// Why a cache device cannot be made, opened or used.
#[derive(Debug, thiserror::Error)]
pub enum CacheError {
    /// Something else, or nothing, is there.
    #[error(
        "there is no destage cache: name the right file or device, or one that is absent or empty"
    )]
    NotACache,
    /// Made by another version of this program.
    #[error(
        "the cache has format {found}, this build reads format {known}: drain it with the build that made it"
    )]
    Version {
        /// Its version.
        found: u32,
        /// The version of this build.
        known: u32,
    },
    /// Made for another origin: its contents would be wrong here.
    #[error(
        "the cache belongs to the origin \"{cache_name}\" ({cache_uuid}), not to \"{wanted_name}\" ({wanted_uuid}): \
         name the origin and the redo store that it was made with, or use another cache; nothing was sent"
    )]
    OtherOrigin {
        /// As the user named the origin when the cache was made.
        cache_name: String,
        /// The UUID in that origin's attach record.
        cache_uuid: uuid::Uuid,
        /// As the user names the origin now.
        wanted_name: String,
        /// The UUID in its attach record.
        wanted_uuid: uuid::Uuid,
    },
    /// Cut, or copied to a smaller place.
    #[error(
        "the cache should have {expected} bytes, but the device has {found}: restore it whole, nothing was changed"
    )]
    TooSmall {
        /// As the superblock says.
        expected: u64,
        /// As the device says.
        found: u64,
    },
    /// Both copies of something are broken.
    #[error(
        "both copies of the cache's {0} are damaged: restore the cache from a copy, or give up its undestaged writes by \
         removing the file or erasing the first 64 KiB of the device"
    )]
    Damaged(&'static str),
    /// A cache is there already.
    #[error(
        "there is a destage cache already, with writes that may not be at the origin: drain and remove it first"
    )]
    Exists,
    /// Its writes must reach the origin first.
    #[error(
        "the cache holds {groups} writes that may not be at the origin: start the server, let 'destage block detach' end \
         it, then try again"
    )]
    Dirty {
        /// How many.
        groups: u64,
    },
    /// Something else is there.
    #[error(
        "it is not empty: if what is on it may be lost, remove the file or erase the first 64 KiB of the device"
    )]
    NotEmpty,
    /// Another process has it.
    #[error("the cache {0} is mounted or in use by another process: end that first")]
    InUse(String),
    /// Sizes that do not work out.
    #[error("{0}")]
    Invalid(String),
    /// The medium did not do what it was asked.
    #[error("failed to {what}: {source}")]
    Io {
        /// What was being done.
        what: String,
        /// As the medium reported it.
        source: io::Error,
    },
}

impl CacheError {
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |source| Self::Io { what, source }
    }
}
