//! What a running front end reports about itself: one value for the table, JSON, `INFO` and metrics.

mod absent;
mod auto;
mod domains;
mod ended;
mod mount;
mod once;
mod ready;
mod replicas;
mod slow;
mod tracking;

use crate::latency::BUCKETS;
use crate::memory;
use crate::policy;
use destage_core::{Policy, Status};
use serde::{Deserialize, Serialize};

pub use absent::{AbsentReport, AbsentTable};
pub use auto::AutoReport;
pub use domains::{DomainReport, HaltReport};
pub use ended::EndedReport;
pub use mount::MountReport;
pub use once::OnceReport;
pub use replicas::{ReplicaReport, ReplicasReport};
pub use slow::SlowReport;
pub use tracking::TrackingReport;

/// Everything there is to see. Built by [`Report::from_core`], completed by the front end, closed by [`Report::finish`].
///
/// *Units:* in the names; counters count from the start of the process. Fields that a newer version adds are ignored by an
/// older reader, missing ones take their default. What a front end does not have is absent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Report {
    /// Destage's version.
    pub version: String,
    /// The front end: `serve`.
    pub front_end: String,
    /// Since the start of the process.
    pub uptime_seconds: f64,
    /// One of [`policy::MODES`].
    pub mode: String,
    /// Destaging is paused by request.
    pub paused: bool,
    /// What a user should look at, with the flag or command that helps.
    pub warnings: Vec<String>,
    /// What a crash would lose now.
    pub rpo: Rpo,
    /// The policy in force.
    pub policy: PolicyReport,
    /// The origin.
    pub origin: OriginReport,
    /// Clients and their commands.
    pub clients: ClientsReport,
    /// Writes on their way.
    pub writes: WritesReport,
    /// Destaging.
    pub destage: DestageReport,
    /// The cached units.
    pub cache: CacheReport,
    /// The journal.
    pub journal: JournalReport,
    /// Memory.
    pub memory: MemoryReport,
    /// Derived keys; absent where there can be none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub derived: Option<DerivedReport>,
    /// Commands that are carried out once; absent where there are none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub once: Option<OnceReport>,
    /// Keys of which clients are told when they change; absent where they are not told of any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tracking: Option<TrackingReport>,
    /// Rows that end at a time of their own; absent where there are none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended: Option<EndedReport>,
    /// What is known of rows that the origin does not have; absent where nothing is to be.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub absent: Option<AbsentReport>,
    /// Settings that are tried out (`--auto`); absent while that is off.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auto: Option<AutoReport>,
    /// A mounted folder; absent where there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mount: Option<MountReport>,
    /// What the origin tells of others' changes; absent where it cannot tell.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub invalidation: Option<InvalidationReport>,
    /// The log on other servers; absent where the writes are on this host's disk alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replicas: Option<ReplicasReport>,
    /// The volumes of the block front end. The fields above are those of the volume whose origin is furthest behind.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub volumes: Vec<VolumeReport>,
    /// The ordering domains of the data front end, where there are several.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub domains: Vec<DomainReport>,
    /// The ordering domains that stand still until someone has looked.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub halted: Vec<HaltReport>,
    /// The newest commands of the data front end that waited long, the newest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub slow_commands: Vec<SlowReport>,
}

