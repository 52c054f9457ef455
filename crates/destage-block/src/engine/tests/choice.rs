//! What a run is like.

use super::random::Random;
use crate::engine::VolumeOptions;
use destage_core::{Acknowledge, AtLimit, Limits, Order, Policy, Span, When};

/// A run's parameters.
#[derive(Clone, Debug)]
pub(super) struct Choice {
    pub(super) seed: u64,
    pub(super) policy: Policy,
    pub(super) options: VolumeOptions,
    /// The order that the origin is checked for; `None` for no order.
    pub(super) checked: Option<Order>,
    pub(super) lives: u32,
    pub(super) requests: u32,
    pub(super) blocks: u64,
    pub(super) log_bytes: u64,
    pub(super) slots: u64,
    /// Whether the redo store is left alone after a crash: a negative control.
    pub(super) unsafe_no_replay: bool,
    /// Whether a sync is told to have covered all that was logged by its end: a negative control.
    pub(super) unsafe_late_syncs: bool,
    /// Whether some losses of power are none: the disk fails for a while, and the process starts anew.
    pub(super) failing_syncs: bool,
    /// Whether the disk leaves out writes of what it shows already: a negative control.
    pub(super) unsafe_no_rewrites: bool,
    /// How often the log is written ahead.
    pub(super) ahead_percent: u64,
    /// In this share of the crashes the cache is lost with the host.
    pub(super) lose_cache_percent: u64,
    pub(super) outage_percent: u64,
    /// Longest fragment that is zeroed, in blocks; requests for more go on fragment by fragment.
    pub(super) zero_blocks_max: u32,
    /// Whether reads of the cache that take no waiting are carried out at once.
    pub(super) reads_now: bool,
    /// Whether there is a redo store, which only the journaled policy needs.
    pub(super) has_redo: bool,
}

impl Choice {
    pub(super) fn any(seed: u64) -> Self {
        let mut random = Random::new(seed ^ 0x00c0_ffee);
        let orders =
            [Order::Any, Order::Epoch, Order::Epoch, Order::Strict, Order::Domain, Order::Domain];
        let order = random.pick(&orders);
        let acknowledge =
            if random.chance(12) { Acknowledge::Origin } else { Acknowledge::Journal };
        let commit = random.pick(&[Span::ZERO, Span::from_millis(20), Span::from_secs(1)]);
        let when = random.pick(&[
            When::Async,
            When::Adaptive,
            When::Periodic { every: Span::from_millis(50) },
            When::OnPressure,
        ]);
        let at_limit = random.pick(&[AtLimit::Throttle, AtLimit::Block, AtLimit::WriteThrough]);
        let limits = Limits {
            dirty_bytes_max: random.pick(&[128 << 10, 1 << 20]),
            dirty_bytes_low: 120 << 10,
            batch_groups_max: random.pick(&[3, 20, 1000]),
            batch_bytes_max: 256 << 10,
            sequential_bytes_max: random.pick(&[u64::MAX, 0, 16 << 10]),
            ..Limits::default()
        };
        let policy = Policy {
            acknowledge,
            when,
            order,
            commit,
            staleness: random.pick(&[Span::from_secs(2), Span::from_secs(30)]),
            at_limit,
            limits,
            read_priority: random.chance(20),
            ..Policy::default()
        };
        let options = VolumeOptions {
            memory_bytes_max: random.pick(&[0, 64 << 10, 64 << 20]),
            fetch_patience: Span::from_secs(30),
            checkpoint_every: random.pick(&[Span::from_millis(200), Span::from_secs(30)]),
            ..VolumeOptions::default()
        };
        let is_written_through = acknowledge == Acknowledge::Origin;
        Self {
            seed,
            checked: (order != Order::Any && !is_written_through).then_some(order),
            policy,
            options,
            lives: 3,
            requests: 120,
            blocks: random.pick(&[40, 160]),
            log_bytes: random.pick(&[1 << 20, 4 << 20]),
            slots: random.pick(&[100, 400]),
            unsafe_no_replay: false,
            unsafe_late_syncs: false,
            failing_syncs: false,
            unsafe_no_rewrites: false,
            ahead_percent: 10,
            lose_cache_percent: 35,
            outage_percent: random.pick(&[0, 0, 3]),
            zero_blocks_max: random.pick(&[3, 16_384]),
            reads_now: seed.is_multiple_of(3),
            has_redo: order == Order::Domain || random.chance(50),
        }
    }

