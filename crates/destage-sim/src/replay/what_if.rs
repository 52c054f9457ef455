//! The load of a recording under another policy: the core in virtual time, with devices as slow as they were.
//!
//! Requests follow the answers that they followed in the recording (closed loop). Where nobody knows what they followed, they
//! come when they came (open loop). Where a limit held writes back in the recording, no more of them wait at a time than did
//! then, and at a limit no more than at one at about that time: clients send no more before they are answered.
//!
//! A sync takes as long as the recorded one of its time, a fetch as long as that of the same thing. A batch takes as long as the
//! recorded one of about its size that began at about its time. A read of a volume whose blocks are all there takes as long as it
//! did, or as one that hit.

mod outcome;
mod restored;
mod schedule;

pub use self::outcome::{Latency, Outcome};
use self::schedule::Schedule;
use super::batches::{BatchSize, Traffic};
use super::causes::Moment;
use super::load::{Arrival, Load, Write};
use super::times::Times;
use super::{Observer, Tally};
use crate::event::Events;
use crate::machine::Gathered;
use destage_core::{
    Access, BatchId, ClientId, Core, DomainId, Effect, Input, Intent, Lsn, Mode, Outcome as Waited,
    Policy, Refusal, RequestId, Span, StopReason, Time, UnitId,
};
use destage_engine::{Append, Decide, Drive, FrontEnd};
use hashbrown::{HashMap, HashSet};

/// What a recording did not tell and is assumed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Assumed {
    /// No sync was recorded: each takes [`ASSUMED`].
    pub sync: bool,
    /// No fetch was recorded.
    pub fetch: bool,
    /// No batch was recorded.
    pub destage: bool,
}

/// The time of what was never recorded.
pub const ASSUMED: Span = Span::from_millis(1);

impl Load {
    /// What must be assumed of the devices.
    pub fn assumed(&self) -> Assumed {
        Assumed {
            sync: self.syncs.is_empty(),
            fetch: self.fetches.is_empty(),
            destage: self.destages.is_empty(),
        }
    }

    /// The policy that was in force at the beginning; `None` if nothing was recorded.
    pub fn policy(&self) -> Option<&Policy> {
        self.policy.as_ref()
    }

    /// Items by what they stand for: those that are one get one handle.
    fn units(&self) -> Vec<UnitId> {
        let mut known = HashMap::new();
        let by_item = self.identities.iter().enumerate().map(|(item, identity)| {
            let own = UnitId(item as u32);
            identity.map_or(own, |identity| *known.entry(identity).or_insert(own))
        });
        by_item.collect()
    }
}

/// Runs a load under the policy that `policy` makes of each recorded one, until the recording's end.
pub fn what_if(load: &Load, policy: impl Fn(&Policy) -> Policy) -> Option<Outcome> {
    what_if_with(load, policy, |_, _| true)
}

/// As [`what_if`]; `progress` hears of every arrival, by how many there were and how many there are. Once it says no, the run ends
/// without an outcome.
pub fn what_if_with(
    load: &Load,
    policy: impl Fn(&Policy) -> Policy,
    progress: impl FnMut(u64, u64) -> bool,
) -> Option<Outcome> {
    let (began, first) = (load.began?, load.policy.as_ref()?);
    let core = Core::new(began, policy(first));
    let core = if load.counts_writes_only { core.counting_writes_only() } else { core };
    let core = Tallied { core, tally: Tally::default() };
    let mut run = Run {
        load,
        units: load.units(),
        core,
        now: began,
        events: Events::default(),
        times: Times::of(load),
        schedule: Schedule::new(load, began),
        arrived: vec![(began, false); load.requests.len()],
        left: load.requests.iter().map(|request| request.parts).collect(),
        waiting: 0,
        waiting_writes: 0,
        clients: load.clients().unwrap_or(usize::MAX),
        is_held_back: false,
        batches: HashMap::new(),
        fetching: 0,
        is_warm: load.is_warm(began),
        uncounted: 0,
        drains: false,
        answers: HashMap::new(),
        settling: HashMap::new(),
        whole: HashSet::new(),
        next_whole: 0,
        reads: Latency::default(),
        writes: Latency::default(),
        times_of: Default::default(),
    };
    run.restore();
    run.all(&policy, progress).then(|| run.outcome())
}

