//! A run as it is seen from outside: how far it is, and whether it is to end early.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Shared by runs and who watches them.
#[derive(Debug, Default)]
pub struct Meter {
    requests: AtomicU64,
    stop: Arc<AtomicBool>,
}

impl Meter {
    /// Runs end early once `stop` is set.
    pub fn new(stop: Arc<AtomicBool>) -> Self {
        Self { requests: AtomicU64::new(0), stop }
    }

    /// Requests issued by all runs so far, but for a few.
    pub fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }

    /// Whether runs are to end.
    pub fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    pub(super) fn add(&self, requests: u64) {
        self.requests.fetch_add(requests, Ordering::Relaxed);
    }
}
