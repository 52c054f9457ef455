//! What the data server exports besides what every front end does: derived keys, commands that are carried out once, what the
//! origin tells of others' changes, its ordering domains, and the log on other servers.

use destage_runtime::metrics::{Exports, Family, Kind, Metric, flag, publish_whole, set};
use destage_runtime::status::{DomainReport, ReplicaReport, Report};

/// For the admin port.
pub const EXPORTS: Exports = Exports { families, publish };

/// One gauge of each ordering domain, with the label `domain`; none where there is one domain only.
struct DomainMetric {
    family: Family,
    value: fn(&DomainReport) -> f64,
}

/// One gauge of each server of the log, with the label `server`; none where it is not known.
struct ServerMetric {
    family: Family,
    value: fn(&ReplicaReport) -> Option<f64>,
}

fn families() -> Vec<Family> {
    let domains = DOMAINS.iter().map(|metric| metric.family);
    let servers = SERVERS.iter().map(|metric| metric.family);
    METRICS.iter().map(Metric::family).chain(domains).chain(servers).collect()
}

fn publish(report: &Report) {
    publish_whole(report);
    METRICS.iter().for_each(|metric| metric.publish(report));
    for domain in &report.domains {
        for metric in DOMAINS {
            let labels = [("domain", domain.name.as_str())];
            set(metric.family.name, metric.family.kind, &labels, (metric.value)(domain));
        }
    }
    for server in report.replicas.iter().flat_map(|replicas| &replicas.servers) {
        for metric in SERVERS {
            let labels = [("server", server.address.as_str())];
            if let Some(value) = (metric.value)(server) {
                set(metric.family.name, metric.family.kind, &labels, value);
            }
        }
    }
}

const fn g(
    name: &'static str,
    help: &'static str,
    value: fn(&DomainReport) -> f64,
) -> DomainMetric {
    DomainMetric { family: Family { name, kind: Kind::Gauge, help }, value }
}

/// Every metric with the label `domain`.
#[rustfmt::skip]
const DOMAINS: [DomainMetric; 6] = [
    g("destage_domain_decided_lsn", "The last decided write of the ordering domain", |d| d.watermark as f64),
    g("destage_domain_dirty_groups", "Undecided writes of the ordering domain", |d| d.dirty_groups as f64),
    g("destage_domain_staleness_seconds", "Age of the domain's oldest undecided write", |d| d.staleness_seconds),
    g("destage_domain_parked_groups", "Parked writes of the ordering domain", |d| d.parked_groups as f64),
    g("destage_domain_failing", "1 while the origin does not answer to the domain's writes", |d| flag(d.failing)),
    g("destage_domain_halted", "1 while the domain stands still until destage resume", |d| flag(d.halted)),
];

const fn s(
    name: &'static str,
    help: &'static str,
    value: fn(&ReplicaReport) -> Option<f64>,
) -> ServerMetric {
    ServerMetric { family: Family { name, kind: Kind::Gauge, help }, value }
}

/// Every metric with the label `server`.
#[rustfmt::skip]
const SERVERS: [ServerMetric; 5] = [
    s("destage_replica_reachable", "1 while the server of the log is connected", |s| Some(flag(s.reachable))),
    s("destage_replica_counts", "1 while what the server takes counts as a copy", |s| Some(flag(s.counts))),
    s("destage_replica_durable", "1 if the server writes to its disk before it answers", |s| Some(flag(s.durable))),
    s("destage_replica_behind_entries", "Entries of the log that the server lacks", |s| s.behind_entries.map(|b| b as f64)),
    s("destage_replica_held_bytes", "Undecided bytes that the server holds", |s| s.held_bytes.map(|b| b as f64)),
];

