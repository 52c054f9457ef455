//! `destage sim figure`: figures and tables of papers, ours beside theirs.

use super::report::csv_line;
use crate::error::CliError;
use crate::output::{print, print_json};
use destage_figures::{self as figures, Figure, Line, Table, TraceFigure};
use destage_runtime::exit;
use destage_sim::report::{Axis, Chart, Join, Page, Scale, Series};
use serde::Serialize;
use std::fmt::Write;
use std::path::PathBuf;

/// Flags of `sim figure`.
#[derive(Debug, clap::Args)]
pub(crate) struct FigureArgs {
    /// Which one, or all; without it they are listed.
    #[arg(value_name = "NAME")]
    name: Option<String>,

    /// The seed of all random streams; the same seed gives the same numbers.
    #[arg(long, default_value = "1", value_name = "N")]
    seed: u64,

    /// The folder with the traces that some figures need; without it `all` leaves those out.
    #[arg(long, env = "DESTAGE_TRACES", value_name = "DIR")]
    traces: Option<PathBuf>,

    /// Run everything twice and fail if the results differ.
    #[arg(long)]
    check: bool,

    /// The form of the result.
    #[arg(long = "format", alias = "output", value_enum, default_value = "table")]
    output: Output,
}

/// The form of a result.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Output {
    /// For people.
    Table,
    /// Everything.
    Json,
    /// Every number and every cell of what is drawn, a line each.
    Csv,
    /// The numbers over what the paper has: one chart, so of one figure.
    Svg,
    /// A page with numbers, charts and tables.
    Html,
}

/// Reproduces what was asked for; fails if a number is outside its bound.
pub(crate) fn run(args: &FigureArgs) -> Result<(), CliError> {
    let chosen = match args.name.as_deref() {
        None => return print(&list()),
        Some("all") => {
            let on_traces = if args.traces.is_some() { figures::ON_TRACES } else { &[] };
            Chosen { figures: figures::ALL.to_vec(), on_traces: on_traces.to_vec() }
        }
        Some(name) => Chosen::find(name)?,
    };
    let reproduced = chosen.reproduce(args)?;
    if args.check && chosen.reproduce(args)? != reproduced {
        let message = format!("two runs with seed {} differ", args.seed);
        return Err(CliError::new(exit::BUG, message));
    }
    match args.output {
        Output::Table => print(&chosen.table(&reproduced))?,
        Output::Json => print_json(&reproduced)?,
        Output::Csv => print(&reproduced.csv())?,
        Output::Svg => print(&reproduced.svg(&chosen)?)?,
        Output::Html => print(&reproduced.html(&chosen)?)?,
    }
    verdict(&reproduced.numbers)
}

fn verdict(numbers: &[Line]) -> Result<(), CliError> {
    match numbers.iter().filter(|line| !line.holds).count() {
        0 => Ok(()),
        outside => Err(CliError::new(
            exit::UNEXPECTED_RESULT,
            format!("{outside} numbers are outside their bounds"),
        )),
    }
}

/// What came out.
#[derive(PartialEq, Serialize)]
struct Reproduced {
    numbers: Vec<Line>,
    tables: Vec<Table>,
}

impl Reproduced {
    fn csv(&self) -> String {
        let header = ["figure", "table", "row", "column", "ours", "bound", "says", "holds"];
        let of_paper = ["paper_low", "paper_high"];
        let mut lines =
            vec![[&header[..], &of_paper].concat().into_iter().map(str::to_owned).collect()];
        let cell = |value: Option<f64>| value.map(|value| value.to_string()).unwrap_or_default();
        for line in &self.numbers {
            let ours = line.ours.to_string();
            let (bound, says) = (line.bound.clone(), line.says.clone());
            let cells = [line.figure, "", line.what, line.unit].map(str::to_owned).to_vec();
            let paper = vec![cell(line.paper_low), cell(line.paper_high)];
            lines.push([cells, vec![ours, bound, says, line.holds.to_string()], paper].concat());
        }
        for table in &self.tables {
            for row in &table.rows {
                for (column, cell) in table.header.iter().zip(row).skip(1) {
                    let place = [table.figure, table.title, &row[0], column, cell];
                    let rest = ["", "", "", "", ""];
                    lines.push(place.into_iter().chain(rest).map(str::to_owned).collect());
                }
            }
        }
        lines.iter().map(|cells| csv_line(cells) + "\n").collect()
    }

