//! What is to be seen of ordering domains.

use serde::{Deserialize, Serialize};

/// An ordering domain that stands still until `destage resume`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct HaltReport {
    /// Its name.
    pub domain: String,
    /// The write that the origin rejected; absent where too many were parked.
    pub write: Option<u64>,
    /// Why, in the origin's words if it was the origin.
    pub reason: String,
}

/// One ordering domain of the data front end.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct DomainReport {
    /// Its name; `default` for the tables that are in no other.
    pub name: String,
    /// The last of its writes that the origin has decided.
    pub watermark: u64,
    /// Its undecided writes; one of several domains counts in each.
    pub dirty_groups: u64,
    /// Age of the oldest of them.
    pub staleness_seconds: f64,
    /// Its writes that were parked since the start, or found so.
    pub parked_groups: u64,
    /// The origin does not answer to its writes.
    pub failing: bool,
    /// It stands still until someone has looked: see [`Report::halted`](super::Report::halted).
    pub halted: bool,
}
