//! What is to be seen of a mounted folder.

use serde::{Deserialize, Serialize};

/// A mounted folder.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct MountReport {
    /// Files whose content or attributes went to the origin.
    pub files_written_total: u64,
    /// Changes of names that went to the origin.
    pub names_changed_total: u64,
    /// Files that were deleted again before they were due, and that the origin never saw.
    pub absorbed_files_total: u64,
    /// Conflicts that were kept, since the journal was made.
    pub conflicts_total: u64,
    /// Batches that the origin did not take; they were tried again.
    pub origin_errors_total: u64,
    /// Bytes that may still be written, as far as the origin tells.
    pub room_bytes: Option<u64>,
    /// Changes wait until it is thawed.
    pub frozen: bool,
}
