//! `destage sim figure`: figures and tables of papers, ours beside theirs.

use crate::error::CliError;
use crate::output::{Format, print, print_json};
use destage_figures::{self as figures, Figure, Line, Table, TraceFigure};
use destage_runtime::exit;
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
    output: Format,
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
        Format::Table => print(&chosen.table(&reproduced))?,
        Format::Json => print_json(&reproduced)?,
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
                let theirs = format!("{} {}", line.theirs, line.unit);
                let _ = writeln!(out, "  {:<54} {ours:>14}   paper: {theirs}{verdict}", line.what);
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
    fn a_number_outside_its_bounds_is_no_bug_but_a_result() {
        let mut numbers = Figure::find("figure-4-7").expect("there is one").run(1);
        assert!(verdict(&numbers).is_ok());
        numbers[0].holds = false;
        let error = verdict(&numbers).expect_err("one is outside");
        assert_eq!(error.code, exit::UNEXPECTED_RESULT);
        assert!(error.to_string().starts_with("1 numbers"), "{error}");
    }
}
