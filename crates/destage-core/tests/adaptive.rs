//! The adaptive rate before a slow origin, in virtual time: `D` holds, and reads meet a shorter queue than with policies
//! that send at once, at intervals, or as late as may be.
#![allow(clippy::unwrap_used, reason = "a test ends where it fails")]

use destage_core::{
    Ack, ClientId, Core, DomainId, Effect, Input, Intent, Lsn, Order, Policy, RequestId, Span,
    Time, UnitId, When,
};
use std::collections::VecDeque;

/// An origin that does one thing at a time, in the order of arrival.
const BATCH: Span = Span::from_millis(10);
const GROUP: Span = Span::from_micros(100);
const READ: Span = Span::from_millis(2);
const D: Span = Span::from_secs(4);

#[derive(Clone, Copy, Debug)]
struct Load {
    when: When,
    read_priority: bool,
    /// Groups each ms.
    writes: fn(u64) -> u64,
    /// A read of something that is not cached every so many ms.
    read_every: u64,
    seconds: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Outcome {
    staleness_max: Span,
    batch_max: usize,
    batches: u64,
    reads: u64,
    /// What reads waited behind batches, in all and at most.
    waited: Span,
    waited_max: Span,
}

enum Work {
    Batch(destage_core::BatchId),
    Read(UnitId),
}

struct World {
    core: Core,
    now: Time,
    busy_until: Time,
    work: VecDeque<(Time, Work)>,
    writes: u64,
    outcome: Outcome,
}

impl World {
    fn handle(&mut self, input: Input<'_>) {
        self.core.handle(self.now, input);
        while let Some(effect) = self.core.poll_effect() {
            self.effect(effect);
        }
    }

    fn effect(&mut self, effect: Effect) {
        match effect {
            Effect::Execute { request, access, .. } if request.0 < READS => {
                let units = [(UnitId(request.0 as u32 % 10_000), 100)];
                let domain = DomainId(0);
                self.handle(Input::Write {
                    domain,
                    units: &units,
                    bytes: 100,
                    journal_bytes: 100,
                    access,
                });
                let lsn = Lsn(self.core.next_lsn().0 - 1);
                self.handle(Input::Respond {
                    client: ClientId(request.0 as u32),
                    lsn,
                    wrote: true,
                });
            }
            Effect::Sync { upto } => self.handle(Input::Synced { upto, result: Ok(()) }),
            Effect::Fetch { unit } => {
                let begun = self.busy_until.max(self.now);
                let waited = begun.since(self.now);
                self.outcome.reads += 1;
                self.outcome.waited = Span(self.outcome.waited.0 + waited.0);
                self.outcome.waited_max = self.outcome.waited_max.max(waited);
                self.take(READ, Work::Read(unit));
            }
            Effect::Destage { batch, .. } => {
                let groups = self.core.batch(batch).len();
                self.outcome.batches += 1;
                self.outcome.batch_max = self.outcome.batch_max.max(groups);
                self.take(Span(BATCH.0 + GROUP.0 * groups as u64), Work::Batch(batch));
            }
            Effect::Stop(reason) => panic!("stopped: {reason:?}"),
            _ => {}
        }
    }

    fn take(&mut self, time: Span, work: Work) {
        self.busy_until = self.busy_until.max(self.now) + time;
        self.work.push_back((self.busy_until, work));
    }

    fn finish(&mut self) {
        match self.work.pop_front().unwrap().1 {
            Work::Batch(batch) => self.handle(Input::Destaged { batch, result: Ok(()) }),
            Work::Read(unit) => {
                let identity = u64::from(unit.0);
                self.handle(Input::Fetched { unit, result: Ok(100), identity });
            }
        }
    }

