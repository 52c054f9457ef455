//! What is to be seen of rows that end at a time of their own.

use serde::{Deserialize, Serialize};

/// Rows that end at a time of their own (`ttl = "column ..."`).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct EndedReport {
    /// Tables whose rows end.
    pub tables: u64,
    /// Rows that had ended and whose deletion was journaled.
    pub ended_total: u64,
    /// Rows that have ended and cannot be deleted, since rows of other tables refer to them; they are tried again.
    pub kept: u64,
    /// Deletions that the origin refused all the same.
    pub refused_total: u64,
    /// Rows that are still there although the origin carried their deletion out twice: a trigger, a rule or row-level security
    /// keeps them.
    pub undeleted: u64,
    /// By how much this host's clock is ahead of the origin's; negative: behind.
    pub clock_ahead_seconds: f64,
}
