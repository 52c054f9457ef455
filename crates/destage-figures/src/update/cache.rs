//! The buffer cache and the disk below it: carries out what the core asks for.

use super::server::Storage;
use super::{Server, Yields};
use destage_core::ring::Ring;
use destage_core::{
    Access, Ack, BatchId, ClientId, Core, DomainId, Input, Intent, Lsn, Mode, Outcome, Policy,
    ReadsFirst, Refusal, RequestId, Span, StopReason, Time, UnitId,
};
use destage_engine::{FrontEnd, carry_out};
use destage_sim::blocks::mix;
use destage_sim::event::{Begun, Job, JobKind, Station};
use hashbrown::HashMap;
use std::collections::VecDeque;

/// Who waits for a read or a write, as the load numbers them.
pub(super) type Waiter = u32;

/// Bytes of a block.
pub(super) const BLOCK: u32 = 4_096;
/// Nobody waits for writes that the cache takes: one client stands for all of them.
const WRITER: ClientId = ClientId(u32::MAX);
/// Requests that the disk's queue takes where the host holds writes back for reads.
const QUEUE_MAX: usize = 64;

/// What was measured of the writes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Written {
    /// Blocks that the update policy gave to the disk.
    pub(crate) blocks: u64,
    /// Those of them that the disk has written by the end.
    pub(crate) arrived: u64,
    /// Sizes of the bursts in which it did, in order.
    pub(crate) bursts: Vec<u64>,
    /// How long each block was dirty when it was given to the disk, summed.
    pub(crate) dirty_age_sum: Span,
    /// How long the blocks waited from there until the disk had written them, summed.
    pub(crate) waited_sum: Span,
    /// The longest of these waits.
    pub(crate) waited_max: Span,
    /// The longest that a block was dirty until the disk had written it.
    pub(crate) age_max: Span,
    /// Writes on blocks that were dirty already.
    pub(crate) on_dirty: u64,
    /// Most blocks that were dirty or on their way to the disk at a time.
    pub(crate) dirty_max: u64,
    /// Blocks written by the file system itself, at once.
    pub(crate) direct: u64,
}

/// What is known of a block that was written.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    /// The newest group that wrote it, and the newest one that needs not be written any more.
    newest: Lsn,
    sent: Lsn,
    /// Since when it has been dirty.
    since: Time,
    /// Its place among the dirty blocks.
    place: usize,
}

impl Known {
    fn is_dirty(&self) -> bool {
        self.newest > self.sent
    }
}

/// What a job of the disk is for.
#[derive(Clone, Copy, Debug)]
enum Purpose {
    Fetch(UnitId),
    Destage { batch: BatchId, dirty_since: Time, given: Time },
    Direct(Option<Waiter>),
}

/// What waits for the core's leave.
#[derive(Clone, Copy, Debug)]
enum Asked {
    Read(Waiter),
    Write(u64),
}

#[derive(Debug)]
pub(super) struct Cache {
    core: Core,
    pub(super) now: Time,
    storage: Storage,
    server: Option<Server>,
    /// Jobs on their way to the server, and when they are there, for the driver to plan.
    pub(super) travelling: Vec<(Time, Job)>,
    /// Services of the disk that have begun, for the driver to plan.
    pub(super) begun: Vec<Begun>,
    /// Who needs to wait no longer.
    pub(super) ended: Vec<Waiter>,
    yields: Yields,
    reads: ReadsFirst,
    /// Writes that the host holds back, and those that are under way.
    held: VecDeque<Job>,
    writes_under_way: usize,
    jobs: HashMap<u64, Purpose>,
    next_job: u64,
    next_request: u64,
    asked: HashMap<RequestId, Asked>,
    /// Blocks by handle and back.
    blocks: Vec<u64>,
    handles: HashMap<u64, UnitId>,
    free: Vec<UnitId>,
    /// The blocks of the groups that the core has not forgotten.
    groups: Ring<u64>,
    /// Jobs left of each batch.
    batches: HashMap<BatchId, u64>,
    known: HashMap<u64, Known>,
    dirty: Vec<u64>,
    on_their_way: u64,
    burst_at: Option<Time>,
    pub(super) written: Written,
}

