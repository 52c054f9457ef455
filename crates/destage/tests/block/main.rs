//! `destage block` end to end: the real binary, real NBD clients, real crashes.

#[path = "../e2e/harness/mod.rs"]
#[allow(dead_code, unused_imports, reason = "the tests of other front ends use the rest")]
mod harness;

mod applications;
mod auto;
mod cache_file;
mod clients;
mod conformance;
mod crash;
mod damage;
mod disks;
mod ending;
mod file_systems;
mod files;
mod group;
mod growth;
mod history;
mod lost_store;
mod machine;
mod metrics;
mod offline;
mod older_copies;
mod record;
mod sectors;
mod server;
mod serving;
mod snapshots;
mod soak;
mod staleness;
mod starts;
mod under_load;
mod verify;