/// Something that ends.
#[derive(Debug)]
enum Event {
    Synced(Lsn),
    Fetched(UnitId),
    Destaged(BatchId),
    /// All of a read is there, and is handed to the client; what it has observed.
    Served(u32, Lsn),
}

struct Run<'l> {
    load: &'l Load,
    /// The handle of each item.
    units: Vec<UnitId>,
    core: Tallied,
    now: Time,
    events: Events<Event>,
    times: Times,
    schedule: Schedule<'l>,
    /// When each request came that has been told to the core, and whether all of it was there.
    arrived: Vec<(Time, bool)>,
    /// Of the first request of each answer: how many parts of it are not done.
    left: Vec<u32>,
    /// So many of them wait in the core, and so many do at most.
    waiting: usize,
    clients: usize,
    /// So many of those that wait write.
    waiting_writes: usize,
    /// A limit holds writes back.
    is_held_back: bool,
    /// Batches on their way.
    batches: HashMap<BatchId, Traffic>,
    /// Fetches under way.
    fetching: usize,
    /// The warm-up is over.
    is_warm: bool,
    /// Requests that ended in it.
    uncounted: u64,
    /// All is to go to the origin before the end.
    drains: bool,
    /// Replies on their way, by the client that stands for the request: whether they answer a write.
    answers: HashMap<ClientId, bool>,
    /// Requests that wait for the origin, by their last group.
    settling: HashMap<Lsn, u32>,
    whole: HashSet<UnitId>,
    next_whole: u64,
    reads: Latency,
    writes: Latency,
    /// Of reads and of writes.
    times_of: [Gathered; 2],
}

