//! Any valid sequence of inputs: the core never panics, answers every request exactly once, sends every reply exactly
//! once, destages in order, and is empty in the end.

use destage_core::{
    Access, Ack, Acknowledge, AtLimit, BatchId, ClientId, Core, DomainId, Effect, Fault, Input,
    Intent, Limits, Lsn, OnReject, Order, Policy, RequestId, Span, Time, UnitId, WaitFor, When,
};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

#[derive(Clone, Debug)]
enum Step {
    Access {
        units: Vec<u32>,
        kind: u8,
        writes: bool,
    },
    Wait {
        back: u64,
        decided: bool,
    },
    Cancel(usize),
    Invalidate(u32),
    Policy(u8),
    /// Ends the n-th thing under way, well or badly.
    End(usize, u8),
    Sleep(u16),
    Pause,
    Resume,
    ResumeParking,
}

fn step() -> impl Strategy<Value = Step> {
    let units = proptest::collection::btree_set(0..5_u32, 1..3);
    prop_oneof![
        6 => (units, 0..6_u8, any::<bool>())
            .prop_map(|(units, kind, writes)| Step::Access {
                units: units.into_iter().collect(),
                kind,
                writes,
            }),
        1 => (0..5_u64, any::<bool>()).prop_map(|(back, decided)| Step::Wait { back, decided }),
        1 => any::<usize>().prop_map(Step::Cancel),
        1 => (0..5_u32).prop_map(Step::Invalidate),
        1 => any::<u8>().prop_map(Step::Policy),
        8 => (any::<usize>(), any::<u8>()).prop_map(|(which, how)| Step::End(which, how)),
        3 => any::<u16>().prop_map(Step::Sleep),
        1 => Just(Step::Pause),
        1 => Just(Step::Resume),
        1 => Just(Step::ResumeParking),
    ]
}

/// One policy per number.
fn policy(n: u8) -> Policy {
    let ms = Span::from_millis;
    let pick = |shift: u8, count: u8| (n >> shift) % count;
    Policy {
        acknowledge: [Acknowledge::Journal, Acknowledge::Origin][usize::from(pick(0, 8) / 7)],
        when: [
            When::Async,
            When::Periodic { every: ms(40) },
            When::Interval { age: ms(40), check: ms(7) },
            When::OnPressure,
        ][usize::from(pick(1, 4))],
        order: [Order::Domain, Order::Unit { batches_max: 3 }, Order::Epoch, Order::Strict]
            [usize::from(pick(3, 4))],
        read_priority: pick(2, 4) == 0,
        commit: [Span::ZERO, ms(30)][usize::from(pick(4, 2))],
        staleness: [ms(200), Span::MAX][usize::from(pick(5, 2))],
        at_limit: [AtLimit::Throttle, AtLimit::Block, AtLimit::WriteThrough, AtLimit::Fail]
            [usize::from(pick(6, 4))],
        on_reject: [OnReject::Park, OnReject::Stop][usize::from(n % 5 / 3)],
        limits: Limits {
            dirty_bytes_max: 65_536,
            dirty_bytes_low: 40_000,
            cache_bytes_max: 250,
            batch_groups_max: 3,
            parked_per_minute_max: 2,
            ..Limits::default()
        },
    }
}

/// The naive model: what was asked and not answered yet, and who may be decided.
struct Model {
    core: Core,
    now: Time,
    pending: BTreeMap<u64, (Vec<UnitId>, bool)>,
    replies: BTreeSet<u32>,
    under_way: Vec<Effect>,
    /// Undecided groups and their units.
    groups: BTreeMap<Lsn, (DomainId, Vec<UnitId>)>,
    through: BTreeSet<Lsn>,
    next: u64,
}

impl Model {
    fn handle(&mut self, input: Input<'_>) {
        self.core.handle(self.now, input);
        self.settle_down();
    }

    /// Ticks until the core rests; it must not spin.
    fn settle_down(&mut self) {
        for _ in 0..200 {
            self.core.handle(self.now, Input::Tick);
            while let Some(effect) = self.core.poll_effect() {
                self.effect(effect);
            }
            if self.core.next_timeout().is_none_or(|at| at > self.now) {
                return;
            }
        }
        panic!("the core spins: {:?}", self.core.status());
    }

