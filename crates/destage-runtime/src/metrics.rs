//! A report as metrics for Prometheus. [`CATALOGUE`] names them all; units are in the names.

use crate::policy::MODES;
use crate::status::{DomainReport, Latencies, Report, RequestsReport, VolumeReport};
use ::metrics::{counter, describe_counter, describe_gauge, gauge, with_local_recorder};
use metrics_exporter_prometheus::PrometheusBuilder;

/// How a metric behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Only grows; from the start of the process.
    Counter,
    /// Goes up and down.
    Gauge,
}

/// One metric without labels.
#[derive(Clone, Copy, Debug)]
pub struct Metric {
    /// Its name.
    pub name: &'static str,
    /// How it behaves.
    pub kind: Kind,
    /// Its help text.
    pub help: &'static str,
    value: Value,
}

/// How a metric without labels is read off a report.
#[derive(Clone, Copy, Debug)]
enum Value {
    /// Of any front end.
    Always(fn(&Report) -> f64),
    /// Only of a front end that has such a thing.
    IfAny(fn(&Report) -> Option<f64>),
}

impl Metric {
    /// What to export; nothing where the front end has no such thing.
    pub fn value(&self, report: &Report) -> Option<f64> {
        match self.value {
            Value::Always(value) => Some(value(report)),
            Value::IfAny(value) => value(report),
        }
    }
}

/// A distribution: gauges with the labels `quantile="0.5"`, `"0.99"`, `"0.999"` and `"1"`, and a counter `..._count`. Where there
/// are volumes, each has its own, with the label `volume`.
#[derive(Clone, Copy, Debug)]
pub struct LatencyMetric {
    /// The name of the gauges.
    pub name: &'static str,
    /// The name of the counter.
    pub count_name: &'static str,
    /// The help text.
    pub help: &'static str,
    value: fn(&Report) -> &Latencies,
    of_volume: fn(&VolumeReport) -> &Latencies,
}

/// One metric of each kind of request to each volume, with the labels `volume` and `kind`.
#[derive(Clone, Copy, Debug)]
pub struct RequestMetric {
    /// Its name.
    pub name: &'static str,
    /// Its help text.
    pub help: &'static str,
    value: fn(&RequestsReport) -> u64,
}

/// One metric of each volume of the block front end, with the label `volume`.
#[derive(Clone, Copy, Debug)]
pub struct VolumeMetric {
    /// Its name.
    pub name: &'static str,
    /// How it behaves.
    pub kind: Kind,
    /// Its help text.
    pub help: &'static str,
    value: fn(&VolumeReport) -> f64,
}

/// One gauge of each ordering domain of the data front end, with the label `domain`; none where there is one domain only.
#[derive(Clone, Copy, Debug)]
pub struct DomainMetric {
    /// Its name.
    pub name: &'static str,
    /// Its help text.
    pub help: &'static str,
    value: fn(&DomainReport) -> f64,
}

/// Renders reports for `/metrics`.
#[derive(Debug, Default)]
pub struct Exporter(());

impl Exporter {
    /// An exporter.
    pub fn new() -> Self {
        Self::default()
    }

    /// The report in Prometheus' text format: what it does not speak of is not there.
    pub fn render(&self, report: &Report) -> String {
        // A new one each time, since a recorder never forgets a series, as of a policy that is not in force any more.
        let recorder = PrometheusBuilder::new().build_recorder();
        with_local_recorder(&recorder, || {
            describe();
            publish(report);
        });
        recorder.handle().render()
    }
}

