//! What the paper says of its figures, and whether what was measured agrees.

use serde::Deserialize;

use crate::Result;
use crate::block::steady::{Measured, Samples};
use crate::report::Table;

/// The statements, with where they come from.
const TOLERANCES: &str = include_str!("../../tolerances.toml");

#[derive(Debug, Deserialize)]
struct Tolerances {
    check: Vec<Check>,
}

/// One statement.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Check {
    figure: u32,
    says: String,
    of: String,
    over: String,
    pub(super) measured: Measured,
    points: Vec<String>,
    over_point: Option<String>,
    min: f64,
    max: f64,
}

/// The statements on one figure.
///
/// # Errors
///
/// The file of tolerances is damaged.
pub(super) fn checks(figure: u32) -> Result<Vec<Check>> {
    let all: Tolerances = toml::from_str(TOLERANCES)?;
    Ok(all.check.into_iter().filter(|check| check.figure == figure).collect())
}

/// A table of every statement on a figure with the measured ratio; those that are outside say so.
///
/// # Errors
///
/// The file of tolerances is damaged, or names what was not measured, although it is not among `missing`.
pub(super) fn table(figure: u32, samples: &Samples, missing: &[String]) -> Result<Table> {
    let mut rows = Vec::new();
    for check in checks(figure)? {
        for point in &check.points {
            rows.push(if missing.contains(point) {
                check.cells(point, "-", "not measured")
            } else {
                check.row(point, samples)?
            });
        }
    }
    let columns = ["the paper says", "at", "ratio", "measured", "expected", "verdict"];
    Ok(Table {
        title: format!("Figure {figure}: against the paper"),
        note: String::new(),
        columns: columns.map(str::to_owned).into(),
        rows,
    })
}

impl Check {
    fn row(&self, point: &str, samples: &Samples) -> Result<Vec<String>> {
        let over_point = self.over_point.as_deref().unwrap_or(point);
        let missing = |policy: &str, at: &str| format!("nothing was measured of {policy} at {at}");
        let of = samples
            .median(point, &self.of, self.measured)
            .ok_or_else(|| missing(&self.of, point))?;
        let over = samples
            .median(over_point, &self.over, self.measured)
            .ok_or_else(|| missing(&self.over, over_point))?;
        let ratio = of / over;
        let within = (self.min..=self.max).contains(&ratio);
        let verdict = if within { "agrees" } else { "**deviates**" };
        Ok(self.cells(point, &format!("{ratio:.2}"), verdict))
    }

    fn cells(&self, point: &str, ratio: &str, verdict: &str) -> Vec<String> {
        let what = match self.measured {
            Measured::Rate => "",
            Measured::Written => ", bytes at the origin",
        };
        let beside = self.over_point.as_ref().map_or_else(String::new, |at| format!(" at {at}"));
        vec![
            self.says.clone(),
            point.to_owned(),
            format!("{} / {}{beside}{what}", self.of, self.over),
            ratio.to_owned(),
            format!("{} to {}", self.min, self.max),
            verdict.to_owned(),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::super::file_systems::{FIGURE_15_GB, point as name};
    use super::super::{FIGURE_13_GB, FIGURE_14_MB};
    use super::*;
    use crate::block::bench::POLICIES;
    use crate::block::clients::ReadTimes;
    use crate::block::files::FileSystem;
    use crate::block::steady::Sample;
    use crate::block::streams::MIXES;

    #[test]
    fn every_statement_is_about_something_measured() {
        for figure in [12, 13, 14, 15] {
            let checks = checks(figure).expect("readable");
            assert!(!checks.is_empty(), "figure {figure}");
            for check in checks {
                let known = |point: &String| match figure {
                    12 => MIXES.iter().any(|mix| mix.name == point),
                    13 => FIGURE_13_GB.iter().any(|gb| gb.to_string() == *point),
                    14 => FIGURE_14_MB.iter().any(|mb| mb.to_string() == *point),
                    _ => FileSystem::PAPER
                        .iter()
                        .any(|&it| FIGURE_15_GB.iter().any(|&gb| name(it, gb) == *point)),
                };
                assert!(check.points.iter().chain(&check.over_point).all(known), "{check:?}");
                assert!([&check.of, &check.over].iter().all(|it| POLICIES.contains(&it.as_str())));
                assert!(check.min < check.max, "{check:?}");
            }
        }
    }

    #[test]
    fn what_is_outside_deviates() {
        let mut samples = Samples::default();
        let sample = |per_second| Sample { per_second, written: 1.0, reads: ReadTimes::default() };
        for (policy, rate) in [("write-through", 100.0), ("ordered", 80.0), ("journaled", 300.0)] {
            samples.add("PostMark", policy, sample(rate));
        }
        let checks = checks(12).expect("readable");
        let verdict = |of: &str| {
            let check = checks.iter().find(|check| check.of == of).expect("a statement");
            check.row("PostMark", &samples).expect("measured").pop()
        };
        assert_eq!(verdict("ordered").as_deref(), Some("**deviates**"));
        assert_eq!(verdict("journaled").as_deref(), Some("agrees"));
    }
}
