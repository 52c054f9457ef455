//! The rows of a sweep for people and programs.

use super::Done;
use crate::error::CliError;
use crate::sim::report::{labelled, named, quoted};
use destage_runtime::exit;
use destage_runtime::human::{bytes, count, percent, seconds};
use destage_runtime::units::{Bytes, Interval};
use destage_sim::report::{Axis, Chart, Mark, Page, Scale, Series};
use destage_sim::sweep::{cell, columns, shown};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// A number of a row that people look at first.
struct Metric {
    /// Where it is in the row.
    path: &'static str,
    /// What it is.
    title: &'static str,
    show: fn(f64) -> String,
}

const METRICS: [Metric; 15] = [
    Metric::new("request_hit_ratio", "requests that hit", percent),
    Metric::new("block_hit_ratio", "block accesses that hit", percent),
    Metric::new("byte_hit_ratio", "bytes that hit", percent),
    Metric::new("evicted_blocks", "blocks evicted", whole),
    Metric::new("evicted_dirty_blocks", "dirty blocks evicted", whole),
    Metric::new("reads_latency_mean", "mean read", seconds),
    Metric::new("reads_latency_p99", "p99 read", seconds),
    Metric::new("writes_latency_mean", "mean write", seconds),
    Metric::new("writes_latency_p99", "p99 write", seconds),
    Metric::new("origin_write_blocks", "blocks written at the origin", whole),
    Metric::new("destage_staleness_max", "oldest undecided write", seconds),
    Metric::new("losses_lost_writes_max", "most writes lost", whole),
    Metric::new("losses_staleness_seconds_max", "origin behind at most", seconds),
    Metric::new("losses_order_violations_crashes", "crashes out of order", whole),
    Metric::new("losses_epoch_violations_crashes", "out of order across flushes", whole),
];

impl Metric {
    const fn new(path: &'static str, title: &'static str, show: fn(f64) -> String) -> Self {
        Self { path, title, show }
    }
}

fn whole(value: f64) -> String {
    count(value as u64)
}

/// Lines of a chart that can be told apart.
const LINES_MAX: usize = 10;

impl Done {
    fn number(&self, path: &str) -> Option<f64> {
        columns(&self.row).into_iter().find(|(name, _)| name == path)?.1.as_f64()
    }

    fn parameter(&self, name: &str) -> String {
        self.parameters.get(name).map(shown).unwrap_or_default()
    }
}

/// Those that the rows have.
fn metrics(done: &[Done]) -> Vec<&'static Metric> {
    let has = |metric: &&Metric| done.iter().any(|done| done.number(metric.path).is_some());
    METRICS.iter().filter(has).collect()
}

/// The parameters that vary and the numbers looked at first.
fn cells(varied: &[String], done: &[Done]) -> (Vec<String>, Vec<Vec<String>>) {
    let metrics = metrics(done);
    let titles = metrics.iter().map(|metric| metric.title.to_owned());
    let header = varied.iter().cloned().chain(titles).collect();
    let row = |done: &Done| {
        let parameters = varied.iter().map(|name| done.parameter(name));
        let numbers = metrics.iter().map(|metric| {
            done.number(metric.path).map_or_else(|| "-".to_owned(), |value| (metric.show)(value))
        });
        parameters.chain(numbers).collect()
    };
    (header, done.iter().map(row).collect())
}

/// What is in force in the first run, with labels.
type InForce = [(&'static str, String)];

/// For people.
pub(super) fn table(in_force: &InForce, varied: &[String], done: &[Done]) -> String {
    let mut head = labelled(in_force);
    if !varied.is_empty() {
        head.push_str(&format!("in the first run; varied: {}\n", varied.join(", ")));
    }
    let (header, rows) = cells(varied, done);
    let all = || std::iter::once(&header).chain(&rows);
    let width = |column: usize| {
        all().map(|row| row.get(column).map_or(0, |cell| cell.chars().count())).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..header.len()).map(width).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:>width$}"));
        cells.collect::<Vec<_>>().join("  ") + "\n"
    };
    let rows: String = all().map(line).collect();
    format!("{head}\n{rows}")
}

/// For programs: what is in force, the parameters as the grid names them, then everything that the rows hold.
pub(super) fn csv(done: &[Done]) -> String {
    let mut names: Vec<String> = Vec::new();
    let rows: Vec<BTreeMap<String, String>> = done.iter().map(row_cells).collect();
    for done in done {
        let in_force = columns(&in_force(done)).into_iter().map(|(name, _)| name);
        let parameters = done.parameters.keys().cloned();
        let values = columns(&done.row).into_iter().map(|(name, _)| name);
        for name in in_force.chain(parameters).chain(values) {
            if !names.contains(&name) {
                names.push(name);
            }
        }
    }
    let line = |row: &BTreeMap<String, String>| {
        let quoted_cell =
            |name: &String| row.get(name).map_or_else(String::new, |text| quoted(text));
        names.iter().map(quoted_cell).collect::<Vec<_>>().join(",") + "\n"
    };
    let header = names.iter().map(|name| quoted(name)).collect::<Vec<_>>().join(",") + "\n";
    header + &rows.iter().map(line).collect::<String>()
}

