//! Tiers as the servers have them unless told otherwise, by the same defaults.

use super::settings::{DIRTY_MIN, Tier};
use crate::hits::Replacements;
use destage_core::Policy;
use destage_engine::{VOLUME_SLOTS_MAX, VOLUME_SLOTS_MIN, WritePolicy, defaults, fit_volume};
use destage_runtime::units::{Bytes, Interval};

/// The replacement of the servers.
const SERVED: Replacements = Replacements::of(defaults::REPLACEMENT);
/// What a slot takes beside its block: two entries of the index.
const ENTRIES_BYTES: u64 = 32;

impl Tier {
    /// The cache of a volume of so many bytes, its log included, as `destage block serve` has it unless told otherwise.
    pub fn of_volume(cache_bytes: u64) -> Self {
        let log = defaults::volume::log_bytes(cache_bytes);
        Self { replacement: SERVED, persistent: true, ..Self::default() }
            .with_log(cache_bytes, log, defaults::volume::dirty_bytes(log))
            .with(&defaults::volume::policy(log), defaults::volume::POLICY)
    }

    /// The same with another log and dirty limit, bytes.
    pub fn with_log(self, cache_bytes: u64, log_bytes: u64, dirty_bytes: u64) -> Self {
        Self {
            size: Bytes(cache_bytes.saturating_sub(log_bytes)),
            // What the log may hold before it is destaged for room.
            log: Bytes(destage_engine::journal_limit(log_bytes)),
            dirty: Bytes(dirty_bytes.max(DIRTY_MIN)),
            dirty_apart: true,
            volume_cache: Bytes(cache_bytes),
            counts_writes: true,
            ..self
        }
    }

    /// The same memory where no flash is behind it: with the D of a server, what it does at a limit, its linger, batches and
    /// replacement. What only a log or a medium could keep stays as it is.
    pub fn alone(self) -> Self {
        Self {
            replacement: SERVED,
            staleness: Interval(defaults::STALENESS),
            at_limit: defaults::AT_LIMIT,
            batch_groups: defaults::volume::BATCH_GROUPS,
            batch: Bytes(defaults::volume::BATCH_BYTES),
            linger: Interval(defaults::volume::LINGER),
            ..self
        }
    }

    /// The same flash where RAM and flash are one cache: no volume has it so.
    pub fn unified(self) -> Self {
        let is_volume = self.volume_cache.get() > 0;
        let dirty_apart = self.dirty_apart && !is_volume;
        Self { dirty_apart, volume_cache: Bytes(0), ..self }
    }

    /// What a volume's cache keeps of the limits. Slots that are too few for a volume bound nothing.
    pub(super) fn fit(&self, policy: &mut Policy, block: u64) {
        let (cache, size) = (self.volume_cache.get(), self.size.get());
        let slots = (size / (block + ENTRIES_BYTES)).min(VOLUME_SLOTS_MAX.into()) as u32;
        if cache > 0 && slots >= VOLUME_SLOTS_MIN {
            policy.limits.cache_bytes_max = u64::MAX;
            fit_volume(policy, slots, block, cache.saturating_sub(size));
        }
    }

    /// The memory of the server of rows, which holds so many bytes of rows beside so many of buffered writes. A row takes
    /// `block` of the simulation and `row` bytes of the memory.
    pub fn of_rows(rows_bytes: u64, dirty_bytes: u64, row: u64, block: u64) -> Self {
        let blocks = |bytes: u64| (bytes / row).max(1).saturating_mul(block);
        let tier = Self {
            size: Bytes(blocks(rows_bytes)),
            // A dirty row counts twice, as a row and as the write that made it so: here as there.
            dirty: Bytes((dirty_bytes / row / 2 * 2).saturating_mul(block).max(DIRTY_MIN)),
            replacement: SERVED,
            persistent: true,
            rows: true,
            ..Self::default()
        };
        // A batch is bounded by its groups: rows are not of the simulated size.
        Self {
            batch: Bytes(1 << 40),
            ..tier.with(&defaults::rows::policy(), WritePolicy::Journaled)
        }
    }

    /// The cache of a volume that runs under a policy, whose limits are those that it can keep.
    pub fn of_running_volume(policy: &Policy, block: u64) -> Self {
        let limits = &policy.limits;
        let tier = Self {
            size: Bytes(limits.cache_bytes_max.clamp(block, u64::from(u32::MAX) * block)),
            log: Bytes(limits.journal_bytes_max),
            dirty: Bytes(limits.dirty_bytes_max),
            dirty_apart: true,
            counts_writes: true,
            replacement: SERVED,
            persistent: true,
            ..Self::default()
        };
        tier.with(policy, WritePolicy::of(policy))
    }

    /// The memory of a server of rows that runs under a policy, as [`Tier::of_rows`] has it.
    pub fn of_running_rows(policy: &Policy, row: u64, block: u64) -> Self {
        let (limits, named) = (&policy.limits, WritePolicy::of(policy));
        let rows = Self::of_rows(limits.cache_bytes_max, limits.dirty_bytes_max, row, block);
        let batch = rows.batch;
        // Sessions are in order, whatever the order is called there.
        let waits = matches!(named, WritePolicy::WriteThrough | WritePolicy::WriteAround);
        Self { batch, ..rows.with(policy, if waits { named } else { WritePolicy::Journaled }) }
    }

    fn with(self, policy: &Policy, named: WritePolicy) -> Self {
        Self {
            policy: named,
            when: policy.when,
            read_priority: policy.read_priority,
            commit: Interval(policy.commit),
            staleness: Interval(policy.staleness),
            at_limit: policy.at_limit,
            batch_groups: policy.limits.batch_groups_max,
            batch: Bytes(policy.limits.batch_bytes_max),
            linger: Interval(policy.limits.linger),
            ..self
        }
    }

    /// Another staleness bound. Who commits on flush does so within a share of it.
    pub fn with_staleness(self, staleness: Interval) -> Self {
        let on_flush = |staleness: Interval| destage_engine::commit_on_flush(staleness.span());
        let commits_on_flush = self.commit.span() == on_flush(self.staleness);
        let commit = if commits_on_flush { Interval(on_flush(staleness)) } else { self.commit };
        Self { staleness, commit, ..self }
    }
}
