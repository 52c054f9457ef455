//! Figures: pairs of runs, their ratios, their targets.

use serde::Serialize;

use crate::stats::Spread;

/// One run of one side.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct Run {
    pub(crate) requests: u64,
    pub(crate) per_second: f64,
    /// CPU time of the server's processes per request, microseconds.
    pub(crate) cpu_us: f64,
    /// CPU time of the origin's processes per request, where the origin is a server.
    pub(crate) origin_cpu_us: Option<f64>,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    /// The largest staleness seen during the run, seconds.
    pub(crate) staleness_max_seconds: Option<f64>,
    /// Rows per destaged batch during the run.
    pub(crate) batch_groups: Option<f64>,
    /// Bytes written at the origin for each byte written by the client.
    pub(crate) origin_writes: Option<f64>,
}

impl Run {
    /// All CPU time that a request costs on the servers' side.
    fn cpu_all_us(&self) -> f64 {
        self.cpu_us + self.origin_cpu_us.unwrap_or(0.0)
    }
}

/// What a figure should reach; medians are compared.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct Target {
    pub(crate) ratio_min: Option<f64>,
    pub(crate) cpu_ratio_max: Option<f64>,
    pub(crate) per_second_min: Option<f64>,
}

impl Target {
    pub(crate) const NONE: Self =
        Self { ratio_min: None, cpu_ratio_max: None, per_second_min: None };

    pub(crate) fn ratio(min: f64) -> Self {
        Self { ratio_min: Some(min), ..Self::NONE }
    }
}

/// One line of the table.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Figure {
    pub(crate) group: &'static str,
    pub(crate) case: String,
    pub(crate) peer: String,
    pub(crate) ours: Vec<Run>,
    /// As many as `ours`, or none where there is no peer.
    pub(crate) theirs: Vec<Run>,
    pub(crate) target: Target,
}

impl Figure {
    pub(crate) fn ratio(&self) -> Option<Spread> {
        let pairs = self.ours.iter().zip(&self.theirs);
        Spread::of(pairs.map(|(ours, theirs)| ours.per_second / theirs.per_second))
    }

    pub(crate) fn cpu_ratio(&self) -> Option<Spread> {
        let pairs = self.ours.iter().zip(&self.theirs).filter(|(_, theirs)| theirs.cpu_us > 0.0);
        Spread::of(pairs.map(|(ours, theirs)| ours.cpu_all_us() / theirs.cpu_all_us()))
    }

    pub(crate) fn reached(&self) -> Option<bool> {
        let median = |spread: Option<Spread>| spread.map_or(f64::NAN, |s| s.median);
        let per_second = median(Spread::of(self.ours.iter().map(|run| run.per_second)));
        let checks = [
            self.target.ratio_min.map(|min| median(self.ratio()) >= min),
            self.target.cpu_ratio_max.map(|max| median(self.cpu_ratio()) <= max),
            self.target.per_second_min.map(|min| per_second >= min),
        ];
        checks.into_iter().flatten().reduce(|all, one| all && one)
    }

    /// The table's cells.
    pub(crate) fn cells(&self) -> [String; 9] {
        let dash = || "-".to_owned();
        let ratio = |spread: Option<Spread>| {
            spread.map_or_else(dash, |s| format!("{:.2} [{:.2}, {:.2}]", s.median, s.min, s.max))
        };
        let rate = |runs: &[Run]| {
            Spread::of(runs.iter().map(|run| run.per_second))
                .map_or_else(dash, |s| thousands(s.median))
        };
        [
            self.case.clone(),
            rate(&self.ours),
            rate(&self.theirs),
            ratio(self.ratio()),
            cpu(&self.ours),
            cpu(&self.theirs),
            ratio(self.cpu_ratio()),
            self.target_text(),
            match self.reached() {
                None => dash(),
                Some(true) => "yes".into(),
                Some(false) => "**no**".into(),
            },
        ]
    }

    fn target_text(&self) -> String {
        let parts: Vec<String> = [
            self.target.ratio_min.map(|min| format!("≥ {min}x")),
            self.target.cpu_ratio_max.map(|max| format!("CPU ≤ {max}x")),
            self.target.per_second_min.map(|min| format!("≥ {}/s", thousands(min))),
        ]
        .into_iter()
        .flatten()
        .collect();
        if parts.is_empty() { "-".into() } else { parts.join(", ") }
    }

