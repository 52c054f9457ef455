//! A run: lives of a host, each of which ends by a crash, until the last one is closed in order.

use super::choice::Choice;
use super::client::{Clients, Ended};
use super::model::{Log, Logged};
use super::random::Random;
use super::running::{Running, claiming};
use super::world::{SECTOR, World, ids};
use crate::block::BLOCK;
use crate::engine::{Context, JobKind, Volume};
use crate::request::{Reply, Request};
use destage_core::{AtLimit, Lsn, Order, Span, Time, WaitFor, When};
use destage_engine::Drive;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;

/// What happened in runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) replies: u64,
    pub(super) flushes: u64,
    pub(super) failures: u64,
    pub(super) crashes: u64,
    pub(super) losses: u64,
    pub(super) hits: u64,
    pub(super) misses: u64,
    pub(super) merges: u64,
    pub(super) batches: u64,
    pub(super) marks: u64,
    pub(super) checkpoints: u64,
    pub(super) slot_errors: u64,
    pub(super) log_full: u64,
    pub(super) compared: u64,
    pub(super) aheads: u64,
    pub(super) syncs_beside: u64,
    /// Reads of the cache that took no waiting.
    pub(super) reads_now: u64,
    /// Restarts of the process on what a disk shows whose syncs had failed.
    pub(super) failed_syncs: u64,
}

impl Counts {
    pub(super) fn add(&mut self, other: &Self) {
        self.replies += other.replies;
        self.flushes += other.flushes;
        self.failures += other.failures;
        self.crashes += other.crashes;
        self.losses += other.losses;
        self.hits += other.hits;
        self.misses += other.misses;
        self.merges += other.merges;
        self.batches += other.batches;
        self.marks += other.marks;
        self.checkpoints += other.checkpoints;
        self.slot_errors += other.slot_errors;
        self.log_full += other.log_full;
        self.compared += other.compared;
        self.aheads += other.aheads;
        self.syncs_beside += other.syncs_beside;
        self.reads_now += other.reads_now;
        self.failed_syncs += other.failed_syncs;
    }
}

/// The host, its clients and its origin.
#[derive(Debug)]
pub(super) struct Sim {
    choice: Choice,
    random: Random,
    now: Time,
    world: World,
    volume: Volume,
    context: Context,
    clients: Clients,
    log: Log,
    /// Groups up to here are in `log`.
    harvested: Lsn,
    life: u32,
    jobs: BTreeMap<u64, Running>,
    events: BTreeSet<(Time, u64)>,
    next_job: u64,
    /// Replies to be awaited that no client gets.
    callers: BTreeMap<u64, Caller>,
    is_away: bool,
    /// Power goes in the middle of a batch.
    is_armed: bool,
    ticked_at: Time,
    /// Ticks in a row at the same time.
    idle_ticks: u32,
    counts: Counts,
    /// A hash of everything that came out.
    trace: u64,
}

#[derive(Clone, Copy, Debug)]
enum Caller {
    Mark(Lsn),
    Freeze,
}

/// How a life ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    PowerOff,
    Kill,
    Close,
}

const CALLERS: u64 = 1 << 40;
const CONCURRENCY: usize = 5;

impl Sim {
    pub(super) fn new(choice: Choice) -> Self {
        let mut random = Random::new(choice.seed);
        let now = Time::from_secs(1_000_000);
        let world = World::new(&choice);
        let (volume, context) = world.open(&choice, now);
        let values = world.origin_ids();
        Self {
            clients: Clients::new(&values, &mut random),
            log: Log::new(values),
            harvested: volume.last(),
            life: 0,
            jobs: BTreeMap::new(),
            events: BTreeSet::new(),
            next_job: 0,
            callers: BTreeMap::new(),
            is_away: false,
            is_armed: false,
            ticked_at: Time::ZERO,
            idle_ticks: 0,
            counts: Counts::default(),
            trace: 0,
            choice,
            random,
            now,
            world,
            volume,
            context,
        }
    }

