//! Loads to be simulated where no trace is at hand: requests from a seed.
//!
//! The same parameters and seed give the same requests. What the loads stand for, and what is assumed, is in
//! `docs/SIMULATION.md`.

mod files;
mod random;
mod records;
mod simple;
mod tpcc;

use crate::blocks::BLOCK_BYTES;
use crate::event::Stream;
use crate::trace::{Extent, Op, Request};
use destage_core::{Span, Time};
use std::collections::VecDeque;
use std::fmt;
use std::io::{self, Write};

/// What is generated.
#[derive(Clone, Debug, PartialEq)]
pub struct Generate {
    /// The kind of load.
    pub load: Load,
    /// How many requests.
    pub requests: u64,
    /// From one request to the next.
    pub interval: Span,
    /// Hosts that share the load; each operation is of one of them, all equally likely.
    pub hosts: u16,
    /// Threads of each host.
    pub threads: u16,
    /// Of all random streams.
    pub seed: u64,
}

/// A kind of load.
#[derive(Clone, Debug, PartialEq)]
pub enum Load {
    /// Most requests go to a working set of regions that lie anywhere in a file system, the others anywhere: the statistically
    /// generated traces of Holland and others, "Flash caching on the storage client", USENIX ATC 2013.
    WorkingSet {
        /// Blocks of the working set.
        set_blocks: u64,
        /// Blocks of the file system.
        all_blocks: u64,
        /// Blocks of a region.
        region_blocks: u64,
        /// How unevenly regions are used: the first of so many drawn, in the order of the set; 1 is even, at most 16.
        skew: u8,
        /// Requests outside of the working set, in percent.
        outside_percent: u8,
        /// How unevenly those go: over the file system, its first half, quarter and so on, halved up to so many times, each
        /// equally likely, so that popularity falls with the rank; 0 is even, at most 40.
        outside_halvings: u8,
        /// Writes, in percent.
        write_percent: u8,
        /// Mean blocks of a request; each has from one to twice as many less one.
        request_blocks: u64,
    },
    /// Records of 1 KiB whose popularity is zipfian and spread over all: the core workloads of YCSB (Cooper and others, SoCC
    /// 2010).
    Ycsb {
        /// Which one.
        workload: Ycsb,
        /// Records.
        records: u64,
    },
    /// A reader of random blocks of a file, and a writer that goes through another one from end to end: the loads of Mogul, "A
    /// better update policy", USENIX Summer 1994, section 4.1.
    Mogul {
        /// Blocks of the file that is read.
        read_blocks: u64,
        /// Blocks of the file that is written.
        write_blocks: u64,
        /// Writes, in percent.
        write_percent: u8,
    },
    /// The pages that the five transactions of TPC-C read and write, and a log that is synced by each that writes.
    Tpcc {
        /// Warehouses.
        warehouses: u64,
    },
    /// Small files that are created, read, appended to and deleted (Katcher, "PostMark: a new file system benchmark", NetApp
    /// TR3022, 1997).
    PostMark {
        /// Files at the start.
        files: u64,
    },
    /// Whole files written and read, appends, deletions: Filebench's personality `fileserver`.
    FileServer {
        /// Files at the start.
        files: u64,
    },
    /// Messages written and synced, read and deleted: Filebench's personality `varmail`.
    MailServer {
        /// Files at the start.
        files: u64,
    },
}

/// A core workload of YCSB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ycsb {
    /// Half reads, half updates.
    A,
    /// 95 % reads, 5 % updates.
    B,
    /// Reads.
    C,
    /// Reads and read-modify-writes, half and half.
    F,
}

/// Parameters that contradict one another.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct GenerateError(&'static str);

/// Bytes of a block.
const BLOCK: u64 = BLOCK_BYTES as u64;
/// Most blocks of a device, as for traces.
const BLOCKS_MAX: u64 = (1 << 56) / BLOCK;

/// One request of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Access {
    op: Op,
    offset: u64,
    bytes: u64,
}

/// A load as operations, each of one or more requests by the same thread.
trait Operations {
    /// Adds the requests of the next operation; some have none.
    fn next(&mut self, accesses: &mut VecDeque<Access>);
}

impl Access {
    /// Whole blocks.
    fn blocks(op: Op, first: u64, count: u64) -> Self {
        Self { op, offset: first * BLOCK, bytes: count * BLOCK }
    }