/// Sets every metric of the report on the current recorder of the `metrics` facade.
pub fn publish(report: &Report) {
    for metric in CATALOGUE {
        if let Some(value) = metric.value(report) {
            set(metric.name, metric.kind, &[], value);
        }
    }
    for metric in LATENCIES {
        if report.volumes.is_empty() {
            set_latencies(&metric, &[], (metric.value)(report));
        }
        for volume in &report.volumes {
            let labels = [("volume", volume.name.as_str())];
            set_latencies(&metric, &labels, (metric.of_volume)(volume));
        }
    }
    report.volumes.iter().for_each(publish_volume);
    for domain in &report.domains {
        for metric in DOMAINS {
            gauge!(metric.name, "domain" => domain.name.clone()).set((metric.value)(domain));
        }
    }
    for mode in MODES {
        gauge!(MODE, "mode" => mode).set(flag(report.mode == mode));
    }
    if report.volumes.is_empty() {
        let policy = &report.policy;
        let labels = [("policy", policy.name.as_str()), ("commit", policy.commit.as_str())];
        set(POLICY, Kind::Gauge, &labels, 1.0);
    }
    let labels = [("version", report.version.as_str()), ("front_end", report.front_end.as_str())];
    set(INFO, Kind::Gauge, &labels, 1.0);
}

fn publish_volume(volume: &VolumeReport) {
    let name = ("volume", volume.name.as_str());
    for metric in VOLUMES {
        set(metric.name, metric.kind, &[name], (metric.value)(volume));
    }
    let labels =
        [name, ("policy", volume.policy_name.as_str()), ("commit", volume.commit.as_str())];
    set(POLICY, Kind::Gauge, &labels, 1.0);
    for asked in &volume.requests {
        let labels = [name, ("kind", asked.kind.as_str())];
        for metric in REQUESTS {
            set(metric.name, Kind::Counter, &labels, (metric.value)(asked) as f64);
        }
        set_quantiles(REQUEST_LATENCY, &labels, &asked.latency);
    }
}

fn set_latencies(metric: &LatencyMetric, labels: &[(&'static str, &str)], latencies: &Latencies) {
    set_quantiles(metric.name, labels, latencies);
    set(metric.count_name, Kind::Counter, labels, latencies.count as f64);
}

fn set_quantiles(name: &'static str, labels: &[(&'static str, &str)], latencies: &Latencies) {
    for (quantile, value) in [
        ("0.5", latencies.p50_seconds),
        ("0.99", latencies.p99_seconds),
        ("0.999", latencies.p999_seconds),
        ("1", latencies.max_seconds),
    ] {
        set(name, Kind::Gauge, &[labels, &[("quantile", quantile)]].concat(), value);
    }
}

fn set(name: &'static str, kind: Kind, labels: &[(&'static str, &str)], value: f64) {
    let labels: Vec<_> = labels.iter().map(|&(key, value)| (key, value.to_owned())).collect();
    match kind {
        Kind::Counter => counter!(name, &labels).absolute(value as u64),
        Kind::Gauge => gauge!(name, &labels).set(value),
    }
}

/// Describes every metric to the current recorder.
pub fn describe() {
    for metric in CATALOGUE {
        match metric.kind {
            Kind::Counter => describe_counter!(metric.name, metric.help),
            Kind::Gauge => describe_gauge!(metric.name, metric.help),
        }
    }
    for metric in VOLUMES {
        match metric.kind {
            Kind::Counter => describe_counter!(metric.name, metric.help),
            Kind::Gauge => describe_gauge!(metric.name, metric.help),
        }
    }
    for metric in DOMAINS {
        describe_gauge!(metric.name, metric.help);
    }
    for metric in LATENCIES {
        describe_gauge!(metric.name, metric.help);
        describe_counter!(metric.count_name, "Number of values recorded");
    }
    for metric in REQUESTS {
        describe_counter!(metric.name, metric.help);
    }
    describe_gauge!(
        REQUEST_LATENCY,
        "From a request's arrival to its reply, over the last minutes"
    );
    describe_gauge!(POLICY, "Always 1; the policy and d as the user gave them as labels");
    describe_gauge!(MODE, "1 for the mode of operation, 0 for the others");
    describe_gauge!(INFO, "Always 1; version and front end as labels");
}

fn flag(set: bool) -> f64 {
    f64::from(u8::from(set))
}

/// The mode of operation, one series per mode.
pub const MODE: &str = "destage_mode";
/// Version and front end.
pub const INFO: &str = "destage_info";
/// The policy's name and d, as the user gave them; with the label `volume` where there are volumes.
pub const POLICY: &str = "destage_policy_info";
/// A distribution, as [`LATENCIES`], of each kind of request to each volume, with the labels `volume` and `kind`.
pub const REQUEST_LATENCY: &str = "destage_volume_request_latency_seconds";

