//! The core, scripted: inputs and clock jumps on one side, exact effects on the other.

mod access;
mod builds_on;
mod commit;
mod destage;
mod due;
mod halt;
mod level;
mod limits;
mod parked;
mod spanning;

use super::Core;
use crate::id::{BatchId, ClientId, DomainId, Lsn, RequestId, UnitId};
use crate::io::{Access, Ack, Effect, Fault, Halt, Input, Intent, Mode, Outcome, Refusal, WaitFor};
use crate::policy::{Limits, OnReject, Order, Policy};
use crate::time::{Span, Time};
use alloc::vec::Vec;
use hashbrown::HashMap;

const START: Time = Time::from_secs(1_000);
const WRITE_BYTES: u32 = 4_096;

/// The core and the least driver that it needs: executed writes are written and responded to at once, by a client of the
/// same number as the request.
struct Pair {
    core: Core,
    now: Time,
    /// What a request will write once it is executed.
    plans: HashMap<RequestId, (DomainId, Vec<UnitId>)>,
    /// Syncs and destages under way.
    under_way: Vec<Effect>,
}

/// Everything at once, without linger, so that effects come when their cause does.
fn policy() -> Policy {
    let limits = Limits { linger: Span::ZERO, ..Limits::default() };
    Policy { limits, ..Policy::default() }
}

fn ms(n: u64) -> Span {
    Span::from_millis(n)
}

impl Pair {
    fn new(policy: Policy) -> Self {
        Self {
            core: Core::new(START, policy),
            now: START,
            plans: HashMap::new(),
            under_way: Vec::new(),
        }
    }

    /// Jumps to `at` milliseconds after the start.
    fn at(&mut self, at: u64) -> Vec<Effect> {
        self.now = START + ms(at);
        self.effects()
    }

    fn send(&mut self, input: Input<'_>) -> Vec<Effect> {
        self.core.handle(self.now, input);
        self.effects()
    }

    /// All effects. The core must come to rest: a timeout that has passed must lead to something.
    fn effects(&mut self) -> Vec<Effect> {
        let mut all = Vec::new();
        for _ in 0..100 {
            self.core.handle(self.now, Input::Tick);
            while let Some(effect) = self.core.poll_effect() {
                if let Effect::Execute { request, access, observed } = effect {
                    self.execute(request, access, observed);
                }
                if matches!(effect, Effect::Sync { .. } | Effect::Destage { .. }) {
                    self.under_way.push(effect.clone());
                }
                all.push(effect);
            }
            if self.core.next_timeout().is_none_or(|at| at > self.now) {
                return all;
            }
        }
        panic!("the core spins at {:?}: {all:?}", self.now);
    }

    fn execute(&mut self, request: RequestId, access: Access, observed: Lsn) {
        let client = ClientId(request.0 as u32);
        let Some((domain, units)) = self.plans.remove(&request) else {
            self.core.handle(self.now, Input::Respond { client, lsn: observed, wrote: false });
            return;
        };
        let lsn = self.core.next_lsn();
        let units: Vec<(UnitId, u32)> = units.into_iter().map(|unit| (unit, 100)).collect();
        self.core.handle(
            self.now,
            Input::Write {
                domain,
                units: &units,
                bytes: WRITE_BYTES,
                journal_bytes: WRITE_BYTES + 100,
                access,
            },
        );
        if access == Access::Back {
            self.core.handle(self.now, Input::Respond { client, lsn, wrote: true });
        }
    }

    fn access(&mut self, request: u64, intent: Intent, units: &[u32]) -> Vec<Effect> {
        let units: Vec<UnitId> = units.iter().copied().map(UnitId).collect();
        self.send(Input::Access { request: RequestId(request), intent, units: &units })
    }

    fn read(&mut self, request: u64, unit: u32) -> Vec<Effect> {
        self.access(request, Intent::Read, &[unit])
    }

    /// A blind write, so that scripts about order need no fetches.
    fn write(&mut self, request: u64, units: &[u32]) -> Vec<Effect> {
        self.write_to(0, request, units, Ack::Policy)
    }

    fn write_to(&mut self, domain: u16, request: u64, units: &[u32], ack: Ack) -> Vec<Effect> {
        let plan = (DomainId(domain), units.iter().copied().map(UnitId).collect());
        self.plans.insert(RequestId(request), plan);
        self.access(request, Intent::Write { bytes: WRITE_BYTES, ack, fetch: false }, units)
    }

    /// Writes without looking at the effects, at the limits' mercy.
    fn write_all(&mut self, requests: core::ops::Range<u64>) -> Vec<Effect> {
        requests.flat_map(|request| self.write(request, &[request as u32])).collect()
    }

    fn fetched(&mut self, unit: u32) -> Vec<Effect> {
        let identity = u64::from(unit);
        self.send(Input::Fetched { unit: UnitId(unit), result: Ok(100), identity })
    }

    fn fetch_failed(&mut self, unit: u32, fault: Fault) -> Vec<Effect> {
        self.send(Input::Fetched { unit: UnitId(unit), result: Err(fault), identity: 0 })
    }

