//! Histograms in Prometheus' text format. The recorder of the `metrics` facade takes single values only; a report holds counts
//! that were made long before.

use super::Family;
use crate::latency::BUCKET_ENDS;
use crate::status::Latencies;
use std::cell::RefCell;
use std::fmt::Write;

/// One series.
struct Series {
    family: Family,
    labels: String,
    latencies: Latencies,
}

thread_local! {
    /// Of the report that is being rendered on this thread.
    static SERIES: RefCell<Vec<Series>> = const { RefCell::new(Vec::new()) };
}

/// Sets a histogram of the report that is being rendered.
pub fn set(family: Family, labels: &[(&'static str, &str)], latencies: &Latencies) {
    let labels = labels.iter().fold(String::new(), |mut text, (key, value)| {
        let value = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        let _ = write!(text, "{key}=\"{value}\",");
        text
    });
    SERIES.with_borrow_mut(|all| all.push(Series { family, labels, latencies: *latencies }));
}

/// Forgets the last report.
pub(super) fn begin() {
    SERIES.with_borrow_mut(Vec::clear);
}

/// All that were set, one family after the other.
pub(super) fn rendered() -> String {
    let mut all = SERIES.take();
    all.sort_by_key(|series| series.family.name);
    let mut text = String::new();
    let mut last = "";
    for Series { family, labels, latencies } in &all {
        let name = family.name;
        if name != last {
            let _ = writeln!(text, "# HELP {name} {}\n# TYPE {name} histogram", family.help);
            last = name;
        }
        let mut count = 0;
        for (end, found) in BUCKET_ENDS.iter().zip(&latencies.buckets) {
            count += found;
            let _ = writeln!(text, "{name}_bucket{{{labels}le=\"{}\"}} {count}", *end as f64 / 1e9);
        }
        let all = latencies.buckets.iter().sum::<u64>();
        let _ = writeln!(text, "{name}_bucket{{{labels}le=\"+Inf\"}} {all}");
        let labels = match labels.trim_end_matches(',') {
            "" => String::new(),
            labels => format!("{{{labels}}}"),
        };
        let _ = writeln!(
            text,
            "{name}_sum{labels} {}\n{name}_count{labels} {all}",
            latencies.sum_seconds
        );
    }
    text
}
