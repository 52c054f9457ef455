//! Reports from the core's numbers, as JSON and as a table.

use super::*;
use destage_core::{Lsn, Mode, Span};

fn status() -> Status {
    Status {
        mode: Mode::Throttled,
        last: Lsn(120),
        committed: Lsn(119),
        decided: Lsn(100),
        staleness: Span::from_millis(1_500),
        staleness_max: Span::from_secs(4),
        uncommitted_age: Span::from_micros(800),
        dirty_groups: 20,
        dirty_units: 12,
        dirty_bytes: 64 << 10,
        pinned_bytes: 32 << 10,
        limited_bytes: 96 << 10,
        journal_bytes: 80 << 10,
        cache_bytes: 3 << 20,
        cache_units: 5_000,
        parked_groups: 1,
        waiting: 2,
        hits: 990,
        misses: 10,
        evictions: 7,
        writes: 120,
        syncs: 60,
        batches: 4,
        destaged: 99,
        retries: 3,
        rejected: 1,
        refused: 0,
        destage_rate: 1_234.5,
        paused: true,
        origin_down: true,
    }
}

fn report() -> Report {
    let mut report = Report::from_core("serve", &status(), &Policy::default());
    report.uptime_seconds = 11_520.0;
    report.origin.description = "sqlite:shop.db".into();
    report.origin.last_error = Some("database is locked".into());
    report.origin.failing_for_seconds = Some(12.0);
    report.destage.changes_total = 300;
    report.destage.rows_total = 200;
    report.writes.commit_latency.p50_seconds = 0.000_25;
    report.memory.resident_bytes = 50 << 20;
    report.finish()
}

#[test]
fn ratios_come_from_the_counters_and_are_absent_without_any() {
    let report = report();
    assert_eq!(report.cache.hit_ratio, Some(0.99));
    assert_eq!(report.destage.coalescing_ratio, Some(1.5));
    let empty = Report::default().finish();
    assert_eq!((empty.cache.hit_ratio, empty.destage.coalescing_ratio), (None, None));
}

#[test]
fn json_reads_back_and_missing_fields_take_their_default() {
    let report = report();
    let json = serde_json::to_string(&report).unwrap();
    assert_eq!(serde_json::from_str::<Report>(&json).unwrap(), report);
    let part: Report = serde_json::from_str(r#"{"mode":"full","news":1}"#).unwrap();
    assert_eq!(part, Report { mode: "full".into(), ..Report::default() });
}

#[test]
fn the_table_shows_what_matters_first_and_stays_narrow() {
    let table = report().to_table();
    let first: Vec<_> = table.lines().take(2).collect();
    assert_eq!(
        first[0],
        format!("destage {} serve, up 3h 12m, mode throttled, paused", env!("CARGO_PKG_VERSION"))
    );
    assert!(first[1].starts_with("warning: writes are delayed"), "{}", first[1]);
    for line in [
        "  lost if host crashes     800 us now, bound d = 0",
        "  lost with the journal    1.5 s now, 4.0 s at most so far, bound D = 30.0 s",
        "  state                    down, 3 retries",
        "  failing for              12.0 s",
        "  last error               database is locked",
        "  dirty                    20 groups, 12 units, 96.0 KiB of 1.0 GiB",
        "  commit latency           p50 250 us, p99 0, p99.9 0, max 0",
        "  changes per row          1.50",
        "  hits                     99.0 % of 1,000 accesses",
        "  process                  50.0 MiB",
    ] {
        assert!(table.lines().any(|shown| shown == line), "{line}\n{table}");
    }
    for title in
        ["contract", "origin", "clients", "writes", "destage", "cache", "journal", "memory"]
    {
        assert!(table.contains(&format!("\n\n{title}\n")), "{title}");
    }
    let widest = table.lines().map(|line| line.chars().count()).max().unwrap();
    assert!(widest <= 110, "{widest}\n{table}");
}

#[test]
fn the_process_knows_its_memory() {
    let report = Report::from_core("serve", &status(), &Policy::default());
    assert!(report.memory.resident_bytes > 1 << 20);
}

#[test]
fn readiness_is_lost_when_stopped_or_past_the_bound() {
    let with = |mode: &str| Report { mode: mode.into(), ..Report::default() };
    for mode in ["normal", "throttled", "full", "fallback", "copies-fallback"] {
        assert!(with(mode).ready().is_ok());
    }
    for mode in ["staleness-exceeded", "stopped"] {
        assert!(with(mode).ready().is_err());
    }
}