    fn effect(&mut self, effect: Effect) {
        match effect {
            Effect::Execute { request, access, observed } => {
                self.execute(request, access, observed)
            }
            Effect::Refuse { request, .. } => {
                assert!(self.pending.remove(&request.0).is_some(), "answered once: {request:?}");
            }
            Effect::Waited { request, .. } => {
                assert!(self.pending.remove(&request.0).is_some(), "answered once: {request:?}");
            }
            Effect::Send { client } => assert!(self.replies.remove(&client.0), "sent once"),
            Effect::Settled { lsn, .. } => {
                assert!(self.through.remove(&lsn), "settled once");
                self.respond(lsn, true);
            }
            Effect::Destage { batch, .. } => {
                let mut units = BTreeSet::new();
                for lsn in self.core.batch(batch) {
                    assert!(*lsn <= self.core.committed(), "only what is committed is destaged");
                    units.extend(self.groups[lsn].1.iter().copied());
                }
                self.under_way.push(effect);
            }
            Effect::Sync { .. } | Effect::Fetch { .. } | Effect::Park { .. } => {
                self.under_way.push(effect);
            }
            Effect::Evict { .. } => {
                self.core.handle(self.now, Input::Evicted { identity: 1 });
            }
            Effect::Forget { upto } => assert!(self.groups.keys().all(|&lsn| lsn > upto)),
            Effect::Mode(_) => {}
            Effect::Halted { .. } => {}
            Effect::Stop(reason) => panic!("stopped: {reason:?}"),
        }
    }

    fn execute(&mut self, request: RequestId, access: Access, observed: Lsn) {
        let (units, writes) = self.pending.remove(&request.0).expect("answered once");
        if !writes {
            if access != Access::Back {
                self.core.handle(self.now, Input::Release { units: &units });
            }
            return self.respond(observed, false);
        }
        let lsn = self.core.next_lsn();
        let domain = DomainId((units[0].0 % 2) as u16);
        let sizes: Vec<(UnitId, u32)> = units.iter().map(|&unit| (unit, 100)).collect();
        self.groups.insert(lsn, (domain, units));
        let (bytes, journal_bytes) = (8_000, 8_100);
        self.core
            .handle(self.now, Input::Write { domain, units: &sizes, bytes, journal_bytes, access });
        match access {
            Access::Back => self.respond(lsn, true),
            _ => assert!(self.through.insert(lsn)),
        }
    }

    /// Each reply by a client of its own.
    fn respond(&mut self, lsn: Lsn, wrote: bool) {
        let client = self.next as u32;
        self.next += 1;
        self.replies.insert(client);
        self.core.handle(self.now, Input::Respond { client: ClientId(client), lsn, wrote });
    }

    fn request(&mut self, units: Vec<UnitId>, writes: bool) -> RequestId {
        self.next += 1;
        self.pending.insert(self.next, (units, writes));
        RequestId(self.next)
    }

    fn decide(&mut self, lsn: Lsn) {
        let (_, units) = self.groups.remove(&lsn).expect("decided once");
        let older = self
            .groups
            .range(..lsn)
            .find(|(_, (_, others))| others.iter().any(|unit| units.contains(unit)));
        assert!(older.is_none(), "{lsn:?} overtook {older:?} of its unit");
    }

    fn end(&mut self, which: usize, how: u8) {
        if self.under_way.is_empty() {
            return;
        }
        let effect = self.under_way.remove(which % self.under_way.len());
        let fault = [None, None, None, Some(Fault::Unavailable), Some(Fault::Rejected)]
            [usize::from(how) % 5];
        match effect {
            Effect::Sync { upto } => self.handle(Input::Synced { upto, result: Ok(()) }),
            Effect::Fetch { unit } => {
                let result = fault.map_or(Ok(100), Err);
                self.handle(Input::Fetched { unit, result, identity: u64::from(unit.0) });
            }
            Effect::Destage { batch, .. } => self.end_batch(batch, fault),
            Effect::Park { lsn, .. } => {
                let fault = fault.filter(|&fault| fault == Fault::Unavailable);
                if fault.is_none() {
                    self.decide(lsn);
                }
                self.handle(Input::Parked { lsn, result: fault.map_or(Ok(()), Err) });
            }
            other => panic!("not under way: {other:?}"),
        }
    }