impl Cache {
    pub(super) fn new(
        policy: Policy,
        disk: Station,
        yields: Yields,
        server: Option<Server>,
    ) -> Self {
        Self {
            core: Core::new(Time::ZERO, policy),
            now: Time::ZERO,
            storage: Storage::new(disk, server),
            server,
            travelling: Vec::new(),
            begun: Vec::new(),
            ended: Vec::new(),
            yields,
            reads: ReadsFirst::default(),
            held: VecDeque::new(),
            writes_under_way: 0,
            jobs: HashMap::new(),
            next_job: 0,
            next_request: 0,
            asked: HashMap::new(),
            blocks: Vec::new(),
            handles: HashMap::new(),
            free: Vec::new(),
            groups: Ring::new(Lsn::ZERO),
            batches: HashMap::new(),
            known: HashMap::new(),
            dirty: Vec::new(),
            on_their_way: 0,
            burst_at: None,
            written: Written::default(),
        }
    }

    /// Lets the core see the time.
    pub(super) fn tick(&mut self) {
        self.core.handle(self.now, Input::Tick);
        self.carry_out();
    }

    /// When something happens by the passing of time alone.
    pub(super) fn next_timeout(&self) -> Option<Time> {
        let held = !self.held.is_empty() && self.yields == Yields::InTurn;
        let turn = held.then(|| self.reads.next_change(self.now)).flatten();
        self.core.next_timeout().into_iter().chain(turn).min().map(|at| at.max(self.now))
    }

    /// Reads a block; the waiter is told when it is there.
    pub(super) fn read(&mut self, waiter: Waiter, block: u64) {
        self.access(block, Intent::Read, Asked::Read(waiter));
    }

    /// Changes a block in the cache; its writing is left to the update policy.
    pub(super) fn write(&mut self, block: u64) {
        let intent = Intent::Write { bytes: BLOCK, ack: Ack::Policy, fetch: false };
        self.access(block, intent, Asked::Write(block));
    }

    /// Changes a block and gives it to the disk at once, as a file system does whatever the update policy.
    pub(super) fn write_directly(&mut self, waiter: Option<Waiter>, block: u64) {
        self.written.on_dirty += u64::from(self.is_dirty(block));
        self.discard(block);
        self.written.direct += 1;
        self.submit(JobKind::Write, block, Purpose::Direct(waiter));
    }

    /// What was written to the block need not reach the disk.
    pub(super) fn discard(&mut self, block: u64) {
        if self.is_dirty(block) {
            self.clean(block);
        }
    }

    pub(super) fn is_dirty(&self, block: u64) -> bool {
        self.known.get(&block).is_some_and(Known::is_dirty)
    }

    /// The dirty blocks, in no order of meaning.
    pub(super) fn dirty(&self) -> &[u64] {
        &self.dirty
    }

    /// How long the disk worked.
    pub(super) fn disk_busy(&self) -> Span {
        self.storage.busy()
    }

    /// A service of the disk is over.
    pub(super) fn disk_done(&mut self, server: usize) {
        let jobs = self.storage.done(self.now, server, &mut self.begun);
        jobs.into_iter().for_each(|job| self.job_done(job));
        self.send_held();
        self.carry_out();
    }

    /// A job is at the server.
    pub(super) fn arrive(&mut self, job: Job) {
        if self.storage.submit(self.now, job, &mut self.begun) {
            self.job_done(job);
            self.send_held();
            self.carry_out();
        }
    }

    /// Sends what is held back, as far as there is room.
    pub(super) fn send_held(&mut self) {
        while !self.held.is_empty() && self.writes_under_way < self.writes_max() {
            let Some(job) = self.held.pop_front() else { return };
            self.writes_under_way += 1;
            self.send(job);
        }
    }

    /// Writes under way at once.
    fn writes_max(&self) -> usize {
        match self.server {
            Some(server) => server.daemons,
            None => self.reads.requests_max(self.now, QUEUE_MAX),
        }
    }

