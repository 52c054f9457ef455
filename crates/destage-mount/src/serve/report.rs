//! What the mount tells of itself.

use crate::engine::Front;
use destage_core::Time;
use destage_engine::Drive;
use destage_runtime::policy;
use destage_runtime::status::Report;

/// Everything.
pub(super) fn report(front: &mut Front, started: Time, now: Time, origin: &str) -> Report {
    let status = front.core().status();
    let mut report = Report::from_core("mount", &status, front.policy());
    report.uptime_seconds = now.since(started).as_secs_f64();
    report.origin.description = origin.to_owned();
    front.add_to(&mut report);
    if report.journal.disk_full == Some(true) && front.stopped().is_none() {
        report.mode = policy::DISK_FULL.into();
    }
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
