//! A policy is a value made of independent choices, not a subclass.

use crate::io::Ack;
use crate::time::Span;
use core::fmt;
use serde::{Deserialize, Serialize};

/// Everything that decides how the core treats writes. Build one from [`Policy::default`] and check it with
/// [`Policy::validate`].
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct Policy {
    /// When a write is acknowledged.
    pub acknowledge: Acknowledge,
    /// When dirty units are destaged.
    pub when: When,
    /// The order in which groups reach the origin.
    pub order: Order,
    /// Destaging by the passing of time alone waits while units are being fetched from the origin (the read priority that
    /// Mogul's paper leaves as future work, PURP by Carson and Setia). `staleness`, limits and waiting clients bound how
    /// long. Default false.
    pub read_priority: bool,
    /// `d`: the most a host crash may lose while the journal survives. 0: nothing acknowledged; otherwise the journal
    /// commits at least this often. Default 0, else 1 ms to 60 s.
    pub commit: Span,
    /// `D`: the most that losing host *and* journal may lose. Default 30 s, 100 ms to 24 h, [`Span::MAX`] for none.
    pub staleness: Span,
    /// What happens to a write when a limit is reached.
    pub at_limit: AtLimit,
    /// What becomes of an acknowledged write that the origin rejects, in the ordering domains that nothing else is said of.
    pub on_reject: OnReject,
    /// Amounts that bound memory, the journal and batches.
    pub limits: Limits,
}

/// When a write is acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub enum Acknowledge {
    /// Write-back: after the journal holds it (`commit` = 0) or after memory does (`commit` > 0).
    Journal,
    /// Write-through: after the origin decided it; the cached copy is refreshed.
    Origin,
    /// Write-around: after the origin decided it; the cached copy is dropped.
    OriginInvalidate,
}

/// When to destage. Only committed groups are ever destaged; `staleness`, limits and waiting clients hurry every choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub enum When {
    /// As soon as the origin is free (after `linger`, so that batches form).
    Async,
    /// Everything dirty, every `every`: the periodic update (PU) of Mogul, "A better update policy", 1994.
    Periodic {
        /// The period; 10 ms to 1 h.
        every: Span,
    },
    /// Units whose age reached `age`, looked at every `check`: the approximate interval periodic update (AIPU) of the same
    /// paper. The age counts from the first change that is not decided. The pure policy (IPU) would write each unit the
    /// moment it is due; here a unit may be up to `check` late, and those that came due meanwhile leave as one burst. The
    /// paper's values are 30 s and 1 s.
    Interval {
        /// The age at which a unit is due; 10 ms to 1 h.
        age: Span,
        /// How often the ages are looked at; 1 ms to `age`.
        check: Span,
    },
    /// At the rate that `D` asks for: what is dirty over the time that is left until it must be on its way. Under a steady
    /// load the origin receives what comes in, at an age of about half of `D`; a burst is spread over the time that `D`
    /// leaves. While units are fetched from the origin, nothing is sent until the oldest write is half of `D` old. Needs a `D`.
    Adaptive,
    /// Only when the dirty bytes pass the high mark, and then down to the low mark (idle time does not count).
    OnPressure,
}

/// The order in which groups reach the origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub enum Order {
    /// Groups that share a unit keep their order; others may overtake (Design 1 of the cache-augmented data store paper).
    Unit {
        /// How many batches may be under way at once; 1 to 64.
        batches_max: u32,
    },
    /// The groups of a domain are applied in commit order, one batch at a time, each batch whole or not at all (Design 2 of
    /// the same paper; journaled write-back of Koller et al., "Write Policies for Host-side Flash Caches", 2013).
    Domain,
    /// No order: a batch may leave its units in any, and the newest committed version of a unit may stand for older ones
    /// (conventional write-back).
    Any,
    /// Flush to flush: groups written after a [`crate::WaitFor::Committed`] was answered reach the origin after all groups
    /// before it (ordered write-back of Koller et al., as loose as the contract of a disk allows). A batch holds groups of
    /// one level, in any order among themselves.
    Epoch,
    /// Completion to issue: groups written after any write was acknowledged reach the origin after that one (ordered
    /// write-back as the paper has it, without its graph).
    Strict,
}

