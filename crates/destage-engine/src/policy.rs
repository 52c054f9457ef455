//! The policies by their names, and what follows from a name: the same for front ends and simulator.

use destage_core::{Acknowledge, Order, Policy, Span};
use serde::{Deserialize, Serialize};

/// What an acknowledged write means, and the order in which writes leave: the policies of Koller et al., "Write Policies for
/// Host-side Flash Caches", 2013, with both forms of the ordered one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WritePolicy {
    /// Acknowledged once the level below has it.
    WriteThrough,
    /// The same, and the unit's copy is dropped.
    WriteAround,
    /// Acknowledged from the cache; destaged in any order.
    #[default]
    WriteBack,
    /// Destaged flush to flush.
    Ordered,
    /// Destaged in order of completion and issue.
    Strict,
    /// Destaged in atomic groups, in order.
    Journaled,
}

impl WritePolicy {
    /// Each once.
    pub const ALL: [Self; 6] = [
        Self::WriteThrough,
        Self::WriteAround,
        Self::WriteBack,
        Self::Ordered,
        Self::Strict,
        Self::Journaled,
    ];

    /// The word that users write and read.
    pub const fn name(self) -> &'static str {
        match self {
            Self::WriteThrough => "write-through",
            Self::WriteAround => "write-around",
            Self::WriteBack => "write-back",
            Self::Ordered => "ordered",
            Self::Strict => "strict",
            Self::Journaled => "journaled",
        }
    }

    /// The policy of that name.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|policy| policy.name() == text)
    }

    /// When a write is acknowledged.
    pub const fn acknowledge(self) -> Acknowledge {
        match self {
            Self::WriteThrough => Acknowledge::Origin,
            Self::WriteAround => Acknowledge::OriginInvalidate,
            Self::WriteBack | Self::Ordered | Self::Strict | Self::Journaled => {
                Acknowledge::Journal
            }
        }
    }

    /// The order in which groups of a volume reach its origin.
    pub const fn order(self) -> Order {
        match self {
            Self::WriteThrough | Self::WriteAround | Self::WriteBack => Order::Any,
            Self::Ordered => Order::Epoch,
            Self::Strict => Order::Strict,
            Self::Journaled => Order::Domain,
        }
    }

    /// Gives a volume's policy the meaning of this name.
    pub const fn apply(self, policy: &mut Policy) {
        policy.acknowledge = self.acknowledge();
        policy.order = self.order();
    }

    /// The name of a volume's policy.
    pub const fn of(policy: &Policy) -> Self {
        match (policy.acknowledge, policy.order) {
            (Acknowledge::Origin, _) => Self::WriteThrough,
            (Acknowledge::OriginInvalidate, _) => Self::WriteAround,
            (Acknowledge::Journal, Order::Epoch) => Self::Ordered,
            (Acknowledge::Journal, Order::Strict) => Self::Strict,
            (Acknowledge::Journal, Order::Domain) => Self::Journaled,
            (Acknowledge::Journal, Order::Any | Order::Unit { .. }) => Self::WriteBack,
        }
    }
}

/// The commit interval of a volume that commits on flush, as a disk does: only what the log holds is destaged, so that the log
/// is committed after this time even if nobody asks, and in time for the staleness bound `D`.
pub fn commit_on_flush(staleness: Span) -> Span {
    Span::from_secs(5).min(Span(staleness.0 / 4))
}

/// Sets the high mark of the dirty bytes, and the low mark to three quarters of it.
pub const fn set_dirty_limit(policy: &mut Policy, bytes: u64) {
    policy.limits.dirty_bytes_max = bytes;
    policy.limits.dirty_bytes_low = bytes / 4 * 3;
}

/// How much of a log undecided groups may hold, bytes: the rest is for what is written meanwhile, and for its ends. At least
/// 1 MiB.
pub const fn journal_limit(log_bytes: u64) -> u64 {
    let bytes = log_bytes / 4 * 3;
    if bytes < 1 << 20 { 1 << 20 } else { bytes }
}

/// Handles that a volume's cache of so many keeps for blocks that are neither clean nor dirty: on their way in, or about to be
/// written.
pub fn reserved_slots(slots: u32) -> u32 {
    (slots / 8).clamp(8, 1 << 16)
}

/// The fewest slots of a volume's cache.
pub const VOLUME_SLOTS_MIN: u32 = 64;
/// The most of them: 8 TiB of blocks.
pub const VOLUME_SLOTS_MAX: u32 = (1 << 31) - 1;

/// Lowers the limits of a volume's policy to what its cache can keep, which has so many slots of a block of so many bytes, and so
/// many bytes of log: half of what it may hold is for dirty blocks at most, and undecided writes fill half of the log at most.
pub fn fit_volume(policy: &mut Policy, slots: u32, block: u64, log_bytes: u64) {
    fit_blocks(policy, slots.saturating_sub(reserved_slots(slots)).into(), block);
    let limits = &mut policy.limits;
    // What a start may have to send again must find handles beside what is dirty.
    limits.batch_bytes_max = limits.batch_bytes_max.min(u64::from(slots / 8) * block);
    limits.journal_bytes_max = limits.journal_bytes_max.min(log_bytes / 2).max(1 << 20);
}

/// Gives a volume's policy the limits of clean and dirty blocks that its cache can keep. The cache is known by what a server
/// keeps there, which runs under `running`: clean and dirty blocks have the room that both have under it.
pub fn fit_running_volume(policy: &mut Policy, running: &Policy, block: u64) {
    let limits = &running.limits;
    let room = limits.cache_bytes_max.saturating_add(limits.dirty_bytes_max / block * block);
    policy.limits.cache_bytes_max = u64::MAX;
    fit_blocks(policy, room / block, block);
}

/// Half of so many blocks is for dirty ones at most, the rest for clean ones.
fn fit_blocks(policy: &mut Policy, blocks: u64, block: u64) {
    let limits = &mut policy.limits;
    limits.dirty_bytes_max = limits.dirty_bytes_max.min(blocks / 2 * block).max(64 << 10);
    limits.dirty_bytes_low = limits.dirty_bytes_low.min(limits.dirty_bytes_max / 4 * 3);
    let dirty_blocks_max = (limits.dirty_bytes_max / block).min(blocks / 2);
    limits.cache_bytes_max = limits.cache_bytes_max.min((blocks - dirty_blocks_max) * block);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_policies_stand_for_each_other() {
        for named in WritePolicy::ALL {
            assert_eq!(WritePolicy::parse(named.name()), Some(named));
            let mut policy = Policy::default();
            named.apply(&mut policy);
            assert_eq!(WritePolicy::of(&policy), named);
        }
        assert_eq!(WritePolicy::parse("writeback"), None);
    }

    #[test]
    fn a_commit_nobody_asked_for_is_in_time_for_the_bound() {
        assert_eq!(commit_on_flush(Span::MAX), Span::from_secs(5));
        assert_eq!(commit_on_flush(Span::from_secs(2)), Span::from_millis(500));
    }
}
