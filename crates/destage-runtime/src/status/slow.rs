//! What is to be seen of commands that took long.

use serde::{Deserialize, Serialize};

/// A command that waited long, without its words: a report is shown to whoever reaches the admin port, and keys and values are
/// not. `SLOWLOG GET` has them, for those who have logged in.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SlowReport {
    /// Its number, as `SLOWLOG GET` has it.
    pub id: u64,
    /// Its name in lower case.
    pub command: String,
    /// How many keys it named.
    pub keys: u64,
    /// From its arrival to its answer, as far as it waited.
    pub seconds: f64,
    /// Since its arrival.
    pub age_seconds: f64,
}
