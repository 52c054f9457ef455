//! A front end in virtual time: rows and overlay, events and their latencies.

mod origin;
mod serve;

use super::World;
use super::client::Client;
use super::log::{Entry, Fate};
use super::rng::Rng;
use super::setup::Sabotage;
use destage_core::{
    Access, BatchId, ClientId, Core, DomainId, Effect, Fault, Halt, Input, Lsn, Mode, Order,
    Outcome, Refusal, RequestId, Span, StopReason, Time, UnitId,
};
use destage_engine::{Drive, FrontEnd, Park, Recovered};
use std::collections::{BTreeMap, HashMap};
use std::convert::Infallible;

/// How a run of one process ended.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum End {
    Drained,
    Crashed,
}

/// A row as read from the origin in one snapshot.
#[derive(Clone, Debug)]
struct Snapshot {
    value: i64,
    version: u64,
    /// Groups of the key that the origin had decided and that the driver still holds.
    decided: Vec<Lsn>,
}

#[derive(Debug)]
enum Event {
    Step(usize),
    Cancel(usize, u64),
    Synced(Lsn),
    Snapshot(UnitId),
    Fetched(UnitId, Option<Snapshot>),
    Apply(BatchId, Vec<Lsn>),
    Destaged(BatchId, Result<(), Fault>),
    Park { lsn: Lsn, depends_on: Option<Lsn>, keep: bool },
    Parked(Lsn, Result<(), Fault>),
    Invalidate(u32),
    Switch(usize),
    Pause,
    Resume,
    ResumeParking,
}

#[derive(Debug)]
struct Slot {
    key: u32,
    row: Option<(i64, Snapshot)>,
}

/// The volatile half of the world.
#[derive(Debug)]
pub(super) struct Driver<'w> {
    world: &'w mut World,
    core: Core,
    units: HashMap<u32, UnitId>,
    slots: Vec<Slot>,
    free: Vec<UnitId>,
    forgotten: Lsn,
    events: BTreeMap<(Time, u64), Event>,
    sequence: u64,
    next_request: u64,
    owners: HashMap<u64, usize>,
    settling: HashMap<Lsn, (usize, Access)>,
    clients: Vec<Client>,
    drained: bool,
    /// What was wrong with the effect that was carried out last.
    trouble: Result<(), String>,
    has_crashed: bool,
}

/// Ticks at one moment before the core is said to spin.
const TICKS_MAX: u32 = 1_000;
/// Virtual time within which everything must have drained.
const DRAIN_SECS: u64 = 3_600;

impl<'w> Driver<'w> {
    pub(super) fn start(world: &'w mut World, seed: u64, incarnation: u32) -> Result<Self, String> {
        let mut policy = world.options.policy.clone();
        if world.sabotage == Sabotage::Staleness {
            policy.staleness = Span::MAX;
        }
        let decided = world.log.decided();
        world.log.by_domain =
            !matches!(policy.order, Order::Unit { .. }) && world.options.others.is_empty();
        let clients = (0..world.options.clients).map(|client| {
            let stream = 16 + u64::from(incarnation) * 64 + u64::from(client);
            Client::new(Rng::new(seed, stream), world.options.steps)
        });
        let mut driver = Self {
            clients: clients.collect(),
            core: Core::resume(world.now, policy, decided),
            world,
            units: HashMap::new(),
            slots: Vec::new(),
            free: Vec::new(),
            forgotten: decided,
            events: BTreeMap::new(),
            sequence: 0,
            next_request: 1,
            owners: HashMap::new(),
            settling: HashMap::new(),
            drained: false,
            trouble: Ok(()),
            has_crashed: false,
        };
        driver.recover();
        driver.plan();
        Ok(driver)
    }

    fn recover(&mut self) {
        let entries = self.world.log.entries.clone();
        let (now, upto) = (self.world.now, self.world.log.last());
        let mut found = entries.iter().enumerate();
        let taken = destage_engine::recover(self, now, upto, |driver| {
            let Some((index, entry)) = found.next() else { return Ok::<_, Infallible>(false) };
            driver.recover_group(Lsn(index as u64 + 1), entry);
            Ok(true)
        });
        taken.expect("nothing of it fails");
        // Handles of units that are only in decided groups were never given to the core.
        let idle: Vec<u32> = self.units.keys().copied().collect();
        for key in idle {
            let is_known = entries.iter().any(|entry| {
                entry.touches(key) && matches!(entry.fate, Fate::Undecided | Fate::Parked)
            });
            if !is_known && let Some(unit) = self.units.remove(&key) {
                self.free.push(unit);
            }
        }
        self.free.sort_unstable();
    }

