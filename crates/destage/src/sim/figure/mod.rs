//! `destage sim figure`: figures and tables of papers, ours beside theirs.

mod charts;

use super::report::csv_line;
use super::trace;
use crate::error::CliError;
use crate::output::{print, print_json};
use destage_figures::{self as figures, Figure, Line, Table, TraceFigure};
use destage_runtime::exit;
use destage_sim::report::{Chart, Page};
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
    /// The charts of one figure, with what the paper has.
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
    let asked = chosen.titles().count();
    let (chosen, reproduced) = chosen.reproduce(args)?;
    let done = chosen.titles().count();
    if done == 0 {
        return trace::verdict();
    }
    let mut is_whole = done == asked;
    if args.check && is_whole {
        let (again, second) = chosen.clone().reproduce(args)?;
        is_whole = again.titles().count() == asked;
        if is_whole && second != reproduced {
            let message = format!("two runs with seed {} differ", args.seed);
            return Err(CliError::new(exit::BUG, message));
        }
    }
    match args.output {
        Output::Table => print(&chosen.table(&reproduced))?,
        Output::Json => print_json(&reproduced)?,
        Output::Csv => print(&reproduced.csv())?,
        Output::Svg => print(&reproduced.svg(&chosen)?)?,
        Output::Html => print(&reproduced.html(&chosen)?)?,
    }
    if is_whole { verdict(&reproduced.numbers) } else { trace::verdict() }
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
            for (at, row) in table.rows.iter().enumerate() {
                for (column, (name, ours)) in table.header.iter().zip(row).enumerate().skip(1) {
                    let place = [table.figure, &table.title, &row[0], name, ours];
                    let told = charts::told(table, at, column);
                    let mut paper: Vec<[String; 5]> = told
                        .map(|told| {
                            let [low, high] = [told.low, told.high].map(cell);
                            [String::new(), told.says.clone(), String::new(), low, high]
                        })
                        .collect();
                    if paper.is_empty() {
                        paper.push(Default::default());
                    }
                    for rest in paper {
                        lines.push(place.map(str::to_owned).into_iter().chain(rest).collect());
                    }
                }
            }
        }
        lines.iter().map(|cells| csv_line(cells) + "\n").collect()
    }

    /// The tables over their own axes, and the numbers that are of none of their cells.
    fn charts(&self, figure: &str, title: &str) -> Vec<Chart> {
        let tables: Vec<&Table> = self.tables.iter().filter(|one| one.figure == figure).collect();
        let told = |number: &str| {
            let mut told = tables.iter().flat_map(|table| &table.paper);
            told.any(|told| told.number == Some(number))
        };
        let numbers = (1..).zip(self.numbers.iter().filter(|line| line.figure == figure));
        let alone: Vec<_> = numbers.filter(|(_, line)| !told(line.what)).collect();
        let of_tables = tables.iter().flat_map(|table| charts::of_table(table));
        of_tables.chain(charts::of_numbers(&alone, title)).collect()
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
        page.paragraph(
            "In the tables what the paper has is in brackets, in the charts it is a cross. A triangle points up where that is \
             at least so much, and down where it is at most. Of a ratio it is the paper's, times ours of what it is over.",
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
                page.paragraph(&table.title);
                let header: Vec<&str> = table.header.iter().map(String::as_str).collect();
                page.table(&header, &with_paper(table), None);
            }
        }
        Ok(page.html())
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

fn drawing(chart: &Chart) -> Result<String, CliError> {
    chart.svg().map_err(|error| CliError::new(exit::BUG, error))
}

/// What is to be reproduced.
#[derive(Clone, Default)]
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

    /// What was reproduced, and what came out: all, or what is done when the first interrupt comes.
    fn reproduce(self, args: &FigureArgs) -> Result<(Self, Reproduced), CliError> {
        let mut done = Self::default();
        let mut found = Reproduced { numbers: Vec::new(), tables: Vec::new() };
        trace::interrupt()?;
        let until_interrupted = || (!trace::is_interrupted()).then_some(());
        for (figure, ()) in self.figures.into_iter().zip(std::iter::from_fn(until_interrupted)) {
            found.numbers.extend(figure.run(args.seed));
            found.tables.extend(figure.tables(args.seed));
            done.figures.push(figure);
        }
        for (figure, ()) in self.on_traces.into_iter().zip(std::iter::from_fn(until_interrupted)) {
            let Some(folder) = &args.traces else {
                return Err(CliError::usage(format!(
                    "{} needs the trace {}: name its folder by --traces",
                    figure.name, figure.file
                )));
            };
            let numbers = figure.run(folder);
            found.numbers.extend(numbers.map_err(|e| CliError::new(exit::TRACE_UNUSABLE, e))?);
            done.on_traces.push(figure);
        }
        Ok((done, found))
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
                let _ = write!(out, "\n{}", drawn_table(table));
            }
            out.push('\n');
        }
        out
    }
}

/// The rows of a table, with what the paper has in brackets.
fn with_paper(table: &Table) -> Vec<Vec<String>> {
    let cell = |row: usize, column: usize, cell: &String| {
        let told =
            charts::told(table, row, column).filter_map(|told| charts::range(told.low, told.high));
        match told.collect::<Vec<_>>().join("; ") {
            none if none.is_empty() => cell.clone(),
            told => format!("{cell} ({told})"),
        }
    };
    let row = |(at, cells): (usize, &Vec<String>)| {
        cells.iter().enumerate().map(|(column, text)| cell(at, column, text)).collect()
    };
    table.rows.iter().enumerate().map(row).collect()
}