    /// Runs it; returns what happened, and a hash of it.
    pub(super) fn run(mut self) -> (Counts, u64) {
        for life in 0..self.choice.lives {
            self.life = life;
            let end = match (life + 1 < self.choice.lives, self.random.chance(75)) {
                (false, _) => End::Close,
                (true, true) => End::PowerOff,
                (true, false) => End::Kill,
            };
            let requests = u64::from(self.choice.requests);
            if end == End::PowerOff {
                // It goes in the middle of a batch where batches come by themselves.
                let comes = self.choice.policy.when != When::OnPressure;
                self.is_armed = self.random.chance(60) && comes;
                if !self.is_armed {
                    let operations = 20 + self.random.below(requests * 8);
                    self.world.disk.power_off_after(operations);
                }
            }
            let stop_after = match end {
                End::Kill => self.random.below(requests),
                _ => requests,
            };
            self.live(stop_after, end);
            self.is_armed = false;
            self.note_counts();
            match end {
                End::Close if !self.world.disk.is_powered_off() => self.close(),
                _ => self.crash(end),
            }
        }
        self.counts.compared = self.world.compared.load(Ordering::Relaxed);
        (self.counts, self.trace)
    }

    /// Serves clients.
    fn live(&mut self, requests: u64, end: End) {
        let mut asked = 0;
        let mut steps = 0;
        while !self.world.disk.is_powered_off() {
            while asked < requests
                && self.clients.len() < CONCURRENCY
                && !self.volume.is_congested()
            {
                asked += 1;
                self.whim();
                let (tag, request) = self.clients.ask(&mut self.random);
                self.note(tag);
                self.counts.merges += u64::from(is_partial(&request));
                self.volume.submit(self.now, tag, request);
                self.collect();
            }
            if asked == requests && (end == End::Kill || self.clients.len() == 0) {
                return;
            }
            self.come_back_at_random(asked == requests);
            let is_paused = self.volume.status().core.paused;
            steps += 1;
            assert!(steps < 100_000, "requests do not end: {:?}", self.volume.status());
            assert!(
                self.step() || is_paused,
                "requests are under way and nothing happens: {:?}",
                self.volume.status()
            );
        }
    }

    /// Something else than a request.
    fn whim(&mut self) {
        if self.random.below(100) < self.choice.outage_percent && !self.is_away {
            self.is_away = true;
            self.world.origin.go_away_after(1);
        }
        match self.random.below(60) {
            0 => {
                let lsn = self.volume.mark(self.now);
                self.await_reply(Caller::Mark(lsn));
            }
            1 if !self.volume.service.is_freezing() && !self.volume.service.is_frozen() => {
                self.await_reply(Caller::Freeze)
            }
            2 => self.volume.pause(self.now),
            3..=6 => self.volume.resume(self.now),
            7 => self.volume.hurry(self.now),
            _ => {}
        }
        self.collect();
    }

    fn await_reply(&mut self, caller: Caller) {
        let tag = CALLERS + self.random.below(1 << 30);
        self.callers.insert(tag, caller);
        match caller {
            Caller::Mark(lsn) => self.volume.wait(self.now, tag, lsn, WaitFor::Decided),
            Caller::Freeze => self.volume.freeze(self.now, tag),
        }
    }

    fn come_back_at_random(&mut self, is_needed: bool) {
        if self.is_away && (is_needed || self.random.chance(3)) {
            self.is_away = false;
            self.world.origin.come_back();
        }
        // A volume that is paused may have nothing to do but to look at the time.
        let is_stuck = self.events.is_empty() && self.volume.next_timeout().is_none();
        if is_needed || is_stuck || self.random.chance(2) {
            self.volume.resume(self.now);
            self.collect();
        }
    }