    /// Whether a job is one of the writes that are under way only so many at a time.
    fn is_held(&self, purpose: Purpose) -> bool {
        match purpose {
            Purpose::Fetch(_) => false,
            Purpose::Destage { .. } => self.server.is_some() || self.yields == Yields::InTurn,
            Purpose::Direct(_) => self.server.is_some(),
        }
    }

    fn send(&mut self, job: Job) {
        match self.server {
            Some(server) => self.travelling.push((self.now + server.travel, job)),
            // Nothing is over before the disk has served it.
            None => {
                let is_over = self.storage.submit(self.now, job, &mut self.begun);
                debug_assert!(!is_over, "the disk has to serve it first");
            }
        }
    }

    fn access(&mut self, block: u64, intent: Intent, asked: Asked) {
        let unit = self.handle(block);
        let request = RequestId(self.next_request);
        self.next_request += 1;
        self.asked.insert(request, asked);
        self.core.handle(self.now, Input::Access { request, intent, units: &[unit] });
        self.carry_out();
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

    fn carry_out(&mut self) {
        while let Some(effect) = self.core.poll_effect() {
            carry_out(self, effect);
        }
    }

    fn perform(&mut self, request: RequestId, access: Access, observed: Lsn) {
        let asked = self.asked.remove(&request).expect("each request is executed once");
        let block = match asked {
            Asked::Write(block) => block,
            Asked::Read(waiter) => {
                let client = ClientId(waiter);
                let input = Input::Respond { client, lsn: observed, wrote: false };
                return self.core.handle(self.now, input);
            }
        };
        let unit = self.handle(block);
        self.wrote(block, self.core.next_lsn());
        let group = destage_engine::Append {
            domains: &[DomainId(0)],
            units: &[(unit, BLOCK)],
            bytes: BLOCK,
            journal_bytes: BLOCK,
            access,
            continues: false,
            builds_on: &[],
        };
        let groups = &mut self.groups;
        let lsn = destage_engine::write(&mut self.core, self.now, &group, |lsn| {
            groups.push(lsn, block);
        });
        self.core.handle(self.now, Input::Respond { client: WRITER, lsn, wrote: true });
    }

    fn wrote(&mut self, block: u64, lsn: Lsn) {
        let known = self.known.entry(block).or_default();
        if known.is_dirty() {
            self.written.on_dirty += 1;
        } else {
            (known.since, known.place) = (self.now, self.dirty.len());
            self.dirty.push(block);
            let dirty = self.dirty.len() as u64 + self.on_their_way;
            self.written.dirty_max = self.written.dirty_max.max(dirty);
        }
        known.newest = lsn;
    }

    /// The newest version of a dirty block is on its way, or not needed; since when it was dirty.
    fn clean(&mut self, block: u64) -> Time {
        let known = self.known.get_mut(&block).expect("it is dirty");
        known.sent = known.newest;
        let (place, since) = (known.place, known.since);
        self.dirty.swap_remove(place);
        if let Some(moved) = self.dirty.get(place) {
            self.known.get_mut(moved).expect("it is dirty").place = place;
        }
        since
    }

    /// Gives a batch to the disk, all blocks at once: of each the newest version, unless that has been given already.
    fn destage(&mut self, batch: BatchId) {
        let mut leaving = Vec::new();
        for lsn in self.core.batch(batch) {
            let block = *self.groups.get(*lsn).expect("undecided groups are kept");
            if self.known.get(&block).is_some_and(|known| known.sent < *lsn) {
                leaving.push(block);
            }
        }
        let mut count = 0;
        for block in leaving {
            // A batch may hold a block twice.
            if self.is_dirty(block) {
                let dirty_since = self.clean(block);
                count += 1;
                self.left(dirty_since);
                let purpose = Purpose::Destage { batch, dirty_since, given: self.now };
                self.submit(JobKind::Write, block, purpose);
            }
        }
        match count {
            0 => self.core.handle(self.now, Input::Destaged { batch, result: Ok(()) }),
            _ => drop(self.batches.insert(batch, count)),
        }
    }

    fn left(&mut self, dirty_since: Time) {
        self.on_their_way += 1;
        let written = &mut self.written;
        written.blocks += 1;
        let age = self.now.since(dirty_since);
        written.dirty_age_sum = Span(written.dirty_age_sum.0 + age.0);
        match written.bursts.last_mut() {
            Some(burst) if self.burst_at == Some(self.now) => *burst += 1,
            _ => written.bursts.push(1),
        }
        self.burst_at = Some(self.now);
    }

    fn submit(&mut self, kind: JobKind, block: u64, purpose: Purpose) {
        let id = self.next_job;
        self.next_job += 1;
        self.jobs.insert(id, purpose);
        let job = Job { id, kind, block, blocks: 1 };
        if self.is_held(purpose) {
            self.held.push_back(job);
            return self.send_held();
        }
        self.send(job);
    }

    fn job_done(&mut self, job: Job) {
        let purpose = self.jobs.remove(&job.id).expect("every job has a purpose");
        self.writes_under_way -= usize::from(self.is_held(purpose));
        match purpose {
            Purpose::Fetch(unit) => {
                self.reads.end(self.now);
                let identity = mix(job.block);
                self.core.handle(self.now, Input::Fetched { unit, result: Ok(BLOCK), identity });
            }
            Purpose::Destage { batch, dirty_since, given } => {
                self.arrived(dirty_since, given);
                let left = self.batches.get_mut(&batch).expect("the batch is under way");
                *left -= 1;
                if *left == 0 {
                    self.batches.remove(&batch);
                    self.core.handle(self.now, Input::Destaged { batch, result: Ok(()) });
                }
            }
            Purpose::Direct(waiter) => self.ended.extend(waiter),
        }
    }

    fn arrived(&mut self, dirty_since: Time, given: Time) {
        self.on_their_way -= 1;
        let written = &mut self.written;
        written.arrived += 1;
        let waited = self.now.since(given);
        written.waited_sum = Span(written.waited_sum.0 + waited.0);
        written.waited_max = written.waited_max.max(waited);
        written.age_max = written.age_max.max(self.now.since(dirty_since));
    }
}

/// The journal stands for the memory of the host, so nothing is refused or fails.
impl FrontEnd for Cache {
    fn execute(&mut self, request: RequestId, access: Access, observed: Lsn) {
        self.perform(request, access, observed);
    }

