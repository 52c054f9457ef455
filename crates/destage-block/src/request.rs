//! What a client asks of a volume, free of any protocol.

/// One request. Offsets and lengths are bytes, at any alignment; the protocol has checked that they lie inside the volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// The newest acknowledged bytes, or any that overlapping writes under way leave.
    Read {
        /// Where.
        offset: u64,
        /// How many; at least 1.
        len: u32,
    },
    /// New bytes.
    Write {
        /// Where.
        offset: u64,
        /// At least one.
        data: Vec<u8>,
        /// The reply says that this write is durable.
        fua: bool,
    },
    /// The range reads as zeros afterwards: NBD's `WRITE_ZEROES` and `TRIM`.
    Zero {
        /// Where.
        offset: u64,
        /// How many; at least 1. May exceed what a write may hold.
        len: u64,
        /// The reply says that this write is durable.
        fua: bool,
        /// The origin may give the space back.
        punch: bool,
    },
    /// Every write whose reply has left is durable when this one's leaves.
    Flush,
    /// Which parts are known to be zeros, and which are dirty.
    Status {
        /// Where.
        offset: u64,
        /// How many bytes; at least 1. The reply may stop before.
        len: u64,
    },
    /// Fetch into the cache what will be read soon.
    Cache {
        /// Where.
        offset: u64,
        /// How many; at least 1.
        len: u64,
    },
}

impl Request {
    /// Whether it changes the volume.
    pub fn is_write(&self) -> bool {
        matches!(self, Self::Write { .. } | Self::Zero { .. })
    }

    /// Bytes that it is about; 0 of a flush.
    pub fn bytes(&self) -> u64 {
        match self {
            Self::Read { len, .. } => u64::from(*len),
            Self::Write { data, .. } => data.len() as u64,
            Self::Zero { len, .. } | Self::Status { len, .. } | Self::Cache { len, .. } => *len,
            Self::Flush => 0,
        }
    }

    /// Whether its reply says that something is durable.
    pub fn is_flush(&self) -> bool {
        match self {
            Self::Flush => true,
            Self::Write { fua, .. } | Self::Zero { fua, .. } => *fua,
            Self::Read { .. } | Self::Status { .. } | Self::Cache { .. } => false,
        }
    }
}

/// The answer to a [`Request`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// Carried out.
    Done,
    /// The bytes of a read.
    Data(Vec<u8>),
    /// The parts of a range in order, from its start on.
    Status(Vec<Status>),
    /// Not carried out, or nobody knows.
    Error(RequestError),
}

/// What is known of a part of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status {
    /// Bytes; at least 1.
    pub len: u64,
    /// It reads as zeros and takes no space.
    pub is_hole: bool,
    /// The origin does not have its newest bytes.
    pub is_dirty: bool,
}

/// Why a request failed, in the terms that every block protocol has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestError {
    /// A medium or the origin failed (`EIO`).
    Io,
    /// A limit is reached and the policy says to fail (`ENOSPC`).
    NoSpace,
    /// The volume may only be read (`EPERM`).
    ReadOnly,
    /// The request makes no sense (`EINVAL`).
    Invalid,
    /// Too much is under way (`ENOMEM`).
    Busy,
    /// The server is shutting down (`ESHUTDOWN`).
    Stopping,
}