    fn recover_group(&mut self, lsn: Lsn, entry: &Entry) {
        let units: Vec<UnitId> = entry.ops.iter().map(|&(key, _)| self.unit(key)).collect();
        let now = self.world.now;
        match entry.fate {
            Fate::Undecided => {
                let group = Recovered {
                    lsn,
                    stamp: entry.stamp,
                    domains: &[DomainId(entry.domain)],
                    level: 0,
                    units: &units,
                    bytes: 4_000,
                    journal_bytes: 4_100,
                    is_continued: false,
                    builds_on: self.known_builds_on(&entry.builds_on),
                };
                self.tell_recovered(now, &group);
            }
            Fate::Parked => self.core.handle(now, Input::RecoveredParked { lsn, units: &units }),
            Fate::Applied | Fate::Dropped => {}
        }
    }

    /// Lays down what happens by itself.
    fn plan(&mut self) {
        for client in 0..self.clients.len() {
            self.after(Span::ZERO, Event::Step(client));
        }
        let chance = &mut self.world.chance;
        let mut plan = Vec::new();
        for other in 0..self.world.options.others.len() {
            plan.push((chance.below(400), Event::Switch(other)));
        }
        if chance.chance(10) {
            let at = chance.below(300);
            plan.extend([(at, Event::Pause), (at + chance.below(700), Event::Resume)]);
        }
        if chance.chance(20) {
            let key = chance.below(u64::from(self.world.options.keys)) as u32;
            plan.extend([5, 20, 60, 200].map(|at| (at, Event::Invalidate(key))));
        }
        for (at, event) in plan {
            self.after(Span::from_millis(at), event);
        }
    }

    pub(super) fn run(&mut self) -> Result<End, String> {
        let limit = self.world.now + Span::from_secs(DRAIN_SECS);
        let (mut ticks, mut ticked) = (0, Time::ZERO);
        loop {
            self.core.handle(self.world.now, Input::Tick);
            if self.effects()? == End::Crashed {
                return Ok(End::Crashed);
            }
            let event = self.events.first_key_value().map(|((at, _), _)| *at);
            let timeout = self.core.next_timeout().map(|at| at.max(self.world.now));
            let Some(next) = event.into_iter().chain(timeout).min() else {
                if self.empty()? { continue } else { return Ok(End::Drained) }
            };
            ticks = if next > ticked { 0 } else { ticks + 1 };
            ticked = ticked.max(next);
            if ticks > TICKS_MAX || next > limit {
                return Err(format!("the core spins or never drains: {:?}", self.core.status()));
            }
            self.world.now = next;
            while let Some(entry) = self.events.first_entry()
                && entry.key().0 <= next
            {
                let event = entry.remove();
                self.happen(event)?;
                if self.effects()? == End::Crashed {
                    return Ok(End::Crashed);
                }
            }
            self.check_clients_done();
        }
    }

    /// Once every client is done: let everything flow out.
    fn check_clients_done(&mut self) {
        if !self.drained && self.clients.iter().all(|client| client.steps == 0) {
            self.drained = true;
            self.world.options.away_ms.clear();
            self.resume(self.world.now);
            self.drain(self.world.now);
        }
    }

    /// Nothing happens any more. True after the first call, which empties the cache.
    fn empty(&mut self) -> Result<bool, String> {
        let policy = self.core.policy().clone();
        if let Some(client) = self.clients.iter().position(|client| client.request.is_some()) {
            let client = &self.clients[client];
            return Err(format!("never answered: {client:?}, {:?}", self.core.status()));
        }
        if !self.drained {
            return Err(format!("everything stands still: {:?}", self.core.status()));
        }
        if policy.limits.cache_bytes_max > 0 {
            let mut policy = policy;
            policy.limits.cache_bytes_max = 0;
            self.set_policy(self.world.now, &policy)?;
            return Ok(true);
        }
        self.check_gauges()?;
        Ok(false)
    }

