//! The charts of a figure: its tables over their own axes, with what the paper has of them, and numbers that are of no table.

use destage_figures::{Line, Table, Told};
use destage_sim::report::{Axis, Chart, Mark, Scale, Series};

/// What columns are counted in. A column without one of these, after a comma, has the title's.
const UNITS: [&str; 6] = ["ms", "s", "us", "%", "1/s", "blocks"];
/// From so many times on, powers of two tell more of a span of values than the values.
const WIDE: f64 = 50.0;

/// What the paper has of a cell.
pub(super) fn told(table: &Table, row: usize, column: usize) -> impl Iterator<Item = &Told> {
    table.paper.iter().filter(move |told| (told.row, told.column) == (row, column))
}

/// What the paper has, in short; nothing if it has no number.
pub(super) fn range(low: Option<f64>, high: Option<f64>) -> Option<String> {
    match (low.map(plain), high.map(plain)) {
        (Some(low), Some(high)) if low == high => Some(low),
        (Some(low), Some(high)) => Some(format!("{low} to {high}")),
        (Some(low), None) => Some(format!(">= {low}")),
        (None, Some(high)) => Some(format!("<= {high}")),
        (None, None) => None,
    }
}

/// A table over its own axes: a chart for each unit of its columns, or one of points.
pub(super) fn of_table(table: &Table) -> Vec<Chart> {
    if let Some((x, y)) = table.point {
        return vec![of_points(table, x, y)];
    }
    let mut units: Vec<&str> = Vec::new();
    for column in table.header.iter().skip(1) {
        if !units.contains(&unit(column)) {
            units.push(unit(column));
        }
    }
    units.into_iter().map(|unit| over_first(table, unit)).collect()
}

fn unit(column: &str) -> &str {
    let last = column.rsplit_once(", ").map(|(_, last)| last);
    last.filter(|last| UNITS.contains(last)).unwrap_or_default()
}

/// The columns of a unit over the first one. Where that is of numbers, a line joins what is of one column.
fn over_first(table: &Table, unit_of_y: &str) -> Chart {
    let rows = 0..table.rows.len();
    let numbers: Option<Vec<f64>> = rows.clone().map(|row| table.value(row, 0)).collect();
    let (mark, xs, scale_of_x) = match numbers {
        Some(xs) => (Mark::Line, xs.clone(), scale(xs.into_iter())),
        None => {
            let names = table.rows.iter().map(|row| row[0].clone()).collect();
            (Mark::Circle, rows.clone().map(|row| row as f64).collect(), Scale::Names(names))
        }
    };
    let mut series = Vec::new();
    let columns = table.header.iter().enumerate().skip(1);
    for (column, name) in columns.filter(|(_, name)| unit(name) == unit_of_y) {
        let ours = rows.clone().filter_map(|row| Some((xs[row], table.value(row, column)?)));
        series.push(Series { name: name.clone(), points: ours.collect(), mark });
        let told = table.paper.iter().filter(|told| told.column == column);
        let told = told.map(|told| (xs[told.row], told.low, told.high)).collect::<Vec<_>>();
        series.extend(of_paper(&format!("{name}, "), &told));
    }
    let y = Axis { label: unit_of_y.into(), scale: scale(ys(&series)), format: plain };
    let x = Axis { label: table.header[0].clone(), scale: scale_of_x, format: plain };
    Chart { title: table.title.clone(), x, y, series }
}

/// Each row as a point of the series that its first cell names.
fn of_points(table: &Table, x: usize, y: usize) -> Chart {
    let mut series: Vec<Series> = Vec::new();
    for (row, cells) in table.rows.iter().enumerate() {
        let point = table.value(row, x).zip(table.value(row, y));
        match series.iter_mut().find(|series| series.name == cells[0]) {
            Some(series) => series.points.extend(point),
            None => series.push(Series {
                name: cells[0].clone(),
                points: point.into_iter().collect(),
                mark: Mark::Circle,
            }),
        }
    }
    let axis = |column: usize| Axis {
        label: table.header[column].clone(),
        scale: Scale::Linear,
        format: plain,
    };
    Chart { title: table.title.clone(), x: axis(x), y: axis(y), series }
}

/// Numbers by their places in the list, a chart for each unit.
pub(super) fn of_numbers(lines: &[(u32, &Line)], title: &str) -> Vec<Chart> {
    let mut units: Vec<&str> = Vec::new();
    for (_, line) in lines {
        if !units.contains(&line.unit) {
            units.push(line.unit);
        }
    }
    units.into_iter().map(|unit| in_unit(lines, unit, title)).collect()
}

/// The numbers of one unit. They are of different things, so no line joins them.
fn in_unit(lines: &[(u32, &Line)], unit: &str, title: &str) -> Chart {
    let of_unit = || lines.iter().filter(|(_, line)| line.unit == unit);
    let points = of_unit().map(|(at, line)| (f64::from(*at), line.ours)).collect();
    let ours = Series { name: "ours".into(), points, mark: Mark::Circle };
    let theirs = of_unit().map(|(at, line)| (f64::from(*at), line.paper_low, line.paper_high));
    let theirs = of_paper("", &theirs.collect::<Vec<_>>());
    Chart {
        title: title.into(),
        x: Axis { label: "number, as listed".into(), scale: Scale::Linear, format: whole },
        y: Axis {
            label: if unit.is_empty() { "ratio or count".into() } else { unit.into() },
            scale: Scale::Logarithmic,
            format: plain,
        },
        series: std::iter::once(ours).chain(theirs).collect(),
    }
}

/// What the paper has at places: x, the least and the most. One number is both.
fn of_paper(of: &str, told: &[(f64, Option<f64>, Option<f64>)]) -> Vec<Series> {
    let points = |is_one: bool, is_high: bool| {
        let told = told.iter().filter(|(_, low, high)| (low == high) == is_one);
        let point = |&(x, low, high)| Some((x, if is_high { high } else { low }?));
        told.filter_map(point).collect::<Vec<_>>()
    };
    let all = [
        ("the paper's", points(true, false), Mark::Cross),
        ("the paper's, at least", points(false, false), Mark::AtLeast),
        ("the paper's, at most", points(false, true), Mark::AtMost),
    ];
    let drawn =
        all.map(|(name, points, mark)| Series { name: format!("{of}{name}"), points, mark });
    drawn.into_iter().filter(|series| !series.points.is_empty()).collect()
}

fn ys(series: &[Series]) -> impl Iterator<Item = f64> {
    series.iter().flat_map(|series| series.points.iter().map(|&(_, y)| y))
}

fn scale(values: impl Iterator<Item = f64>) -> Scale {
    let positive = values.filter(|&value| value > 0.0);
    let (low, high) =
        positive.fold((f64::MAX, 0.0_f64), |(low, high), value| (low.min(value), high.max(value)));
    if high >= WIDE * low { Scale::Logarithmic } else { Scale::Linear }
}

/// Nothing between two places of the list.
fn whole(value: f64) -> String {
    if value.fract() == 0.0 { format!("{value:.0}") } else { String::new() }
}

fn plain(value: f64) -> String {
    format!("{}", (value * 1e4).round() / 1e4)
}