const fn g(name: &'static str, help: &'static str, value: fn(&Report) -> f64) -> Metric {
    Metric { name, kind: Kind::Gauge, help, value: Value::Always(value) }
}

const fn c(name: &'static str, help: &'static str, value: fn(&Report) -> f64) -> Metric {
    Metric { name, kind: Kind::Counter, help, value: Value::Always(value) }
}

const fn go(name: &'static str, help: &'static str, value: fn(&Report) -> Option<f64>) -> Metric {
    Metric { name, kind: Kind::Gauge, help, value: Value::IfAny(value) }
}

const fn co(name: &'static str, help: &'static str, value: fn(&Report) -> Option<f64>) -> Metric {
    Metric { name, kind: Kind::Counter, help, value: Value::IfAny(value) }
}

const fn vg(
    name: &'static str,
    help: &'static str,
    value: fn(&VolumeReport) -> f64,
) -> VolumeMetric {
    VolumeMetric { name, kind: Kind::Gauge, help, value }
}

const fn vc(
    name: &'static str,
    help: &'static str,
    value: fn(&VolumeReport) -> f64,
) -> VolumeMetric {
    VolumeMetric { name, kind: Kind::Counter, help, value }
}

const fn dg(
    name: &'static str,
    help: &'static str,
    value: fn(&DomainReport) -> f64,
) -> DomainMetric {
    DomainMetric { name, help, value }
}

/// Every metric with the label `domain`.
#[rustfmt::skip]
pub const DOMAINS: [DomainMetric; 6] = [
    dg("destage_domain_decided_lsn", "The last decided write of the ordering domain", |d| d.watermark as f64),
    dg("destage_domain_dirty_groups", "Undecided writes of the ordering domain", |d| d.dirty_groups as f64),
    dg("destage_domain_staleness_seconds", "Age of the domain's oldest undecided write", |d| d.staleness_seconds),
    dg("destage_domain_parked_groups", "Parked writes of the ordering domain", |d| d.parked_groups as f64),
    dg("destage_domain_failing", "1 while the origin does not answer to the domain's writes", |d| flag(d.failing)),
    dg("destage_domain_halted", "1 while the domain stands still until destage resume", |d| flag(d.halted)),
];

/// Every metric with the label `volume`.
#[rustfmt::skip]
pub const VOLUMES: [VolumeMetric; 19] = [
    vg("destage_volume_staleness_seconds", "Age of the oldest write that the origin does not hold", |v| v.staleness_seconds),
    vg("destage_volume_staleness_max_seconds", "Largest destage_volume_staleness_seconds since the start", |v| v.staleness_max_seconds),
    vg("destage_volume_dirty_bytes", "Bytes that differ from the origin", |v| v.dirty_bytes as f64),
    vg("destage_volume_dirty_writes", "Writes that the origin does not hold", |v| v.dirty_writes as f64),
    vc("destage_volume_hit_blocks_total", "Blocks read that were cached", |v| v.hit_blocks_total as f64),
    vc("destage_volume_miss_blocks_total", "Blocks read that were not cached", |v| v.miss_blocks_total as f64),
    vg("destage_volume_clean_blocks", "Clean blocks in the cache", |v| v.clean_blocks as f64),
    vc("destage_volume_bypassed_blocks_total", "Blocks of long sequential reads and writes, which passed the cache by", |v| v.bypassed_blocks_total as f64),
    vc("destage_volume_destaged_blocks_total", "Blocks sent to the origin", |v| v.destaged_blocks_total as f64),
    vc("destage_volume_before_cached_blocks_total", "Blocks of atomic groups whose contents before were known from the cache", |v| v.before_cached_blocks_total as f64),
    vc("destage_volume_before_fetched_blocks_total", "Blocks of atomic groups whose contents before were read from the origin", |v| v.before_fetched_blocks_total as f64),
    vg("destage_volume_destage_writes_per_second", "Measured destage rate", |v| v.destage_writes_per_second),
    vg("destage_volume_log_bytes", "Bytes of the log in use", |v| v.log_bytes as f64),
    vg("destage_volume_log_bytes_max", "Room of the log", |v| v.log_bytes_max as f64),
    vg("destage_volume_checkpoint_age_seconds", "Age of the checkpoint of the index", |v| v.checkpoint_age_seconds),
    vc("destage_volume_cache_errors_total", "Blocks of the cache that could not be used", |v| v.cache_errors_total as f64),
    vc("destage_volume_origin_errors_total", "Requests that the origin did not carry out", |v| v.origin_errors_total as f64),
    vg("destage_volume_read_latency_p99_seconds", "From a read's arrival to its reply, over the last minutes", |v| v.read_latency.p99_seconds),
    vg("destage_volume_write_latency_p99_seconds", "From a write's arrival to its reply, over the last minutes", |v| v.write_latency.p99_seconds),
];

