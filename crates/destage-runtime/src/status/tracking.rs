//! What is to be seen of keys that clients hold in caches of their own.

use serde::{Deserialize, Serialize};

/// Keys of which clients are told when they change (`CLIENT TRACKING`).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TrackingReport {
    /// Clients that are told.
    pub clients: u64,
    /// Keys that any of them holds.
    pub keys: u64,
    /// The same, counted once for each client that holds one.
    pub items: u64,
    /// The most of these.
    pub items_max: u64,
    /// Prefixes of keys of which clients are told that have not read them.
    pub prefixes: u64,
    /// Memory of all that.
    pub bytes: u64,
    /// Keys that clients were told of.
    pub invalidations_total: u64,
    /// Those among them that were dropped since there was no room for them.
    pub dropped_total: u64,
}