/// One volume of the block front end.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct VolumeReport {
    /// Its export name.
    pub name: String,
    /// What it does with requests: one of [`policy::MODES`], `frozen`, `changing-policy`, `cache-lost` or `closing`.
    pub mode: String,
    /// `write-through`, `write-back`, `ordered` or `journaled`, with its order and bounds.
    pub policy: String,
    /// The first word of it.
    pub policy_name: String,
    /// `d` as the user gave it: an interval, or `flush`.
    pub commit: String,
    /// Settings that are tried out (`--auto`); absent while that is off.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auto: Option<AutoReport>,
    /// Bytes.
    pub size_bytes: u64,
    /// The origin.
    pub origin: String,
    /// The cache.
    pub cache: String,
    /// Age of the oldest write that the origin does not hold.
    pub staleness_seconds: f64,
    /// The largest `staleness_seconds` since the start.
    pub staleness_max_seconds: f64,
    /// Bytes that differ from the origin.
    pub dirty_bytes: u64,
    /// Writes that the origin does not hold.
    pub dirty_writes: u64,
    /// Blocks read that were cached, of all; absent before the first read.
    pub hit_ratio: Option<f64>,
    /// Blocks read that were cached.
    pub hit_blocks_total: u64,
    /// Blocks read that were not.
    pub miss_blocks_total: u64,
    /// Clean blocks in the cache.
    pub clean_blocks: u64,
    /// Blocks of long sequential reads and writes, which passed the cache by.
    pub bypassed_blocks_total: u64,
    /// Blocks sent to the origin.
    pub destaged_blocks_total: u64,
    /// Blocks of atomic groups whose contents before were known from the cache.
    pub before_cached_blocks_total: u64,
    /// Blocks of atomic groups whose contents before were read from the origin.
    pub before_fetched_blocks_total: u64,
    /// Measured rate of destaging, writes per second.
    pub destage_writes_per_second: f64,
    /// The level of the next write, for the ordered policy.
    pub level: u64,
    /// Bytes of the log in use, and in all.
    pub log_bytes: u64,
    /// Room of the log.
    pub log_bytes_max: u64,
    /// Age of the checkpoint of the index.
    pub checkpoint_age_seconds: f64,
    /// Application-consistent points that the origin has not passed.
    pub marks_ahead: u64,
    /// Blocks of the cache that could not be read or written, or were not what was written.
    pub cache_errors_total: u64,
    /// How often the origin did not do what it was asked.
    pub origin_errors_total: u64,
    /// What it said last; empty if there was nothing.
    pub origin_last_error: String,
    /// From a read's arrival to its reply.
    pub read_latency: Latencies,
    /// From a write's arrival to its reply.
    pub write_latency: Latencies,
    /// From a write to its durability in the log.
    pub commit_latency: Latencies,
    /// From a write to its arrival at the origin.
    pub destage_latency: Latencies,
    /// Duration of a sync of the log.
    pub fsync_latency: Latencies,
    /// What clients asked, by kind.
    pub requests: Vec<RequestsReport>,
}

/// Requests of one kind to a volume.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RequestsReport {
    /// `read`, `write`, `flush`, `trim` (zeros whose space the origin may give back), `zero` (zeros that keep theirs) or
    /// `other`.
    pub kind: String,
    /// Requests answered.
    pub requests_total: u64,
    /// Those of them that were answered with an error.
    pub errors_total: u64,
    /// Bytes that the requests were about; none for `flush`.
    pub bytes_total: u64,
    /// From the arrival to the reply.
    pub latency: Latencies,
}

/// What a crash would lose now.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Rpo {
    /// The host dies, the journal survives: age of the oldest uncommitted write.
    pub host_crash_seconds: f64,
    /// Host and journal are lost: age of the oldest undecided write.
    pub total_loss_seconds: f64,
    /// The largest `total_loss_seconds` since the start.
    pub total_loss_max_seconds: f64,
}

/// The policy in force.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PolicyReport {
    /// Its name on the command line.
    pub name: String,
    /// `d` as the user gave it: an interval, or `flush`.
    pub commit: String,
    /// `write-back`, `write-through` or `write-around`.
    pub acknowledge: String,
    /// When dirty units are destaged, as the flag takes it.
    pub when: String,
    /// The order in which groups reach the origin.
    pub order: String,
    /// Whether destaging yields to reads at the origin.
    pub read_priority: bool,
    /// What happens to a write at a limit.
    pub at_limit: String,
    /// What becomes of a write that the origin rejects: `park` or `stop`; absent where none can be rejected.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_reject: Option<String>,
    /// `d`; where that is `flush`, when the log is made durable if nobody asks for it.
    pub commit_seconds: f64,
    /// `D`; absent where there is no bound.
    pub staleness_seconds: Option<f64>,
    /// High mark of the buffered writes.
    pub dirty_bytes_max: u64,
    /// Low mark of the buffered writes.
    pub dirty_bytes_low: u64,
    /// Limit of the journal's undecided part.
    pub journal_bytes_max: u64,
    /// Limit of the evictable units.
    pub cache_bytes_max: u64,
    /// Most groups in a batch.
    pub batch_groups_max: u64,
    /// Most payload bytes in a batch.
    pub batch_bytes_max: u64,
    /// How long a lone group waits for company.
    pub linger_seconds: f64,
    /// Parked groups at which destaging pauses; absent where none can be parked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parked_groups_max: Option<u64>,
    /// Groups of a domain parked within a minute beyond which it halts; absent where there is no limit.
    pub parked_per_minute_max: Option<u64>,
}

/// The origin.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct OriginReport {
    /// Address and database, never a password.
    pub description: String,
    /// Whether the connection for writes stands.
    pub connected: bool,
    /// The last attempt failed and the origin is waited for.
    pub down: bool,
    /// The last error, if there has been one.
    pub last_error: Option<String>,
    /// How long it has been failing without a success; absent while it works.
    pub failing_for_seconds: Option<f64>,
    /// Destages tried again after a failure.
    pub retries_total: u64,
}

