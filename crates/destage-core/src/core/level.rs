//! Levels: what the ordered policies may not reorder.
//!
//! Koller et al. keep completion-issue dependencies in a graph. They form an interval order, so a counter that moves on when
//! a write comes after a completion allows a subset of what the graph allows.

use serde::{Deserialize, Serialize};

/// The level that groups are being given.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Level {
    current: u64,
    /// Something completed since the current level began: the next group begins another one.
    closed: bool,
}

impl Default for Level {
    fn default() -> Self {
        Self { current: 1, closed: false }
    }
}

impl Level {
    /// The level of the next group.
    pub(super) fn next(&self) -> u64 {
        self.current + u64::from(self.closed)
    }

    /// Gives a group its level.
    pub(super) fn begin(&mut self) -> u64 {
        self.current = self.next();
        self.closed = false;
        self.current
    }

    /// A completion is told to a client, who may issue what depends on it.
    pub(super) fn close(&mut self) {
        self.closed = true;
    }

    /// A group of an earlier run: whatever it completed then is complete.
    pub(super) fn recovered(&mut self, level: u64) {
        self.current = self.current.max(level);
        self.closed = true;
    }
}
