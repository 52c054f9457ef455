//! A report as metrics for Prometheus. [`common`] names what every front end has; each hands in its own by [`Exports`]. Units
//! are in the names.

mod histogram;

use crate::policy::MODES;
use crate::status::{Latencies, Report};
use ::metrics::{counter, describe_counter, describe_gauge, gauge, with_local_recorder};
use metrics_exporter_prometheus::PrometheusBuilder;

/// How a metric behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Only grows; from the start of the process.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Counts in buckets, from the start of the process.
    Histogram,
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
    /// A gauge of a front end that may have such a thing or not.
    pub const fn gauge(
        name: &'static str,
        help: &'static str,
        value: fn(&Report) -> Option<f64>,
    ) -> Self {
        Self { name, kind: Kind::Gauge, help, value: Value::IfAny(value) }
    }

    /// The same, a counter.
    pub const fn counter(
        name: &'static str,
        help: &'static str,
        value: fn(&Report) -> Option<f64>,
    ) -> Self {
        Self { name, kind: Kind::Counter, help, value: Value::IfAny(value) }
    }

    /// Its name, and what that stands for.
    pub const fn family(&self) -> Family {
        Family { name: self.name, kind: self.kind, help: self.help }
    }

    /// Sets it on the current recorder, if the report speaks of it.
    pub fn publish(&self, report: &Report) {
        if let Some(value) = self.value(report) {
            set(self.name, self.kind, &[], value);
        }
    }

    /// What to export; nothing where the front end has no such thing.
    pub fn value(&self, report: &Report) -> Option<f64> {
        match self.value {
            Value::Always(value) => Some(value(report)),
            Value::IfAny(value) => value(report),
        }
    }
}

/// A distribution: a histogram, which can be added up over servers and times; and for those who only look, gauges with the
/// labels `quantile="0.5"`, `"0.99"`, `"0.999"` and `"1"` over the last minutes, and a counter `..._count`.
#[derive(Clone, Copy, Debug)]
pub struct LatencyMetric {
    /// The name of the gauges.
    pub name: &'static str,
    /// The name of the counter.
    pub count_name: &'static str,
    /// The name of the histogram.
    pub histogram_name: &'static str,
    /// The help text.
    pub help: &'static str,
}

impl LatencyMetric {
    /// The histogram.
    pub const fn histogram(&self) -> Family {
        Family { name: self.histogram_name, kind: Kind::Histogram, help: self.help }
    }
}

/// A name, and what it stands for.
#[derive(Clone, Copy, Debug)]
pub struct Family {
    /// The name.
    pub name: &'static str,
    /// How it behaves.
    pub kind: Kind,
    /// Its help text.
    pub help: &'static str,
}

/// What a front end exports besides what every one does.
#[derive(Clone, Copy, Debug)]
pub struct Exports {
    /// All that it may export, each once.
    pub families: fn() -> Vec<Family>,
    /// Sets what a report has of it, by [`set`] and its like.
    pub publish: fn(&Report),
}

impl Default for Exports {
    /// Of a front end with one policy and nothing of its own.
    fn default() -> Self {
        Self { families: Vec::new, publish: publish_whole }
    }
}

/// Renders reports for `/metrics`.
#[derive(Debug, Default)]
pub struct Exporter(Exports);

impl Exporter {
    /// An exporter of what every front end has, and of this one's own.
    pub fn new(exports: Exports) -> Self {
        Self(exports)
    }

    /// The report in Prometheus' text format: what it does not speak of is not there.
    pub fn render(&self, report: &Report) -> String {
        // A new one each time, since a recorder never forgets a series, as of a policy that is not in force any more.
        let recorder = PrometheusBuilder::new().build_recorder();
        histogram::begin();
        with_local_recorder(&recorder, || {
            common().into_iter().chain((self.0.families)()).for_each(describe);
            publish(report);
            (self.0.publish)(report);
        });
        recorder.handle().render() + &histogram::rendered()
    }
}

/// Sets what every front end has on the current recorder of the `metrics` facade.
fn publish(report: &Report) {
    CATALOGUE.iter().for_each(|metric| metric.publish(report));
    for mode in MODES {
        gauge!(MODE, "mode" => mode).set(flag(report.mode == mode));
    }
    let labels = [("version", report.version.as_str()), ("front_end", report.front_end.as_str())];
    set(INFO, Kind::Gauge, &labels, 1.0);
}

