//! What a seed chooses, and where its random numbers come from.

use super::once::Once;
use super::{sets, shop};
use crate::schema::Schema;
use crate::settings::{OnAway, Settings, TableSettings, UnsafeFlags};
use destage_core::{Acknowledge, AtLimit, OnReject, Policy, Span, Time, When};
use destage_journal::Options as JournalOptions;
use std::sync::Arc;

/// A counter-based generator: the n-th number of a stream depends on the seed, the stream and n alone.
#[derive(Clone, Debug)]
pub(super) struct Rng {
    key: u64,
    counter: u64,
}

impl Rng {
    pub(super) fn new(seed: u64, stream: u64) -> Self {
        Self { key: mix(seed ^ mix(stream ^ 0x5851_f42d_4c95_7f2d)), counter: 0 }
    }

    pub(super) fn next(&mut self) -> u64 {
        self.counter += 1;
        mix(self.key.wrapping_add(self.counter.wrapping_mul(0x9e37_79b9_7f4a_7c15)))
    }

    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    pub(super) fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    pub(super) fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize]
    }
}

fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// The terms of a run.
#[derive(Clone, Debug)]
pub(super) struct Options {
    pub(super) seed: u64,
    /// How long the clients write before everything is drained.
    pub(super) load: Span,
    pub(super) clients: usize,
    pub(super) pipeline: u64,
    pub(super) commit: Span,
    pub(super) acknowledge: Acknowledge,
    pub(super) staleness: Span,
    pub(super) sync_ns: u64,
    pub(super) fetch_ns: u64,
    pub(super) write_ns: u64,
    pub(super) fetch_rows: usize,
    pub(super) fail_percent: u64,
    pub(super) lost_percent: u64,
    /// How often a write is one that the origin may reject.
    pub(super) poison_percent: u64,
    /// Values of several kilobytes.
    pub(super) bulky: bool,
    pub(super) early_writes: bool,
    /// One sync of the journal at a time, syncs on the server's thread, clients that would wait for these.
    pub(super) one_lane: bool,
    /// So many durable writes of the journal at once; 0: flushes and syncs.
    pub(super) durable_writes: usize,
    pub(super) syncs_here: bool,
    pub(super) has_readers: bool,
    pub(super) switches: bool,
    pub(super) ack_origin: bool,
    /// Transactions watch rows.
    pub(super) watches: bool,
    /// Clients ask for derived keys.
    pub(super) derives: bool,
    /// Items are members of a sorted set as well, of which so many are cached as a whole.
    pub(super) sets: Option<usize>,
    /// Several ordering domains, of which so many batches may be under way at once.
    pub(super) domains: Option<usize>,
    /// They say so and do not.
    pub(super) forgets_to_watch: bool,
    pub(super) downs: Vec<Time>,
    pub(super) rewind: Option<(Time, Time)>,
    pub(super) crash_at: u64,
    pub(super) crashes_max: u64,
    pub(super) cache_bytes_max: u64,
    pub(super) unsafe_flags: UnsafeFlags,
    pub(super) unsafe_no_watermark: bool,
    /// The disk leaves out writes of what it shows already: a start can only sync what it has seen.
    pub(super) unsafe_no_rewrites: bool,
    /// Parked groups are tried again once in a while.
    pub(super) decides: bool,
    /// Rows are told to have changed at the origin once in a while, though they have not.
    pub(super) distrusts: bool,
    /// Some of them are tried alone, or given up.
    pub(super) skips: bool,
    /// The engine is told that nobody gave them up, though someone did.
    pub(super) unsafe_hides_skips: bool,
    /// Children go with their parents, of which the engine may not know.
    pub(super) cascades: bool,
    pub(super) unsafe_hides_cascades: bool,
    /// A sync fails once in a while, and the process starts anew.
    pub(super) fails_syncs: bool,
    /// The engine is told that it succeeded.
    pub(super) unsafe_hides_failed_syncs: bool,
    /// The engine is told of durable writes as they end, whatever is under way before them.
    pub(super) unsafe_any_order: bool,
    /// Clients send raw SQL.
    pub(super) raw: bool,
    /// Some of it on whole tables.
    pub(super) raw_tables: bool,
    /// Domains halt at what is rejected, or where too much is parked.
    pub(super) halts: bool,
    /// The rows that foreign keys refer to are looked for before a write is acknowledged.
    pub(super) asks_parents: bool,
    /// They are not, though they should be.
    pub(super) unsafe_forgets_parents: bool,
    /// What they halted at is parked once in a while.
    pub(super) parks_halted: bool,
    /// They park where they should halt.
    pub(super) unsafe_parks: bool,
    /// The keys of all tables are known after a while.
    pub(super) absent: bool,
    /// Clients send commands again that are carried out once, and segments leave the journal early.
    pub(super) once: Once,
}