    fn refuse(&mut self, request: RequestId, refusal: Refusal) {
        unreachable!("nothing is refused: {request:?}, {refusal:?}")
    }

    fn send_replies(&mut self, client: ClientId) {
        if client != WRITER {
            self.ended.push(client.0);
        }
    }

    fn wait_ended(&mut self, _request: RequestId, _outcome: Outcome) {}

    /// Memory takes no time.
    fn make_durable(&mut self, upto: Lsn) {
        self.core.handle(self.now, Input::Synced { upto, result: Ok(()) });
    }

    fn fetch_unit(&mut self, unit: UnitId) {
        let block = self.blocks[unit.0 as usize];
        self.reads.begin();
        self.submit(JobKind::Read, block, Purpose::Fetch(unit));
    }

    fn send_batch(&mut self, batch: BatchId, _domain: DomainId) {
        self.destage(batch);
    }

    fn write_settled(&mut self, lsn: Lsn, _applied: bool) {
        unreachable!("no write waits for the disk: {lsn:?}")
    }

    fn forget_groups(&mut self, upto: Lsn) {
        self.groups.forget_while(|lsn, _| lsn <= upto);
    }

    fn evict_unit(&mut self, unit: UnitId) {
        let block = self.blocks[unit.0 as usize];
        self.handles.remove(&block);
        self.free.push(unit);
        self.core.handle(self.now, Input::Evicted { identity: mix(block) });
    }

    fn mode_changed(&mut self, _mode: Mode) {}

    fn stop_serving(&mut self, reason: StopReason) {
        unreachable!("no sync fails here: {reason:?}")
    }
}