impl Order {
    /// Whether batches must not reach across levels: see [`crate::Core::level`].
    pub fn has_levels(self) -> bool {
        matches!(self, Self::Epoch | Self::Strict)
    }
}

/// What happens to a write when the dirty or journal limit is reached. Past `D` the first and third act as `Block`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub enum AtLimit {
    /// Writes are delayed more and more from the low mark on, and wait at the high mark.
    Throttle,
    /// Writes wait.
    Block,
    /// Writes join the same queue and are acknowledged after the origin, until the low mark is reached again.
    WriteThrough,
    /// Writes are refused with an error.
    Fail,
}

/// What becomes of an acknowledged write that the origin rejects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub enum OnReject {
    /// It is parked, and with it what builds on it; everything else goes on.
    Park,
    /// Its ordering domain halts with it at the head, until [`crate::Input::Resume`].
    Stop,
}

/// Amounts that bound memory, the journal and batches. All bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct Limits {
    /// Buffered writes are pinned up to this many bytes (the high mark). Default 1 GiB, at least 64 KiB.
    pub dirty_bytes_max: u64,
    /// The low mark, in bytes, below which throttling and fallback end. Default 3/4 of the high mark.
    pub dirty_bytes_low: u64,
    /// Journal space, in bytes, that undecided groups may hold. Default 4 GiB.
    pub journal_bytes_max: u64,
    /// Memory for evictable units, bytes. Default 1 GiB.
    pub cache_bytes_max: u64,
    /// Most groups in one batch (the paper's alpha). Default 4,000, 1 to 65,536.
    pub batch_groups_max: u32,
    /// Most payload bytes in one batch. Default 4 MiB.
    pub batch_bytes_max: u64,
    /// How long a lone group waits for company before it is destaged. Default 20 ms, up to 1 s.
    pub linger: Span,
    /// First wait after a failed destage; doubles up to `retry_max`. Default 50 ms.
    pub retry_min: Span,
    /// Longest wait between retries. Default 2 s.
    pub retry_max: Span,
    /// Parked groups that may pile up before destaging pauses. Default 10,000.
    pub parked_max: u32,
    /// Groups of one domain that may be parked within a minute before it halts. Default 1,000; [`u32::MAX`] for no limit.
    pub parked_per_minute_max: u32,
    /// Sequential reads and writes of more than this many bytes pass the cache by, where the front end can; [`u64::MAX`], the
    /// default, for none. See [`crate::Sequential`] and [`Policy::acknowledges_stream`].
    pub sequential_bytes_max: u64,
    /// Requests that may wait for a limit, a fetch or the origin. Default 65,536; past it they are refused.
    pub waiting_max: u32,
}

/// A policy whose parts contradict one another or leave their ranges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PolicyError(pub &'static str);

impl fmt::Display for PolicyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl core::error::Error for PolicyError {}

impl Default for Policy {
    fn default() -> Self {
        Self {
            acknowledge: Acknowledge::Journal,
            when: When::Async,
            order: Order::Domain,
            read_priority: false,
            commit: Span::ZERO,
            staleness: Span::from_secs(30),
            at_limit: AtLimit::Throttle,
            on_reject: OnReject::Park,
            limits: Limits::default(),
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            dirty_bytes_max: 1 << 30,
            dirty_bytes_low: 3 << 28,
            journal_bytes_max: 4 << 30,
            cache_bytes_max: 1 << 30,
            batch_groups_max: 4_000,
            batch_bytes_max: 4 << 20,
            linger: Span::from_millis(20),
            retry_min: Span::from_millis(50),
            retry_max: Span::from_secs(2),
            parked_max: 10_000,
            parked_per_minute_max: 1_000,
            sequential_bytes_max: u64::MAX,
            waiting_max: 65_536,
        }
    }
}