/// A table in columns as wide as their widest cell.
fn drawn_table(table: &Table) -> String {
    let rows = with_paper(table);
    let lines = || std::iter::once(&table.header).chain(&rows);
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
    use destage_sim::report::{Mark, Scale};

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
        assert!(
            charts.iter().flat_map(|chart| &chart.series).all(|series| series.mark != Mark::Line)
        );
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

    fn drawn_whole(name: &str) -> (Reproduced, Chosen) {
        let (reproduced, chosen) = reproduced(name);
        (Reproduced { tables: chosen.figures[0].tables(1), ..reproduced }, chosen)
    }

    fn points<'a>(chart: &'a Chart, name: &str) -> &'a [(f64, f64)] {
        let found = chart.series.iter().find(|series| series.name == name);
        &found.unwrap_or_else(|| panic!("no {name} among {:?}", chart.series)).points
    }

    #[test]
    fn what_the_paper_has_stands_over_ours_on_the_axes_of_the_figure() {
        let (reproduced, chosen) = drawn_whole("host-13");
        let charts = reproduced.charts("host-13", "the file server");
        let rates = &charts[0];
        assert_eq!((&*rates.x.label, &rates.x.scale), ("cache, GB", &Scale::Linear));
        let at = |name: &str, size: f64| {
            let mut points = points(rates, name).iter();
            points.find(|(x, _)| *x == size).map(|&(_, rate)| rate).expect("it is drawn")
        };
        let sizes: Vec<f64> = points(rates, "ordered").iter().map(|&(x, _)| x).collect();
        assert_eq!(sizes, [0.5, 1.0, 1.5, 2.0, 2.5]);
        assert_eq!(at("ordered, the paper's, at least", 2.0), at("write-through", 2.0));
        assert_eq!(at("ordered, the paper's, at most", 0.5), at("write-through", 0.5));
        let eight_tenths = 0.8 * at("write-back on demand", 2.5);
        assert!((at("strict, the paper's", 2.5) - eight_tenths).abs() < 1e-9);
        // All writes need room, says the paper, with any cache.
        assert_eq!(points(&charts[2], "ordered, the paper's"), [(0.5, 1.0), (2.5, 1.0)]);
        let svg = reproduced.svg(&chosen).expect("it is drawn");
        assert!(
            svg.contains("strict, the paper&apos;s") || svg.contains("strict, the paper's"),
            "{svg}"
        );
        let html = reproduced.html(&chosen).expect("it is drawn");
        assert!(
            html.contains("blocks at the disks for each written, by size of the cache"),
            "{html}"
        );
        let csv = reproduced.csv();
        let says =
            format!(",,fitted to the paper: 0.8 for its ordered,,{eight_tenths},{eight_tenths}");
        assert!(
            csv.lines().any(|line| line.contains(",2.5,strict,") && line.ends_with(&says)),
            "{csv}"
        );
        assert!(
            csv.lines().any(|line| line.contains(",1.5,strict,") && line.ends_with(",,,,,")),
            "{csv}"
        );
    }

    #[test]
    fn rows_that_are_named_stand_beside_one_another_and_each_unit_has_a_chart() {
        let (reproduced, _) = drawn_whole("table-4-2");
        let charts = reproduced.charts("table-4-2", "a kernel build");
        let names = ["PU async", "PU delayed", "AIPU-1 async", "AIPU-1 delayed"].map(str::to_owned);
        for chart in &charts[..2] {
            assert_eq!(chart.x.scale, Scale::Names(names.to_vec()));
            assert!(chart.series.iter().all(|series| series.mark != Mark::Line));
        }
        let [elapsed, writes] = [&charts[0], &charts[1]];
        assert_eq!((&*elapsed.y.label, &*writes.y.label), ("s", ""));
        let theirs = [(0.0, 3_280.0), (1.0, 3_298.0), (2.0, 3_234.0), (3.0, 3_206.0)];
        let drawn = points(elapsed, "elapsed, s, the paper's");
        assert_eq!(theirs.iter().filter(|point| drawn.contains(point)).count(), drawn.len());
        assert_eq!(drawn.len(), theirs.len());
        let table = drawn_table(&reproduced.tables[0]);
        assert!(table.contains(" (40548)"), "{table}");
        // What is told of no cell is drawn by its place in the list.
        let listed = charts.iter().filter(|chart| chart.x.label == "number, as listed");
        let numbers: usize = listed.map(|chart| points(chart, "ours").len()).sum();
        assert_eq!(numbers, 8);
    }

    #[test]
    fn trials_are_points_over_the_axes_that_they_name() {
        let (reproduced, _) = drawn_whole("figure-4-2");
        let charts = reproduced.charts("figure-4-2", "response times");
        let trials = &charts[0];
        assert_eq!((&*trials.x.label, &*trials.y.label), ("mean, ms", "deviation, ms"));
        assert_eq!(trials.series.len(), 4);
        let periodic = points(trials, "delayed writes, PU");
        assert_eq!(periodic.len(), 6);
        let rows = &reproduced.tables[0].rows;
        let row = rows.iter().find(|row| row[0] == "delayed writes, PU").expect("it is there");
        let cells = [2, 3].map(|column: usize| row[column].parse::<f64>().expect("a number"));
        assert_eq!(periodic[0], (cells[0], cells[1]));
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
