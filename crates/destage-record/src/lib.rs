//! Recordings: every input that a live core was told, with its time, and a digest of every effect that it gave.
//!
//! A front end drives its core through a [`RecordedCore`], which costs a branch per call where nothing is recorded.
//! [`Part::read`] gives back what was recorded; replaying it must give the same effects, since the core reads no clock and
//! draws no random numbers. Payload, keys and values are never recorded, only sizes, handles, hashes of keys
//! and addresses of volumes; of an anonymous recording nobody reads the last two.
//!
//! The files survive a crash of the process up to the last second and a torn end. `docs/FORMAT.md` describes them.

mod anonymous;
mod codec;
mod digest;
mod frame;
mod input;
mod live;
mod part;
mod parts;
mod told;
mod writer;

use destage_core::{ClientId, RequestId};

pub use digest::Digest;
pub use frame::Damage;
pub use input::Scratch;
pub use live::{CannotRecord, RecordSettings, RecordedCore};
pub use part::{Begin, End, Event, Events, Part};
pub use parts::{ListError, list};
pub use told::{Asked, What, row_identity};

/// A request of a volume's client may be several of the core's. So the lowest bits of each [`RequestId`] are those of the
/// [`ClientId`] that stands for the answer: a recording tells which belong together.
const ANSWER_BITS: u32 = 24;

/// A request that is a part of this answer, by its own number. Numbers come again after 2^40.
pub const fn part_of(answer: ClientId, number: u64) -> RequestId {
    RequestId(number << ANSWER_BITS | (answer.0 & MASK) as u64)
}

/// Which answer a request is a part of.
pub const fn answer_of(request: RequestId) -> u32 {
    request.0 as u32 & MASK
}

/// The same of the client that stands for the answer.
pub const fn answer(client: ClientId) -> u32 {
    client.0 & MASK
}

const MASK: u32 = (1 << ANSWER_BITS) - 1;

/// A request of rows tells whose it is: the highest bits of its number are those of the [`ClientId`].
const NUMBER_BITS: u32 = 32;

/// A client's request of rows, by its own number. Numbers come again after 2^32.
pub const fn request_of(client: ClientId, number: u64) -> RequestId {
    RequestId((client.0 as u64) << NUMBER_BITS | (number & ((1 << NUMBER_BITS) - 1)))
}

/// Whose request of rows it is.
pub const fn client_of(request: RequestId) -> ClientId {
    ClientId((request.0 >> NUMBER_BITS) as u32)
}

/// Whose requests of rows nobody waits for yet.
pub const PREFETCH_CLIENT: ClientId = ClientId(u32::MAX);

/// Whether a recording is of a volume, by its subject.
pub fn is_of_volume(subject: &str) -> bool {
    subject.starts_with("block")
}

/// The version of the format that is written.
pub const FORMAT_VERSION: u16 = 2;

/// The oldest version that is read. It has no events of what clients asked for and of what units stand for.
pub const FORMAT_VERSION_MIN: u16 = 1;
