//! The measurements of Mogul, "A better update policy", USENIX Summer 1994, in virtual time: a host whose buffer cache is
//! `destage-core`, one disk, and what uses them.
//!
//! Nothing of the policies is simulated: [`destage_core::Core`] decides when dirty blocks go to the disk.
//!
//! - [`Experiment`]: readers and a writer, closed as in section 4.1 (who reads waits for each read before the next, the writer
//!   for nothing), or open, as queueing theory has them.
//! - [`Build`]: a program that computes, writes and deletes files, as in section 4.3.

mod build;
mod cache;
mod driver;
mod host;

use destage_core::{Span, When};
use destage_sim::event::{Discipline, Stream};

pub(crate) use build::{Build, Built};
pub(crate) use cache::Written;

/// What is measured: a machine, a load, a policy.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Experiment {
    /// When dirty blocks are destaged.
    pub(crate) when: When,
    /// How destaging yields to reads.
    pub(crate) yields: Yields,
    /// `D`: by when everything written is to be on the disk; [`Span::MAX`] for no bound.
    pub(crate) staleness: Span,
    /// Which request the disk serves next.
    pub(crate) discipline: Discipline,
    /// Mean time of a random access.
    pub(crate) access: Span,
    /// Mean time of a write that follows one to the block before it.
    pub(crate) near: Span,
    /// One rotation of the disk.
    pub(crate) rotation: Span,
    /// Processes that read, each one block after another.
    pub(crate) readers: u32,
    /// What a process does between two reads.
    pub(crate) think: Span,
    /// Reads and writes that come by themselves, instead of the readers' and the even ones; the disk's times are exponential then.
    pub(crate) open: Option<Open>,
    /// Blocks in the buffer cache.
    pub(crate) cache_blocks: u64,
    /// Blocks in the file that is read.
    pub(crate) file_blocks: u64,
    /// Blocks that are dirtied every 30 s, evenly, none of them twice within a run.
    pub writes_per_30s: u64,
    /// Reads to be made.
    pub(crate) reads: u64,
    /// For all random streams.
    pub(crate) seed: u64,
}

/// Reads and writes at random times (Poisson), as in Carson and Setia, "Analysis of the periodic update write policy for disk
/// cache", IEEE Transactions on Software Engineering 18(1), 1992.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Open {
    /// Mean time from a read to the next.
    pub(crate) read_every: Span,
    /// Mean time from a write to the next.
    pub(crate) write_every: Span,
    /// Of a million writes so many change a block that is dirty.
    pub(crate) hits_per_million: u64,
}

/// How destaging yields to reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Yields {
    /// Not at all on the host's side.
    Never,
    /// What the passing of time has made due is not given out while a block is being fetched: [`destage_core::Policy::read_priority`].
    WhileFetching,
    /// What is given out waits on the host for its turn at the disk: [`destage_core::ReadsFirst`].
    InTurn,
}

/// What a run measured.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Measured {
    /// The response time of each read, in the order of their ends.
    pub(crate) reads: Vec<Span>,
    /// Reads that found their block in the cache.
    pub(crate) hits: u64,
    /// What became of the writes.
    pub(crate) written: Written,
    /// How long it all took.
    pub(crate) duration: Span,
    /// How long the disk worked.
    pub(crate) disk_busy: Span,
}

impl Experiment {
    /// Runs it.
    pub(crate) fn run(&self) -> Measured {
        host::run(self)
    }

    fn stream(&self, component: &str) -> Stream {
        Stream::new(self.seed, component)
    }
}

#[cfg(test)]
mod tests;