    /// Our numbers over the paper's, in the order of the list: a chart for each unit.
    fn charts(&self, figure: &str, title: &str) -> Vec<Chart> {
        let lines: Vec<&Line> = self.numbers.iter().filter(|line| line.figure == figure).collect();
        let mut units: Vec<&str> = Vec::new();
        for line in &lines {
            if !units.contains(&line.unit) {
                units.push(line.unit);
            }
        }
        units.into_iter().map(|unit| in_unit(&lines, unit, title)).collect()
    }

    fn svg(&self, chosen: &Chosen) -> Result<String, CliError> {
        match &chosen.titles().collect::<Vec<_>>()[..] {
            [(name, title)] => {
                let charts = self.charts(name, title);
                let drawn = charts.iter().map(drawing).collect::<Result<Vec<_>, _>>()?;
                Ok(stacked(&drawn))
            }
            _ => {
                Err(CliError::usage("--format svg draws one figure: name it, or use --format html"))
            }
        }
    }

    fn html(&self, chosen: &Chosen) -> Result<String, CliError> {
        let mut page = Page::new("Figures of papers, reproduced");
        page.paragraph(
            "Each number with the bound that it keeps, which comes from runs with twenty seeds, and with what the paper says of it.",
        );
        for (name, title) in chosen.titles() {
            page.heading(&format!("{name}: {title}"));
            for chart in self.charts(name, title) {
                page.svg(&drawing(&chart)?);
            }
            let lines = self.numbers.iter().filter(|line| line.figure == name);
            let row = |(at, line): (usize, &Line)| {
                let ours = format!("{:.3} {}", line.ours, line.unit);
                let verdict = if line.holds { "" } else { "OUTSIDE" };
                let texts = [&line.bound, &line.says, verdict].map(str::to_owned);
                [vec![format!("{at}. {}", line.what), ours], texts.to_vec()].concat()
            };
            let rows: Vec<_> = (1..).zip(lines).map(row).collect();
            page.table(&["number", "ours", "bound", "the paper", ""], &rows, None);
            for table in self.tables.iter().filter(|table| table.figure == name) {
                page.paragraph(table.title);
                if let Some(chart) = curve(table) {
                    page.svg(&drawing(&chart)?);
                }
                let header: Vec<&str> = table.header.iter().map(String::as_str).collect();
                page.table(&header, &table.rows, None);
            }
        }
        Ok(page.html())
    }
}

/// The numbers of one unit, by their places in the list. They are of different things, so no line joins them.
fn in_unit(lines: &[&Line], unit: &str, title: &str) -> Chart {
    let points = |of: fn(&Line) -> Option<f64>| {
        let of_unit = (1..).zip(lines).filter(|(_, line)| line.unit == unit);
        of_unit.filter_map(|(at, line)| Some((f64::from(at), of(line)?))).collect()
    };
    // One number is both the least and the most.
    let one = |line: &Line| line.paper_low.filter(|_| line.paper_low == line.paper_high);
    let low = |line: &Line| line.paper_low.filter(|_| line.paper_low != line.paper_high);
    let high = |line: &Line| line.paper_high.filter(|_| line.paper_low != line.paper_high);
    let all = [
        ("ours", points(|line| Some(line.ours))),
        ("the paper's", points(one)),
        ("the paper's, at least", points(low)),
        ("the paper's, at most", points(high)),
    ];
    let drawn = all.into_iter().filter(|(_, points): &(_, Vec<_>)| !points.is_empty());
    Chart {
        title: title.into(),
        x: Axis { label: "number, as listed".into(), scale: Scale::Linear, format: whole },
        y: Axis {
            label: if unit.is_empty() { "ratio or count".into() } else { unit.into() },
            scale: Scale::Logarithmic,
            format: plain,
        },
        series: drawn.map(|(name, points)| Series { name: name.into(), points }).collect(),
        join: Join::Nothing,
    }
}

