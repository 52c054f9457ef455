//! Candidates on a recording: its load is told to the core once more under their settings, as `sim replay` does.
//!
//! Requests of a trace do not tell which blocks the cache held, which writes need what was there before, and how long each
//! fetch, sync and batch took. A recording does. So what a candidate would have come to is taken from there; only what crashes
//! would lose is still found on the simulated devices.

use super::{Front, ROWS_DIRTY_QUARTERS, Wish};
use crate::machine::{Overload, Report, Settings, Tier};
use crate::replay::{Load, Outcome, RecordedRun, what_if};
use destage_core::Policy;
use destage_engine::{WritePolicy, defaults};
use destage_runtime::units::Interval;

/// More came than could be done if so many of a hundred requests are not answered when the recording ends.
const UNANSWERED_PERCENT: u64 = 1;

impl Wish {
    /// Leaves in all candidates as it was what nobody asks about: what happens at a limit, whether reads go first, how long a
    /// batch waits for more, and of how many groups it is, as far as D lets them. And lets none acknowledge earlier than the recorded run did: what it promised for a crash of the host, they promise, unless the wish
    /// says what such a crash may cost.
    pub fn keep_unasked(&self, run: &RecordedRun, candidates: &mut [Settings]) {
        for settings in candidates.iter_mut() {
            let tier = &mut settings.flash;
            (tier.at_limit, tier.read_priority) = (run.policy.at_limit, run.policy.read_priority);
            let limits = &run.policy.limits;
            tier.batch_groups = limits.batch_groups_max;
            let own = std::mem::replace(&mut tier.linger, Interval(limits.linger));
            if settings.validate().is_err() {
                settings.flash.linger = own;
            }
        }
        let in_force = run.policy.commit;
        if self.rpo_crash.is_some()
            || in_force == destage_engine::commit_on_flush(run.policy.staleness)
        {
            return;
        }
        for settings in candidates {
            let commit = &mut settings.flash.commit;
            *commit = Interval(commit.span().min(in_force));
        }
    }

    /// The policy that a server has which is started with these settings.
    pub fn live_policy(&self, settings: &Settings) -> Policy {
        let (tier, block) = (&settings.flash, settings.block.get());
        let mut policy = tier.core_policy(tier.size.get() / block, block, false);
        if let Front::Data { ram, row } = self.front {
            let dirty = dirty_bytes_of_rows(tier, block, [ram, row]);
            policy.limits.cache_bytes_max = ram.saturating_sub(dirty);
            destage_engine::set_dirty_limit(&mut policy, dirty);
            policy.limits.journal_bytes_max = defaults::rows::JOURNAL_BYTES;
            policy.limits.batch_bytes_max = defaults::rows::BATCH_BYTES;
        }
        policy
    }

    /// Puts what the recorded load comes to under a policy in place of what the simulated devices made of it.
    pub(super) fn tell(&self, load: &Load, policy: &Policy, report: &mut Report) {
        let Some(outcome) = what_if(load, |_| policy.clone()) else { return };
        let Outcome { tally, read_times, write_times, unanswered, .. } = outcome;
        let answered = read_times.count + write_times.count;
        let longest = read_times.max.max(write_times.max);
        report.overload = (unanswered * 100 > answered * UNANSWERED_PERCENT).then(|| Overload {
            behind_seconds: longest,
            waiting: unanswered,
            busiest: "the origin".into(),
        });
        (report.reads.latency, report.writes.latency) = (read_times, write_times);
        report.failed = tally.refused;
        report.origin.read_blocks = tally.fetches;
        report.origin.write_blocks = tally.origin_writes;
        report.origin.write_requests = tally.batches;
        report.destage.staleness_max = tally.staleness_max;
        report.destage.dirty_age_mean = tally.dirty_age_mean;
    }
}

/// The memory for buffered rows that a candidate has, of so much memory for rows of so many bytes. In the simulation it is a whole
/// number of rows, each as large as a block.
fn dirty_bytes_of_rows(tier: &Tier, block: u64, [ram, row]: [u64; 2]) -> u64 {
    let is_it = |dirty: &u64| Tier::of_rows(ram - dirty, *dirty, row, block).dirty == tier.dirty;
    let tried = ROWS_DIRTY_QUARTERS.map(|quarters| ram / 4 * quarters).into_iter().find(is_it);
    tried.unwrap_or_else(|| (tier.dirty.get() / block).saturating_mul(row).max(64 << 10).min(ram))
}

/// How much a policy promises of the origin without host and cache: more promises more.
pub(super) const fn promise(policy: WritePolicy) -> u8 {
    match policy {
        WritePolicy::WriteBack => 0,
        WritePolicy::Ordered => 1,
        WritePolicy::Strict => 2,
        WritePolicy::Journaled => 3,
        WritePolicy::WriteThrough | WritePolicy::WriteAround => 4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What servers said they have, started so: limits of clean and dirty bytes, of the log and of a batch.
    #[test]
    fn limits_are_those_of_servers() {
        const MIB: u64 = 1 << 20;
        let fitted = |cache: u64, log: u64, dirty: u64| {
            let tier = Tier::of_volume(cache).with_log(cache, log, dirty);
            tier.core_policy(tier.size.get() / BLOCK, BLOCK, false).limits
        };
        for (log, dirty, [clean, journal, batch]) in [
            (64 * MIB, 16 * MIB, [41_414_656, 33_554_432, 8_310_784]),
            (32 * MIB, 16 * MIB, [70_545_408, 16_777_216, 12_472_320]),
            (32 * MIB, 8 * MIB, [78_934_016, 16_777_216, 12_472_320]),
        ] {
            let limits = fitted(128 * MIB, log, dirty);
            assert_eq!(limits.dirty_bytes_max, dirty);
            for (ours, theirs) in [
                (limits.cache_bytes_max, clean),
                (limits.journal_bytes_max, journal),
                (limits.batch_bytes_max, batch),
            ] {
                assert!(ours.abs_diff(theirs) <= theirs / 100, "{ours} for {theirs}");
            }
        }
        // What is kept for blocks on their way is at most 256 MiB of a large cache.
        let limits = fitted(20 << 30, 5 << 30, 1 << 30);
        let slots = (15 << 30) / (BLOCK + 32) * BLOCK;
        assert_eq!(slots - (limits.cache_bytes_max + limits.dirty_bytes_max), 256 * MIB);
    }

    const BLOCK: u64 = 4_096;
}