impl Run<'_> {
    /// Whether it came to the end.
    fn all(
        &mut self,
        policy: &impl Fn(&Policy) -> Policy,
        mut progress: impl FnMut(u64, u64) -> bool,
    ) -> bool {
        let load = self.load;
        let (mut arrived, total) = (0, load.arrivals.len() as u64);
        loop {
            self.tell(Input::Tick);
            let arrival = self.schedule.next_at(self.clients_wait());
            let timeout = self.core.next_timeout();
            let next = [arrival, timeout, self.events.next_at()].into_iter().flatten().min();
            let Some(next) = next.filter(|&next| next <= self.end()) else {
                if self.drains || !load.ended_clean || self.core.status().dirty_groups == 0 {
                    break;
                }
                self.now = self.now.max(load.ended);
                self.drains = true;
                self.drain(self.now);
                continue;
            };
            self.now = self.now.max(next);
            while let Some(event) = self.events.take_until(self.now) {
                self.happen(&event);
            }
            while let Some((place, (recorded, arrival))) =
                self.schedule.take_until(self.now, self.clients_wait())
            {
                if !self.is_warm && load.is_warm(*recorded) {
                    self.count_anew();
                }
                self.schedule.happened(self.now, place, Moment::Told);
                self.arrive(place, arrival, policy);
                arrived += 1;
                if !progress(arrived, total) {
                    return false;
                }
            }
        }
        self.now = self.now.max(load.ended);
        self.tell(Input::Tick);
        true
    }

    /// The warm-up is over.
    fn count_anew(&mut self) {
        self.is_warm = true;
        self.uncounted = self.ended();
        self.core.tally.count_anew();
        (self.reads, self.writes, self.times_of) = Default::default();
    }

    /// Requests that were answered or refused since it is counted.
    fn ended(&self) -> u64 {
        self.reads.answered + self.writes.answered + self.core.tally.refused
    }

    /// Whether clients have sent all that they send before they are answered.
    fn clients_wait(&self) -> bool {
        let at_limit = self
            .is_held_back
            .then(|| self.load.writes_at_limit(self.schedule.recorded(self.now)))
            .flatten();
        self.waiting >= self.clients
            || at_limit.is_some_and(|most| self.waiting_writes >= most.max(1))
    }

    /// A drain takes as long as it takes here: what it finds to be written depends on the policy. So does a load that follows its
    /// answers.
    fn end(&self) -> Time {
        let is_draining = self.drains && self.core.status().dirty_groups > 0;
        let (began, ended) = (self.load.began.unwrap_or_default(), self.load.ended);
        match () {
            () if !self.schedule.is_over() => {
                ended + Span(ended.since(began).0.saturating_mul(LONGER_MAX))
            }
            () if is_draining => ended + DRAIN_MAX,
            // As long after the last arrival as it was.
            () => ended.max(self.schedule.shifted(ended)),
        }
    }

    fn outcome(mut self) -> Outcome {
        if !self.is_warm {
            self.count_anew();
        }
        let ended = self.uncounted + self.ended();
        let answers = self.load.requests.iter().filter(|request| request.parts > 0).count() as u64;
        let unanswered = answers.saturating_sub(ended);
        let Self { core: Tallied { tally, .. }, reads, writes, times_of, .. } = self;
        let [read_times, write_times] = times_of.map(|times| times.latency());
        let (reads, writes) = (reads.with(&read_times), writes.with(&write_times));
        Outcome { tally, reads, writes, read_times, write_times, unanswered }
    }

    fn tell(&mut self, input: Input<'_>) {
        self.core.handle(self.now, input);
        self.pump();
    }

    fn arrive(&mut self, place: u32, arrival: &Arrival, policy: &impl Fn(&Policy) -> Policy) {
        match arrival {
            Arrival::Request(index) => {
                let request = &self.load.requests[*index as usize];
                let mut units: Vec<UnitId> = Vec::with_capacity(request.items.len());
                for &item in &request.items {
                    let unit = self.units[item as usize];
                    if !units.contains(&unit) {
                        units.push(unit);
                    }
                }
                let is_hit = units.iter().all(|&unit| self.core.is_present(unit));
                self.arrived[*index as usize] = (self.now, is_hit);
                self.waiting += 1;
                self.waiting_writes += usize::from(request.intent.writes());
                let (request, intent) = (RequestId(u64::from(*index)), request.intent);
                self.tell(Input::Access { request, intent, units: &units });
            }
            Arrival::Wait(until) => {
                let (request, until) = (RequestId(WAIT + u64::from(place)), *until);
                let lsn = self.core.last();
                self.control(self.now, Input::Wait { request, lsn, until });
            }
            Arrival::Invalidate(item) => {
                self.tell(Input::Invalidate { unit: self.units[*item as usize] });
            }
            Arrival::Policy(recorded) => {
                self.control(self.now, Input::SetPolicy(&policy(recorded)))
            }
            Arrival::Pause => self.pause(self.now),
            Arrival::Resume => {
                self.drains = false;
                self.resume(self.now);
            }
            Arrival::Drain => {
                self.drains = true;
                self.drain(self.now);
            }
        }
    }

    fn happen(&mut self, event: &Event) {
        match *event {
            Event::Synced(upto) => self.tell(Input::Synced { upto, result: Ok(()) }),
            Event::Fetched(unit) => {
                self.fetching -= 1;
                let item = unit.0 as usize;
                let bytes = self.load.sizes[item].max(1);
                let identity = self.identity(unit);
                self.tell(Input::Fetched { unit, result: Ok(bytes), identity });
            }
            Event::Destaged(batch) => {
                self.batches.remove(&batch);
                self.tell(Input::Destaged { batch, result: Ok(()) });
            }
            Event::Served(index, observed) => {
                self.respond_read(index, observed);
                self.pump();
            }
        }
    }

    fn identity(&self, unit: UnitId) -> u64 {
        let known = self.load.identities[unit.0 as usize];
        known.unwrap_or_else(|| crate::blocks::mix(u64::from(unit.0)))
    }

    fn perform(&mut self, index: u32, access: Access, observed: Lsn) {
        let load = self.load;
        let request = &load.requests[index as usize];
        let client = ClientId(index);
        if request.writes.is_empty() {
            if access != Access::Back {
                let units: Vec<_> = self.handles(&request.items);
                self.core.handle(self.now, Input::Release { units: &units });
            }
            let (_, is_hit) = self.arrived[index as usize];
            let first = &load.requests[request.first as usize];
            let took = self.times.served(self.schedule.recorded(self.now), first, is_hit);
            if took > Span::ZERO {
                return self.events.plan(self.now + took, Event::Served(index, observed));
            }
            return self.respond_read(index, observed);
        }
        for write in &request.writes {
            self.write(write, access);
        }
        let lsn = self.core.last();
        match access {
            Access::Back => {
                self.answers.insert(client, true);
                self.core.handle(self.now, Input::Respond { client, lsn, wrote: true });
            }
            Access::Through | Access::Around => {
                self.settling.insert(lsn, index);
            }
        }
    }

    /// A part of an answer is done or refused. The first one, if that was the last; `None`, too, for what the driver reads for
    /// itself.
    fn part_done(&mut self, request: u32) -> Option<usize> {
        let first = self.load.requests[request as usize].first as usize;
        let left = self.left[first].checked_sub(1)?;
        self.left[first] = left;
        (left == 0).then_some(first)
    }

    fn respond_read(&mut self, index: u32, lsn: Lsn) {
        let client = ClientId(index);
        self.answers.insert(client, false);
        self.core.handle(self.now, Input::Respond { client, lsn, wrote: false });
    }

    fn ended_waiting(&mut self, request: RequestId) {
        self.waiting -= 1;
        let intent = self.load.requests[request.0 as usize].intent;
        self.waiting_writes -= usize::from(intent.writes());
    }

    fn handles(&self, items: &[u32]) -> Vec<UnitId> {
        let mut units: Vec<_> = items.iter().map(|&item| self.units[item as usize]).collect();
        units.sort_unstable();
        units.dedup();
        units
    }

    fn write(&mut self, write: &Write, access: Access) {
        let by_item = write.items.iter();
        let mut units: Vec<_> =
            by_item.map(|&(item, bytes)| (self.units[item as usize], bytes)).collect();
        units.sort_unstable();
        units.dedup_by_key(|(unit, _)| *unit);
        let alone = [write.domain];
        let group = Append {
            domains: if write.across.is_empty() { &alone } else { &write.across },
            units: &units,
            bytes: write.bytes,
            journal_bytes: write.journal_bytes,
            access,
            continues: write.is_joined,
            builds_on: &[],
        };
        destage_engine::write(&mut self.core, self.now, &group, |_| ());
        self.written_whole(&write.whole);
    }

    /// Units that were written whole are there without being fetched.
    fn written_whole(&mut self, items: &[u32]) {
        let mut units = self.handles(items);
        units.retain(|&unit| !self.core.is_present(unit));
        if !units.is_empty() {
            self.whole.extend(&units);
            let request = RequestId(WHOLE + self.next_whole);
            self.next_whole += 1;
            self.core
                .handle(self.now, Input::Access { request, intent: Intent::Read, units: &units });
        }
    }

    fn answered(&mut self, request: u32, wrote: bool) {
        let Some(first) = self.part_done(request) else { return };
        let (arrived, _) = self.arrived[first];
        let span = self.now.since(arrived);
        self.times_of[usize::from(wrote)].add(span);
        if wrote {
            self.writes.add(span)
        } else {
            self.reads.add(span)
        }
        let arrival = self.load.requests[first].arrival;
        self.schedule.happened(self.now, arrival, Moment::Answered);
    }
}