/// Every metric without labels.
#[rustfmt::skip]
const METRICS: [Metric; 40] = [
    Metric::gauge("destage_replicas_copies", "So many servers hold a write before it is acknowledged", |r| r.replicas.as_ref().map(|l| l.copies as f64)),
    Metric::gauge("destage_replicas_ready", "Servers of the log that take writes", |r| r.replicas.as_ref().map(|l| l.servers_ready as f64)),
    Metric::gauge("destage_replicas_owned", "1 while this server owns the log", |r| r.replicas.as_ref().map(|l| flag(l.owned_here))),
    Metric::gauge("destage_replicas_answers", "1 while enough servers have heard of this one to let it answer", |r| r.replicas.as_ref().map(|l| flag(l.answers))),
    Metric::gauge("destage_replicas_behind_entries", "Entries that a standby has not read yet", |r| r.replicas.as_ref().map(|l| l.behind_entries as f64)),
    Metric::gauge("destage_replicas_undecided_bytes", "Undecided bytes of the log", |r| r.replicas.as_ref().map(|l| l.undecided_bytes as f64)),
    Metric::gauge("destage_halted_domains", "Ordering domains that stand still until destage resume", |r| r.destage.parked_groups.map(|_| r.halted.len() as f64)),
    Metric::counter("destage_derived_hits_total", "Answers from cached results of derived keys", |r| r.derived.as_ref().map(|d| d.hits_total as f64)),
    Metric::counter("destage_derived_misses_total", "Requests that waited for a derived key's query", |r| r.derived.as_ref().map(|d| d.misses_total as f64)),
    Metric::counter("destage_derived_queries_total", "Queries of derived keys run at the origin", |r| r.derived.as_ref().map(|d| d.queries_total as f64)),
    Metric::counter("destage_derived_destaged_first_total", "Queries that waited for buffered writes to be destaged", |r| r.derived.as_ref().map(|d| d.destaged_first_total as f64)),
    Metric::counter("destage_derived_timeouts_total", "Requests for derived keys given up at their deadline", |r| r.derived.as_ref().map(|d| d.timeouts_total as f64)),
    Metric::counter("destage_derived_failures_total", "Queries of derived keys that failed", |r| r.derived.as_ref().map(|d| d.failures_total as f64)),
    Metric::gauge("destage_derived_waiting", "Requests that wait for a derived key's query", |r| r.derived.as_ref().map(|d| d.waiting as f64)),
    Metric::gauge("destage_once_tokens", "Tokens of DESTAGE ONCE that are kept", |r| r.once.as_ref().map(|o| o.tokens as f64)),
    Metric::gauge("destage_once_bytes", "Memory of these tokens", |r| r.once.as_ref().map(|o| o.bytes as f64)),
    Metric::counter("destage_once_replayed_total", "Commands sent again and answered as the first time", |r| r.once.as_ref().map(|o| o.replayed_total as f64)),
    Metric::counter("destage_once_refused_total", "Commands refused since there was no room for their tokens", |r| r.once.as_ref().map(|o| o.refused_total as f64)),
    Metric::gauge("destage_tracking_clients", "Clients that are told when keys change (CLIENT TRACKING)", |r| r.tracking.as_ref().map(|t| t.clients as f64)),
    Metric::gauge("destage_tracking_keys", "Keys that these clients hold", |r| r.tracking.as_ref().map(|t| t.keys as f64)),
    Metric::gauge("destage_tracking_items", "The same, counted once for each client that holds one", |r| r.tracking.as_ref().map(|t| t.items as f64)),
    Metric::gauge("destage_tracking_prefixes", "Prefixes of keys of which clients are told that have not read them", |r| r.tracking.as_ref().map(|t| t.prefixes as f64)),
    Metric::gauge("destage_tracking_bytes", "Memory of the keys that clients hold", |r| r.tracking.as_ref().map(|t| t.bytes as f64)),
    Metric::counter("destage_tracking_invalidations_total", "Keys that clients were told of", |r| r.tracking.as_ref().map(|t| t.invalidations_total as f64)),
    Metric::counter("destage_tracking_dropped_total", "Keys that clients were told of since there was no room to keep them", |r| r.tracking.as_ref().map(|t| t.dropped_total as f64)),
    Metric::counter("destage_ended_rows_total", "Rows that had ended and whose deletion was journaled", |r| r.ended.as_ref().map(|e| e.ended_total as f64)),
    Metric::gauge("destage_ended_rows_kept", "Rows that have ended and to which rows of other tables refer", |r| r.ended.as_ref().map(|e| e.kept as f64)),
    Metric::gauge("destage_ended_rows_undeleted", "Rows that have ended and are still there although their deletion was carried out", |r| r.ended.as_ref().map(|e| e.undeleted as f64)),
    Metric::counter("destage_ended_rows_refused_total", "Deletions of rows that had ended which the origin refused", |r| r.ended.as_ref().map(|e| e.refused_total as f64)),
    Metric::gauge("destage_absent_tables_ready", "Tables whose keys are all known", |r| r.absent.as_ref().map(|a| a.ready as f64)),
    Metric::gauge("destage_absent_tables_filling", "Tables whose keys are being read", |r| r.absent.as_ref().map(|a| a.filling as f64)),
    Metric::gauge("destage_absent_keys", "Keys known of all tables", |r| r.absent.as_ref().map(|a| a.keys as f64)),
    Metric::gauge("destage_absent_bytes", "Memory of these keys", |r| r.absent.as_ref().map(|a| a.bytes as f64)),
    Metric::gauge("destage_absent_false_positive_ratio", "Share of absent rows for which the origin is asked all the same, of the table with the largest", |r| r.absent.as_ref().map(|a| a.false_positive_rate)),
    Metric::counter("destage_absent_answers_total", "Rows for which the origin was not asked, since it certainly does not have them", |r| r.absent.as_ref().map(|a| a.answered_total as f64)),
    Metric::gauge("destage_invalidation_tables", "Tables of which the origin tells what others change", |r| r.invalidation.as_ref().map(|i| i.tables as f64)),
    Metric::gauge("destage_invalidation_listening", "Whether the origin is heard telling it", |r| r.invalidation.as_ref().map(|i| flag(i.listening))),
    Metric::counter("destage_invalidation_notifications_total", "Notifications of changes by others", |r| r.invalidation.as_ref().map(|i| i.notifications_total as f64)),
    Metric::counter("destage_invalidation_dropped_total", "Cached copies dropped because of changes by others", |r| r.invalidation.as_ref().map(|i| i.dropped_total as f64)),
    Metric::counter("destage_invalidation_resyncs_total", "Times that everything cached of these tables was dropped", |r| r.invalidation.as_ref().map(|i| i.resyncs_total as f64)),
];