/// Every counter with the labels `volume` and `kind`.
pub const REQUESTS: [RequestMetric; 3] = [
    RequestMetric {
        name: "destage_volume_requests_total",
        help: "Requests answered",
        value: |asked| asked.requests_total,
    },
    RequestMetric {
        name: "destage_volume_request_errors_total",
        help: "Requests answered with an error",
        value: |asked| asked.errors_total,
    },
    RequestMetric {
        name: "destage_volume_request_bytes_total",
        help: "Bytes that requests were about",
        value: |asked| asked.bytes_total,
    },
];

/// The distributions.
pub const LATENCIES: [LatencyMetric; 3] = [
    LatencyMetric {
        name: "destage_commit_latency_seconds",
        count_name: "destage_commit_latency_count",
        help: "From a write to its durability in the journal, over the last minutes",
        value: |r| &r.writes.commit_latency,
        of_volume: |v| &v.commit_latency,
    },
    LatencyMetric {
        name: "destage_destage_latency_seconds",
        count_name: "destage_destage_latency_count",
        help: "From a write to its decision by the origin, over the last minutes",
        value: |r| &r.destage.latency,
        of_volume: |v| &v.destage_latency,
    },
    LatencyMetric {
        name: "destage_journal_fsync_seconds",
        count_name: "destage_journal_fsync_count",
        help: "Duration of a journal sync, over the last minutes",
        value: |r| &r.journal.fsync_latency,
        of_volume: |v| &v.fsync_latency,
    },
];

