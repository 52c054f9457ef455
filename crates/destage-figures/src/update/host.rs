//! Readers and a writer on one buffer cache.

use super::cache::{BLOCK, Cache, Waiter};
use super::driver::{self, Load, Plan};
use super::{Experiment, Measured, Open, Yields};
use crate::sabotage::Sabotage;
use destage_core::{Limits, Order, Policy, Span, Time};
use destage_sim::event::{Discipline, ExponentialTimes, MeanTimes, Service, Station, Stream};
use hashbrown::HashMap;

/// Where the writer's file begins, blocks; the readers' begins at 0.
const WRITTEN_FROM: u64 = 1 << 40;
/// Batches under way at once, the most that the core takes.
const BATCHES_MAX: u32 = 64;

pub(super) enum Event {
    Read(Waiter),
    Write,
}

/// The readers and the writer.
struct Users<'e> {
    experiment: &'e Experiment,
    places: Stream,
    arrivals: Stream,
    writes: Stream,
    /// The block that is read next where they are read in sequence.
    next_read: u64,
    /// Since when who reads.
    reading: HashMap<Waiter, Time>,
    written: u64,
    reads: Vec<Span>,
    hits: u64,
}

/// Runs an experiment.
pub(super) fn run(experiment: &Experiment) -> Measured {
    let mut cache = cache(experiment);
    let mut users = Users {
        experiment,
        places: experiment.stream("reader"),
        arrivals: experiment.stream("arrivals"),
        writes: experiment.stream("writer"),
        next_read: 0,
        reading: HashMap::new(),
        written: 0,
        reads: Vec::new(),
        hits: 0,
    };
    let duration = driver::run(&mut users, &mut cache);
    let disk_busy = cache.disk_busy();
    let Users { reads, hits, .. } = users;
    Measured { reads, hits, duration, disk_busy, written: cache.written }
}

fn cache(experiment: &Experiment) -> Cache {
    let random = experiment.stream("disk");
    let service: Box<dyn Service> = match experiment.open {
        Some(_) => Box::new(ExponentialTimes::new(experiment.access, random)),
        None => {
            let times = [experiment.access, experiment.near, experiment.rotation];
            let disk = MeanTimes::new(times, random);
            Box::new(if experiment.is_sequential { disk.with_near_reads() } else { disk })
        }
    };
    let (discipline, yields) = match (experiment.discipline, experiment.yields) {
        _ if Sabotage::NoReadPriority.is_on() => (Discipline::Fifo, Yields::Never),
        as_asked => as_asked,
    };
    let disk = Station::new(discipline.into(), service);
    Cache::new(policy(experiment), disk, yields, experiment.server)
}

/// The buffer cache: write-back from memory, in no order beyond that of each block. Dirty blocks take their part of the room.
fn policy(experiment: &Experiment) -> Policy {
    let clean = experiment.cache_blocks.saturating_sub(experiment.writes_per_30s);
    buffer_cache(Policy {
        when: Sabotage::when(experiment.when),
        read_priority: experiment.yields == Yields::WhileFetching
            && !Sabotage::NoReadPriority.is_on(),
        staleness: experiment.staleness,
        limits: Limits { cache_bytes_max: clean * u64::from(BLOCK), ..Limits::default() },
        ..Policy::default()
    })
}

/// A policy as a buffer cache has it: what is due is given to the disk at once, however much there is, and memory is no limit.
pub(super) fn buffer_cache(policy: Policy) -> Policy {
    Policy {
        order: Order::Unit { batches_max: BATCHES_MAX },
        limits: Limits {
            batch_groups_max: 65_536,
            batch_bytes_max: u64::MAX,
            linger: Span::ZERO,
            dirty_bytes_max: 1 << 40,
            dirty_bytes_low: 1 << 39,
            journal_bytes_max: 1 << 40,
            ..policy.limits
        },
        ..policy
    }
}

impl Users<'_> {
    /// Which block is read next.
    fn next_read(&mut self) -> u64 {
        let blocks = self.experiment.file_blocks;
        if !self.experiment.is_sequential {
            return self.places.below(blocks);
        }
        let next = self.next_read;
        self.next_read = (next + 1) % blocks;
        next
    }

    /// Which block is written next: one that was never written, or of an open load's hits one that is dirty.
    fn next_written(&mut self, cache: &Cache) -> u64 {
        let dirty = cache.dirty();
        let is_hit = |open: &Open| self.writes.below(1_000_000) < open.hits_per_million;
        if self.experiment.open.as_ref().is_some_and(is_hit) && !dirty.is_empty() {
            return dirty[self.writes.below(dirty.len() as u64) as usize];
        }
        self.written += 1;
        // Of an open load every block lies elsewhere: none follows the one before.
        WRITTEN_FROM + self.written
    }
}

impl Load for Users<'_> {
    type Event = Event;

    fn begin(&mut self, plan: &mut Plan<Event>) {
        let readers = if self.experiment.open.is_some() { 1 } else { self.experiment.readers };
        let within = self.experiment.begins_within;
        for reader in 0..readers {
            let begins = if within == Span::ZERO { 0 } else { self.arrivals.below(within.0) };
            plan.at(Time(begins), Event::Read(reader));
        }
        if self.experiment.writes_per_30s > 0 || self.experiment.open.is_some() {
            plan.at(Time::ZERO, Event::Write);
        }
    }

    fn happen(&mut self, event: Event, cache: &mut Cache, plan: &mut Plan<Event>) {
        let now = cache.now;
        match event {
            Event::Read(reader) => {
                let block = self.next_read();
                self.reading.insert(reader, now);
                if let Some(open) = &self.experiment.open {
                    let next = now + self.arrivals.exponential(open.read_every);
                    plan.at(next, Event::Read(reader.wrapping_add(1) % OPEN_READS_MAX));
                }
                cache.read(reader, block);
            }
            Event::Write => {
                let after = match &self.experiment.open {
                    Some(open) => self.writes.exponential(open.write_every),
                    None => Span(30_000_000_000 / self.experiment.writes_per_30s),
                };
                plan.at(now + after, Event::Write);
                let block = self.next_written(cache);
                // The blocks of the other loads are all left.
                if self.written.is_multiple_of(self.experiment.left_one_in) {
                    cache.write(block);
                } else {
                    cache.write_directly(None, block);
                }
            }
        }
    }

    fn ended(&mut self, waiter: Waiter, now: Time, plan: &mut Plan<Event>) {
        let since = self.reading.remove(&waiter).expect("it reads");
        let span = now.since(since);
        self.reads.push(span);
        // What is read from the disk takes time.
        self.hits += u64::from(span == Span::ZERO);
        if self.experiment.open.is_none() {
            plan.at(now + self.experiment.think, Event::Read(waiter));
        }
    }

    fn is_over(&self) -> bool {
        self.reads.len() as u64 >= self.experiment.reads
    }
}

/// Numbers for the reads of an open load: more than ever wait at a time where the disk keeps up.
const OPEN_READS_MAX: Waiter = 1 << 24;