    fn end_batch(&mut self, batch: BatchId, fault: Option<Fault>) {
        if fault.is_none() {
            for lsn in self.core.batch(batch).to_vec() {
                self.decide(lsn);
            }
        }
        self.handle(Input::Destaged { batch, result: fault.map_or(Ok(()), Err) });
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Access { units, kind, writes } => {
                // A unit belongs to one domain, and so do the units of a group.
                let domain = units[0] % 2;
                let units = units.into_iter().filter(|unit| unit % 2 == domain);
                let units: Vec<UnitId> = units.map(UnitId).collect();
                let write = |ack, fetch| Intent::Write { bytes: 8_000, ack, fetch };
                let intent = match kind {
                    0 | 1 => Intent::Read,
                    2 => Intent::ReadSettled,
                    3 => write(Ack::Origin, true),
                    4 => write(Ack::Policy, false),
                    _ => write(Ack::Policy, true),
                };
                let writes = writes && matches!(intent, Intent::Write { .. });
                let request = self.request(units.clone(), writes);
                self.handle(Input::Access { request, intent, units: &units });
            }
            Step::Wait { back, decided } => {
                let last = self.core.next_lsn().0 - 1;
                let until = if decided { WaitFor::Decided } else { WaitFor::Committed };
                let request = self.request(Vec::new(), false);
                let lsn = Lsn(last.saturating_sub(back));
                self.handle(Input::Wait { request, lsn, until });
            }
            Step::Cancel(which) => {
                let pending: Vec<u64> = self.pending.keys().copied().collect();
                if let Some(&request) = pending.get(which % pending.len().max(1)) {
                    self.pending.remove(&request);
                    self.handle(Input::Cancel { request: RequestId(request) });
                }
            }
            Step::Invalidate(unit) => self.handle(Input::Invalidate { unit: UnitId(unit) }),
            Step::Policy(n) => self.handle(Input::SetPolicy(&policy(n))),
            Step::End(which, how) => self.end(which, how),
            Step::Sleep(ms) => {
                self.now = self.now + Span::from_millis(u64::from(ms % 300));
                self.settle_down();
            }
            Step::Pause => self.handle(Input::Pause),
            Step::ResumeParking => self.handle(Input::ResumeParking),
            Step::Resume => self.handle(Input::Resume),
        }
    }

    /// Everything under way ends well; then nothing may be left.
    fn finish(&mut self) {
        let mut last = self.core.policy().clone();
        last.limits.cache_bytes_max = 0;
        self.handle(Input::SetPolicy(&last));
        self.handle(Input::Resume);
        self.handle(Input::Drain);
        for _ in 0..10_000 {
            if !self.under_way.is_empty() {
                self.end(0, 0);
            } else if self.core.halts().next().is_some() {
                self.handle(Input::Resume);
            } else if let Some(at) = self.core.next_timeout() {
                self.now = self.now.max(at);
                self.settle_down();
            } else {
                break;
            }
        }
        let status = self.core.status();
        assert!(self.pending.is_empty(), "never answered: {:?}, {status:?}", self.pending);
        assert!(self.replies.is_empty(), "never sent: {:?}, {status:?}", self.replies);
        assert!(self.groups.is_empty() && self.through.is_empty(), "undecided: {status:?}");
        let gauges = [
            status.waiting,
            status.dirty_groups,
            status.dirty_units,
            status.dirty_bytes,
            status.pinned_bytes,
            status.journal_bytes,
            status.cache_bytes,
            status.cache_units,
        ];
        assert_eq!(gauges, [0; 8]);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(400) })]
    #[test]
    fn any_sequence_of_inputs_is_answered_and_leaves_nothing(
        first in any::<u8>(),
        steps in proptest::collection::vec(step(), 1..120),
    ) {
        let now = Time::from_secs(1_000);
        let mut model = Model {
            core: Core::new(now, policy(first)),
            now,
            pending: BTreeMap::new(),
            replies: BTreeSet::new(),
            under_way: Vec::new(),
            groups: BTreeMap::new(),
            through: BTreeSet::new(),
            next: 0,
        };
        for step in steps {
            model.step(step);
        }
        model.finish();
    }
}
