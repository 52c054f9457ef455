//! A program that computes, writes files and deletes some of them again, one step after another: the compilation of a kernel in
//! section 4.3 of Mogul's paper, as far as its tables tell what it did.

use super::Yields;
use super::cache::{BLOCK, Cache, Waiter, Written};
use super::driver::{self, Load, Plan};
use super::host::buffer_cache;
use crate::sabotage::Sabotage;
use destage_core::{Limits, Policy, Span, Time, When};
use destage_sim::event::{Discipline, MeanTimes, Station, Stream};
use std::collections::VecDeque;

/// A build, a machine and a policy.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Build {
    /// When dirty blocks are destaged.
    pub(crate) when: When,
    /// Whether blocks that are full stay in the cache too; otherwise the file system gives them to the disk at once.
    pub(crate) delays_full: bool,
    /// How often the dirty blocks are looked through.
    pub(crate) look: Span,
    /// Mean time of a random access, of a write that follows one to the block before it, and of a rotation.
    pub(crate) disk: [Span; 3],
    /// Files compiled.
    pub(crate) files: u64,
    /// Mean time that the processor takes for one.
    pub(crate) compute: Span,
    /// Mean blocks of the object file; the temporary file, which is deleted with the end of the compilation, has as many.
    pub(crate) data_blocks: u64,
    /// Blocks of which only a part is written for each file: ends of files, inodes, maps. As many again belong to what is deleted.
    pub(crate) partial_blocks: u64,
    /// Blocks that every compilation changes.
    pub(crate) shared_blocks: u64,
    /// Blocks for each file that are written and waited for: what creates and deletes files.
    pub(crate) waited_writes: u64,
    /// Blocks for each file that are read from the disk.
    pub(crate) reads: u64,
    /// For all random streams.
    pub(crate) seed: u64,
}

/// What a build measured.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Built {
    /// How long it took.
    pub(crate) duration: Span,
    /// Changes of clean blocks, which the system charges as writes.
    pub(crate) charged: u64,
    /// Dirty blocks seen by all looks.
    pub(crate) scanned: u64,
    /// Reads and writes that the program waited for.
    pub(crate) waits: u64,
    /// What became of the writes.
    pub(crate) written: Written,
}

/// In how many pieces a block is filled.
const PIECES: u64 = 2;
/// How often a partly written block is changed.
const CHANGES: u64 = 3;
/// The object file is written in so many last hundredths of its compilation, the temporary file before.
const OBJECT_PERCENT: u64 = 15;
/// The program's own number, for what it waits for.
const PROGRAM: Waiter = 0;
/// Where things lie, blocks: what is read, changed in part, written in sequence.
const PARTIAL_FROM: u64 = 1 << 40;
const FILES_FROM: u64 = 1 << 41;
/// Far enough apart for no block to follow another.
const APART: u64 = 7;

/// One step of the program.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// Reads a block from the disk.
    Read(u64),
    /// Changes a block.
    Write(u64),
    /// Changes a block to its end.
    Fill(u64),
    /// Changes a block and waits until the disk has it.
    WriteAndWait(u64),
    /// The block's file is deleted.
    Delete(u64),
}

pub(super) enum Event {
    Step,
    Look,
}

struct Program<'b> {
    build: &'b Build,
    random: Stream,
    /// The compilation under way: how long to compute before each step.
    steps: VecDeque<(Span, Step)>,
    compiled: u64,
    next_partial: u64,
    next_file: u64,
    is_over: bool,
    built: Built,
}

impl Build {
    /// Runs it.
    pub(crate) fn run(&self) -> Built {
        let random = Stream::new(self.seed, "disk");
        let service = Box::new(MeanTimes::new(self.disk, random));
        let disk = Station::new(Discipline::Fifo.into(), service);
        let limits = Limits { cache_bytes_max: 1_024 * u64::from(BLOCK), ..Limits::default() };
        let when = Sabotage::when(self.when);
        let policy = Policy { when, staleness: Span::MAX, limits, ..Policy::default() };
        let mut cache = Cache::new(buffer_cache(policy), disk, Yields::Never, None);
        let mut program = Program {
            build: self,
            random: Stream::new(self.seed, "build"),
            steps: VecDeque::new(),
            compiled: 0,
            next_partial: 0,
            next_file: FILES_FROM,
            is_over: false,
            built: Built::default(),
        };
        let duration = driver::run(&mut program, &mut cache);
        Built { duration, written: cache.written, ..program.built }
    }
}

