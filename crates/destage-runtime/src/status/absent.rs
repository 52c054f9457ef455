//! What is to be seen of the knowledge of rows that are not there.

use serde::{Deserialize, Serialize};

/// What is known of rows that the origin does not have (`--absent-filter keys`, or keys handed out).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct AbsentReport {
    /// Tables whose keys are all known.
    pub ready: u64,
    /// Tables whose keys are being read.
    pub filling: u64,
    /// Tables of which nothing is to be known.
    pub off: u64,
    /// Keys known.
    pub keys: u64,
    /// Memory that they take.
    pub bytes: u64,
    /// The most that it may be.
    pub bytes_max: u64,
    /// Of the rows that a table does not have, the share for which the origin is asked all the same, 0 to 1: of the table
    /// with the largest.
    pub false_positive_rate: f64,
    /// Keys that the origin handed out here and that nobody has written.
    pub handed: u64,
    /// Rows for which the origin was not asked.
    pub answered_total: u64,
    /// Each table.
    pub tables: Vec<AbsentTable>,
}

/// What is known of the rows that one table does not have.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct AbsentTable {
    /// The table's name.
    pub name: String,
    /// `ready`, `filling` or `off`.
    pub state: String,
    /// Why it is off, or does not get ready.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// Keys known.
    pub keys: u64,
    /// Memory that they take.
    pub bytes: u64,
    /// The share of absent rows for which the origin is asked all the same, 0 to 1.
    pub false_positive_rate: f64,
}
