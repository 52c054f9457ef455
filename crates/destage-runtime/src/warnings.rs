//! What the numbers of a report mean for the user, and what to do about it.

use crate::human;
use crate::policy::{COPIES_FALLBACK, DISK_FULL, TOO_FEW_COPIES};
use crate::status::{HaltReport, Report};

/// The warnings that follow from the numbers alone.
pub fn of(report: &Report) -> Vec<String> {
    let mut out = Vec::new();
    mode(report, &mut out);
    let parked = report.destage.parked_groups.unwrap_or(0);
    let full = report.policy.parked_groups_max.filter(|&most| most > 0 && parked >= most);
    if let Some(parked_max) = full.filter(|_| report.paused) {
        out.push(format!(
            "destaging is paused: {parked} writes are parked, and at {parked_max} it pauses by itself; deciding on some \
             ('destage parked') or 'destage resume' lets it go on"
        ));
    } else if report.paused {
        out.push("destaging is paused; 'destage resume' ends it".into());
    }
    if report.origin.down {
        let since = report.origin.failing_for_seconds.map(human::seconds);
        let error = report.origin.last_error.as_deref().unwrap_or("no details");
        out.push(format!(
            "the origin has been failing for {}: {error}",
            since.as_deref().unwrap_or("an unknown time")
        ));
    }
    halted(report, &mut out);
    bounds(report, &mut out);
    ended(report, &mut out);
    out
}

/// Clocks that differ by more are told of, in seconds.
const SKEW_MAX: f64 = 1.0;

fn ended(report: &Report, out: &mut Vec<String>) {
    let Some(ended) = &report.ended else { return };
    let ahead = ended.clock_ahead_seconds;
    if ahead.abs() > SKEW_MAX {
        let by = human::seconds(ahead.abs());
        let how = if ahead > 0.0 { "ahead of" } else { "behind" };
        out.push(format!(
            "the clock of this process is {by} {how} the origin's: rows end by this one, and are deleted once both agree. Set \
             both right, as by NTP, and restart"
        ));
    }
    if ended.undeleted > 0 {
        out.push(format!(
            "{} row(s) that have ended are still at the origin although their deletion was carried out: a trigger, a rule or \
             row-level security keeps them; have that let deletions by Destage's user through",
            human::count(ended.undeleted)
        ));
    }
}

fn mode(report: &Report, out: &mut Vec<String>) {
    let reached = reached(report);
    let message = match report.mode.as_str() {
        "throttled" => {
            "writes are delayed: dirty bytes are above the low mark (--dirty-limit)".to_owned()
        }
        "full" => format!("writes wait or fail (--at-limit): {reached}"),
        "fallback" => format!("writes go through to the origin meanwhile: {reached}"),
        COPIES_FALLBACK => "too few servers of the log take writes: each is acknowledged once the origin has it, and not faster \
                            (--at-limit write-through), until there are enough; see 'replicas'"
            .to_owned(),
        "staleness-exceeded" => {
            "D exceeded: no write is acknowledged until the origin catches up (--staleness)"
                .to_owned()
        }
        DISK_FULL => {
            "the journal's disk is full: no write is acknowledged until there is space; free some"
                .to_owned()
        }
        TOO_FEW_COPIES => format!(
            "too few servers of the log can be used: {} until there are enough; see 'replicas'",
            below_copies(&report.policy.at_limit)
        ),
        "stopped" => {
            "stopped: fenced by another owner, or the journal failed; see the log".to_owned()
        }
        _ => return,
    };
    out.push(message);
}

/// What becomes of writes that too few servers of the log can take, by the value of `--at-limit`.
fn below_copies(at_limit: &str) -> String {
    match at_limit {
        "fail" => "writes are refused (--at-limit fail)".to_owned(),
        // Whoever takes over would not know the origin's writes from its own log: which tokens of DESTAGE ONCE they had, for one.
        "write-through" => "writes wait, since for --at-limit write-through more than half of the servers have to take \
                            them,"
            .to_owned(),
        other => format!("writes wait (--at-limit {other})"),
    }
}

/// Which limit it is.
fn reached(report: &Report) -> &'static str {
    let most = report.policy.journal_bytes_max;
    if most > 0 && report.journal.dirty_bytes >= most {
        "the journal's limit is reached (--journal-size)"
    } else {
        "the dirty limit is reached (--dirty-limit)"
    }
}