/// Most durable writes at once.
pub(super) const DURABLE_WRITES_MAX: usize = 6;

impl Options {
    pub(super) fn choose(seed: u64) -> Self {
        let mut rng = Rng::new(seed, 7);
        let ms = |n| Time::from_secs(1_000) + Span::from_millis(n);
        let slow = [100_000, 1_000_000, 6_000_000];
        let is_plain = rng.chance(30);
        let rewind = (is_plain && rng.chance(40)).then(|| (ms(60), ms(60 + rng.below(150))));
        let acknowledge = [Acknowledge::Journal, Acknowledge::Journal, Acknowledge::Origin]
            [rng.below(3) as usize];
        let acknowledge = match rng.below(8) {
            0 => Acknowledge::OriginInvalidate,
            _ => acknowledge,
        };
        Self {
            seed,
            load: super::LOAD,
            clients: 1 + rng.below(5) as usize,
            pipeline: rng.pick(&[1, 3, 8]),
            commit: rng.pick(&[Span::ZERO, Span::ZERO, Span::from_millis(50), Span::from_secs(1)]),
            acknowledge: if is_plain { Acknowledge::Journal } else { acknowledge },
            staleness: rng.pick(&[
                Span::from_secs(30),
                Span::from_secs(30),
                Span::from_millis(150),
            ]),
            sync_ns: rng.pick(&slow),
            fetch_ns: rng.pick(&slow),
            write_ns: rng.pick(&slow),
            fetch_rows: rng.pick(&[1, 3, 100]),
            fail_percent: rng.pick(&[0, 5, 20]),
            lost_percent: rng.pick(&[0, 10, 30]),
            poison_percent: rng.pick(&[0, 0, 3, 15]),
            bulky: rng.chance(25),
            early_writes: rng.chance(30),
            one_lane: Rng::new(seed, 13).chance(30),
            durable_writes: Rng::new(seed, 16).pick(&[0, 0, 1, 3, DURABLE_WRITES_MAX]),
            syncs_here: Rng::new(seed, 14).chance(60),
            has_readers: Rng::new(seed, 15).chance(50),
            switches: !is_plain && rng.chance(50),
            ack_origin: !is_plain && rng.chance(20),
            downs: (0..rng.below(3)).map(|_| ms(rng.below(400))).collect(),
            rewind,
            crash_at: if rng.chance(70) { 10 + rng.below(600) } else { u64::MAX },
            crashes_max: rng.below(4),
            cache_bytes_max: rng.pick(&[0, 300, 1_000, 1 << 20]),
            unsafe_flags: UnsafeFlags::default(),
            unsafe_no_watermark: false,
            unsafe_no_rewrites: false,
            forgets_to_watch: false,
            watches: rng.chance(50),
            // Of its own stream, so that seeds which do not derive stay what they were.
            derives: Rng::new(seed, 9).chance(40),
            distrusts: false,
            // What is derived is checked against the origin's history, which a late write is no part of.
            decides: rewind.is_none() && !Rng::new(seed, 9).chance(40) && rng.chance(60),
            domains: None,
            skips: false,
            unsafe_hides_skips: false,
            cascades: false,
            unsafe_hides_cascades: false,
            fails_syncs: false,
            unsafe_hides_failed_syncs: false,
            unsafe_any_order: false,
            raw: false,
            raw_tables: false,
            sets: None,
            halts: false,
            asks_parents: false,
            unsafe_forgets_parents: false,
            parks_halted: false,
            unsafe_parks: false,
            absent: false,
            once: Once::Never,
        }
    }

    /// When to crash next.
    pub(super) fn next_crash(&self, rng: &mut Rng, steps: u64, crashes: u64) -> u64 {
        if crashes < self.crashes_max { steps + 1 + rng.below(200) } else { u64::MAX }
    }

    /// Longest pause between two pipelines of a client.
    pub(super) fn think_ns(&self) -> u64 {
        8_000_000
    }

