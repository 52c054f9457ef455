//! The cases, one file each.

mod burst;
mod paper;
mod raw;
mod recovery;
mod sustained;

use super::bench::BlockBench;
use crate::Result;

/// A case's name and body.
type Case = (&'static str, fn(&mut BlockBench) -> Result<()>);

/// In the order in which they run.
pub(super) const CASES: [Case; 11] = [
    ("raw", raw::run),
    ("synchronous", raw::run_synchronous),
    ("burst", burst::run),
    ("sustained", sustained::run),
    ("policies", paper::run_policies),
    ("cache-sizes", paper::run_cache_sizes),
    ("journal-sizes", paper::run_journal_sizes),
    ("files", paper::run_files),
    ("file-systems", paper::run_file_systems),
    ("recovery", recovery::run_recovery),
    ("full", recovery::run_full),
];