impl Program<'_> {
    /// Plans the steps of the next compilation. Everything about its length follows from one random number.
    fn compile(&mut self) {
        let build = self.build;
        self.compiled += 1;
        let scale = self.random.exponential(Span(500)).0 + self.random.exponential(Span(500)).0;
        let blocks = 1 + build.data_blocks.saturating_sub(1) * scale / 1_000;
        let compute = build.compute.0;
        let mut steps: Vec<(u64, Step)> = Vec::new();
        let begins = compute / 100 * (100 - OBJECT_PERCENT);
        let temporary = self.file(blocks, 0, begins, &mut steps);
        let object = self.file(blocks, begins, compute, &mut steps);
        self.partial_blocks(build.partial_blocks * scale / 1_000, compute, &mut steps);
        for _ in 0..build.waited_writes {
            let block = PARTIAL_FROM + APART * self.random.below(1 << 30);
            steps.push((self.random.below(compute), Step::WriteAndWait(block)));
        }
        for _ in 0..build.reads {
            let block = self.random.below(PARTIAL_FROM);
            steps.push((self.random.below(compute), Step::Read(block)));
        }
        // Both files are gone over once more, then the temporary one is deleted.
        let again = temporary.clone().chain(object);
        steps.extend(again.map(|block| (compute, Step::Fill(block))));
        steps.extend(temporary.map(|block| (compute, Step::Delete(block))));
        steps.sort_by_key(|&(at, _)| at);
        let mut before = 0;
        self.steps.extend(steps.into_iter().map(|(at, step)| {
            let computes = Span(at - before);
            before = at;
            (computes, step)
        }));
    }

    /// Writes a file evenly from one moment of the compilation to another.
    fn file(
        &mut self,
        blocks: u64,
        from: u64,
        to: u64,
        steps: &mut Vec<(u64, Step)>,
    ) -> std::ops::Range<u64> {
        let places = self.next_file..self.next_file + blocks;
        self.next_file += blocks + APART;
        let pieces = blocks * PIECES;
        for piece in 0..pieces {
            let block = places.start + piece / PIECES;
            let at = from + (to - from) * piece / pieces;
            let fills = piece % PIECES == PIECES - 1;
            steps.push((at, if fills { Step::Fill(block) } else { Step::Write(block) }));
        }
        places
    }

    fn partial_blocks(&mut self, kept: u64, compute: u64, steps: &mut Vec<(u64, Step)>) {
        let first = self.next_partial;
        self.next_partial += 2 * kept;
        let own = (0..2 * kept).map(|index| (first + index, index >= kept));
        let shared = (0..self.build.shared_blocks).map(|index| ((1 << 31) + index, false));
        for (index, is_deleted) in own.chain(shared) {
            let block = PARTIAL_FROM + APART * index;
            let begins = self.random.below(compute / 5 + 1);
            for change in 0..CHANGES {
                let at = begins + (compute - begins) * change / (CHANGES - 1);
                steps.push((at, Step::Write(block)));
            }
            if is_deleted {
                steps.push((compute, Step::Delete(block)));
            }
        }
    }

    /// Takes a step; whether the program goes on without waiting for the disk.
    fn take(&mut self, step: Step, cache: &mut Cache) -> bool {
        let changed = match step {
            Step::Write(block) | Step::Fill(block) | Step::WriteAndWait(block) => Some(block),
            Step::Read(_) | Step::Delete(_) => None,
        };
        let was_clean = changed.is_some_and(|block| !cache.is_dirty(block));
        self.built.charged += u64::from(was_clean);
        match step {
            Step::Write(block) => cache.write(block),
            Step::Fill(block) if self.build.delays_full => cache.write(block),
            Step::Fill(block) => cache.write_directly(None, block),
            Step::Delete(block) => cache.discard(block),
            Step::WriteAndWait(block) => cache.write_directly(Some(PROGRAM), block),
            Step::Read(block) => cache.read(PROGRAM, block),
        }
        !matches!(step, Step::Read(_) | Step::WriteAndWait(_))
    }

    /// Takes steps until there is something to compute or to wait for.
    fn go_on(&mut self, cache: &mut Cache, plan: &mut Plan<Event>) {
        while let Some((_, step)) = self.steps.pop_front() {
            if !self.take(step, cache) {
                self.built.waits += 1;
                return;
            }
            if self.steps.front().is_none_or(|&(computes, _)| computes > Span::ZERO) {
                break;
            }
        }
        self.compute(cache.now, plan);
    }

    /// Plans the next step.
    fn compute(&mut self, now: Time, plan: &mut Plan<Event>) {
        if self.steps.is_empty() && self.compiled < self.build.files {
            self.compile();
        }
        match self.steps.front() {
            Some(&(computes, _)) => plan.at(now + computes, Event::Step),
            None => self.is_over = true,
        }
    }
}

impl Load for Program<'_> {
    type Event = Event;

    fn begin(&mut self, plan: &mut Plan<Event>) {
        self.compute(Time::ZERO, plan);
        plan.at(Time::ZERO + self.build.look, Event::Look);
    }

    fn happen(&mut self, event: Event, cache: &mut Cache, plan: &mut Plan<Event>) {
        match event {
            Event::Step => self.go_on(cache, plan),
            Event::Look => {
                self.built.scanned += cache.dirty().len() as u64;
                plan.at(cache.now + self.build.look, Event::Look);
            }
        }
    }

    fn ended(&mut self, _: Waiter, now: Time, plan: &mut Plan<Event>) {
        self.compute(now, plan);
    }

    fn is_over(&self) -> bool {
        self.is_over
    }
}
