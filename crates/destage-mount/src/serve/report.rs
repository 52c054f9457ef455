//! What the mount tells of itself.

use crate::engine::Front;
use destage_core::Time;
use destage_engine::Drive;
use destage_runtime::status::Report;

/// Everything.
pub(super) fn report(front: &Front, started: Time, now: Time, origin: &str) -> Report {
    let status = front.core().status();
    let mut report = Report::from_core("mount", &status, front.policy());
    report.uptime_seconds = now.since(started).as_secs_f64();
    report.origin.description = origin.to_owned();
    report.origin.connected = front.counted.origin_error.is_none();
    report.origin.last_error.clone_from(&front.counted.origin_error);
    report.clients.waiting = front.waiting() as u64;
    report.clients.commands_total = front.counted.requests;
    report.clients.errors_total = front.counted.errors;
    let journal = front.journal().status();
    report.journal.segments = journal.segments as u64;
    report.journal.bytes = journal.bytes;
    report.journal.recovered_groups_at_start = front.counted.recovered_groups;
    report.journal.cut_bytes_at_start = front.counted.cut_bytes;
    report.destage.changes_total = status.destaged;
    report.destage.rows_total = front.counted.files_written + front.counted.names_changed;
    // No group is ever rejected: what others have changed is a conflict, which is kept.
    (report.policy.on_reject, report.policy.parked_groups_max) = (None, None);
    report.policy.parked_per_minute_max = None;
    (report.destage.rejected_total, report.destage.parked_groups) = (None, None);
    if front.counted.conflicts > 0 {
        report.warnings.push(format!(
            "{} conflicts were kept: see 'destage mount conflicts list'",
            front.counted.conflicts
        ));
    }
    if let Some(reason) = front.stopped() {
        report.mode = "stopped".into();
        report.warnings.push(format!(
            "stopped ({reason:?}): end it, see to the journal's disk, and start again"
        ));
    }
    if front.is_frozen() {
        report.warnings.push("frozen: changes wait for 'destage mount thaw'".into());
    }
    report.finish()
}