/// The distributions and the policy of a front end that has one of each.
pub fn publish_whole(report: &Report) {
    set_latencies(&COMMIT_LATENCY, &[], &report.writes.commit_latency);
    set_latencies(&DESTAGE_LATENCY, &[], &report.destage.latency);
    set_latencies(&SYNC_LATENCY, &[], &report.journal.fsync_latency);
    let policy = &report.policy;
    let labels = [("policy", policy.name.as_str()), ("commit", policy.commit.as_str())];
    set(POLICY, Kind::Gauge, &labels, 1.0);
}

/// Sets a distribution.
pub fn set_latencies(
    metric: &LatencyMetric,
    labels: &[(&'static str, &str)],
    latencies: &Latencies,
) {
    set_quantiles(metric.name, labels, latencies);
    histogram::set(metric.histogram(), labels, latencies);
    set(metric.count_name, Kind::Counter, labels, latencies.count as f64);
}

pub use histogram::set as set_histogram;

/// Sets the quantiles of a distribution.
pub fn set_quantiles(name: &'static str, labels: &[(&'static str, &str)], latencies: &Latencies) {
    for (quantile, value) in [
        ("0.5", latencies.p50_seconds),
        ("0.99", latencies.p99_seconds),
        ("0.999", latencies.p999_seconds),
        ("1", latencies.max_seconds),
    ] {
        set(name, Kind::Gauge, &[labels, &[("quantile", quantile)]].concat(), value);
    }
}

/// Sets one series.
pub fn set(name: &'static str, kind: Kind, labels: &[(&'static str, &str)], value: f64) {
    let labels: Vec<_> = labels.iter().map(|&(key, value)| (key, value.to_owned())).collect();
    match kind {
        Kind::Counter => counter!(name, &labels).absolute(value as u64),
        Kind::Gauge => gauge!(name, &labels).set(value),
        Kind::Histogram => unreachable!("histograms are set by set_histogram"),
    }
}

fn describe(Family { name, kind, help }: Family) {
    match kind {
        Kind::Counter => describe_counter!(name, help),
        Kind::Gauge => describe_gauge!(name, help),
        // Says so itself.
        Kind::Histogram => {}
    }
}

/// What every front end may export.
pub fn common() -> Vec<Family> {
    let gauge = |name, help| Family { name, kind: Kind::Gauge, help };
    let mut all: Vec<Family> = CATALOGUE.iter().map(Metric::family).collect();
    for metric in [COMMIT_LATENCY, DESTAGE_LATENCY, SYNC_LATENCY] {
        let (name, help) = (metric.count_name, "Number of values recorded");
        let recent = gauge(metric.name, metric.help);
        all.extend([recent, Family { name, kind: Kind::Counter, help }, metric.histogram()]);
    }
    all.extend([
        gauge(POLICY, "Always 1; the policy and d as the user gave them as labels"),
        gauge(MODE, "1 for the mode of operation, 0 for the others"),
        gauge(INFO, "Always 1; version and front end as labels"),
    ]);
    all
}

/// 1 if it is set, else 0.
pub fn flag(set: bool) -> f64 {
    f64::from(u8::from(set))
}

/// The mode of operation, one series per mode.
pub const MODE: &str = "destage_mode";
/// Version and front end.
pub const INFO: &str = "destage_info";
/// The policy's name and d, as the user gave them.
pub const POLICY: &str = "destage_policy_info";
const fn g(name: &'static str, help: &'static str, value: fn(&Report) -> f64) -> Metric {
    Metric { name, kind: Kind::Gauge, help, value: Value::Always(value) }
}

const fn c(name: &'static str, help: &'static str, value: fn(&Report) -> f64) -> Metric {
    Metric { name, kind: Kind::Counter, help, value: Value::Always(value) }
}

const fn go(name: &'static str, help: &'static str, value: fn(&Report) -> Option<f64>) -> Metric {
    Metric::gauge(name, help, value)
}

const fn co(name: &'static str, help: &'static str, value: fn(&Report) -> Option<f64>) -> Metric {
    Metric::counter(name, help, value)
}

/// From a write to its durability in the journal.
pub const COMMIT_LATENCY: LatencyMetric = LatencyMetric {
    name: "destage_commit_latency_seconds",
    count_name: "destage_commit_latency_count",
    histogram_name: "destage_commit_seconds",
    help: "From a write to its durability in the journal",
};
/// From a write to its decision by the origin.
pub const DESTAGE_LATENCY: LatencyMetric = LatencyMetric {
    name: "destage_destage_latency_seconds",
    count_name: "destage_destage_latency_count",
    histogram_name: "destage_destage_seconds",
    help: "From a write to its decision by the origin",
};
/// Duration of a journal sync.
pub const SYNC_LATENCY: LatencyMetric = LatencyMetric {
    name: "destage_journal_fsync_seconds",
    count_name: "destage_journal_fsync_count",
    histogram_name: "destage_journal_sync_seconds",
    help: "Duration of a journal sync",
};