/// Clients and their commands.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ClientsReport {
    /// Connections now.
    pub connected: u64,
    /// Most connections allowed.
    pub connected_max: u64,
    /// Times that a volume's file is open, each by whoever opened it; absent where there are no files.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub open_files: Option<u64>,
    /// Connections accepted.
    pub accepted_total: u64,
    /// Commands executed.
    pub commands_total: u64,
    /// Commands answered with an error.
    pub errors_total: u64,
    /// Requests that wait for a limit, a fetch or the origin; with `serve` also for another's lease, for WAITAOF, DESTAGE WAIT,
    /// FLUSH or DRAIN, and for their reply while the journal's disk is full or D is exceeded.
    pub waiting: u64,
    /// Writes refused at a limit.
    pub refused_total: u64,
    /// Wrong passwords, of clients and at the admin port.
    pub auth_failures_total: u64,
    /// Passwords that were not looked at, since their address had sent too many wrong ones.
    pub auth_held_total: u64,
    /// Bytes of replies that clients have not read yet; absent where replies are not kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unread_bytes: Option<u64>,
    /// Clients disconnected since they, or all together, left too many replies unread; absent where replies are not kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cut_off_total: Option<u64>,
}

/// Writes on their way.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct WritesReport {
    /// Groups written.
    pub groups_total: u64,
    /// The newest group's number.
    pub last_lsn: u64,
    /// The journal is durable up to here.
    pub committed_lsn: u64,
    /// Everything up to here is decided.
    pub decided_lsn: u64,
    /// Undecided groups.
    pub dirty_groups: u64,
    /// Distinct units with undecided changes.
    pub dirty_units: u64,
    /// Memory of the buffered writes.
    pub dirty_bytes: u64,
    /// Memory of the pinned units.
    pub pinned_bytes: u64,
    /// What counts against the dirty limit.
    pub limited_bytes: u64,
    /// From a write to its durability in the journal.
    pub commit_latency: Latencies,
}

/// Destaging.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct DestageReport {
    /// Groups applied by the origin.
    pub groups_total: u64,
    /// Batches applied by the origin.
    pub batches_total: u64,
    /// Measured rate.
    pub groups_per_second: f64,
    /// From a write to its decision by the origin.
    pub latency: Latencies,
    /// Groups per batch.
    pub batch_groups: Sizes,
    /// Changes that entered batches.
    pub changes_total: u64,
    /// Rows that batches wrote at the origin.
    pub rows_total: u64,
    /// Changes per row written; computed by [`Report::finish`], absent before the first batch.
    pub coalescing_ratio: Option<f64>,
    /// Groups rejected by the origin; absent where none can be rejected.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rejected_total: Option<u64>,
    /// Groups parked at the origin now; absent where none can be rejected.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parked_groups: Option<u64>,
}

/// The cached units.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CacheReport {
    /// Accesses to units that were present.
    pub hits_total: u64,
    /// Accesses to units that had to be fetched.
    pub misses_total: u64,
    /// Hits per access; computed by [`Report::finish`], absent before the first access.
    pub hit_ratio: Option<f64>,
    /// Units dropped to make room.
    pub evictions_total: u64,
    /// Evictable units.
    pub units: u64,
    /// Memory of the evictable units.
    pub bytes: u64,
}

/// The journal.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct JournalReport {
    /// Segment files.
    pub segments: u64,
    /// Their size.
    pub bytes: u64,
    /// Bytes of undecided groups.
    pub dirty_bytes: u64,
    /// How far back decided groups are kept; absent where none are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retained_seconds: Option<f64>,
    /// Its disk is full: no write is acknowledged until there is space; absent where it has its space for good.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk_full: Option<bool>,
    /// Durable writes that may be under way at once, past the page cache; 0: what is written is synced, one after another. Absent
    /// where there is no choice.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub depth: Option<u64>,
    /// Syncs and durable writes.
    pub syncs_total: u64,
    /// Duration of a sync.
    pub fsync_latency: Latencies,
    /// Bytes that a torn tail lost at the start; they had never been acknowledged as durable.
    pub cut_bytes_at_start: u64,
    /// Groups found undecided at the start.
    pub recovered_groups_at_start: u64,
}

/// Derived keys: results of queries at the origin.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct DerivedReport {
    /// `[[query]]` sections.
    pub keys: u64,
    /// Answers from cached results.
    pub hits_total: u64,
    /// Requests that waited for a query.
    pub misses_total: u64,
    /// Queries run at the origin.
    pub queries_total: u64,
    /// Queries that had to wait for buffered writes to be destaged.
    pub destaged_first_total: u64,
    /// Requests given up at their deadline.
    pub timeouts_total: u64,
    /// Queries that failed.
    pub failures_total: u64,
    /// Requests that wait now.
    pub waiting: u64,
}

