//! What a run is made of, chosen from its seed.

use super::rng::Rng;
use destage_core::{Acknowledge, AtLimit, Limits, OnReject, Order, Policy, Span, When};

/// One run.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Chooses the policy, the clients' doings, latencies and faults.
    pub seed: u64,
    /// Requests of each client, at least 1.
    pub steps: u32,
    /// Where the host crashes.
    pub crash: Crash,
    /// Which safety is missing.
    pub sabotage: Sabotage,
}

/// Where the host crashes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crash {
    /// Nowhere.
    Never,
    /// Just before the effect of this number, from 0, is carried out.
    AtEffect(u64),
    /// Once to three times, at random.
    Random,
}

/// A safety that is taken away, to see that the checks notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sabotage {
    /// Nothing is missing.
    None,
    /// The journal says that it is durable and is not.
    Sync,
    /// The origin does not know which groups it has applied.
    Watermark,
    /// A miss installs the origin's row without the buffered writes.
    Overlay,
    /// Readers get their replies before the journal holds what they reveal.
    ReadGate,
    /// The staleness bound is promised but not given to the core.
    Staleness,
    /// The core is not told what a group builds on besides its own units.
    BuildsOn,
}

/// What happened in a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Effects carried out.
    pub effects: u64,
    /// Their hash, in order.
    pub hash: u64,
    /// Groups in the log at the end.
    pub groups: u64,
    /// Crashes.
    pub crashes: u32,
    /// Acknowledged writes.
    pub acked: u64,
    /// Refused requests.
    pub refused: u64,
    /// Fetches.
    pub fetches: u64,
    /// Batches whose outcome was unknown at first.
    pub unknown: u64,
    /// Groups parked or dropped.
    pub rejected: u64,
    /// How often a domain halted.
    pub halted: u64,
}

/// The choices of a run.
#[derive(Clone, Debug)]
pub(super) struct Options {
    pub(super) policy: Policy,
    /// Policies to switch to; `d` and `D` stay, since they are promises.
    pub(super) others: Vec<Policy>,
    pub(super) keys: u32,
    pub(super) domains: u16,
    pub(super) clients: u32,
    pub(super) steps: u32,
    /// Longest pause between two requests of a client, in microseconds.
    pub(super) think_us: u64,
    pub(super) write_percent: u64,
    /// Groups that the origin rejects, in percent. Then every change is an increment, so that values tell nothing of order.
    pub(super) poison_percent: u64,
    pub(super) origin_us: u64,
    pub(super) sync_us: u64,
    /// Origin calls that fail, in percent; half of them have landed.
    pub(super) fault_percent: u64,
    /// Times at which the origin is away: (from, to) in milliseconds since the start.
    pub(super) away_ms: Vec<(u64, u64)>,
    pub(super) cancel_percent: u64,
}

impl Options {
    pub(super) fn choose(seed: u64, steps: u32) -> Self {
        let rng = &mut Rng::new(seed, 0);
        let commit = Span::from_millis(rng.pick(&[0, 0, 0, 50, 1_000]));
        let staleness = match rng.pick(&[0, 200, 2_000]) {
            0 if commit < Span::from_millis(500) => Span::from_millis(500),
            200 if commit < Span::from_millis(100) => Span::from_millis(200),
            _ => Span::from_secs(5),
        };
        let policy = policy(rng, commit, staleness);
        let others: Vec<Policy> = (0..rng.below(3)).map(|_| policy_beside(rng, &policy)).collect();
        let (policy, others) = halting(seed, policy, others);
        let away_ms = (0..rng.below(3))
            .map(|_| (rng.below(400), rng.pick(&[5, 100, 1_000])))
            .map(|(from, length)| (from, from + length))
            .collect();
        Self {
            policy,
            others,
            keys: rng.pick(&[2, 4, 12]),
            domains: rng.pick(&[1, 1, 2]),
            clients: rng.pick(&[1, 3, 8]),
            steps: steps + 1,
            think_us: rng.pick(&[0, 500, 5_000, 40_000]),
            write_percent: rng.pick(&[30, 60, 90]),
            poison_percent: rng.pick(&[0, 0, 10]),
            origin_us: rng.pick(&[100, 2_000, 20_000]),
            sync_us: rng.pick(&[50, 1_000, 2_500]),
            fault_percent: rng.pick(&[0, 10, 30]),
            away_ms,
            cancel_percent: rng.pick(&[0, 0, 10]),
        }
    }
}

/// Some of the policies halt at what is rejected, or where too much is. Of a stream of its own, so that seeds without it stay
/// what they were.
fn halting(seed: u64, mut policy: Policy, mut others: Vec<Policy>) -> (Policy, Vec<Policy>) {
    let rng = &mut Rng::new(seed, 2);
    if rng.chance(40) {
        for policy in others.iter_mut().chain([&mut policy]) {
            policy.on_reject = rng.pick(&[OnReject::Stop, OnReject::Park]);
            policy.limits.parked_per_minute_max = rng.pick(&[0, 2, u64::from(u32::MAX)]) as u32;
        }
    }
    (policy, others)
}

fn policy_beside(rng: &mut Rng, base: &Policy) -> Policy {
    policy(rng, base.commit, base.staleness)
}

fn policy(rng: &mut Rng, commit: Span, staleness: Span) -> Policy {
    let ms = Span::from_millis;
    let limits = Limits {
        dirty_bytes_max: rng.pick(&[65_536, 1 << 30]),
        dirty_bytes_low: 49_152,
        cache_bytes_max: rng.pick(&[0, 300, 1 << 20]),
        batch_groups_max: rng.pick(&[1, 3, 100]) as u32,
        batch_bytes_max: rng.pick(&[8_192, 1 << 20]),
        linger: ms(rng.pick(&[0, 2])),
        retry_min: ms(1 + rng.below(20)),
        retry_max: ms(100),
        ..Limits::default()
    };
    let policy = Policy {
        acknowledge: rng.pick(&[
            Acknowledge::Journal,
            Acknowledge::Journal,
            Acknowledge::Journal,
            Acknowledge::Origin,
            Acknowledge::OriginInvalidate,
        ]),
        when: rng.pick(&[
            When::Async,
            When::Async,
            When::Periodic { every: ms(60) },
            When::Interval { age: ms(80), check: ms(9) },
            When::OnPressure,
        ]),
        order: rng.pick(&[
            Order::Domain,
            Order::Domain,
            Order::Unit { batches_max: 1 },
            Order::Unit { batches_max: 4 },
            Order::Any,
            Order::Epoch,
            Order::Strict,
        ]),
        read_priority: rng.pick(&[false, false, true]),
        commit,
        staleness,
        at_limit: rng.pick(&[
            AtLimit::Throttle,
            AtLimit::Block,
            AtLimit::WriteThrough,
            AtLimit::Fail,
        ]),
        on_reject: OnReject::Park,
        limits,
    };
    policy.validate().expect("the choices fit together");
    policy
}
