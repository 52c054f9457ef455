//! What holds unless told otherwise: one set for volumes and one for rows. The servers' flags, the simulator's runs and its
//! advice take it from here, so that the same flags mean the same in all of them.

use crate::policy::{WritePolicy, commit_on_flush, journal_limit, set_dirty_limit};
use destage_core::replace::Choice;
use destage_core::{AtLimit, Policy, Span, When};

/// `D`.
pub const STALENESS: Span = Span::from_secs(30);
/// When to destage.
pub const WHEN: When = When::Async;
/// What happens to writes at a limit.
pub const AT_LIMIT: AtLimit = AtLimit::Throttle;
/// Which clean units leave. The servers have no other.
pub const REPLACEMENT: Choice = Choice::S3Fifo;

/// Of volumes.
pub mod volume {
    use super::{AT_LIMIT, Policy, STALENESS, Span, WHEN, WritePolicy};

    /// What an acknowledged write means, and the order in which writes leave.
    pub const POLICY: WritePolicy = WritePolicy::Journaled;
    /// Bytes of a cache, its log included.
    pub const CACHE_BYTES: u64 = 4 << 30;
    /// Most write groups of a batch.
    pub const BATCH_GROUPS: u32 = 65_536;
    /// Most bytes of a batch.
    pub const BATCH_BYTES: u64 = 16 << 20;
    /// How long a lone write waits for company.
    pub const LINGER: Span = Span::from_millis(100);

    /// Bytes of the log inside a cache of so many bytes: a quarter, but 64 MiB to 32 GiB, and at most half.
    pub fn log_bytes(cache_bytes: u64) -> u64 {
        (cache_bytes / 4).clamp(64 << 20, 32 << 30).min(cache_bytes / 2)
    }

    /// The dirty limit with a log of so many bytes.
    pub const fn dirty_bytes(log_bytes: u64) -> u64 {
        log_bytes / 4
    }

    /// The policy of a volume with a log of so many bytes. It commits on flush.
    pub fn policy(log_bytes: u64) -> Policy {
        let mut policy = Policy {
            when: WHEN,
            commit: super::commit_on_flush(STALENESS),
            staleness: STALENESS,
            at_limit: AT_LIMIT,
            ..Policy::default()
        };
        POLICY.apply(&mut policy);
        policy.limits.journal_bytes_max = super::journal_limit(log_bytes);
        super::set_dirty_limit(&mut policy, dirty_bytes(log_bytes));
        // Clean blocks may take what the device leaves them; the engine lowers this to it.
        policy.limits.cache_bytes_max = u64::MAX;
        policy.limits.batch_groups_max = BATCH_GROUPS;
        policy.limits.batch_bytes_max = BATCH_BYTES;
        policy.limits.linger = LINGER;
        policy
    }
}

/// Of rows.
pub mod rows {
    use super::{AT_LIMIT, Policy, STALENESS, Span, WHEN};

    /// `d`: nothing acknowledged is lost with the host.
    pub const COMMIT: Span = Span::ZERO;
    /// Memory of buffered writes, bytes.
    pub const DIRTY_BYTES: u64 = 1 << 30;
    /// Journal space of undecided writes, bytes.
    pub const JOURNAL_BYTES: u64 = 4 << 30;
    /// Memory of cached rows, bytes.
    pub const CACHE_BYTES: u64 = 1 << 30;
    /// Most write groups of a batch.
    pub const BATCH_GROUPS: u32 = 4_000;
    /// Most bytes of a batch.
    pub const BATCH_BYTES: u64 = 4 << 20;
    /// How long a lone write waits for company.
    pub const LINGER: Span = Span::from_millis(20);

    /// The policy.
    pub fn policy() -> Policy {
        let mut policy = Policy {
            when: WHEN,
            commit: COMMIT,
            staleness: STALENESS,
            at_limit: AT_LIMIT,
            ..Policy::default()
        };
        super::set_dirty_limit(&mut policy, DIRTY_BYTES);
        policy.limits.journal_bytes_max = JOURNAL_BYTES;
        policy.limits.cache_bytes_max = CACHE_BYTES;
        policy.limits.batch_groups_max = BATCH_GROUPS;
        policy.limits.batch_bytes_max = BATCH_BYTES;
        policy.limits.linger = LINGER;
        policy
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_holds_unless_told_can_hold() {
        for log in [1 << 20, 1 << 30, 1 << 40] {
            volume::policy(log).validate().expect("in range");
        }
        rows::policy().validate().expect("in range");
    }
}
