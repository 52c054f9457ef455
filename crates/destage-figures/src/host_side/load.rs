//! The paper's workloads as streams of block requests.

use destage_core::{Span, Time};
use destage_sim::generate::{Generate, Load, Ycsb};
use destage_sim::trace::{Extent, Op, Request};
use std::collections::BTreeSet;
use std::ops::Range;

const BLOCK: u64 = 4_096;

/// Requests, and how they are sent.
#[derive(Clone, Debug)]
pub(super) struct Stream {
    pub(super) requests: Vec<Request>,
    /// Requests at the same time.
    pub(super) threads: u16,
    /// A flush follows every so many writes; 0 for none.
    pub(super) flush_every: u32,
    /// Where the last block ends.
    pub(super) end_bytes: u64,
    set_blocks: u64,
}

/// A workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Workload {
    FileServer,
    MailServer,
    PostMark,
    TpcC,
    Ycsb(Ycsb),
}

/// How a file system of figure 15 sends what PostMark writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FileSystem {
    /// ext2: as it is.
    Plain,
    /// ext3 and ext4 with their journal for metadata: a commit every so many writes.
    Metadata,
    /// The same with a journal for data as well: what was written since the last commit is in it first.
    Data,
    /// btrfs: nothing is written where it was.
    CopyOnWrite,
}

/// Writes from one flush, or one commit of a file system, to the next.
const COMMIT_WRITES: u32 = 64;
/// Blocks of a commit without data.
const COMMIT_BLOCKS: u64 = 4;
/// A file system's journal, in shares of what its files take.
const LOG_DIVISOR: u64 = 16;

impl Workload {
    /// So many requests of it; its set is some hundredths of the paper's. Discards are left out: file systems of the paper's
    /// time sent none unless told to.
    pub(super) fn stream(self, seed: u64) -> Stream {
        let (load, requests, threads, flush_every) = match self {
            // Filebench's own number of threads.
            Self::FileServer => (Load::FileServer { files: 160 }, 12_000, 50, COMMIT_WRITES),
            Self::MailServer => (Load::MailServer { files: 1_000 }, 15_000, 16, 0),
            Self::PostMark => (Load::PostMark { files: 2_048 }, 15_000, 1, COMMIT_WRITES),
            // One terminal.
            Self::TpcC => (Load::Tpcc { warehouses: 1 }, 24_000, 1, 0),
            Self::Ycsb(workload) => {
                (Load::Ycsb { workload, records: 20_000 }, 16_000, 8, COMMIT_WRITES)
            }
        };
        let generate =
            Generate { load, requests, interval: Span::ZERO, hosts: 1, threads: 1, seed };
        let requests = generate.requests().expect("the parameters are in range");
        let requests = requests.filter(|request| request.op != Op::Discard).collect();
        Stream::new(requests, threads, flush_every)
    }
}

impl Stream {
    fn new(requests: Vec<Request>, threads: u16, flush_every: u32) -> Self {
        let (mut blocks, mut end_bytes) = (BTreeSet::new(), 0);
        for range in requests.iter().filter_map(range) {
            end_bytes = end_bytes.max(range.end);
            blocks.extend(range.start / BLOCK..range.end.div_ceil(BLOCK));
        }
        Self { requests, threads, flush_every, end_bytes, set_blocks: blocks.len() as u64 }
    }

    /// Bytes of the blocks that it touches.
    pub(super) fn set_bytes(&self) -> u64 {
        self.set_blocks * BLOCK
    }

    /// The same load with so many threads.
    pub(super) fn with_threads(&self, threads: u16) -> Self {
        Self { threads, ..self.clone() }
    }

    /// What a file system makes of it. Its set stays that of the files: caches are in proportion to these.
    pub(super) fn on(&self, file_system: FileSystem) -> Self {
        let mut sent = Sent::new(file_system, self.end_bytes);
        self.requests.iter().for_each(|request| sent.add(request));
        let flush_every = 0;
        let Self { threads, set_blocks, .. } = *self;
        let all = Self::new(sent.requests, threads, flush_every);
        Self { set_blocks, ..all }
    }
}

