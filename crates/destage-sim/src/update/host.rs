//! The driver of the core: reads and writes come in, the disk takes what the core gives out.

use super::Experiment;
use crate::blocks::mix;
use crate::event::{Begun, Events, Job, JobKind, MeanTimes, Station, Stream};
use destage_core::{
    Access, Ack, BatchId, ClientId, Core, DomainId, Effect, Input, Intent, Limits, Lsn, Order,
    Policy, RequestId, Span, Time, UnitId,
};
use hashbrown::HashMap;
use std::collections::VecDeque;

/// What a run measured.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Measured {
    /// The response time of each read, in order.
    pub reads: Vec<Span>,
    /// Reads that found their block in the cache.
    pub hits: u64,
    /// Blocks written to the disk.
    pub writes: u64,
    /// Sizes of the bursts in which they were given to the disk, in order.
    pub bursts: Vec<u64>,
    /// How long each block was dirty when it was given to the disk, summed.
    pub dirty_age_sum: Span,
    /// How long it all took.
    pub duration: Span,
    /// How long the disk worked.
    pub disk_busy: Span,
}

/// Bytes of a block.
const BLOCK: u32 = 4_096;
/// The reader and the writer, as the core knows them.
const READER: ClientId = ClientId(0);
const WRITER: ClientId = ClientId(1);
/// Where the writer's file begins, blocks; the reader's begins at 0.
const WRITTEN_FROM: u64 = 1 << 40;
/// Batches under way at once, the most that the core takes.
const BATCHES_MAX: u32 = 64;

#[derive(Debug)]
enum Event {
    Read,
    Write,
    DiskDone { server: usize },
}

/// A group that the core has not forgotten yet.
#[derive(Clone, Copy, Debug)]
struct Group {
    block: u64,
    stamp: Time,
}

/// What a job of the disk is for.
#[derive(Clone, Copy, Debug)]
enum Purpose {
    Fetch(UnitId),
    Destage(BatchId),
}

pub(super) struct Host<'e> {
    experiment: &'e Experiment,
    core: Core,
    now: Time,
    events: Events<Event>,
    disk: Station,
    reader: Stream,
    jobs: HashMap<u64, Purpose>,
    next_job: u64,
    next_request: u64,
    /// Blocks by handle and back.
    blocks: Vec<u64>,
    handles: HashMap<u64, UnitId>,
    free: Vec<UnitId>,
    groups: VecDeque<Group>,
    first_group: Lsn,
    /// Jobs left of each batch.
    batches: HashMap<BatchId, u64>,
    reading_since: Time,
    reading: Option<RequestId>,
    fetched: bool,
    written: u64,
    measured: Measured,
}

impl<'e> Host<'e> {
    pub(super) fn new(experiment: &'e Experiment) -> Self {
        let times = [experiment.access, experiment.near, experiment.rotation];
        let service = MeanTimes::new(times, experiment.stream("disk"));
        let disk = Station::new(experiment.discipline.into(), Box::new(service));
        Self {
            core: Core::new(Time::ZERO, policy(experiment)),
            now: Time::ZERO,
            events: Events::default(),
            disk,
            reader: experiment.stream("reader"),
            jobs: HashMap::new(),
            next_job: 0,
            next_request: 0,
            blocks: Vec::new(),
            handles: HashMap::new(),
            free: Vec::new(),
            groups: VecDeque::new(),
            first_group: Lsn(1),
            batches: HashMap::new(),
            reading_since: Time::ZERO,
            reading: None,
            fetched: false,
            written: 0,
            measured: Measured::default(),
            experiment,
        }
    }

    pub(super) fn run(mut self) -> Measured {
        self.events.plan(Time::ZERO, Event::Read);
        if self.experiment.writes_per_30s > 0 {
            self.events.plan(Time::ZERO, Event::Write);
        }
        while (self.measured.reads.len() as u64) < self.experiment.reads {
            self.core.handle(self.now, Input::Tick);
            self.effects();
            let timeout = self.core.next_timeout().map(|at| at.max(self.now));
            let next = self.events.next_at().into_iter().chain(timeout).min();
            self.now = next.expect("the reader or the disk always has something planned");
            while let Some(event) = self.events.take_until(self.now) {
                self.happen(&event);
                self.effects();
            }
        }
        self.measured.duration = self.now.since(Time::ZERO);
        self.measured.disk_busy = self.disk.served().1;
        self.measured
    }

    fn happen(&mut self, event: &Event) {
        match event {
            Event::Read => {
                let block = self.reader.below(self.experiment.file_blocks);
                self.reading_since = self.now;
                self.fetched = false;
                self.access(block, Intent::Read);
            }
            Event::Write => {
                let block = WRITTEN_FROM + self.written;
                self.written += 1;
                let per_write = 30_000_000_000 / self.experiment.writes_per_30s;
                self.events.plan(self.now + Span(per_write), Event::Write);
                self.access(block, Intent::Write { bytes: BLOCK, ack: Ack::Policy, fetch: false });
            }
            Event::DiskDone { server } => self.disk_done(*server),
        }
    }

    fn access(&mut self, block: u64, intent: Intent) {
        let unit = self.handle(block);
        let request = RequestId(self.next_request);
        self.next_request += 1;
        if intent == Intent::Read {
            self.reading = Some(request);
        }
        self.core.handle(self.now, Input::Access { request, intent, units: &[unit] });
    }