    /// Everything that happens before the next arrivals.
    fn run_until(&mut self, end: Time) {
        loop {
            let done = self.work.front().map(|&(at, _)| at);
            let timeout = self.core.next_timeout().map(|at| at.max(self.now));
            let Some(at) = done.into_iter().chain(timeout).min().filter(|&at| at <= end) else {
                break;
            };
            self.now = at;
            if done == Some(at) { self.finish() } else { self.handle(Input::Tick) }
        }
        self.now = end;
    }
}

/// Reads have numbers from here on, and units of their own.
const READS: u64 = 1 << 40;

fn run(load: Load) -> Outcome {
    let mut policy = Policy {
        when: load.when,
        order: Order::Domain,
        read_priority: load.read_priority,
        commit: Span::from_millis(500),
        staleness: D,
        ..Policy::default()
    };
    policy.limits.batch_groups_max = 65_536;
    policy.limits.linger = Span::from_millis(20);
    let now = Time::from_secs(1_000);
    let core = Core::new(now, policy);
    let mut world = World {
        core,
        now,
        busy_until: now,
        work: VecDeque::new(),
        writes: 0,
        outcome: Outcome::default(),
    };
    for ms in 0..load.seconds * 1_000 {
        for _ in 0..(load.writes)(ms) {
            world.writes += 1;
            let request = RequestId(world.writes);
            let intent = Intent::Write { bytes: 100, ack: Ack::Policy, fetch: false };
            let units = [UnitId(world.writes as u32 % 10_000)];
            world.handle(Input::Access { request, intent, units: &units });
        }
        if ms % load.read_every == 0 {
            let number = ms / load.read_every;
            let units = [UnitId(10_000 + number as u32)];
            let request = RequestId(READS + number);
            world.handle(Input::Access { request, intent: Intent::Read, units: &units });
        }
        world.handle(Input::Tick);
        let end = world.now + Span::from_millis(1);
        world.run_until(end);
        world.outcome.staleness_max = world.outcome.staleness_max.max(world.core.staleness());
    }
    world.outcome
}

fn steady(when: When) -> Load {
    Load { when, read_priority: false, writes: |_| 2, read_every: 15, seconds: 14 }
}

#[test]
fn d_holds_while_the_origin_keeps_up() {
    let loads: [fn(u64) -> u64; 4] = [
        |_| 1,
        |_| 6,
        // Bursts of 2,000, one second apart.
        |ms| if ms % 1_000 < 10 { 200 } else { 0 },
        // A load that begins all at once, and a lone write now and then.
        |ms| if ms < 5_000 { u64::from(ms % 700 == 0) } else { 6 },
    ];
    for (index, writes) in loads.into_iter().enumerate() {
        let outcome = run(Load { writes, ..steady(When::Adaptive) });
        assert!(outcome.staleness_max < D, "load {index}: {outcome:?}");
    }
}

#[test]
fn reads_without_end_delay_destaging_but_never_past_d() {
    // The origin is nearly always being read.
    let outcome = run(Load { read_every: 3, writes: |_| 1, ..steady(When::Adaptive) });
    assert!(outcome.staleness_max > Span(D.0 / 2) && outcome.staleness_max < D, "{outcome:?}");
}

#[test]
fn reads_wait_less_than_with_any_policy_that_does_not_adapt() {
    let adaptive = run(steady(When::Adaptive));
    assert!(adaptive.staleness_max < D, "{adaptive:?}");
    let others = [
        When::Async,
        When::Periodic { every: Span::from_secs(1) },
        When::Interval { age: Span::from_secs(1), check: Span::from_millis(500) },
        When::OnPressure,
    ];
    for when in others {
        for read_priority in [false, true] {
            let other = run(Load { read_priority, ..steady(when) });
            assert!(
                adaptive.waited.0 * 3 < other.waited.0 * 2,
                "{when:?}, {read_priority}: {other:?}, adaptive {adaptive:?}"
            );
        }
    }
}

#[test]
fn a_burst_reaches_the_origin_in_smaller_parts() {
    // Before it, enough for the origin's rate to be known.
    let burst: fn(u64) -> u64 = |ms| if ms == 3_000 { 3_000 } else { 2 };
    let load = Load { writes: burst, seconds: 9, ..steady(When::Adaptive) };
    let adaptive = run(load);
    let async_ = run(Load { when: When::Async, ..load });
    assert!(adaptive.batch_max * 2 < async_.batch_max, "{adaptive:?} {async_:?}");
    assert!(
        adaptive.waited_max.0 * 2 < async_.waited_max.0 && adaptive.waited.0 * 2 < async_.waited.0,
        "{adaptive:?} {async_:?}"
    );
    assert!(adaptive.staleness_max < D, "{adaptive:?}");
}