    /// Whatever is next: a job or a timeout. False if nothing is.
    fn step(&mut self) -> bool {
        let job = self.events.first().copied();
        let timeout = self.volume.next_timeout().map(|at| at.max(self.now));
        let Some(at) = job.map(|(at, _)| at).into_iter().chain(timeout).min() else { return false };
        self.now = at;
        if timeout == Some(at) {
            self.volume.tick(self.now);
            self.idle_ticks = if self.ticked_at == self.now { self.idle_ticks + 1 } else { 0 };
            self.ticked_at = self.now;
            assert!(self.idle_ticks < 100, "ticks without end: {:?}", self.volume.status());
        } else if let Some((_, id)) = self.events.pop_first() {
            let job = self.jobs.remove(&id).expect("each event is of a job");
            if self.is_armed && job.is_destage() && self.random.chance(15) {
                self.is_armed = false;
                self.world.disk.power_off_after(1 + self.random.below(16));
            }
            let mut done = job.end(&self.context);
            if self.choice.unsafe_late_syncs {
                done = claiming(done, self.volume.last());
            }
            if !self.world.disk.is_powered_off() {
                self.volume.finished(self.now, done);
            }
        }
        self.collect();
        true
    }

    /// Takes what the volume gives out.
    fn collect(&mut self) {
        self.harvest();
        let is_ahead = self.random.chance(self.choice.ahead_percent);
        let mut ahead = if is_ahead { self.volume.write_ahead(true) } else { None };
        self.counts.aheads += u64::from(ahead.is_some());
        while let Some(job) = ahead.take().or_else(|| self.volume.poll_job()) {
            let micros = match job.kind() {
                JobKind::Log => 1_000,
                JobKind::Read | JobKind::Install => 100,
                JobKind::Fetch | JobKind::Through => 5_000,
                JobKind::Destage => 20_000,
                JobKind::Checkpoint => 2_000,
            };
            self.counts.checkpoints += u64::from(job.kind() == JobKind::Checkpoint);
            let delay = Span::from_micros(1 + micros / 2 + self.random.below(micros));
            self.next_job += 1;
            self.events.insert((self.now + delay, self.next_job));
            let kind = job.kind();
            let running = Running::begun(job, &self.context, self.choice.reads_now);
            self.counts.syncs_beside += u64::from(running.is_done() && kind == JobKind::Log);
            self.counts.reads_now += u64::from(running.is_done() && kind == JobKind::Read);
            self.jobs.insert(self.next_job, running);
        }
        while let Some((tag, reply)) = self.volume.poll_reply() {
            self.note(tag);
            match self.callers.remove(&tag) {
                Some(caller) => self.caller_answered(caller, &reply),
                None => self.client_answered(tag, &reply),
            }
        }
    }

    fn caller_answered(&mut self, caller: Caller, reply: &Reply) {
        match (caller, reply) {
            (Caller::Mark(lsn), Reply::Done) => {
                assert!(self.volume.core.decided() >= lsn, "a mark is told of once it is decided");
                self.counts.marks += 1;
            }
            (Caller::Freeze, _) => {
                if *reply == Reply::Done {
                    assert!(
                        !self.volume.fragments.is_write_under_way(),
                        "a frozen volume has no write under way"
                    );
                }
                self.volume.thaw(self.now);
                self.collect();
            }
            (caller, reply) => panic!("{caller:?} was answered by {reply:?}"),
        }
    }

    fn client_answered(&mut self, tag: u64, reply: &Reply) {
        let policy = self.volume.policy();
        let is_logged = !policy.waits_for_origin();
        let is_durable = is_logged && policy.commit == Span::ZERO;
        let is_bounded = is_logged && policy.at_limit != AtLimit::WriteThrough;
        let staleness = policy.staleness;
        let ended = self.clients.answered(tag, reply, is_durable);
        self.counts.replies += 1;
        match ended {
            Ended::Failed => {
                self.counts.failures += 1;
                assert!(
                    self.choice.outage_percent > 0 || self.world.disk.is_powered_off(),
                    "request {tag} failed by {reply:?}: {:?}",
                    self.volume.status()
                );
            }
            Ended::Flush => self.counts.flushes += 1,
            Ended::Write if is_bounded => {
                let age = self.volume.core.staleness();
                assert!(age < staleness, "a write was acknowledged while one was {age:?} old");
            }
            _ => {}
        }
    }