    /// How long a request waits for a derived key.
    pub(super) fn deadline(&self) -> Span {
        Rng::new(self.seed, 10).pick(&[Span::from_secs(10), Span::from_millis(40)])
    }

    /// What the engine knows of the tables, and of the set over them if there is one.
    pub(super) fn schema(&self) -> Arc<Schema> {
        let mut schema = if self.cascades && !self.unsafe_hides_cascades {
            shop::schema_with_cascades()
        } else {
            shop::schema()
        };
        if let Some(members_max) = self.sets {
            sets::map(&mut schema, members_max);
        }
        schema.tables[shop::CHILD].asks_foreign_keys =
            self.asks_parents && !self.unsafe_forgets_parents;
        Arc::new(schema)
    }

    /// Nothing fails any more.
    pub(super) fn calm(&mut self) {
        (self.fail_percent, self.lost_percent) = (0, 0);
        self.halts = false;
    }

    pub(super) fn journal(&self) -> JournalOptions {
        let mut options = JournalOptions {
            segment_bytes: JournalOptions::SEGMENT_BYTES_MIN,
            background: false,
            unsafe_no_fsync: self.unsafe_flags.no_fsync,
            ..JournalOptions::default()
        };
        if self.once != Once::Never {
            options.retain = std::time::Duration::ZERO;
        }
        options
    }

    pub(super) fn settings(&self) -> Settings {
        let mut rng = Rng::new(self.seed, 8);
        let mut policy = self.policy(&mut rng);
        policy.acknowledge = self.acknowledge;
        let mut settings = Settings {
            policy,
            pipeline_max: rng.pick(&[1, 3, 10_000]),
            unsafe_flags: self.unsafe_flags,
            absent_filter: self.absent,
            // Longer than writes wait here, so that what is refused is refused for another reason.
            client_wait: Span::from_secs(10),
            ..Settings::default()
        };
        settings.on_away = rng.pick(&[OnAway::Fail, OnAway::Wait]);
        if self.domains.is_some() {
            settings.domains = shop::domains(self.sets.is_some());
        }
        if self.ack_origin {
            let table = TableSettings { ack_origin: true, ..TableSettings::default() };
            settings.tables.insert(shop::NAMES[shop::PARENT].into(), table);
        }
        settings
    }

    /// A policy that fits the run. Plain runs never wait for the origin's word.
    pub(super) fn policy(&self, rng: &mut Rng) -> Policy {
        let ms = Span::from_millis;
        let mut policy = Policy {
            acknowledge: self.acknowledge,
            commit: self.commit,
            staleness: self.staleness.max(Span(self.commit.0 * 2)),
            ..Policy::default()
        };
        policy.when = match rng.below(5) {
            0 => When::Periodic { every: ms(30) },
            1 => When::Interval { age: ms(40), check: ms(10) },
            2 => When::OnPressure,
            _ => When::Async,
        };
        if self.switches {
            policy.acknowledge =
                rng.pick(&[Acknowledge::Journal, self.acknowledge, Acknowledge::Origin]);
        }
        let waits = self.rewind.is_none() && self.sets.is_none();
        let at_limit = [AtLimit::Throttle, AtLimit::Block, AtLimit::Fail, AtLimit::WriteThrough];
        policy.at_limit = at_limit[rng.below(if waits { 4 } else { 3 }) as usize];
        let limits = &mut policy.limits;
        limits.dirty_bytes_max = 65_536;
        limits.dirty_bytes_low = rng.pick(&[4_000, 20_000]);
        limits.cache_bytes_max = self.cache_bytes_max;
        limits.batch_groups_max = rng.pick(&[1, 3, 100]);
        limits.batch_bytes_max = rng.pick(&[4_096, 1 << 20]);
        limits.linger = rng.pick(&[Span::ZERO, ms(2), ms(20)]);
        limits.retry_min = ms(5);
        limits.retry_max = ms(100);
        if self.halts {
            let choice = [OnReject::Stop, OnReject::Park];
            policy.on_reject = choice[usize::from(self.unsafe_parks)];
            let most = if self.parks_halted { [1, 3, u32::MAX] } else { [u32::MAX; 3] };
            policy.limits.parked_per_minute_max = Rng::new(self.seed, 14).pick(&most);
        }
        policy
    }
}
