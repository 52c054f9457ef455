//! A snapshot of what the core knows, for people and metrics.

use crate::id::Lsn;
use crate::io::{Halt, Mode};
use crate::time::Span;

/// Counters and gauges. Counters count from the core's start.
#[derive(Clone, Debug, PartialEq)]
pub struct Status {
    /// The mode of operation.
    pub mode: Mode,
    /// The newest group.
    pub last: Lsn,
    /// The journal is durable up to here.
    pub committed: Lsn,
    /// Everything up to here is decided.
    pub decided: Lsn,
    /// Age of the oldest acknowledged or accepted write that is not decided.
    pub staleness: Span,
    /// The largest staleness seen since the start.
    pub staleness_max: Span,
    /// What a host crash would lose now: age of the oldest uncommitted write.
    pub uncommitted_age: Span,
    /// Undecided groups.
    pub dirty_groups: u64,
    /// Distinct units with undecided changes.
    pub dirty_units: u64,
    /// Memory of the buffered writes, bytes.
    pub dirty_bytes: u64,
    /// Memory of the pinned units, bytes.
    pub pinned_bytes: u64,
    /// What counts against [`crate::Limits::dirty_bytes_max`], bytes: the buffered writes, and the pinned units unless the driver
    /// keeps these elsewhere ([`crate::Core::counting_writes_only`]).
    pub limited_bytes: u64,
    /// Journal bytes of undecided groups.
    pub journal_bytes: u64,
    /// Memory of the evictable units, bytes.
    pub cache_bytes: u64,
    /// Evictable units.
    pub cache_units: u64,
    /// Groups parked at the origin.
    pub parked_groups: u64,
    /// Requests that wait for a limit, a fetch or the origin.
    pub waiting: u64,
    /// Accesses to units that were present.
    pub hits: u64,
    /// Accesses to units that had to be fetched.
    pub misses: u64,
    /// Units dropped to make room.
    pub evictions: u64,
    /// Groups written.
    pub writes: u64,
    /// Journal syncs.
    pub syncs: u64,
    /// Batches applied by the origin.
    pub batches: u64,
    /// Groups applied by the origin.
    pub destaged: u64,
    /// Destages tried again after a failure.
    pub retries: u64,
    /// Groups rejected by the origin.
    pub rejected: u64,
    /// Writes refused at a limit.
    pub refused: u64,
    /// Measured destage rate, groups per second.
    pub destage_rate: f64,
    /// Destaging is paused by request.
    pub paused: bool,
    /// The origin failed last time and is waited for.
    pub origin_down: bool,
}

/// What is to be seen of one ordering domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DomainStatus {
    /// Its undecided groups; one of several domains counts in each.
    pub dirty_groups: u64,
    /// Age of the oldest of them.
    pub staleness: Span,
    /// The origin does not answer to it.
    pub failing: bool,
    /// Why it stands still until someone has looked, if it does.
    pub halt: Option<Halt>,
}