fn row_cells(done: &Done) -> BTreeMap<String, String> {
    let values = columns(&in_force(done)).into_iter().chain(columns(&done.row));
    let values = values.map(|(name, value)| (name, cell(&value)));
    // Where the row has the same name, what the grid wrote is shown.
    let parameters = done.parameters.iter().map(|(name, value)| (name.clone(), shown(value)));
    values.chain(parameters).collect()
}

/// For programs.
pub(super) fn json(done: &[Done]) -> Value {
    let row = |done: &Done| {
        let mut row = in_force(done);
        row["parameters"] = json!(done.parameters);
        row["result"] = done.row.clone();
        row
    };
    done.iter().map(row).collect()
}

/// As an object, so that its columns have names of their own.
fn in_force(done: &Done) -> Value {
    json!({ "in_force": named(&done.in_force) })
}

/// A page with charts.
pub(super) fn html(
    trace: &str,
    in_force: &InForce,
    varied: &[String],
    done: &[Done],
) -> Result<String, CliError> {
    let mut page = Page::new(&format!("Simulations on {trace}"));
    page.paragraph(&format!(
        "The requests recorded in {trace} were run through {} simulated caches that stand between a program and a slow store. A \
         request or block hits if the cache held it; what hits needs no trip to the store.",
        count(done.len() as u64),
    ));
    page.paragraph(match varied {
        [] => "In force:",
        _ => "In force in the first of them:",
    });
    page.list(&in_force.iter().map(|(label, text)| format!("{label}: {text}")).collect::<Vec<_>>());
    let fixed: Vec<String> = done.first().map_or_else(Vec::new, |done| {
        let same = done.parameters.iter().filter(|(name, _)| !varied.contains(name));
        same.map(|(name, value)| format!("{name}: {}", shown(value))).collect()
    });
    if !fixed.is_empty() {
        page.paragraph("The same in all of them:");
        page.list(&fixed);
    }
    for metric in metrics(done) {
        for chart in charts(metric, varied, done) {
            let svg = chart.svg().map_err(|error| CliError::new(exit::BUG, error))?;
            page.svg(&svg);
        }
    }
    page.heading("All runs");
    let (header, rows) = cells(varied, done);
    let header: Vec<&str> = header.iter().map(String::as_str).collect();
    page.table(&header, &rows, None);
    Ok(page.html())
}

/// A kind of amount that can lie along an axis.
#[derive(Clone, Copy)]
struct Kind {
    parse: fn(&str) -> Option<f64>,
    show: fn(f64) -> String,
}

const KINDS: [Kind; 3] = [
    Kind {
        parse: |text| text.parse().ok(),
        show: |value| if value >= 1_000.0 { count(value as u64) } else { format!("{value}") },
    },
    Kind {
        parse: |text| text.parse::<Bytes>().ok().map(|bytes| bytes.get() as f64),
        show: |value| bytes(value as u64),
    },
    Kind {
        parse: |text| text.parse::<Interval>().ok().map(|interval| interval.span().as_secs_f64()),
        show: seconds,
    },
];

/// The parameter along the horizontal axis: the one with most values of those that are amounts.
fn along<'a>(varied: &'a [String], done: &[Done]) -> Option<(&'a String, Kind)> {
    let values = |name: &String| {
        let mut values: Vec<String> = done.iter().map(|done| done.parameter(name)).collect();
        values.sort_unstable();
        values.dedup();
        values
    };
    let kind = |name: &String| {
        let values = values(name);
        KINDS.into_iter().find(|kind| values.iter().all(|value| (kind.parse)(value).is_some()))
    };
    let amounts = varied.iter().filter_map(|name| Some((name, kind(name)?)));
    amounts.max_by_key(|(name, _)| values(name).len())
}

/// Charts of a number, with at most so many lines each.
fn charts(metric: &Metric, varied: &[String], done: &[Done]) -> Vec<Chart> {
    let Some((along, kind)) = along(varied, done) else { return Vec::new() };
    let mut series: Vec<Series> = Vec::new();
    for done in done {
        let others = varied.iter().filter(|name| *name != along);
        let name: Vec<_> = others.map(|name| format!("{name} {}", done.parameter(name))).collect();
        let name = name.join(", ");
        let point = (kind.parse)(&done.parameter(along)).zip(done.number(metric.path));
        match series.iter_mut().find(|series| series.name == name) {
            Some(series) => series.points.extend(point),
            None => {
                let points = point.into_iter().collect();
                series.push(Series { name, points, mark: Mark::Line });
            }
        }
    }
    for series in &mut series {
        series.points.sort_by(|(a, _), (b, _)| a.total_cmp(b));
    }
    let has_zero = series.iter().flat_map(|series| &series.points).any(|&(x, _)| x <= 0.0);
    let scale = if has_zero { Scale::Linear } else { Scale::Logarithmic };
    let parts = series.chunks(LINES_MAX).count();
    let chart = |(number, lines): (usize, &[Series])| Chart {
        title: match parts {
            1 => format!("{}, by {along}", metric.title),
            _ => format!("{}, by {along} ({} of {parts})", metric.title, number + 1),
        },
        x: Axis { label: along.clone(), scale: scale.clone(), format: kind.show },
        y: Axis { label: metric.title.into(), scale: Scale::Linear, format: metric.show },
        series: lines.to_vec(),
    };
    series.chunks(LINES_MAX).enumerate().map(chart).collect()
}
