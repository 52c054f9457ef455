//! `destage sim figure`: figures and tables of papers, ours beside theirs.

use crate::error::CliError;
use crate::output::{Format, print, print_json};
use destage_runtime::exit;
use destage_sim::figures::{self, Figure, Line};
use std::fmt::Write;

/// Flags of `sim figure`.
#[derive(Debug, clap::Args)]
pub(crate) struct FigureArgs {
    /// Which one, or all; without it they are listed.
    #[arg(value_name = "NAME")]
    name: Option<String>,

    /// The seed of all random streams; the same seed gives the same numbers.
    #[arg(long, default_value = "1", value_name = "N")]
    seed: u64,

    /// Run everything twice and fail if the results differ.
    #[arg(long)]
    check: bool,

    /// The form of the result.
    #[arg(long, value_enum, default_value = "table")]
    output: Format,
}

/// Reproduces what was asked for; fails if a number is outside its bound.
pub(crate) fn run(args: &FigureArgs) -> Result<(), CliError> {
    let figures: Vec<Figure> = match args.name.as_deref() {
        None => return print(&list()),
        Some("all") => figures::ALL.to_vec(),
        Some(name) => vec![Figure::find(name).ok_or_else(|| unknown(name))?],
    };
    let lines = reproduce(&figures, args.seed);
    if args.check && reproduce(&figures, args.seed) != lines {
        let message = format!("two runs with seed {} differ", args.seed);
        return Err(CliError::new(exit::BUG, message));
    }
    match args.output {
        Format::Table => print(&table(&figures, &lines))?,
        Format::Json => print_json(&lines)?,
    }
    let outside = lines.iter().filter(|line| !line.holds).count();
    match outside {
        0 => Ok(()),
        _ => Err(CliError::new(exit::BUG, format!("{outside} numbers are outside their bounds"))),
    }
}

fn reproduce(figures: &[Figure], seed: u64) -> Vec<Line> {
    figures.iter().flat_map(|figure| figure.run(seed)).collect()
}

fn unknown(name: &str) -> CliError {
    let names: Vec<_> = figures::ALL.iter().map(|figure| figure.name).collect();
    CliError::usage(format!("no figure '{name}': use all, {}", names.join(", ")))
}

fn list() -> String {
    figures::ALL.iter().map(|figure| format!("{:<12}{}\n", figure.name, figure.title)).collect()
}

fn table(figures: &[Figure], lines: &[Line]) -> String {
    let mut out = String::new();
    for figure in figures {
        let _ = writeln!(out, "{}: {}", figure.name, figure.title);
        for line in lines.iter().filter(|line| line.figure == figure.name) {
            let verdict = if line.holds { "" } else { "   OUTSIDE" };
            let ours = format!("{:.3} {}", line.ours, line.unit);
            let theirs = format!("{} {}", line.theirs, line.unit);
            let _ = writeln!(out, "  {:<44} {ours:>14}   paper: {theirs}{verdict}", line.what);
        }
        out.push('\n');
    }
    out
}