    fn ordered(seed: u64, order: Order) -> Self {
        let mut choice = Self::any(seed);
        choice.policy.order = order;
        choice.has_redo = order == Order::Domain;
        choice.policy.acknowledge = Acknowledge::Journal;
        choice.policy.when = When::Async;
        choice.policy.read_priority = false;
        choice.policy.limits.batch_groups_max = 1000;
        choice.outage_percent = 0;
        choice
    }

    /// Checked for epochs, which conventional write-back does not keep.
    pub(super) fn epochs(seed: u64, is_unsafe: bool) -> Self {
        let order = if is_unsafe { Order::Any } else { Order::Epoch };
        let mut choice = Self::ordered(seed, order);
        choice.checked = Some(Order::Epoch);
        choice.policy.when = When::Periodic { every: Span::from_millis(50) };
        choice.requests = 300;
        choice.slots = 1000;
        choice.policy.commit = Span::ZERO;
        choice.policy.limits.dirty_bytes_max = 1 << 20;
        choice.policy.limits.dirty_bytes_low = 512 << 10;
        choice.policy.limits.batch_bytes_max = 4 << 20;
        choice.lose_cache_percent = 100;
        choice
    }

    /// The log is let go as soon as it may be, or sooner.
    pub(super) fn short_log(seed: u64, is_unsafe: bool) -> Self {
        let mut choice = Self::ordered(seed, Order::Any);
        choice.checked = None;
        choice.options.unsafe_reclaim_past_checkpoint = is_unsafe;
        choice.options.checkpoint_every = Span::from_millis(500);
        choice.log_bytes = 1 << 20;
        choice.slots = 100;
        choice.requests = 400;
        choice.lose_cache_percent = 0;
        choice
    }

    /// Blocks are written again and again, and power goes in the middle of a group.
    pub(super) fn overwrites(seed: u64, is_unsafe: bool) -> Self {
        let mut choice = Self::ordered(seed, Order::Domain);
        choice.checked = Some(Order::Domain);
        choice.options.unsafe_outdated_before = is_unsafe;
        choice.policy.limits.batch_groups_max = 3;
        choice.policy.limits.sequential_bytes_max = u64::MAX;
        (choice.blocks, choice.slots, choice.lives) = (40, 400, 6);
        choice
    }

    /// Every write is of a stream that passes the cache by: by way of the log, or straight to the origin.
    pub(super) fn streams(seed: u64, is_unsafe: bool) -> Self {
        let mut choice = Self::epochs(seed, false);
        choice.policy.limits.sequential_bytes_max = 0;
        choice.options.unsafe_bypass_log = is_unsafe;
        choice
    }

    /// Several clients wait for the log, all of which is found again.
    pub(super) fn syncing(seed: u64, is_unsafe: bool) -> Self {
        let mut choice = Self::ordered(seed, Order::Epoch);
        choice.unsafe_late_syncs = is_unsafe;
        choice.policy.commit = Span::ZERO;
        choice.lose_cache_percent = 0;
        choice.log_bytes = 4 << 20;
        choice.ahead_percent = 60;
        // Destaging would make all of the cache device durable now and then.
        choice.policy.when = When::OnPressure;
        (choice.lives, choice.requests) = (6, 40);
        choice
    }

    /// The disk fails for a while, and starts rely on what the system shows of it.
    pub(super) fn failing(seed: u64, is_unsafe: bool) -> Self {
        let choice = Self::syncing(seed, false);
        Self { failing_syncs: true, unsafe_no_rewrites: is_unsafe, ..choice }
    }

    /// The cache is always lost, and the redo store replayed or not.
    pub(super) fn journaled(seed: u64, is_unsafe: bool) -> Self {
        let mut choice = Self::ordered(seed, Order::Domain);
        choice.checked = Some(Order::Domain);
        choice.unsafe_no_replay = is_unsafe;
        choice.lose_cache_percent = 100;
        choice
    }
}