    /// Notes what the volume has logged.
    fn harvest(&mut self) {
        while self.harvested < self.volume.last() {
            self.harvested = self.harvested.next();
            let group = self.volume.overlay.get(self.harvested).expect("undecided groups are kept");
            let lbas = group.extents.iter().flat_map(|extent| extent.iter());
            let mut sectors = Vec::new();
            let all = self.world.size as usize / SECTOR;
            for (index, lba) in lbas.enumerate() {
                let first = lba.0 as usize * BLOCK / SECTOR;
                let count = (all - first).min(BLOCK / SECTOR);
                let values = match &group.data {
                    Some(data) => {
                        let at = index * BLOCK;
                        ids(&data[at..at + count * SECTOR], first)
                    }
                    None => vec![0; count],
                };
                sectors.extend((first..).zip(values));
            }
            // Without order the volume keeps no levels: epochs are counted as clients see them.
            let level = match self.choice.policy.order {
                Order::Any => (self.life, self.counts.flushes),
                _ => (self.life, group.level),
            };
            let continues = group.continues;
            self.log.push(self.harvested, Logged { level, sectors, continues });
        }
    }

    fn note(&mut self, value: u64) {
        self.trace = (self.trace ^ value ^ self.now.0).wrapping_mul(0x0100_0000_01b3);
    }

    fn note_counts(&mut self) {
        let status = self.volume.status();
        self.counts.hits += status.hit_blocks;
        self.counts.misses += status.miss_blocks;
        self.counts.batches += status.core.batches;
        self.counts.slot_errors += status.slot_errors;
        self.counts.log_full += status.log_full;
    }

    /// The host crashes, and perhaps its cache is lost with it.
    fn crash(&mut self, end: End) {
        self.counts.crashes += 1;
        let decided = self.volume.core.decided();
        let is_restart = end == End::PowerOff && self.only_syncs_failed();
        self.counts.failed_syncs += u64::from(is_restart);
        match end {
            End::PowerOff if !is_restart => self.world.disk.crash(self.random.next()),
            _ => self.world.disk.kill(),
        }
        self.world.origin.come_back();
        self.is_away = false;
        self.events.clear();
        self.jobs.clear();
        self.callers.clear();
        self.clients.forget();
        let is_cache_lost = self.random.below(100) < self.choice.lose_cache_percent;
        if is_cache_lost {
            self.counts.losses += 1;
            if is_restart {
                // What is left of the origin is compared as its medium has it.
                self.world.disk.crash(self.random.next());
            }
            self.check_origin(decided);
            self.world.new_cache();
        }
        self.now = self.now + Span::from_millis(500);
        let (volume, context) = self.world.open(&self.choice, self.now);
        (self.volume, self.context) = (volume, context);
        self.life += u32::from(is_cache_lost);
        if is_cache_lost {
            self.log = Log::new(self.world.origin_ids());
        } else {
            self.log.truncate(self.volume.last());
        }
        self.harvested = self.volume.last();
        self.check_everything("the volume after a crash");
    }

    /// Whether what looked like a loss of power was a disk that failed for a while: the next process sees what the system
    /// shows of it. Not where clients rely on the origin's own durability, of which they are told.
    fn only_syncs_failed(&mut self) -> bool {
        self.choice.failing_syncs
            && !self.volume.policy().waits_for_origin()
            && self.random.chance(50)
    }

    /// The cache is gone: what the policy promises of the origin alone.
    fn check_origin(&mut self, decided: Lsn) {
        let done = match self.choice.policy.order {
            Order::Domain => self.world.open_redo(!self.choice.unsafe_no_replay).done(),
            _ => Lsn::ZERO,
        };
        let found = self.world.origin_ids();
        if let Some(order) = self.choice.checked {
            self.log.check_origin(order, &found, decided, done);
        }
        if self.choice.policy.waits_for_origin() {
            for (sector, &value) in found.iter().enumerate() {
                self.clients.registers.check_recovered(sector, value, "the origin after a crash");
            }
        }
        self.clients.registers.reset(&found);
    }

