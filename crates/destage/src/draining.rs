//! How far a drain is, shown while a command waits for it.

use crate::admin::AdminArgs;
use destage_runtime::progress::Progress;
use destage_runtime::status::Report;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// How often the server is asked.
const EVERY: Duration = Duration::from_millis(500);
/// How often it is looked whether the wait is over.
const LOOK_EVERY: Duration = Duration::from_millis(25);

/// Does the work, which waits, and shows meanwhile how many writes of these volumes (or of all) are left.
pub(crate) fn shown<T>(admin: &AdminArgs, volumes: &[String], work: impl FnOnce() -> T) -> T {
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let (watched, is_ended) = (admin.clone(), &is_over);
        scope.spawn(move || watch(&watched, volumes, is_ended));
        let result = work();
        is_over.store(true, Ordering::Relaxed);
        result
    })
}

fn watch(admin: &AdminArgs, volumes: &[String], is_over: &AtomicBool) {
    let mut bar: Option<(Progress, u64)> = None;
    while !is_over.load(Ordering::Relaxed) {
        // What cannot be shown is no reason to end: the command itself says what is wrong.
        if let Some(left) = left(admin, volumes) {
            let (bar, first) = bar.get_or_insert_with(|| (Progress::new("draining", left), left));
            if left > *first {
                *first = left;
                bar.set_total(left);
            }
            bar.set(*first - left);
        }
        let mut waited = Duration::ZERO;
        while waited < EVERY && !is_over.load(Ordering::Relaxed) {
            thread::sleep(LOOK_EVERY);
            waited += LOOK_EVERY;
        }
    }
    if let Some((bar, _)) = bar {
        bar.finish();
    }
}

fn left(admin: &AdminArgs, volumes: &[String]) -> Option<u64> {
    let report: Report = serde_json::from_str(&admin.get("/status").ok()?).ok()?;
    if report.volumes.is_empty() {
        return Some(report.writes.dirty_groups);
    }
    let chosen = |name: &String| volumes.is_empty() || volumes.contains(name);
    let of_volumes = report.volumes.iter().filter(|volume| chosen(&volume.name));
    Some(of_volumes.map(|volume| volume.dirty_writes).sum())
}
