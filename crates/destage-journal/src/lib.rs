//! The durable journal of Destage: numbered write groups in segment files, made durable by group commit.
//!
//! It owns the bytes on disk from [`Journal::append`] to [`Journal::reclaim`]. It survives a crash at any moment, with
//! any part of what was not synced lost or torn; it notices damage to what was. What the payloads mean, when to flush
//! and when a group is decided is its user's business. `docs/FORMAT.md` describes the bytes.

mod chain;
mod dir;
mod disk;
mod durable;
mod error;
mod flush;
mod format;
mod inspect;
mod journal;
mod memory;
mod options;
mod parcel;
mod read;
mod recover;
mod repair;
mod room;
mod start;
mod store;
mod summaries;
mod summary;
mod sync;
mod upkeep;

pub use dir::{DirDisk, LocalFile};
pub use disk::{Disk, DiskFile};
pub use durable::DurableWrite;
pub use error::{Error, ErrorKind, Position};
pub use flush::{Flush, WrittenBatch};
pub use format::FORMAT_VERSION;
pub use inspect::{
    CheckReport, SegmentReport, SegmentState, check, check_with, export, export_with, inspect,
    inspect_with,
};
pub use journal::{Journal, JournalStatus};
pub use memory::MemDisk;
pub use options::Options;
pub use parcel::{Parcel, ParcelReader, ParcelRecord};
pub use read::{OwnedRecord, Record, Records};
pub use recover::{Progress, Recovery, Torn};
pub use repair::{RepairReport, plan_repair, repair};
pub use summaries::{Summaries, Summary};
pub use summary::Summarise;
pub use sync::Sync;