fn range(request: &Request) -> Option<Range<u64>> {
    match request.extent {
        Extent::Range { offset, bytes, .. } => Some(offset..offset + bytes),
        Extent::Object { .. } => None,
    }
}

/// What a file system sends.
struct Sent {
    file_system: FileSystem,
    requests: Vec<Request>,
    /// Bytes of the files, behind which the journal lies, or the other half of a copy-on-write file system.
    files_bytes: u64,
    logged: u64,
    /// Bytes and number of the writes since the last commit.
    bytes: u64,
    writes: u32,
    /// Of a copy-on-write file system: which half each block was written to last, by block.
    halves: Vec<bool>,
}

impl Sent {
    fn new(file_system: FileSystem, files_bytes: u64) -> Self {
        Self {
            file_system,
            requests: Vec::new(),
            files_bytes,
            logged: 0,
            bytes: 0,
            writes: 0,
            halves: vec![false; (files_bytes / BLOCK) as usize + 1],
        }
    }

    fn add(&mut self, request: &Request) {
        let Some(range) = range(request) else { return };
        let offset = match self.file_system {
            FileSystem::CopyOnWrite => self.moved(request.op, range.start),
            _ => range.start,
        };
        self.push(request.op, offset, range.end - range.start);
        if request.op != Op::Write {
            return;
        }
        self.bytes += range.end - range.start;
        self.writes += 1;
        if self.writes == COMMIT_WRITES && self.file_system != FileSystem::Plain {
            self.commit();
        }
    }

    /// Where a request goes that begins there: a write to the other half than before.
    fn moved(&mut self, op: Op, offset: u64) -> u64 {
        let half = &mut self.halves[(offset / BLOCK) as usize];
        *half ^= op == Op::Write;
        offset + u64::from(*half) * self.files_bytes
    }

    fn commit(&mut self) {
        let data = if self.file_system == FileSystem::Data { self.bytes } else { 0 };
        let bytes = COMMIT_BLOCKS * BLOCK + data;
        let room = (self.files_bytes / LOG_DIVISOR).max(bytes);
        if self.logged + bytes > room {
            self.logged = 0;
        }
        // Behind both halves.
        let offset = 2 * self.files_bytes.next_multiple_of(BLOCK) + self.logged;
        self.push(Op::Write, offset, bytes);
        self.push(Op::Flush, 0, 0);
        self.logged += bytes;
        (self.bytes, self.writes) = (0, 0);
    }

    fn push(&mut self, op: Op, offset: u64, bytes: u64) {
        let extent = Extent::Range { device: 0, offset, bytes };
        self.requests.push(Request { time: Time::ZERO, op, extent, host: 0, thread: 0 });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_systems_send_what_they_are_said_to() {
        let plain = Workload::PostMark.stream(1);
        let writes = |stream: &Stream| {
            let all = stream.requests.iter().filter(|request| request.op == Op::Write);
            all.filter_map(range).map(|range| range.end - range.start).sum::<u64>() as f64
        };
        let flushes = |stream: &Stream| {
            stream.requests.iter().filter(|request| request.op == Op::Flush).count()
        };
        let [ext2, metadata, data, copies] =
            [FileSystem::Plain, FileSystem::Metadata, FileSystem::Data, FileSystem::CopyOnWrite]
                .map(|file_system| plain.on(file_system));
        assert_eq!((writes(&ext2), flushes(&ext2)), (writes(&plain), 0));
        assert!(flushes(&metadata) > 100 && flushes(&data) == flushes(&metadata));
        let more = |stream: &Stream| writes(stream) / writes(&ext2);
        assert!((1.01..1.2).contains(&more(&metadata)), "{}", more(&metadata));
        assert!((1.95..2.2).contains(&more(&data)), "{}", more(&data));
        assert_eq!(copies.set_bytes(), plain.set_bytes());
        assert!(copies.end_bytes > 2 * plain.end_bytes);
    }
}
