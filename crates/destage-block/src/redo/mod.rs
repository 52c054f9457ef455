//! Atomic groups at the origin: many blocks become new together, or none of them.
//!
//! A group is first written beside the origin into a *redo store*, then named durable by a commit record, then written in
//! place. After a crash of the host, of the origin's host or of both, [`RedoStore::recover`] writes a committed group again
//! and drops one that is not, so the origin holds exactly the state after one of the groups. Until then the raw image may
//! hold a part of a group: it is not valid before the replay.
//!
//! The store lives on anything that is an [`Origin`]: a file beside the origin, a path, an NBD export, a reserved tail
//! ([`crate::origin::Part`]). It must be in the origin's own failure domain, or losing the host loses the groups under way.
//! It also holds the attach record, see [`crate::attach`]. The bytes are drawn in `docs/FORMAT.md`.

mod apply;
mod chunks;
mod error;
mod evidence;
mod format;
mod group;
mod joint;
mod recent;
mod recover;
mod snapshot;
mod store;

pub use error::RedoError;
pub(crate) use evidence::Evidence;
pub use format::{AttachRecord, CoordinatorRecord, FORMAT_VERSION, HOST_BYTES_MAX};
pub use group::{AtomicGroup, Content, Payload, Run};
pub use joint::{InDoubt, Share, apply_groups, ask_coordinator};
pub use recent::RecentBlocks;
pub use recover::Replay;
pub use store::{NewStore, RedoStore};

#[cfg(test)]
mod tests;
