//! The cases, one file each.

mod burst;
mod raw;
mod recovery;
mod sustained;

use super::bench::BlockBench;
use crate::Result;

/// A case's name and body.
type Case = (&'static str, fn(&mut BlockBench) -> Result<()>);

/// In the order in which they run.
pub(super) const CASES: [Case; 6] = [
    ("raw", raw::run),
    ("synchronous", raw::run_synchronous),
    ("burst", burst::run),
    ("sustained", sustained::run),
    ("recovery", recovery::run_recovery),
    ("full", recovery::run_full),
];
