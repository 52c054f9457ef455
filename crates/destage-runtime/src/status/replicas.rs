//! The log on other servers, in the report.

use serde::{Deserialize, Serialize};

/// How the log on other servers stands.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ReplicasReport {
    /// Its name.
    pub log: String,
    /// Where clients reach its owner.
    pub owner: String,
    /// This server owns it.
    pub owned_here: bool,
    /// It may answer: enough servers have heard of it lately.
    pub answers: bool,
    /// So many servers hold a write before it is acknowledged.
    pub copies: u64,
    /// So many can.
    pub servers_ready: u64,
    /// What is lost with whom.
    pub loss: String,
    /// Entries that a standby has not read yet.
    pub behind_entries: u64,
    /// Bytes of the entries that the origin has not decided.
    pub undecided_bytes: u64,
    /// The servers.
    pub servers: Vec<ReplicaReport>,
}

/// One server of the log.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ReplicaReport {
    /// Where it is.
    pub address: String,
    /// In words.
    pub state: String,
    /// It is connected.
    pub reachable: bool,
    /// A write that it holds counts.
    pub counts: bool,
    /// It writes to its disk before it answers.
    pub durable: bool,
    /// Entries that it lacks, as far as is known.
    pub behind_entries: Option<u64>,
    /// Bytes of undecided entries that it holds, as far as is known.
    pub held_bytes: Option<u64>,
}