/// Every metric without labels.
#[rustfmt::skip]
pub const CATALOGUE: [Metric; 76] = [
    g("destage_uptime_seconds", "Time since the start of the process", |r| r.uptime_seconds),
    g("destage_paused", "1 while destaging is paused by request", |r| flag(r.paused)),
    g("destage_ready", "1 while clients are served as the policy says", |r| flag(r.ready().is_ok())),
    g("destage_rpo_host_crash_seconds", "What a host crash would lose now: age of the oldest uncommitted write", |r| r.rpo.host_crash_seconds),
    g("destage_rpo_total_loss_seconds", "What losing host and journal would lose now: age of the oldest undecided write", |r| r.rpo.total_loss_seconds),
    g("destage_rpo_total_loss_max_seconds", "Largest destage_rpo_total_loss_seconds since the start", |r| r.rpo.total_loss_max_seconds),
    g("destage_bound_commit_seconds", "The bound d; where d is flush, when the log is made durable if nobody asks for it", |r| r.policy.commit_seconds),
    g("destage_bound_staleness_seconds", "The bound D; +Inf where there is none", |r| r.policy.staleness_seconds.unwrap_or(f64::INFINITY)),
    g("destage_dirty_bytes_max", "High mark of the buffered writes", |r| r.policy.dirty_bytes_max as f64),
    g("destage_journal_bytes_max", "Limit of the journal's undecided part", |r| r.policy.journal_bytes_max as f64),
    g("destage_cache_bytes_max", "Limit of the evictable units", |r| r.policy.cache_bytes_max as f64),
    g("destage_origin_connected", "1 while the connection for writes stands", |r| flag(r.origin.connected)),
    g("destage_origin_down", "1 while the origin is waited for", |r| flag(r.origin.down)),
    g("destage_origin_failing_seconds", "How long the origin has been failing; 0 while it works", |r| r.origin.failing_for_seconds.unwrap_or(0.0)),
    c("destage_retries_total", "Destages tried again after a failure", |r| r.origin.retries_total as f64),
    g("destage_clients", "Connections now", |r| r.clients.connected as f64),
    go("destage_open_files", "Times that a volume's file is open", |r| r.clients.open_files.map(|n| n as f64)),
    c("destage_clients_accepted_total", "Connections accepted", |r| r.clients.accepted_total as f64),
    c("destage_commands_total", "Commands executed", |r| r.clients.commands_total as f64),
    c("destage_command_errors_total", "Commands answered with an error", |r| r.clients.errors_total as f64),
    g("destage_waiting_requests", "Requests that wait for a limit, a fetch, the origin, or a journal whose disk is full", |r| r.clients.waiting as f64),
    c("destage_refused_writes_total", "Writes refused at a limit", |r| r.clients.refused_total as f64),
    c("destage_auth_failures_total", "Wrong passwords, of clients and at the admin port", |r| r.clients.auth_failures_total as f64),
    c("destage_auth_held_total", "Passwords not looked at, since their address had sent too many wrong ones", |r| r.clients.auth_held_total as f64),
    go("destage_unread_reply_bytes", "Bytes of replies that clients have not read yet", |r| r.clients.unread_bytes.map(|n| n as f64)),
    co("destage_clients_cut_off_total", "Clients disconnected since they, or all together, left too many replies unread", |r| r.clients.cut_off_total.map(|n| n as f64)),
    c("destage_writes_total", "Groups written", |r| r.writes.groups_total as f64),
    c("destage_last_lsn", "The newest group's number", |r| r.writes.last_lsn as f64),
    c("destage_committed_lsn", "The journal is durable up to this group", |r| r.writes.committed_lsn as f64),
    c("destage_decided_lsn", "Everything up to this group is decided", |r| r.writes.decided_lsn as f64),
    g("destage_dirty_groups", "Undecided groups", |r| r.writes.dirty_groups as f64),
    g("destage_dirty_units", "Distinct units with undecided changes", |r| r.writes.dirty_units as f64),
    g("destage_dirty_bytes", "Memory of the buffered writes", |r| r.writes.dirty_bytes as f64),
    g("destage_pinned_bytes", "Memory of the pinned units", |r| r.writes.pinned_bytes as f64),
    c("destage_destaged_groups_total", "Groups applied by the origin", |r| r.destage.groups_total as f64),
    c("destage_batches_total", "Batches applied by the origin", |r| r.destage.batches_total as f64),
    c("destage_destaged_changes_total", "Changes that entered batches", |r| r.destage.changes_total as f64),
    c("destage_destaged_rows_total", "Rows that batches wrote at the origin", |r| r.destage.rows_total as f64),
    co("destage_rejected_groups_total", "Groups rejected by the origin", |r| r.destage.rejected_total.map(|n| n as f64)),
    go("destage_parked_groups", "Groups parked at the origin now", |r| r.destage.parked_groups.map(|n| n as f64)),
    go("destage_halted_domains", "Ordering domains that stand still until destage resume", |r| r.destage.parked_groups.map(|_| r.halted.len() as f64)),
    g("destage_destage_groups_per_second", "Measured destage rate", |r| r.destage.groups_per_second),
    g("destage_batch_groups_mean", "Mean groups per batch over the last minutes", |r| r.destage.batch_groups.mean),
    g("destage_coalescing_ratio", "Changes per row written; NaN before the first batch", |r| r.destage.coalescing_ratio.unwrap_or(f64::NAN)),
    c("destage_cache_hits_total", "Accesses to units that were present", |r| r.cache.hits_total as f64),
    co("destage_derived_hits_total", "Answers from cached results of derived keys", |r| r.derived.as_ref().map(|d| d.hits_total as f64)),
    co("destage_derived_misses_total", "Requests that waited for a derived key's query", |r| r.derived.as_ref().map(|d| d.misses_total as f64)),
    co("destage_derived_queries_total", "Queries of derived keys run at the origin", |r| r.derived.as_ref().map(|d| d.queries_total as f64)),
    co("destage_derived_destaged_first_total", "Queries that waited for buffered writes to be destaged", |r| r.derived.as_ref().map(|d| d.destaged_first_total as f64)),
    co("destage_derived_timeouts_total", "Requests for derived keys given up at their deadline", |r| r.derived.as_ref().map(|d| d.timeouts_total as f64)),
    co("destage_derived_failures_total", "Queries of derived keys that failed", |r| r.derived.as_ref().map(|d| d.failures_total as f64)),
    go("destage_derived_waiting", "Requests that wait for a derived key's query", |r| r.derived.as_ref().map(|d| d.waiting as f64)),
    go("destage_once_tokens", "Tokens of DESTAGE ONCE that are kept", |r| r.once.as_ref().map(|o| o.tokens as f64)),
    go("destage_once_bytes", "Memory of these tokens", |r| r.once.as_ref().map(|o| o.bytes as f64)),
    co("destage_once_replayed_total", "Commands sent again and answered as the first time", |r| r.once.as_ref().map(|o| o.replayed_total as f64)),
    co("destage_once_refused_total", "Commands refused since there was no room for their tokens", |r| r.once.as_ref().map(|o| o.refused_total as f64)),
    go("destage_invalidation_tables", "Tables of which the origin tells what others change", |r| r.invalidation.as_ref().map(|i| i.tables as f64)),
    go("destage_invalidation_listening", "Whether the origin is heard telling it", |r| r.invalidation.as_ref().map(|i| flag(i.listening))),
    co("destage_invalidation_notifications_total", "Notifications of changes by others", |r| r.invalidation.as_ref().map(|i| i.notifications_total as f64)),
    co("destage_invalidation_dropped_total", "Cached copies dropped because of changes by others", |r| r.invalidation.as_ref().map(|i| i.dropped_total as f64)),
    co("destage_invalidation_resyncs_total", "Times that everything cached of these tables was dropped", |r| r.invalidation.as_ref().map(|i| i.resyncs_total as f64)),
    c("destage_cache_misses_total", "Accesses to units that had to be fetched", |r| r.cache.misses_total as f64),
    c("destage_cache_evictions_total", "Units dropped to make room", |r| r.cache.evictions_total as f64),
    g("destage_cache_units", "Evictable units", |r| r.cache.units as f64),
    g("destage_cache_bytes", "Memory of the evictable units", |r| r.cache.bytes as f64),
    g("destage_journal_segments", "Segment files of the journal", |r| r.journal.segments as f64),
    g("destage_journal_bytes", "Size of the journal", |r| r.journal.bytes as f64),
    g("destage_journal_dirty_bytes", "Journal bytes of undecided groups", |r| r.journal.dirty_bytes as f64),
    go("destage_journal_retained_seconds", "How far back decided groups are kept", |r| r.journal.retained_seconds),
    go("destage_journal_disk_full", "1 while the journal's disk is full: no write is acknowledged", |r| r.journal.disk_full.map(flag)),
    c("destage_journal_syncs_total", "Journal syncs", |r| r.journal.syncs_total as f64),
    go("destage_memory_rows_bytes", "Memory of the cached rows", |r| r.memory.rows_bytes.map(|n| n as f64)),
    go("destage_memory_index_bytes", "Memory of the indexes", |r| r.memory.index_bytes.map(|n| n as f64)),
    g("destage_memory_groups_bytes", "Memory of the buffered write groups", |r| r.memory.groups_bytes as f64),
    g("destage_memory_clients_bytes", "Memory of the connections' buffers", |r| r.memory.clients_bytes as f64),
    g("destage_memory_resident_bytes", "Resident memory of the process", |r| r.memory.resident_bytes as f64),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::Sizes;

    #[test]
    fn every_metric_is_in_the_text_with_help_and_type() {
        let mut report = Report { mode: "fallback".into(), ..Report::default() }.finish();
        report.writes.groups_total = 12;
        report.destage.batch_groups = Sizes { mean: 2.5, p50: 2, max: 9 };
        report.writes.commit_latency.p99_seconds = 0.004;
        have_everything(&mut report);
        let text = Exporter::new().render(&report);
        for metric in CATALOGUE {
            let kind = if metric.kind == Kind::Counter { "counter" } else { "gauge" };
            assert!(text.contains(&format!("# HELP {} {}\n", metric.name, metric.help)));
            assert!(text.contains(&format!("# TYPE {} {kind}\n", metric.name)), "{}", metric.name);
            assert!(text.contains(&format!("\n{} ", metric.name)), "{}", metric.name);
            assert_eq!(
                metric.kind == Kind::Counter,
                metric.name.ends_with("_total") || metric.name.ends_with("_lsn")
            );
        }
        for part in [
            "destage_writes_total 12\n",
            "destage_batch_groups_mean 2.5\n",
            "destage_coalescing_ratio NaN\n",
            "destage_bound_staleness_seconds inf\n",
            "destage_commit_latency_seconds{quantile=\"0.99\"} 0.004\n",
            "destage_journal_fsync_count 0\n",
            "destage_mode{mode=\"fallback\"} 1\n",
            "destage_mode{mode=\"normal\"} 0\n",
            "destage_info{version=",
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
    }

    fn have_everything(report: &mut Report) {
        (report.derived, report.invalidation) =
            (Some(Default::default()), Some(Default::default()));
        report.once = Some(Default::default());
        report.clients.open_files = Some(0);
        (report.clients.unread_bytes, report.clients.cut_off_total) = (Some(0), Some(0));
        (report.destage.rejected_total, report.destage.parked_groups) = (Some(0), Some(0));
        (report.journal.retained_seconds, report.journal.disk_full) = (Some(0.0), Some(false));
        (report.memory.rows_bytes, report.memory.index_bytes) = (Some(0), Some(0));
    }

    #[test]
    fn what_a_report_does_not_speak_of_is_not_exported() {
        let text = Exporter::new().render(&Report::default());
        for family in [
            "derived",
            "once",
            "invalidation",
            "volume",
            "domain",
            "parked",
            "halted",
            "open_files",
        ] {
            assert!(!text.contains(&format!("destage_{family}")), "{family} in {text}");
        }
        assert!(text.contains("destage_commit_latency_seconds{quantile=\"1\"}"), "{text}");
    }

    #[test]
    fn a_policy_that_is_not_in_force_any_more_is_forgotten() {
        let exporter = Exporter::new();
        let mut report = Report::default();
        for name in ["write-back", "journaled"] {
            report.policy.name = name.into();
            report.policy.commit = "flush".into();
            let text = exporter.render(&report);
            let shown: Vec<_> =
                text.lines().filter(|line| line.starts_with("destage_policy_info")).collect();
            assert!(shown.len() == 1 && shown[0].contains(name), "{shown:?}");
            assert!(shown[0].contains("commit=\"flush\""), "{shown:?}");
        }
    }

    #[test]
    fn each_volume_has_its_own_distributions_and_requests() {
        let mut volume = VolumeReport { name: "a".into(), ..VolumeReport::default() };
        volume.fsync_latency = Latencies { count: 7, p99_seconds: 0.25, ..Latencies::default() };
        volume.requests = vec![RequestsReport {
            kind: "flush".into(),
            requests_total: 3,
            ..RequestsReport::default()
        }];
        let text = Exporter::new().render(&Report { volumes: vec![volume], ..Report::default() });
        for part in [
            "destage_journal_fsync_seconds{volume=\"a\",quantile=\"0.99\"} 0.25\n",
            "destage_journal_fsync_count{volume=\"a\"} 7\n",
            "destage_volume_requests_total{volume=\"a\",kind=\"flush\"} 3\n",
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
        assert!(!text.contains("destage_journal_fsync_count 0"), "{text}");
    }

    #[test]
    fn names_are_distinct() {
        let mut names: Vec<_> = CATALOGUE.iter().map(|m| m.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), CATALOGUE.len());
    }
}