/// Drawings below one another, in one.
fn stacked(drawn: &[String]) -> String {
    let [_, _, ..] = drawn else { return drawn.concat() };
    let (width, height) = (Chart::WIDTH, Chart::HEIGHT);
    let all = height * drawn.len() as u32;
    let mut out = format!(
        "<svg width=\"{width}\" height=\"{all}\" viewBox=\"0 0 {width} {all}\" xmlns=\"http://www.w3.org/2000/svg\">\n"
    );
    for (svg, y) in drawn.iter().zip((0..).step_by(height as usize)) {
        out += &svg.replacen("<svg ", &format!("<svg y=\"{y}\" "), 1);
    }
    out + "</svg>\n"
}

/// A table as a chart: a line for each column over the first one, if all of it are numbers.
fn curve(table: &Table) -> Option<Chart> {
    let value = |cell: &String| cell.replace(',', "").parse::<f64>().ok();
    let xs: Vec<f64> = table.rows.iter().map(|row| value(&row[0])).collect::<Option<_>>()?;
    let series = |column: usize| {
        let points =
            xs.iter().zip(&table.rows).filter_map(|(&x, row)| Some((x, value(&row[column])?)));
        Series { name: table.header[column].clone(), points: points.collect() }
    };
    Some(Chart {
        title: table.title.into(),
        x: Axis { label: table.header[0].clone(), scale: Scale::Linear, format: plain },
        y: Axis { label: String::new(), scale: Scale::Linear, format: plain },
        series: (1..table.header.len()).map(series).collect(),
        join: Join::Line,
    })
}

fn drawing(chart: &Chart) -> Result<String, CliError> {
    chart.svg().map_err(|error| CliError::new(exit::BUG, error))
}

fn whole(value: f64) -> String {
    format!("{value:.0}")
}

fn plain(value: f64) -> String {
    format!("{}", (value * 1e4).round() / 1e4)
}

/// What is to be reproduced.
struct Chosen {
    figures: Vec<Figure>,
    on_traces: Vec<TraceFigure>,
}

impl Chosen {
    fn find(name: &str) -> Result<Self, CliError> {
        let figures: Vec<_> = Figure::find(name).into_iter().collect();
        let on_traces: Vec<_> = TraceFigure::find(name).into_iter().collect();
        if figures.is_empty() && on_traces.is_empty() {
            Err(unknown(name))
        } else {
            Ok(Self { figures, on_traces })
        }
    }

    fn reproduce(&self, args: &FigureArgs) -> Result<Reproduced, CliError> {
        let mut numbers: Vec<_> =
            self.figures.iter().flat_map(|figure| figure.run(args.seed)).collect();
        for figure in &self.on_traces {
            let Some(folder) = &args.traces else {
                return Err(CliError::usage(format!(
                    "{} needs the trace {}: name its folder by --traces",
                    figure.name, figure.file
                )));
            };
            let found = figure.run(folder);
            numbers.extend(found.map_err(|error| CliError::new(exit::TRACE_UNUSABLE, error))?);
        }
        let tables = self.figures.iter().flat_map(|figure| figure.tables(args.seed)).collect();
        Ok(Reproduced { numbers, tables })
    }

    fn titles(&self) -> impl Iterator<Item = (&'static str, &'static str)> {
        let on_traces = self.on_traces.iter().map(|figure| (figure.name, figure.title));
        self.figures.iter().map(|figure| (figure.name, figure.title)).chain(on_traces)
    }

    fn table(&self, reproduced: &Reproduced) -> String {
        let mut out = String::new();
        for (name, title) in self.titles() {
            let _ = writeln!(out, "{name}: {title}");
            for line in reproduced.numbers.iter().filter(|line| line.figure == name) {
                let verdict = if line.holds { "" } else { "   OUTSIDE" };
                let ours = format!("{:.3} {}", line.ours, line.unit);
                let _ = writeln!(
                    out,
                    "  {:<54} {ours:>14}   within {:<18} {}{verdict}",
                    line.what, line.bound, line.says
                );
            }
            for table in reproduced.tables.iter().filter(|table| table.figure == name) {
                let _ = write!(out, "\n{}", drawn(table));
            }
            out.push('\n');
        }
        out
    }
}