    fn check_gauges(&self) -> Result<(), String> {
        let status = self.core.status();
        let gauges = [
            status.dirty_groups,
            status.dirty_units,
            status.dirty_bytes,
            status.pinned_bytes,
            status.journal_bytes,
            status.waiting,
            status.cache_bytes,
            status.cache_units,
        ];
        if gauges != [0; 8] {
            return Err(format!("gauges did not return to zero: {status:?}"));
        }
        let log = &self.world.log;
        for &key in self.units.keys() {
            let mut parked = log.entries.iter().filter(|entry| entry.fate == Fate::Parked);
            if !parked.any(|entry| entry.touches(key)) {
                return Err(format!("the handle of key {key} was never given back"));
            }
        }
        if self.forgotten == log.last() {
            Ok(())
        } else {
            Err(format!("forgotten only up to {:?}", self.forgotten))
        }
    }

    fn after(&mut self, span: Span, event: Event) {
        self.sequence += 1;
        self.events.insert((self.world.now + span, self.sequence), event);
    }

    /// A latency around `us` microseconds.
    fn latency(&mut self, us: u64) -> Span {
        Span::from_micros(us / 2 + self.world.chance.below(us + 1))
    }

    fn unit(&mut self, key: u32) -> UnitId {
        if let Some(&unit) = self.units.get(&key) {
            return unit;
        }
        let slot = Slot { key, row: None };
        let unit = match self.free.pop() {
            Some(unit) => {
                self.slots[unit.0 as usize] = slot;
                unit
            }
            None => {
                self.slots.push(slot);
                UnitId(self.slots.len() as u32 - 1)
            }
        };
        self.units.insert(key, unit);
        unit
    }

    fn happen(&mut self, event: Event) -> Result<(), String> {
        let now = self.world.now;
        match event {
            Event::Step(client) => self.step(client),
            Event::Cancel(client, request) => self.cancel(client, request),
            Event::Synced(upto) => {
                if self.world.sabotage != Sabotage::Sync {
                    self.world.log.durable = upto.0 as usize;
                }
                self.core.handle(now, Input::Synced { upto, result: Ok(()) });
            }
            Event::Snapshot(unit) => self.snapshot(unit),
            Event::Fetched(unit, snapshot) => self.fetched(unit, snapshot),
            Event::Apply(batch, lsns) => return self.apply(batch, &lsns),
            Event::Destaged(batch, result) => {
                self.core.handle(now, Input::Destaged { batch, result });
            }
            Event::Park { lsn, depends_on, keep } => return self.park(lsn, depends_on, keep),
            Event::Parked(lsn, result) => self.core.handle(now, Input::Parked { lsn, result }),
            Event::Invalidate(key) => {
                if let Some(&unit) = self.units.get(&key) {
                    self.core.handle(now, Input::Invalidate { unit });
                    if !self.core.is_present(unit) {
                        self.slots[unit.0 as usize].row = None;
                    }
                }
            }
            Event::Switch(other) => {
                let mut policy = self.world.options.others[other].clone();
                policy.staleness = self.core.policy().staleness;
                self.set_policy(now, &policy)?;
            }
            Event::Pause => self.pause(now),
            Event::Resume => self.resume(now),
            Event::ResumeParking => self.control(now, Input::ResumeParking),
        }
        Ok(())
    }

    /// The client hangs up, unless its request is executed already.
    fn cancel(&mut self, client: usize, request: u64) {
        let this = &self.clients[client];
        let waits = this.request.as_ref().is_some_and(|(id, _)| *id == request);
        if waits && !this.responding && this.wrote.is_none() {
            self.owners.remove(&request);
            self.core.handle(self.world.now, Input::Cancel { request: RequestId(request) });
            self.finish(client);
        }
    }

    fn effects(&mut self) -> Result<End, String> {
        self.pump();
        std::mem::replace(&mut self.trouble, Ok(()))?;
        Ok(if self.has_crashed { End::Crashed } else { End::Drained })
    }

