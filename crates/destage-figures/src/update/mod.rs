//! The measurements of Mogul, "A better update policy", USENIX Summer 1994, in virtual time: a host whose buffer cache is
//! `destage-core`, one disk, and what uses them.
//!
//! Nothing of the policies is simulated: [`destage_core::Core`] decides when dirty blocks go to the disk.
//!
//! - [`Experiment`]: readers and a writer, closed as in sections 4.1 and 4.2 (who reads waits for each read before the next, the
//!   writer for nothing), or open, as queueing theory has them.
//! - [`Build`]: a program that computes, writes and deletes files, as in section 4.3.

mod build;
mod cache;
mod driver;
mod host;
mod server;

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
    /// Whether it is read from end to end, again and again, instead of random blocks.
    pub(crate) is_sequential: bool,
    /// Blocks that are dirtied every 30 s, evenly, none of them twice within a run.
    pub writes_per_30s: u64,
    /// One written block in so many is left to the update policy, since it is not full. The others go to the disk at once. At
    /// least 1, which leaves all.
    pub(crate) left_one_in: u64,
    /// The server that has the disk; on the host itself if none.
    pub(crate) server: Option<Server>,
    /// The readers begin at a random time within this.
    pub(crate) begins_within: Span,
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

/// A server that has the disk, and the way there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Server {
    /// The way there and back of a request; above zero.
    pub(crate) travel: Span,
    /// Writes of the host that are on their way at once, at least 1: each has a process that waits for it.
    pub(crate) daemons: usize,
    /// Blocks in memory that needs no power. A write is over once it is there. 0 for none: then the disk must have it.
    pub(crate) nvram_blocks: u64,
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
