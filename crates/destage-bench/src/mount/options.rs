//! What a run takes from the arguments.

use std::path::PathBuf;
use std::time::Duration;

/// What a run takes from the arguments.
#[derive(Debug)]
pub(crate) struct Options {
    pub(super) bin: PathBuf,
    pub(super) time: Duration,
    pub(super) pairs: usize,
    pub(super) seed: u64,
    pub(super) files: u64,
    pub(super) zipf_mib: u64,
    pub(super) osds: u32,
    pub(super) is_quick: bool,
    pub(super) ceph: Option<PathBuf>,
    pub(super) filebench: Option<PathBuf>,
    pub(super) extra: Vec<String>,
}