/// What the origin tells of others' changes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct InvalidationReport {
    /// Tables of which it tells; none where no triggers are installed.
    pub tables: u64,
    /// Whether it is heard now.
    pub listening: bool,
    /// Notifications of changes by others.
    pub notifications_total: u64,
    /// Cached copies that were dropped, or are fetched again, because of them.
    pub dropped_total: u64,
    /// How often everything cached of these tables was dropped, since changes may have been missed: once at the start, and
    /// after each loss of the connection.
    pub resyncs_total: u64,
}

/// Memory, bytes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct MemoryReport {
    /// Cached rows; absent where the cached units are not in memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rows_bytes: Option<u64>,
    /// Indexes over them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub index_bytes: Option<u64>,
    /// Buffered write groups.
    pub groups_bytes: u64,
    /// Buffers of connections.
    pub clients_bytes: u64,
    /// The process, as the kernel counts it.
    pub resident_bytes: u64,
}

/// A distribution of the last minutes, seconds. All zero where nothing was recorded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Latencies {
    /// Recorded since the start.
    pub count: u64,
    /// Mean.
    pub mean_seconds: f64,
    /// Median.
    pub p50_seconds: f64,
    /// 99 of 100 are at most this.
    pub p99_seconds: f64,
    /// 999 of 1,000 are at most this.
    pub p999_seconds: f64,
    /// Largest.
    pub max_seconds: f64,
    /// Since the start: how many fell into each bucket, whose upper ends are [`BUCKET_ENDS`](crate::latency::BUCKET_ENDS).
    pub buckets: [u64; BUCKETS],
    /// Since the start: all together.
    pub sum_seconds: f64,
}

/// A distribution of sizes of the last minutes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Sizes {
    /// Mean.
    pub mean: f64,
    /// Median.
    pub p50: u64,
    /// Largest.
    pub max: u64,
}

impl Report {
    /// What the core knows, with this package's version and the process's memory. The front end adds the rest.
    pub fn from_core(front_end: &str, status: &Status, policy: &Policy) -> Self {
        Self {
            version: env!("CARGO_PKG_VERSION").into(),
            front_end: front_end.into(),
            mode: policy::mode_name(status.mode).into(),
            paused: status.paused,
            rpo: Rpo {
                host_crash_seconds: status.uncommitted_age.as_secs_f64(),
                total_loss_seconds: status.staleness.as_secs_f64(),
                total_loss_max_seconds: status.staleness_max.as_secs_f64(),
            },
            policy: policy::describe(policy),
            origin: OriginReport {
                connected: !status.origin_down,
                down: status.origin_down,
                retries_total: status.retries,
                ..OriginReport::default()
            },
            clients: ClientsReport {
                waiting: status.waiting,
                refused_total: status.refused,
                ..ClientsReport::default()
            },
            writes: writes(status),
            destage: DestageReport {
                groups_total: status.destaged,
                batches_total: status.batches,
                groups_per_second: status.destage_rate,
                rejected_total: Some(status.rejected),
                parked_groups: Some(status.parked_groups),
                ..DestageReport::default()
            },
            cache: CacheReport {
                hits_total: status.hits,
                misses_total: status.misses,
                evictions_total: status.evictions,
                units: status.cache_units,
                bytes: status.cache_bytes,
                ..CacheReport::default()
            },
            journal: JournalReport {
                dirty_bytes: status.journal_bytes,
                syncs_total: status.syncs,
                ..JournalReport::default()
            },
            memory: MemoryReport {
                resident_bytes: memory::resident_bytes(),
                ..MemoryReport::default()
            },
            ..Self::default()
        }
    }

    /// Computes the ratios and adds the warnings that follow from the numbers. Call it last.
    #[must_use]
    pub fn finish(mut self) -> Self {
        let ratio = |part: u64, whole: u64| (whole > 0).then(|| part as f64 / whole as f64);
        let cache = &self.cache;
        self.cache.hit_ratio = ratio(cache.hits_total, cache.hits_total + cache.misses_total);
        self.destage.coalescing_ratio = ratio(self.destage.changes_total, self.destage.rows_total);
        let warnings = crate::warnings::of(&self);
        self.warnings.extend(warnings);
        self
    }

    /// The report for people: grouped lines, at most 100 columns except for long descriptions.
    pub fn to_table(&self) -> String {
        crate::table::render(self)
    }
}

fn writes(status: &Status) -> WritesReport {
    WritesReport {
        groups_total: status.writes,
        last_lsn: status.last.0,
        committed_lsn: status.committed.0,
        decided_lsn: status.decided.0,
        dirty_groups: status.dirty_groups,
        dirty_units: status.dirty_units,
        dirty_bytes: status.dirty_bytes,
        pinned_bytes: status.pinned_bytes,
        limited_bytes: status.limited_bytes,
        commit_latency: Latencies::default(),
    }
}

#[cfg(test)]
#[path = "status_tests.rs"]
mod tests;
