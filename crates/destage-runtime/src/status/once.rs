//! What is to be seen of commands that are carried out once.

use serde::{Deserialize, Serialize};

/// Commands that are carried out once (`DESTAGE ONCE`).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct OnceReport {
    /// Tokens kept.
    pub tokens: u64,
    /// The most that are.
    pub tokens_max: u64,
    /// Memory that they take, with what their commands were answered.
    pub bytes: u64,
    /// The most that they may take.
    pub bytes_max: u64,
    /// Commands that were sent again and answered as the first time.
    pub replayed_total: u64,
    /// Commands that were refused because there was no room for their tokens.
    pub refused_total: u64,
}