    /// Keeps the first thing that was wrong.
    fn check(&mut self, result: Result<(), String>) {
        if self.trouble.is_ok() {
            self.trouble = result;
        }
    }
}

impl FrontEnd for Driver<'_> {
    fn execute(&mut self, request: RequestId, access: Access, observed: Lsn) {
        let result = self.perform(request, access, observed);
        self.check(result);
    }

    fn refuse(&mut self, request: RequestId, _refusal: Refusal) {
        self.world.report.refused += 1;
        match self.owner(request) {
            Ok(client) => self.finish(client),
            Err(error) => self.check(Err(error)),
        }
    }

    fn send_replies(&mut self, client: ClientId) {
        let result = self.send(client.0 as usize);
        self.check(result);
    }

    fn wait_ended(&mut self, request: RequestId, outcome: Outcome) {
        let result = self.waited(request, outcome);
        self.check(result);
    }

    fn make_durable(&mut self, upto: Lsn) {
        let mut latency = self.latency(self.world.options.sync_us);
        let commit = self.world.options.policy.commit;
        if commit > Span::ZERO && self.world.chance.chance(3) {
            latency = Span(commit.0 * (1 + self.world.chance.below(4)));
            self.world.log.hung = true;
        }
        self.after(latency, Event::Synced(upto));
    }

    fn fetch_unit(&mut self, unit: UnitId) {
        self.world.report.fetches += 1;
        self.slots[unit.0 as usize].row = None;
        let latency = self.latency(self.world.options.origin_us / 2);
        self.after(latency, Event::Snapshot(unit));
    }

    fn send_batch(&mut self, batch: BatchId, _domain: DomainId) {
        let lsns = self.core.batch(batch).to_vec();
        let latency = self.latency(self.world.options.origin_us);
        self.after(latency, Event::Apply(batch, lsns));
    }

    fn park_group(&mut self, park: Park) {
        let Park { lsn, depends_on, keep, .. } = park;
        let latency = self.latency(self.world.options.origin_us);
        self.after(latency, Event::Park { lsn, depends_on, keep });
    }

    fn write_settled(&mut self, lsn: Lsn, applied: bool) {
        self.settled(lsn, applied);
    }

    fn forget_groups(&mut self, upto: Lsn) {
        self.forgotten = upto;
    }

    fn evict_unit(&mut self, unit: UnitId) {
        let slot = &mut self.slots[unit.0 as usize];
        slot.row = None;
        let key = slot.key;
        if self.units.remove(&key) != Some(unit) {
            return self.check(Err(format!("{unit:?} was evicted twice")));
        }
        self.free.push(unit);
        self.core.handle(self.world.now, Input::Evicted { identity: u64::from(key) });
    }

    fn mode_changed(&mut self, _mode: Mode) {}

    /// Someone looks at a domain that has halted after a while, and has it go on, parking or not.
    fn domain_halted(&mut self, _domain: DomainId, _halt: Halt) {
        self.world.report.halted += 1;
        let event = if self.world.chance.chance(50) { Event::ResumeParking } else { Event::Resume };
        let later = Span::from_millis(self.world.chance.below(100));
        self.after(later, event);
    }

    fn stop_serving(&mut self, reason: StopReason) {
        self.check(Err(format!("the core stopped: {reason:?}")));
    }
}

impl Drive for Driver<'_> {
    type Core = Core;

    fn core(&self) -> &Core {
        &self.core
    }

    fn core_mut(&mut self) -> &mut Core {
        &mut self.core
    }

    fn advance(&mut self, _now: Time) -> Time {
        self.world.now
    }

    fn unheard(&mut self) -> RequestId {
        unreachable!("whoever waits is a client")
    }

    /// Nothing after a crash, which comes before some effect, or after something was wrong.
    fn next_effect(&mut self) -> Option<Effect> {
        if self.has_crashed || self.trouble.is_err() {
            return None;
        }
        let effect = self.core.poll_effect()?;
        if self.world.effects == self.world.crash_at {
            self.has_crashed = true;
            return None;
        }
        self.world.effects += 1;
        for byte in format!("{:?}{effect:?}", self.world.now).bytes() {
            self.world.hash = (self.world.hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        }
        Some(effect)
    }
}