    /// What the table has no room for: latency, staleness, batch sizes.
    pub(crate) fn detail(&self) -> String {
        let median = |runs: &[Run], of: fn(&Run) -> Option<f64>| {
            Spread::of(runs.iter().filter_map(of)).map(|s| s.median)
        };
        let mut parts = Vec::new();
        for (side, runs) in [("ours", &self.ours), ("peer", &self.theirs)] {
            if let (Some(p50), Some(p99)) =
                (median(runs, |run| Some(run.p50_us)), median(runs, |run| Some(run.p99_us)))
                && p50 > 0.0
            {
                parts.push(format!("{side} p50 {p50:.0} µs, p99 {p99:.0} µs"));
            }
        }
        let largest = self.ours.iter().filter_map(|run| run.staleness_max_seconds).reduce(f64::max);
        parts.extend(largest.map(|s| format!("staleness at most {s:.2} s")));
        let batch = median(&self.ours, |run| run.batch_groups);
        parts.extend(batch.map(|size| format!("{size:.0} groups per batch")));
        for (side, runs) in [("ours", &self.ours), ("peer", &self.theirs)] {
            let written = median(runs, |run| run.origin_writes);
            parts.extend(written.map(|it| format!("{side} {it:.2} bytes at the origin per byte")));
        }
        parts.join("; ")
    }
}

/// Memory per item beyond its payload.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Memory {
    pub(crate) what: String,
    pub(crate) items: u64,
    pub(crate) payload_bytes: f64,
    pub(crate) bytes: f64,
    pub(crate) limit_beyond: Option<f64>,
}

impl Memory {
    pub(crate) fn beyond(&self) -> f64 {
        self.bytes - self.payload_bytes
    }

    pub(crate) fn reached(&self) -> Option<bool> {
        self.limit_beyond.map(|limit| self.beyond() <= limit)
    }
}

/// The server's own CPU time, and the origin's after a plus.
fn cpu(runs: &[Run]) -> String {
    // What has no process of its own, such as a file, has no figure either.
    let measured = runs.iter().map(|run| run.cpu_us).filter(|&us| us > 0.0);
    let Some(own) = Spread::of(measured) else { return "-".into() };
    match Spread::of(runs.iter().filter_map(|run| run.origin_cpu_us)) {
        None => format!("{:.2}", own.median),
        Some(origin) => format!("{:.2} + {:.2}", own.median, origin.median),
    }
}

/// `1234567` as `1,234,567`.
pub(crate) fn thousands(value: f64) -> String {
    let digits = format!("{:.0}", value.max(0.0));
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(per_second: f64, cpu_us: f64) -> Run {
        Run { per_second, cpu_us, ..Run::default() }
    }

    #[test]
    fn ratios_are_taken_pair_by_pair() {
        let figure = Figure {
            group: "test",
            case: "case".into(),
            peer: "peer".into(),
            ours: vec![run(100.0, 1.0), run(300.0, 2.0), run(90.0, 1.0)],
            theirs: vec![run(100.0, 2.0), run(100.0, 2.0), run(100.0, 2.0)],
            target: Target { ratio_min: Some(1.0), cpu_ratio_max: Some(0.9), ..Target::NONE },
        };
        let ratio = figure.ratio().expect("three pairs");
        assert_eq!((ratio.median, ratio.min, ratio.max), (1.0, 0.9, 3.0));
        assert_eq!(figure.cpu_ratio().expect("three pairs").median, 0.5);
        assert_eq!(figure.reached(), Some(true));
    }

    #[test]
    fn a_target_without_a_figure_is_not_reached() {
        let figure = Figure {
            group: "test",
            case: "case".into(),
            peer: "peer".into(),
            ours: vec![],
            theirs: vec![],
            target: Target::ratio(1.0),
        };
        assert_eq!(figure.reached(), Some(false));
        assert_eq!(Figure { target: Target::NONE, ..figure }.reached(), None);
    }

    #[test]
    fn thousands_are_grouped() {
        assert_eq!(thousands(7.4), "7");
        assert_eq!(thousands(1_234_567.0), "1,234,567");
        assert_eq!(thousands(100_000.0), "100,000");
    }
}
