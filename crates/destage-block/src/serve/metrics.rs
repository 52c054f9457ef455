//! What volumes export besides what every front end does: each by itself, with the label `volume`.

use destage_runtime::metrics::{
    COMMIT_LATENCY, DESTAGE_LATENCY, Exports, Family, Kind, Metric, POLICY, SYNC_LATENCY, set,
    set_histogram, set_latencies, set_quantiles,
};
use destage_runtime::status::{Report, RequestsReport, VolumeReport};

/// For the admin port.
pub const EXPORTS: Exports = Exports { families, publish };

/// A distribution of each kind of request to each volume, with the labels `volume` and `kind`.
const REQUEST_LATENCY: Family = Family {
    name: "destage_volume_request_latency_seconds",
    kind: Kind::Gauge,
    help: "From a request's arrival to its reply, over the last minutes",
};

/// The same since the start, in buckets.
const REQUEST_HISTOGRAM: Family = Family {
    name: "destage_volume_request_seconds",
    kind: Kind::Histogram,
    help: "From a request's arrival to its reply",
};

/// One metric of each volume.
struct VolumeMetric {
    family: Family,
    value: fn(&VolumeReport) -> f64,
}

/// One counter of each kind of request to each volume, with the labels `volume` and `kind`.
struct RequestMetric {
    name: &'static str,
    help: &'static str,
    value: fn(&RequestsReport) -> u64,
}

fn families() -> Vec<Family> {
    let requests = REQUESTS.iter();
    let requests = requests.map(|m| Family { name: m.name, kind: Kind::Counter, help: m.help });
    let volumes = VOLUMES.iter().map(|metric| metric.family);
    volumes
        .chain(requests)
        .chain([REQUEST_LATENCY, REQUEST_HISTOGRAM, OPEN_FILES.family()])
        .collect()
}

fn publish(report: &Report) {
    OPEN_FILES.publish(report);
    report.volumes.iter().for_each(publish_volume);
}

fn publish_volume(volume: &VolumeReport) {
    let name = ("volume", volume.name.as_str());
    set_latencies(&COMMIT_LATENCY, &[name], &volume.commit_latency);
    set_latencies(&DESTAGE_LATENCY, &[name], &volume.destage_latency);
    set_latencies(&SYNC_LATENCY, &[name], &volume.fsync_latency);
    for metric in VOLUMES {
        set(metric.family.name, metric.family.kind, &[name], (metric.value)(volume));
    }
    let labels =
        [name, ("policy", volume.policy_name.as_str()), ("commit", volume.commit.as_str())];
    set(POLICY, Kind::Gauge, &labels, 1.0);
    for asked in &volume.requests {
        let labels = [name, ("kind", asked.kind.as_str())];
        for metric in REQUESTS {
            set(metric.name, Kind::Counter, &labels, (metric.value)(asked) as f64);
        }
        set_quantiles(REQUEST_LATENCY.name, &labels, &asked.latency);
        set_histogram(REQUEST_HISTOGRAM, &labels, &asked.latency);
    }
}

const OPEN_FILES: Metric =
    Metric::gauge("destage_open_files", "Times that a volume's file is open", |r| {
        r.clients.open_files.map(|n| n as f64)
    });

const fn g(
    name: &'static str,
    help: &'static str,
    value: fn(&VolumeReport) -> f64,
) -> VolumeMetric {
    VolumeMetric { family: Family { name, kind: Kind::Gauge, help }, value }
}

const fn c(
    name: &'static str,
    help: &'static str,
    value: fn(&VolumeReport) -> f64,
) -> VolumeMetric {
    VolumeMetric { family: Family { name, kind: Kind::Counter, help }, value }
}

/// Every metric with the label `volume`.
#[rustfmt::skip]
const VOLUMES: [VolumeMetric; 19] = [
    g("destage_volume_staleness_seconds", "Age of the oldest write that the origin does not hold", |v| v.staleness_seconds),
    g("destage_volume_staleness_max_seconds", "Largest destage_volume_staleness_seconds since the start", |v| v.staleness_max_seconds),
    g("destage_volume_dirty_bytes", "Bytes that differ from the origin", |v| v.dirty_bytes as f64),
    g("destage_volume_dirty_writes", "Writes that the origin does not hold", |v| v.dirty_writes as f64),
    c("destage_volume_hit_blocks_total", "Blocks read that were cached", |v| v.hit_blocks_total as f64),
    c("destage_volume_miss_blocks_total", "Blocks read that were not cached", |v| v.miss_blocks_total as f64),
    g("destage_volume_clean_blocks", "Clean blocks in the cache", |v| v.clean_blocks as f64),
    c("destage_volume_bypassed_blocks_total", "Blocks of long sequential reads and writes, which passed the cache by", |v| v.bypassed_blocks_total as f64),
    c("destage_volume_destaged_blocks_total", "Blocks sent to the origin", |v| v.destaged_blocks_total as f64),
    c("destage_volume_before_cached_blocks_total", "Blocks of atomic groups whose contents before were known from the cache", |v| v.before_cached_blocks_total as f64),
    c("destage_volume_before_fetched_blocks_total", "Blocks of atomic groups whose contents before were read from the origin", |v| v.before_fetched_blocks_total as f64),
    g("destage_volume_destage_writes_per_second", "Measured destage rate", |v| v.destage_writes_per_second),
    g("destage_volume_log_bytes", "Bytes of the log in use", |v| v.log_bytes as f64),
    g("destage_volume_log_bytes_max", "Room of the log", |v| v.log_bytes_max as f64),
    g("destage_volume_checkpoint_age_seconds", "Age of the checkpoint of the index", |v| v.checkpoint_age_seconds),
    c("destage_volume_cache_errors_total", "Blocks of the cache that could not be used", |v| v.cache_errors_total as f64),
    c("destage_volume_origin_errors_total", "Requests that the origin did not carry out", |v| v.origin_errors_total as f64),
    g("destage_volume_read_latency_p99_seconds", "From a read's arrival to its reply, over the last minutes", |v| v.read_latency.p99_seconds),
    g("destage_volume_write_latency_p99_seconds", "From a write's arrival to its reply, over the last minutes", |v| v.write_latency.p99_seconds),
];

/// Every counter with the labels `volume` and `kind`.
const REQUESTS: [RequestMetric; 3] = [
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

#[cfg(test)]
mod tests {
    use super::*;
    use destage_runtime::metrics::Exporter;
    use destage_runtime::status::Latencies;

    #[test]
    fn each_volume_has_its_own_distributions_and_requests() {
        let mut volume = VolumeReport { name: "a".into(), ..VolumeReport::default() };
        volume.fsync_latency = Latencies { count: 7, p99_seconds: 0.25, ..Latencies::default() };
        volume.requests = vec![RequestsReport {
            kind: "flush".into(),
            requests_total: 3,
            ..RequestsReport::default()
        }];
        let text =
            Exporter::new(EXPORTS).render(&Report { volumes: vec![volume], ..Report::default() });
        for part in [
            "destage_journal_fsync_seconds{volume=\"a\",quantile=\"0.99\"} 0.25\n",
            "destage_journal_fsync_count{volume=\"a\"} 7\n",
            "destage_volume_requests_total{volume=\"a\",kind=\"flush\"} 3\n",
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
        assert!(!text.contains("destage_journal_fsync_count 0"), "{text}");
        for metric in VOLUMES {
            assert!(
                text.contains(&format!("# HELP {} {}\n", metric.family.name, metric.family.help))
            );
        }
    }
}
