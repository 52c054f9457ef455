//! What advice says of itself.

use destage_runtime::human::seconds;
use destage_runtime::units::Interval;
use destage_sim::advise::{Choice, Judged, Tuned};
use destage_sim::replay::RecordedRun;

/// That what is in force stays, but for D as it was asked for.
pub(super) fn stays(recorded: Option<&RecordedRun>, kept: &Judged, fastest: f64) -> String {
    let bound = kept.report.settings.flash.staleness;
    let before = recorded.map(|run| Interval(run.policy.staleness));
    let but = before.filter(|before| *before != bound);
    let but = but.map(|before| format!(", but for D: {bound} instead of {before}"));
    format!(
        "What is in force stays{}. At best requests are predicted to take {} on average: not so much less than was recorded \
         that it counts, for the model errs about the recorded run, too, and so do two runs of the same settings.",
        but.unwrap_or_default(),
        seconds(fastest)
    )
}

/// Why other settings are advised than those of the first candidate.
pub(super) fn tuning(tuned: &Tuned) -> Vec<String> {
    let taken = tuned.choices.iter().filter(|choice| choice.is_taken);
    let taken: Vec<&str> = taken.map(|choice| choice.what.as_str()).collect();
    if taken.is_empty() {
        return Vec::new();
    }
    vec![format!(
        "With {} its requests take {} on average instead of {}.",
        taken.join(" and "),
        seconds(tuned.best.mean()),
        seconds(tuned.base.mean())
    )]
}

pub(super) fn told(choice: &Choice) -> String {
    let percent = |ratio: f64| format!("{:+.1} %", (ratio - 1.0) * 100.0);
    format!(
        "{}: mean {} ({}), requests that write at the origin {}{}{}",
        choice.what,
        seconds(choice.mean_seconds),
        percent(choice.mean_ratio),
        percent(choice.origin_writes_ratio),
        if choice.misses.is_empty() {
            String::new()
        } else {
            format!("; misses: {}", choice.misses.join("; "))
        },
        if choice.is_taken { "; taken" } else { "" }
    )
}
