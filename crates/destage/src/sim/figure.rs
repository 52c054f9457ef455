//! `destage sim figure`: figures and tables of papers, ours beside theirs.

use super::report::csv_line;
use crate::error::CliError;
use crate::output::{print, print_json};
use destage_figures::{self as figures, Figure, Line, Table, TraceFigure};
use destage_runtime::exit;
use destage_sim::report::{Axis, Chart, Page, Scale, Series};
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

/// The first number in what a paper says; `None` if it says it in words only.
fn number(says: &str) -> Option<f64> {
    let (_, text) = says.split_once(": ")?;
    let start = text.find(|c: char| c.is_ascii_digit())?;
    let is_first = text[..start].chars().all(|c| !c.is_alphanumeric()) || text.starts_with("about");
    let digits: String = text[start..]
        .chars()
        .take_while(|&c| c.is_ascii_digit() || matches!(c, '.' | ','))
        .filter(|&c| c != ',')
        .collect();
    is_first.then(|| digits.trim_end_matches('.').parse().ok()).flatten()
}

impl Reproduced {
    fn csv(&self) -> String {
        let header = ["figure", "table", "row", "column", "ours", "bound", "says", "holds"];
        let mut lines = vec![header.map(str::to_owned).to_vec()];
        for line in &self.numbers {
            let ours = line.ours.to_string();
            let (bound, says) = (line.bound.clone(), line.says.clone());
            let cells = [line.figure, "", line.what, line.unit].map(str::to_owned).to_vec();
            lines.push([cells, vec![ours, bound, says, line.holds.to_string()]].concat());
        }
        for table in &self.tables {
            for row in &table.rows {
                for (column, cell) in table.header.iter().zip(row).skip(1) {
                    let place = [table.figure, table.title, &row[0], column, cell];
                    let rest = ["", "", ""];
                    lines.push(place.into_iter().chain(rest).map(str::to_owned).collect());
                }
            }
        }
        lines.iter().map(|cells| csv_line(cells) + "\n").collect()
    }

    /// Our numbers over the paper's, in the order of the list.
    fn chart(&self, figure: &str, title: &str) -> Chart {
        let lines = || (1..).zip(self.numbers.iter().filter(|line| line.figure == figure));
        let ours = lines().map(|(at, line)| (f64::from(at), line.ours)).collect();
        let theirs = lines().filter_map(|(at, line)| Some((f64::from(at), number(&line.says)?)));
        let theirs = theirs.collect();
        Chart {
            title: title.into(),
            x: Axis { label: "number, as listed".into(), scale: Scale::Linear, format: whole },
            y: Axis {
                label: "value, each in its unit".into(),
                scale: Scale::Logarithmic,
                format: plain,
            },
            series: vec![
                Series { name: "ours".into(), points: ours },
                Series { name: "the paper's, where it has a number".into(), points: theirs },
            ],
        }
    }

    fn svg(&self, chosen: &Chosen) -> Result<String, CliError> {
        match &chosen.titles().collect::<Vec<_>>()[..] {
            [(name, title)] => drawing(&self.chart(name, title)),
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
            page.svg(&drawing(&self.chart(name, title))?);
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

    #[test]
    fn a_paper_that_says_it_in_words_has_no_number() {
        for (says, value) in [
            ("paper: 32", Some(32.0)),
            ("paper: about 38 with delayed writes", Some(38.0)),
            ("fitted to the paper: 40,548", Some(40_548.0)),
            ("against the paper, which has: 0.8", Some(0.8)),
            ("paper: above 1: \"significantly better\"", None),
            ("paper: \"up to 8 or 9 seconds\"", None),
            ("ours", None),
        ] {
            assert_eq!(number(says), value, "{says}");
        }
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