    /// Reads everything, and takes it as what is there.
    fn check_everything(&mut self, what: &str) {
        let found = self.read_all();
        for (sector, &value) in found.iter().enumerate() {
            self.clients.registers.check_recovered(sector, value, what);
        }
        if self.choice.policy.waits_for_origin() {
            // A killed host leaves what nobody flushed in the origin's cache: it is read, and the next crash may take it.
            assert_eq!(self.answer(Request::Flush), Reply::Done);
        }
        self.clients.registers.reset(&found);
    }

    fn read_all(&mut self) -> Vec<u32> {
        match self.answer(Request::Read { offset: 0, len: self.world.size as u32 }) {
            Reply::Data(data) => ids(&data, 0),
            reply => panic!("a read of everything was answered by {reply:?}"),
        }
    }

    /// The reply to a request while nothing else goes on.
    fn answer(&mut self, request: Request) -> Reply {
        self.volume.submit(self.now, 0, request);
        loop {
            while let Some(job) = self.volume.poll_job() {
                self.next_job += 1;
                self.events.insert((self.now + Span::from_micros(10), self.next_job));
                let running = Running::begun(job, &self.context, self.choice.reads_now);
                self.jobs.insert(self.next_job, running);
            }
            if let Some((tag, reply)) = self.volume.poll_reply() {
                assert_eq!(tag, 0, "nobody else asked");
                return reply;
            }
            assert!(self.quiet_step(), "no answer comes: {:?}", self.volume.status());
        }
    }

    /// As [`Sim::step`], without looking at replies.
    fn quiet_step(&mut self) -> bool {
        let job = self.events.first().copied();
        let timeout = self.volume.next_timeout().map(|at| at.max(self.now));
        let Some(at) = job.map(|(at, _)| at).into_iter().chain(timeout).min() else { return false };
        self.now = at;
        if timeout == Some(at) {
            self.volume.tick(self.now);
        } else if let Some((_, id)) = self.events.pop_first() {
            let job = self.jobs.remove(&id).expect("each event is of a job");
            let done = job.end(&self.context);
            self.volume.finished(self.now, done);
        }
        true
    }

    /// Everything goes to the origin, and the volume ends in order.
    fn close(&mut self) {
        // A drain waits for an origin that is away, and nothing else would bring it back.
        self.is_away = false;
        self.world.origin.come_back();
        self.volume.drain(self.now);
        self.volume.resume(self.now);
        self.collect();
        let mut steps = 0;
        while self.volume.undecided() > 0 || !self.callers.is_empty() {
            steps += 1;
            assert!(steps < 20_000, "the drain does not end: {:?}", self.volume.status());
            assert!(self.step(), "the drain does not end: {:?}", self.volume.status());
        }
        self.volume.close(self.now);
        self.collect();
        let mut steps = 0;
        while !self.volume.is_closed() {
            steps += 1;
            assert!(steps < 20_000, "the close does not end: {:?}", self.volume.status());
            assert!(self.step(), "the close does not end: {:?}", self.volume.status());
        }
        let found = self.world.origin_ids();
        if !self.choice.policy.waits_for_origin() {
            let expected = self.log.state_at(self.volume.last());
            assert!(found == expected, "a drained origin holds the whole log");
        }
        for (sector, &value) in found.iter().enumerate() {
            self.clients.registers.check_recovered(sector, value, "the drained origin");
        }
        let used = self.volume.slots.index().used();
        // Then the cached copies are not known to be what the origin holds.
        let is_unflushed = self.volume.is_origin_unflushed();
        self.jobs.clear();
        self.events.clear();
        self.now = self.now + Span::from_millis(1);
        let (volume, context) = self.world.open(&self.choice, self.now);
        let closed = std::mem::replace(&mut self.volume, volume);
        self.context = context;
        drop(closed);
        let again = self.volume.slots.index().used();
        assert!(
            again <= used && (used < 8 || again > 0 || is_unflushed),
            "a clean start is a warm one: {again} of {used}"
        );
        self.check_everything("the volume after a clean end");
    }
}

fn is_partial(request: &Request) -> bool {
    let block = BLOCK as u64;
    match request {
        Request::Write { offset, data, .. } => {
            !offset.is_multiple_of(block) || !(data.len() as u64).is_multiple_of(block)
        }
        _ => false,
    }
}
