//! What a mount exports besides what every front end does.

use destage_runtime::metrics::{Exports, Family, Metric, flag, publish_whole};
use destage_runtime::status::{MountReport, Report};

/// For the admin port.
pub const EXPORTS: Exports = Exports { families, publish };

fn families() -> Vec<Family> {
    METRICS.iter().map(Metric::family).collect()
}

fn publish(report: &Report) {
    publish_whole(report);
    METRICS.iter().for_each(|metric| metric.publish(report));
}

fn of(report: &Report, value: fn(&MountReport) -> u64) -> Option<f64> {
    report.mount.as_ref().map(|mount| value(mount) as f64)
}

/// Every metric of a mount's own.
#[rustfmt::skip]
const METRICS: [Metric; 7] = [
    Metric::counter("destage_mount_files_written_total", "Files whose content or attributes went to the origin", |r| of(r, |m| m.files_written_total)),
    Metric::counter("destage_mount_names_changed_total", "Changes of names that went to the origin", |r| of(r, |m| m.names_changed_total)),
    Metric::counter("destage_mount_absorbed_files_total", "Files that were deleted again before they were due at the origin", |r| of(r, |m| m.absorbed_files_total)),
    Metric::counter("destage_mount_conflicts_total", "Conflicts that were kept, since the journal was made", |r| of(r, |m| m.conflicts_total)),
    Metric::counter("destage_mount_origin_errors_total", "Batches that the origin did not take", |r| of(r, |m| m.origin_errors_total)),
    Metric::gauge("destage_mount_room_bytes", "Bytes that may still be written, as far as the origin tells", |r| r.mount.as_ref()?.room_bytes.map(|bytes| bytes as f64)),
    Metric::gauge("destage_mount_frozen", "1 while changes wait for 'destage mount thaw'", |r| r.mount.as_ref().map(|m| flag(m.frozen))),
];

#[cfg(test)]
mod tests {
    use super::*;
    use destage_runtime::metrics::{Exporter, Kind};

    #[test]
    fn what_a_mount_tells_is_exported_beside_what_every_front_end_does() {
        let mount = MountReport { room_bytes: Some(7), conflicts_total: 3, ..Default::default() };
        let text =
            Exporter::new(EXPORTS).render(&Report { mount: Some(mount), ..Report::default() });
        for Family { name, kind, help } in families() {
            assert!(text.contains(&format!("# HELP {name} {help}\n")), "{name} in {text}");
            assert_eq!(kind == Kind::Counter, name.ends_with("_total"), "{name}");
        }
        for part in [
            "destage_mount_room_bytes 7\n",
            "destage_mount_conflicts_total 3\n",
            "destage_journal_fsync_count 0\n",
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
    }
}