impl Policy {
    /// Whether acknowledgements wait for the origin.
    pub fn waits_for_origin(&self) -> bool {
        !matches!(self.acknowledge, Acknowledge::Journal)
    }

    /// How a write of a long sequential stream is acknowledged: as any other. Where that waits for the origin it goes there
    /// past the cache, which drops what it held of the units; else it takes its turn among the groups, so that no order and no
    /// bound knows of it, and only its units are not kept once they are decided.
    pub fn acknowledges_stream(&self) -> Ack {
        if self.waits_for_origin() { Ack::OriginInvalidate } else { Ack::Policy }
    }

    /// How often the adaptive policy sends.
    pub(crate) fn pace(&self) -> Span {
        Span(self.staleness.0 / PACES).max(self.limits.linger).max(Span::from_millis(1))
    }

    /// Checks every range and that the parts fit together.
    ///
    /// # Errors
    /// [`PolicyError`] names the part and its range.
    pub fn validate(&self) -> Result<(), PolicyError> {
        let ms = Span::from_millis;
        let within = |span: Span, low: Span, high: Span| span >= low && span <= high;
        let limits = &self.limits;
        let checks = [
            (
                self.commit == Span::ZERO || within(self.commit, ms(1), Span::from_secs(60)),
                "the commit interval d is 0, or 1 ms to 60 s",
            ),
            (
                self.staleness == Span::MAX
                    || within(self.staleness, ms(100), Span::from_secs(86_400)),
                "the staleness bound D is 100 ms to 24 h, or none",
            ),
            (
                self.commit < self.staleness,
                "the staleness bound D must exceed the commit interval d",
            ),
            (limits.dirty_bytes_max >= 65_536, "the dirty limit is at least 64 KiB"),
            (
                limits.dirty_bytes_low < limits.dirty_bytes_max,
                "the low dirty mark must be below the dirty limit",
            ),
            (limits.journal_bytes_max >= 1 << 20, "the journal limit is at least 1 MiB"),
            ((1..=65_536).contains(&limits.batch_groups_max), "a batch holds 1 to 65,536 groups"),
            (limits.batch_bytes_max >= 4_096, "a batch holds at least 4 KiB"),
            (limits.linger <= Span::from_secs(1), "the linger time is at most 1 s"),
            (
                limits.retry_min >= ms(1) && limits.retry_min <= limits.retry_max,
                "the first retry wait is at least 1 ms and at most the longest",
            ),
            (limits.waiting_max >= 1, "at least one request must be allowed to wait"),
        ];
        for (holds, message) in checks {
            if !holds {
                return Err(PolicyError(message));
            }
        }
        let hour = Span::from_secs(3_600);
        match self.when {
            When::Periodic { every } if !within(every, ms(10), hour) => {
                Err(PolicyError("the update period is 10 ms to 1 h"))
            }
            When::Interval { age, .. } if !within(age, ms(10), hour) => {
                Err(PolicyError("the update age is 10 ms to 1 h"))
            }
            When::Interval { age, check } if !within(check, ms(1), age) => {
                Err(PolicyError("the check interval is 1 ms up to the update age"))
            }
            When::Adaptive if self.staleness == Span::MAX => {
                Err(PolicyError("an adaptive rate follows from the staleness bound D: give one"))
            }
            _ => match self.order {
                Order::Unit { batches_max } if !(1..=64).contains(&batches_max) => {
                    Err(PolicyError("1 to 64 batches may be under way at once"))
                }
                _ => Ok(()),
            },
        }
    }
}

/// The adaptive policy sends this often within `D`, unless `linger` is longer.
const PACES: u64 = 256;