fn halted(report: &Report, out: &mut Vec<String>) {
    for HaltReport { domain, write, reason } in &report.halted {
        out.push(match write {
            Some(write) => format!(
                "the ordering domain '{domain}' has halted at write {write}, which the origin rejected (on_reject = stop): \
                 {reason}. Mend what the origin lacks and 'destage resume', or park the write: 'destage resume --park'"
            ),
            None => format!(
                "the ordering domain '{domain}' has halted: {reason} (--parked-per-minute). See 'destage parked list', \
                 then 'destage resume'"
            ),
        });
    }
}

fn bounds(report: &Report, out: &mut Vec<String>) {
    let parked = report.destage.parked_groups.unwrap_or(0);
    if parked > 0 {
        out.push(format!(
            "{} write group(s) that the origin rejected are parked; see 'destage parked list'",
            human::count(parked)
        ));
    }
    if let Some(bound) = report.policy.staleness_seconds
        && report.rpo.total_loss_seconds > bound * 0.8
        && report.mode != "staleness-exceeded"
    {
        out.push(format!(
            "staleness {} is near its bound D = {}: the origin does not keep up",
            human::seconds(report.rpo.total_loss_seconds),
            human::seconds(bound)
        ));
    }
    if report.journal.cut_bytes_at_start > 0 {
        out.push(format!(
            "a torn tail of {} was cut from the journal at the start; nothing committed was in it",
            human::bytes(report.journal.cut_bytes_at_start)
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::EndedReport;

    #[test]
    fn a_healthy_report_has_no_warnings() {
        let mut report = Report { mode: "normal".into(), ..Report::default() };
        report.policy.staleness_seconds = Some(30.0);
        assert_eq!(of(&report), Vec::<String>::new());
    }

    #[test]
    fn writes_that_go_through_name_the_limit_that_is_reached() {
        let mut report = Report { mode: "fallback".into(), ..Report::default() };
        (report.policy.journal_bytes_max, report.journal.dirty_bytes) = (1_000, 999);
        assert!(of(&report)[0].contains("--dirty-limit"));
        report.journal.dirty_bytes = 1_000;
        assert!(of(&report)[0].contains("--journal-size"));
    }

    #[test]
    fn a_pause_at_the_most_parked_writes_is_told_apart() {
        let mut report = Report { paused: true, ..Report::default() };
        (report.destage.parked_groups, report.policy.parked_groups_max) = (Some(9), Some(10));
        assert!(of(&report)[0].starts_with("destaging is paused; 'destage resume'"));
        report.destage.parked_groups = Some(10);
        let told = &of(&report)[0];
        assert!(told.contains("10 writes are parked") && told.contains("destage parked"), "{told}");
    }

    #[test]
    fn each_trouble_is_named_with_what_helps() {
        let mut report = Report { mode: "full".into(), paused: true, ..Report::default() };
        report.origin.down = true;
        report.origin.failing_for_seconds = Some(12.0);
        report.origin.last_error = Some("connection refused".into());
        report.destage.parked_groups = Some(3);
        report.policy.staleness_seconds = Some(30.0);
        report.rpo.total_loss_seconds = 29.0;
        report.journal.cut_bytes_at_start = 2_048;
        let halt = |domain: &str, write| HaltReport {
            domain: domain.into(),
            write,
            reason: "no such parent".into(),
        };
        report.halted = vec![halt("default", Some(7)), halt("stock.1", None)];
        let (undeleted, clock_ahead_seconds) = (4, -90.0);
        report.ended =
            Some(EndedReport { undeleted, clock_ahead_seconds, ..EndedReport::default() });
        let all = of(&report).join("\n");
        for part in [
            "--dirty-limit",
            "destage resume",
            "failing for 12.0 s: connection refused",
            "3 write group(s)",
            "near its bound D = 30.0 s",
            "torn tail of 2.0 KiB",
            "'default' has halted at write 7, which the origin rejected (on_reject = stop): no such parent",
            "destage resume --park",
            "behind the origin's",
            "4 row(s) that have ended are still at the origin",
            "'stock.1' has halted: no such parent (--parked-per-minute)",
        ] {
            assert!(all.contains(part), "{part} in {all}");
        }
    }
}