/// A table in columns as wide as their widest cell.
fn drawn(table: &Table) -> String {
    let lines = || std::iter::once(&table.header).chain(&table.rows);
    let width = |column: usize| lines().map(|cells| cells[column].chars().count()).max();
    let widths: Vec<_> = (0..table.header.len()).map(|column| width(column).unwrap_or(0)).collect();
    let mut out = format!("  {}\n", table.title);
    for cells in lines() {
        for (index, (cell, &width)) in cells.iter().zip(&widths).enumerate() {
            let _ = match index {
                0 => write!(out, "    {cell:<width$}"),
                _ => write!(out, "  {cell:>width$}"),
            };
        }
        out.push('\n');
    }
    out
}

fn unknown(name: &str) -> CliError {
    let on_traces = figures::ON_TRACES.iter().map(|figure| figure.name);
    let names: Vec<_> = figures::ALL.iter().map(|figure| figure.name).chain(on_traces).collect();
    CliError::usage(format!("no figure '{name}': use all, {}", names.join(", ")))
}

fn list() -> String {
    let all = Chosen { figures: figures::ALL.to_vec(), on_traces: figures::ON_TRACES.to_vec() };
    all.titles().map(|(name, title)| format!("{name:<18}{title}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reproduced(name: &str) -> (Reproduced, Chosen) {
        let figure = Figure::find(name).expect("there is one");
        let reproduced = Reproduced { numbers: figure.run(1), tables: Vec::new() };
        (reproduced, Chosen { figures: vec![figure], on_traces: Vec::new() })
    }

    #[test]
    fn numbers_of_unlike_units_have_charts_of_their_own_and_no_line_joins_any() {
        let (reproduced, chosen) = reproduced("figure-4-3");
        let charts = reproduced.charts("figure-4-3", "histograms");
        let units: Vec<&str> = charts.iter().map(|chart| chart.y.label.as_str()).collect();
        assert_eq!(units, ["s", "ratio or count"]);
        assert!(charts.iter().all(|chart| chart.join == Join::Nothing));
        let points = |name: &str| -> Vec<f64> {
            let series = charts[0].series.iter().filter(|series| series.name == name);
            series.flat_map(|series| series.points.iter().map(|&(at, _)| at)).collect()
        };
        assert_eq!(points("ours"), [1.0, 3.0, 5.0, 6.0]);
        assert_eq!(points("the paper's"), [3.0, 5.0]);
        assert_eq!(points("the paper's, at least"), [1.0, 6.0]);
        let svg = reproduced.svg(&chosen).expect("it is drawn");
        assert_eq!(svg.matches("<svg ").count(), 3, "{svg}");
        assert_eq!(svg.matches("</svg>").count(), 3, "{svg}");
        assert!(svg.starts_with("<svg ") && svg.contains("<svg y=\"460\" "), "{svg}");
    }

    #[test]
    fn the_papers_numbers_have_columns_of_their_own() {
        let (reproduced, _) = reproduced("figure-4-3");
        let csv = reproduced.csv();
        let ends = |what: &str, end: &str| {
            csv.lines().any(|line| line.contains(what) && line.ends_with(end))
        };
        assert!(
            csv.starts_with("figure,table,row,column,ours,bound,says,holds,paper_low,paper_high\n")
        );
        assert!(ends("\"PU, longest read\"", ",true,8,9"), "{csv}");
        assert!(ends("\"AIPU, longest read\"", ",true,0.746,0.746"), "{csv}");
        assert!(ends("longer than 1 s", ",true,,"), "{csv}");
    }

    #[test]
    fn a_number_outside_its_bounds_is_no_bug_but_a_result() {
        let mut numbers = Figure::find("figure-4-7").expect("there is one").run(1);
        assert!(verdict(&numbers).is_ok());
        numbers[0].holds = false;
        let error = verdict(&numbers).expect_err("one is outside");
        assert_eq!(error.code, exit::UNEXPECTED_RESULT);
        assert!(error.to_string().starts_with("1 numbers"), "{error}");
    }
}
