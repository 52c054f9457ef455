//! The measurements of Mogul, "A better update policy", USENIX Summer 1994, section 4.1, in virtual time: a host whose buffer
//! cache is `destage-core`, one disk, a load of writes that arrive evenly and a reader that never pauses.
//!
//! Nothing of the policies is simulated: [`destage_core::Core`] decides when dirty blocks go to the disk. The reader waits for
//! each read before the next (closed loop), the writer for nothing (open loop).

mod host;

use crate::event::{Discipline, Stream};
use destage_core::{Span, When};

pub use host::Measured;

/// What is measured: a machine, a load, a policy.
#[derive(Clone, Debug, PartialEq)]
pub struct Experiment {
    /// When dirty blocks are destaged.
    pub when: When,
    /// Which request the disk serves next.
    pub discipline: Discipline,
    /// Mean time of a random access.
    pub access: Span,
    /// Mean time of a write that follows one to the block before it.
    pub near: Span,
    /// One rotation of the disk.
    pub rotation: Span,
    /// What the host does between two reads.
    pub think: Span,
    /// Blocks in the buffer cache.
    pub cache_blocks: u64,
    /// Blocks in the file that is read.
    pub file_blocks: u64,
    /// Blocks that are dirtied every 30 s, evenly, none of them twice within a run.
    pub writes_per_30s: u64,
    /// Reads to be made.
    pub reads: u64,
    /// For all random streams.
    pub seed: u64,
}

impl Experiment {
    /// Runs it.
    pub fn run(&self) -> Measured {
        host::Host::new(self).run()
    }

    fn stream(&self, component: &str) -> Stream {
        Stream::new(self.seed, component)
    }
}

#[cfg(test)]
mod tests;
