//! Recordings: every input that a live core was told, with its time, and a digest of every effect that it gave.
//!
//! A front end drives its core through a [`RecordedCore`], which costs a branch per call where nothing is recorded.
//! [`Part::read`] gives back what was recorded; replaying it must give the same effects, since the core reads no clock and
//! draws no random numbers. Payload, keys and values are never recorded, only sizes, handles and hashes.
//!
//! The files survive a crash of the process up to the last second and a torn end. `docs/FORMAT.md` describes them.

mod codec;
mod digest;
mod frame;
mod input;
mod live;
mod part;
mod parts;
mod writer;

pub use digest::Digest;
pub use frame::Damage;
pub use input::Scratch;
pub use live::{CannotRecord, RecordSettings, RecordedCore};
pub use part::{Begin, End, Event, Events, Part};
pub use parts::{ListError, list};

/// The version of the format that is written, and the only one that is read.
pub const FORMAT_VERSION: u16 = 1;