/// Every metric without labels that any front end may have.
#[rustfmt::skip]
pub const CATALOGUE: [Metric; 62] = [
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
    g("destage_limited_bytes", "What counts against the dirty limit", |r| r.writes.limited_bytes as f64),
    c("destage_destaged_groups_total", "Groups applied by the origin", |r| r.destage.groups_total as f64),
    c("destage_batches_total", "Batches applied by the origin", |r| r.destage.batches_total as f64),
    c("destage_destaged_changes_total", "Changes that entered batches", |r| r.destage.changes_total as f64),
    c("destage_destaged_rows_total", "Rows that batches wrote at the origin", |r| r.destage.rows_total as f64),
    co("destage_rejected_groups_total", "Groups rejected by the origin", |r| r.destage.rejected_total.map(|n| n as f64)),
    go("destage_parked_groups", "Groups parked at the origin now", |r| r.destage.parked_groups.map(|n| n as f64)),
    co("destage_auto_changes_total", "Changes of a setting by --auto since it was switched on", |r| r.auto.as_ref().map(|auto| auto.changes_total as f64)),
    co("destage_auto_kept_total", "Steps that --auto has kept", |r| r.auto.as_ref().map(|auto| auto.kept_total as f64)),
    co("destage_auto_went_back_total", "Times that --auto has gone back to what was before", |r| r.auto.as_ref().map(|auto| auto.went_back_total as f64)),
    g("destage_destage_groups_per_second", "Measured destage rate", |r| r.destage.groups_per_second),
    g("destage_batch_groups_mean", "Mean groups per batch over the last minutes", |r| r.destage.batch_groups.mean),
    g("destage_coalescing_ratio", "Changes per row written; NaN before the first batch", |r| r.destage.coalescing_ratio.unwrap_or(f64::NAN)),
    c("destage_cache_hits_total", "Accesses to units that were present", |r| r.cache.hits_total as f64),
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
        let text = Exporter::default().render(&report);
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
            "# TYPE destage_commit_seconds histogram\n",
            "destage_commit_seconds_bucket{le=\"0.001\"} 0\n",
            "destage_commit_seconds_bucket{le=\"+Inf\"} 0\n",
            "destage_mode{mode=\"fallback\"} 1\n",
            "destage_mode{mode=\"normal\"} 0\n",
            "destage_info{version=",
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
    }

    fn have_everything(report: &mut Report) {
        (report.clients.unread_bytes, report.clients.cut_off_total) = (Some(0), Some(0));
        (report.destage.rejected_total, report.destage.parked_groups) = (Some(0), Some(0));
        (report.journal.retained_seconds, report.journal.disk_full) = (Some(0.0), Some(false));
        (report.memory.rows_bytes, report.memory.index_bytes) = (Some(0), Some(0));
        report.auto = Some(crate::status::AutoReport::default());
    }

    #[test]
    fn what_a_report_does_not_speak_of_is_not_exported() {
        let text = Exporter::default().render(&Report::default());
        for family in ["parked", "journal_retained", "unread"] {
            assert!(!text.contains(&format!("destage_{family}")), "{family} in {text}");
        }
        assert!(text.contains("destage_commit_latency_seconds{quantile=\"1\"}"), "{text}");
    }

    #[test]
    fn a_front_end_has_its_own_beside_what_every_one_has() {
        const OWN: Family = Family { name: "destage_own", kind: Kind::Gauge, help: "Its own" };
        let publish = |_: &Report| set(OWN.name, OWN.kind, &[("of", "a")], 7.0);
        let exports = Exports { families: || vec![OWN], publish };
        let text = Exporter::new(exports).render(&Report::default());
        for part in [
            "# HELP destage_own Its own\n",
            "destage_own{of=\"a\"} 7\n",
            "destage_writes_total 0\n",
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
        assert!(!text.contains("destage_commit_latency_seconds{"), "{text}");
    }

    #[test]
    fn a_policy_that_is_not_in_force_any_more_is_forgotten() {
        let exporter = Exporter::default();
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
    fn names_are_distinct() {
        let mut names: Vec<_> = common().iter().map(|family| family.name).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
    }
}