    fn handle(&mut self, block: u64) -> UnitId {
        if let Some(&unit) = self.handles.get(&block) {
            return unit;
        }
        let unit = self.free.pop().unwrap_or_else(|| {
            self.blocks.push(0);
            UnitId(self.blocks.len() as u32 - 1)
        });
        self.blocks[unit.0 as usize] = block;
        self.handles.insert(block, unit);
        unit
    }

    fn effects(&mut self) {
        while let Some(effect) = self.core.poll_effect() {
            match effect {
                Effect::Execute { request, access, observed } => {
                    self.execute(request, access, observed);
                }
                Effect::Send { client: READER } => self.read_done(),
                Effect::Send { .. } | Effect::Mode(_) | Effect::Waited { .. } => {}
                // The journal stands for the memory of the host, which takes no time.
                Effect::Sync { upto } => {
                    self.core.handle(self.now, Input::Synced { upto, result: Ok(()) });
                }
                Effect::Fetch { unit } => {
                    self.fetched = true;
                    let block = self.blocks[unit.0 as usize];
                    self.submit(JobKind::Read, block, Purpose::Fetch(unit));
                }
                Effect::Destage { batch, .. } => self.destage(batch),
                Effect::Forget { upto } => {
                    while self.first_group <= upto && self.groups.pop_front().is_some() {
                        self.first_group = self.first_group.next();
                    }
                }
                Effect::Evict { unit } => {
                    let block = self.blocks[unit.0 as usize];
                    self.handles.remove(&block);
                    self.free.push(unit);
                    self.core.handle(self.now, Input::Evicted { identity: mix(block) });
                }
                Effect::Refuse { .. }
                | Effect::Park { .. }
                | Effect::Settled { .. }
                | Effect::Stop(_) => {
                    unreachable!("nothing is refused or fails here: {effect:?}")
                }
            }
        }
    }

    fn execute(&mut self, request: RequestId, access: Access, observed: Lsn) {
        if self.reading == Some(request) {
            self.reading = None;
            self.core
                .handle(self.now, Input::Respond { client: READER, lsn: observed, wrote: false });
            return;
        }
        let block = WRITTEN_FROM + self.written - 1;
        let unit = self.handle(block);
        let lsn = self.core.next_lsn();
        self.groups.push_back(Group { block, stamp: self.now });
        let units = &[(unit, BLOCK)];
        let (domain, bytes) = (DomainId(0), BLOCK);
        self.core
            .handle(self.now, Input::Write { domain, units, bytes, journal_bytes: bytes, access });
        self.core.handle(self.now, Input::Respond { client: WRITER, lsn, wrote: true });
    }

    /// Gives a batch to the disk, all blocks at once.
    fn destage(&mut self, batch: BatchId) {
        let lsns = self.core.batch(batch).to_vec();
        self.batches.insert(batch, lsns.len() as u64);
        self.measured.bursts.push(lsns.len() as u64);
        for lsn in lsns {
            let index = (lsn.0 - self.first_group.0) as usize;
            let Group { block, stamp } = self.groups[index];
            let age = self.now.since(stamp);
            self.measured.dirty_age_sum = Span(self.measured.dirty_age_sum.0 + age.0);
            self.measured.writes += 1;
            self.submit(JobKind::Write, block, Purpose::Destage(batch));
        }
    }

    fn submit(&mut self, kind: JobKind, block: u64, purpose: Purpose) {
        let id = self.next_job;
        self.next_job += 1;
        self.jobs.insert(id, purpose);
        let begun = self.disk.submit(self.now, Job { id, kind, block, blocks: 1 });
        self.plan(begun);
    }

    fn plan(&mut self, begun: Option<Begun>) {
        if let Some(Begun { server, at }) = begun {
            self.events.plan(at, Event::DiskDone { server });
        }
    }

    fn disk_done(&mut self, server: usize) {
        let (jobs, next) = self.disk.done(self.now, server);
        self.plan(next);
        jobs.into_iter().for_each(|job| self.job_done(job));
    }

    fn job_done(&mut self, job: Job) {
        match self.jobs.remove(&job.id).expect("every job has a purpose") {
            Purpose::Fetch(unit) => {
                let identity = mix(job.block);
                self.core.handle(self.now, Input::Fetched { unit, result: Ok(BLOCK), identity });
            }
            Purpose::Destage(batch) => {
                let left = self.batches.get_mut(&batch).expect("the batch is under way");
                *left -= 1;
                if *left == 0 {
                    self.batches.remove(&batch);
                    self.core.handle(self.now, Input::Destaged { batch, result: Ok(()) });
                }
            }
        }
    }

    fn read_done(&mut self) {
        self.measured.reads.push(self.now.since(self.reading_since));
        self.measured.hits += u64::from(!self.fetched);
        self.events.plan(self.now + self.experiment.think, Event::Read);
    }
}

/// The buffer cache: write-back from memory, in no order beyond that of each block.
fn policy(experiment: &Experiment) -> Policy {
    let bytes = |blocks: u64| blocks * u64::from(BLOCK);
    Policy {
        when: experiment.when,
        order: Order::Unit { batches_max: BATCHES_MAX },
        staleness: Span::MAX,
        limits: Limits {
            // Blocks that are destaged are given to the disk at once, however many there are.
            batch_groups_max: 65_536,
            batch_bytes_max: u64::MAX,
            linger: Span::ZERO,
            dirty_bytes_max: bytes(experiment.cache_blocks) * 64,
            dirty_bytes_low: bytes(experiment.cache_blocks) * 32,
            // Dirty blocks take their part of the cache.
            cache_bytes_max: bytes(
                experiment.cache_blocks.saturating_sub(experiment.writes_per_30s),
            ),
            ..Limits::default()
        },
        ..Policy::default()
    }
}