/// The core, with what it is told counted.
struct Tallied {
    core: Core,
    tally: Tally,
}

impl std::ops::Deref for Tallied {
    type Target = Core;

    fn deref(&self) -> &Core {
        &self.core
    }
}

impl Decide for Tallied {
    fn core(&self) -> &Core {
        &self.core
    }

    fn handle(&mut self, now: Time, input: Input<'_>) {
        self.tally.input(now, &input, &self.core);
        self.core.handle(now, input);
    }

    fn poll_effect(&mut self) -> Option<Effect> {
        self.core.poll_effect()
    }
}

impl Drive for Run<'_> {
    type Core = Tallied;

    fn core(&self) -> &Core {
        &self.core
    }

    fn core_mut(&mut self) -> &mut Tallied {
        &mut self.core
    }

    fn advance(&mut self, _now: Time) -> Time {
        self.now
    }

    fn unheard(&mut self) -> RequestId {
        RequestId(WHOLE - 1)
    }

    fn next_effect(&mut self) -> Option<Effect> {
        let effect = self.core.poll_effect()?;
        let Tallied { core, tally } = &mut self.core;
        tally.effect(self.now, &effect, core);
        Some(effect)
    }
}

/// Nothing fails here, so nothing is parked and nothing stops.
impl FrontEnd for Run<'_> {
    fn execute(&mut self, request: RequestId, access: Access, observed: Lsn) {
        if request.0 < WHOLE {
            self.ended_waiting(request);
            self.perform(request.0 as u32, access, observed);
            let arrival = self.load.requests[request.0 as usize].arrival;
            self.schedule.happened(self.now, arrival, Moment::Executed);
        }
    }

    fn refuse(&mut self, request: RequestId, _refusal: Refusal) {
        if request.0 < WHOLE {
            self.ended_waiting(request);
            // What follows is not waited for in vain, be it the next part or what came after the answer.
            let requests = &self.load.requests;
            let arrival = requests[request.0 as usize].arrival;
            self.schedule.happened(self.now, arrival, Moment::Executed);
            if let Some(first) = self.part_done(request.0 as u32) {
                self.schedule.happened(self.now, requests[first].arrival, Moment::Answered);
            }
        }
    }

    fn send_replies(&mut self, client: ClientId) {
        let wrote = self.answers.remove(&client).unwrap_or(false);
        self.answered(client.0, wrote);
    }

    fn wait_ended(&mut self, request: RequestId, _outcome: Waited) {
        if request.0 >= WAIT {
            self.schedule.happened(self.now, (request.0 - WAIT) as u32, Moment::Answered);
        }
    }

    fn make_durable(&mut self, upto: Lsn) {
        let at = self.now + self.times.sync(self.schedule.recorded(self.now));
        self.events.plan(at, Event::Synced(upto));
    }

    fn fetch_unit(&mut self, unit: UnitId) {
        let is_whole = self.whole.remove(&unit);
        let identity = self.identity(unit);
        let traffic = self.batches.values().copied().max().unwrap_or(Traffic::NONE);
        self.fetching += 1;
        let time = if is_whole {
            Span::ZERO
        } else {
            let recorded = self.schedule.recorded(self.now);
            self.times.fetch(recorded, identity, traffic, self.fetching)
        };
        self.events.plan(self.now + time, Event::Fetched(unit));
    }

    fn send_batch(&mut self, batch: BatchId, _domain: DomainId) {
        // The handle of a unit is the first item that it stands for.
        let units = self.core.tally.units_in(self.core.batch(batch));
        let size = BatchSize::of(self.load, units.map(|unit| unit.0));
        self.batches.insert(batch, self.times.traffic(size));
        let at = self.now + self.times.destage(self.schedule.recorded(self.now), size);
        self.events.plan(at, Event::Destaged(batch));
    }

    fn write_settled(&mut self, lsn: Lsn, _applied: bool) {
        if let Some(request) = self.settling.remove(&lsn) {
            self.answered(request, true);
        }
    }

    fn forget_groups(&mut self, _upto: Lsn) {}

    fn evict_unit(&mut self, unit: UnitId) {
        let identity = self.identity(unit);
        self.core.handle(self.now, Input::Evicted { identity });
    }

    fn mode_changed(&mut self, mode: Mode) {
        self.is_held_back = mode != Mode::Normal;
    }

    fn stop_serving(&mut self, reason: StopReason) {
        unreachable!("no sync fails here: {reason:?}")
    }
}

/// A drain that is not done by then is not followed.
const DRAIN_MAX: Span = Span::from_secs(3_600);
/// From here on requests are those for what was written whole; those of clients are far below.
const WHOLE: u64 = 1 << 40;
/// From here on they are waits, by the place of their arrival.
const WAIT: u64 = 1 << 41;
/// A load that follows its answers may take so many times as long again.
const LONGER_MAX: u64 = 3;
