//! Why the redo store did not do what it was asked.

use crate::block::Lba;
use crate::origin::{OriginIoError, OriginIoErrorKind};

/// By what the caller does next.
#[derive(Clone, Debug, thiserror::Error)]
pub enum RedoError {
    /// The origin or the medium of the store, as its kind says. The same call may be made again: it goes on where it must.
    #[error(transparent)]
    Origin(#[from] OriginIoError),
    /// The group does not fit: cut it in two at a lower Lsn.
    #[error(
        "a group of {bytes} bytes does not fit in the redo store, which takes {bytes_max}: \
         cut it, or give the store more space"
    )]
    TooLarge {
        /// What it needs, tables included.
        bytes: u64,
        /// What there is.
        bytes_max: u64,
    },
    /// Blocks of a committed group hold neither what was there before nor what the group writes: someone else wrote.
    #[error(
        "{count} blocks of a committed group were changed by someone else, the first at block {first}: \
         look who writes to the origin; a forced replay overwrites these blocks",
        first = .first.0
    )]
    Foreign {
        /// The first of them.
        first: Lba,
        /// How many.
        count: u64,
    },
    /// A group of several volumes was under way, and another volume's redo store knows whether it is committed.
    #[error(
        "the last group spans several volumes, and whether it is committed stands in another redo store{}: {why}",
        place_of(.in_doubt)
    )]
    InDoubt {
        /// Which group, and who knows.
        in_doubt: super::InDoubt,
        /// Why that store was not asked.
        why: String,
    },
    /// The store's bytes contradict themselves where they were durable.
    #[error("the redo store is damaged: {0}")]
    Corrupt(String),
    /// Not a redo store, one of another version or origin, or an argument that makes no sense.
    #[error("{0}")]
    Invalid(String),
}

impl RedoError {
    /// In the terms of an origin, for those who only tell what may be tried again.
    pub fn kind(&self) -> OriginIoErrorKind {
        match self {
            Self::Origin(error) => error.kind,
            Self::TooLarge { .. }
            | Self::Foreign { .. }
            | Self::InDoubt { .. }
            | Self::Invalid(_) => OriginIoErrorKind::Denied,
            Self::Corrupt(_) => OriginIoErrorKind::Failed,
        }
    }

    pub(crate) fn fenced(message: impl Into<String>) -> Self {
        Self::Origin(OriginIoError::new(OriginIoErrorKind::Fenced, message))
    }

    pub(crate) fn unavailable(message: impl Into<String>) -> Self {
        Self::Origin(OriginIoError::new(OriginIoErrorKind::Unavailable, message))
    }
}

fn place_of(in_doubt: &super::InDoubt) -> String {
    let uuid = uuid::Uuid::from_bytes(in_doubt.coordinator);
    if in_doubt.place.is_empty() {
        format!(" (UUID {uuid})")
    } else {
        format!(", {} (UUID {uuid})", in_doubt.place)
    }
}