#[cfg(test)]
mod tests {
    use super::*;
    use destage_runtime::metrics::Exporter;
    use destage_runtime::status::ReplicasReport;

    #[test]
    fn what_a_report_speaks_of_is_exported_with_its_help_and_nothing_else_is() {
        let text = Exporter::new(EXPORTS).render(&Report::default());
        for family in
            ["absent", "derived", "ended", "once", "invalidation", "domain", "halted", "replica"]
        {
            assert!(!text.contains(&format!("destage_{family}")), "{family} in {text}");
        }
        assert!(text.contains("destage_policy_info{"), "{text}");
        let mut report = Report {
            absent: Some(Default::default()),
            derived: Some(Default::default()),
            once: Some(Default::default()),
            tracking: Some(Default::default()),
            ended: Some(Default::default()),
            invalidation: Some(Default::default()),
            replicas: Some(ReplicasReport {
                servers: vec![ReplicaReport {
                    address: "a:1".into(),
                    behind_entries: Some(2),
                    held_bytes: Some(3),
                    ..ReplicaReport::default()
                }],
                ..ReplicasReport::default()
            }),
            domains: vec![DomainReport { name: "stock".into(), ..DomainReport::default() }],
            ..Report::default()
        };
        report.destage.parked_groups = Some(0);
        let text = Exporter::new(EXPORTS).render(&report);
        for Family { name, kind, help } in families() {
            assert!(text.contains(&format!("# HELP {name} {help}\n")), "{name} in {text}");
            assert_eq!(kind == Kind::Counter, name.ends_with("_total"), "{name}");
        }
        assert!(text.contains("destage_replica_behind_entries{server=\"a:1\"} 2\n"), "{text}");
        assert!(text.contains("destage_domain_dirty_groups{domain=\"stock\"} 0\n"), "{text}");
    }
}