    /// Puts a clean unit in the cache.
    fn load(&mut self, unit: u32) {
        assert_eq!(self.read(9_000, unit), [fetch(unit)]);
        assert_eq!(self.fetched(unit), [execute(9_000), send(9_000)]);
    }

    fn synced(&mut self, upto: u64) -> Vec<Effect> {
        self.under_way.retain(|effect| !matches!(effect, Effect::Sync { .. }));
        self.send(Input::Synced { upto: Lsn(upto), result: Ok(()) })
    }

    fn destaged(&mut self, batch: u64) -> Vec<Effect> {
        self.destage_ended(batch, Ok(()))
    }

    fn destage_failed(&mut self, batch: u64, fault: Fault) -> Vec<Effect> {
        self.destage_ended(batch, Err(fault))
    }

    fn destage_ended(&mut self, id: u64, result: Result<(), Fault>) -> Vec<Effect> {
        let is_this =
            |effect: &Effect| matches!(effect, Effect::Destage { batch, .. } if batch.0 == id);
        self.under_way.retain(|effect| !is_this(effect));
        self.send(Input::Destaged { batch: BatchId(id), result })
    }

    fn parked(&mut self, lsn: u64) -> Vec<Effect> {
        self.send(Input::Parked { lsn: Lsn(lsn), result: Ok(()) })
    }

    fn wait(&mut self, request: u64, lsn: u64, until: WaitFor) -> Vec<Effect> {
        self.send(Input::Wait { request: RequestId(request), lsn: Lsn(lsn), until })
    }

    fn cancel(&mut self, request: u64) -> Vec<Effect> {
        self.plans.remove(&RequestId(request));
        self.send(Input::Cancel { request: RequestId(request) })
    }

    fn set_policy(&mut self, change: impl FnOnce(&mut Policy)) -> Vec<Effect> {
        let mut policy = self.core.policy().clone();
        change(&mut policy);
        self.send(Input::SetPolicy(&policy))
    }

    fn batch(&self, batch: u64) -> Vec<u64> {
        self.core.batch(BatchId(batch)).iter().map(|lsn| lsn.0).collect()
    }

    /// The time until the next timeout.
    fn due_in(&self) -> Option<Span> {
        self.core.next_timeout().map(|at| at.since(self.now))
    }

    /// Syncs and destages until nothing is under way; all effects on the way are returned.
    fn settle(&mut self) -> Vec<Effect> {
        let mut all = Vec::new();
        while let Some(effect) = self.under_way.first().cloned() {
            all.extend(match effect {
                Effect::Sync { upto } => self.synced(upto.0),
                Effect::Destage { batch, .. } => self.destaged(batch.0),
                other => panic!("not under way: {other:?}"),
            });
        }
        all
    }

    /// Nothing is left over: no dirt, no waiting request, and every handle can be given back.
    fn assert_clean(&mut self, handles: usize) {
        let evicted = self.set_policy(|policy| policy.limits.cache_bytes_max = 0);
        let count = evicted.iter().filter(|effect| matches!(effect, Effect::Evict { .. })).count();
        assert_eq!(count, handles, "every handle is given back once: {evicted:?}");
        let status = self.core.status();
        assert_eq!(
            (status.waiting, status.dirty_groups, status.dirty_bytes, status.pinned_bytes),
            (0, 0, 0, 0)
        );
        assert_eq!((status.dirty_units, status.cache_units, status.journal_bytes), (0, 0, 0));
        assert_eq!(status.cache_bytes, 0);
    }
}

fn execute(request: u64) -> Effect {
    executed(request, Access::Back, 0)
}

fn executed(request: u64, access: Access, observed: u64) -> Effect {
    Effect::Execute { request: RequestId(request), access, observed: Lsn(observed) }
}

fn refuse(request: u64, refusal: Refusal) -> Effect {
    Effect::Refuse { request: RequestId(request), refusal }
}

fn send(client: u32) -> Effect {
    Effect::Send { client: ClientId(client) }
}

fn waited(request: u64, outcome: Outcome) -> Effect {
    Effect::Waited { request: RequestId(request), outcome }
}

fn sync(upto: u64) -> Effect {
    Effect::Sync { upto: Lsn(upto) }
}

fn fetch(unit: u32) -> Effect {
    Effect::Fetch { unit: UnitId(unit) }
}

fn destage(batch: u64) -> Effect {
    Effect::Destage { batch: BatchId(batch), domain: DomainId(0) }
}

fn park(lsn: u64, depends_on: Option<u64>) -> Effect {
    let (lsn, depends_on) = (Lsn(lsn), depends_on.map(Lsn));
    Effect::Park { lsn, domain: DomainId(0), depends_on, keep: true }
}

fn forget(upto: u64) -> Effect {
    Effect::Forget { upto: Lsn(upto) }
}

fn evict(unit: u32) -> Effect {
    Effect::Evict { unit: UnitId(unit) }
}

fn settled(lsn: u64, applied: bool) -> Effect {
    Effect::Settled { lsn: Lsn(lsn), applied }
}

fn by_unit(batches_max: u32) -> Policy {
    Policy { order: Order::Unit { batches_max }, ..policy() }
}

fn mode(mode: Mode) -> Effect {
    Effect::Mode(mode)
}