    fn flush() -> Self {
        Self { op: Op::Flush, offset: 0, bytes: 0 }
    }
}

impl Load {
    /// The time from one request to the next that the load's source has, where it has one.
    pub fn interval(&self) -> Span {
        match self {
            // 38 reads each second, and 614 writes every 30 s, on the faster system with delayed writes.
            Self::Mogul { .. } => Span::from_micros(17_103),
            _ => Span::from_millis(1),
        }
    }

    fn operations(&self, seed: u64) -> Result<Box<dyn Operations + Send>, GenerateError> {
        let random = Stream::new(seed, "load");
        Ok(match *self {
            Self::WorkingSet { .. } => Box::new(simple::WorkingSet::new(self, seed, random)?),
            Self::Mogul { read_blocks, write_blocks, write_percent } => {
                let sizes = (1..=BLOCKS_MAX / 2).contains(&read_blocks)
                    && (1..=BLOCKS_MAX / 2).contains(&write_blocks);
                if !sizes || write_percent > 100 {
                    return Err(GenerateError(
                        "both files have blocks; shares are 0 to 100 percent",
                    ));
                }
                Box::new(simple::Mogul::new([read_blocks, write_blocks], write_percent, random))
            }
            Self::Ycsb { workload, records } => {
                Box::new(records::Records::new(workload, records, random)?)
            }
            Self::Tpcc { warehouses } => Box::new(tpcc::Tpcc::new(warehouses, random)?),
            Self::PostMark { files } => Box::new(files::PostMark::new(files, random)?),
            Self::FileServer { files } => Box::new(files::FileServer::new(files, random)?),
            Self::MailServer { files } => Box::new(files::MailServer::new(files, random)?),
        })
    }
}

impl Generate {
    /// The requests.
    ///
    /// # Errors
    /// Parameters out of range.
    pub fn requests(&self) -> Result<impl Iterator<Item = Request> + use<>, GenerateError> {
        let mut operations = self.load.operations(self.seed)?;
        if self.hosts == 0 || self.threads == 0 {
            return Err(GenerateError("there must be at least one host and one thread"));
        }
        let mut issuer = Stream::new(self.seed, "issuer");
        let (interval, hosts, threads) = (self.interval, self.hosts, self.threads);
        let mut accesses = VecDeque::new();
        let (mut host, mut thread) = (0, 0);
        Ok((0..self.requests).map(move |number| {
            let Access { op, offset, bytes } = loop {
                if let Some(access) = accesses.pop_front() {
                    break access;
                }
                operations.next(&mut accesses);
                host = issuer.below(hosts.into()) as u16;
                thread = issuer.below(threads.into()) as u16;
            };
            let extent = Extent::Range { device: 0, offset, bytes };
            Request { time: Time(number.saturating_mul(interval.0)), op, extent, host, thread }
        }))
    }

    /// Writes the requests as a trace in the own format.
    ///
    /// # Errors
    /// As [`Generate::requests`], and those of the writer.
    pub fn write(&self, out: impl Write) -> io::Result<()> {
        self.write_with(out, |_| {})
    }

    /// As [`Generate::write`]; `progress` hears of every request, by how many there are by then.
    ///
    /// # Errors
    /// The same.
    pub fn write_with(&self, mut out: impl Write, mut progress: impl FnMut(u64)) -> io::Result<()> {
        let requests = self.requests().map_err(io::Error::other)?;
        writeln!(out, "time_ns,op,offset_bytes,size_bytes,host,thread")?;
        writeln!(out, "# destage {} {self}", env!("CARGO_PKG_VERSION"))?;
        for (number, request) in (1..).zip(requests) {
            progress(number);
            let Request { time, op, extent, host, thread } = request;
            let Extent::Range { offset, bytes, .. } = extent else { continue };
            let op = match op {
                Op::Read => 'R',
                Op::Write => 'W',
                Op::Discard => 'D',
                Op::Flush => 'F',
            };
            writeln!(out, "{},{op},{offset},{bytes},{host},{thread}", time.0)?;
        }
        out.flush()
    }
}

impl fmt::Display for Generate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { load, requests, interval, hosts, threads, seed } = self;
        write!(f, "{load:?} requests={requests} interval_ns={} hosts={hosts} ", interval.0)?;
        write!(f, "threads={threads} seed={seed}")
    }
}

#[cfg(test)]
mod tests;
