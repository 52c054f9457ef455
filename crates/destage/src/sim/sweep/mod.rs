//! `destage sim sweep`: every combination of a grid, on all cores, in results that outlive crashes.

mod output;
mod runs;

use super::trace::{interrupt, verdict};
use crate::error::CliError;
use crate::output::{print, print_json};
use destage_runtime::exit;
use destage_runtime::progress::Progress;
use destage_sim::machine::Meter;
use destage_sim::sweep::{Grid, Parameters, Results, ResultsError};
use rayon::prelude::*;
use runs::{Run, Runs};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;

/// Flags of `sim sweep`.
#[derive(Debug, clap::Args)]
pub(crate) struct SweepArgs {
    /// The grid, a file of TOML: its keys are the flags of `sim run` without their dashes; a list gives one run per value, several
    /// lists one per combination.
    #[arg(value_name = "GRID")]
    grid: PathBuf,

    /// Where the rows are kept as they are done; the runs found there are not made again. Default: the grid's name with .jsonl.
    #[arg(long, value_name = "FILE")]
    results: Option<PathBuf>,

    /// Runs side by side; 0 for as many as there are cores.
    #[arg(long, default_value = "0", value_parser = clap::value_parser!(u16).range(0..=1_024), value_name = "N")]
    threads: u16,

    /// The form of the result: a table, every number as CSV or JSON, or a page of HTML with charts.
    #[arg(long = "format", alias = "output", value_enum, default_value = "table")]
    output: Output,
}

/// The form of a result.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Output {
    Table,
    Csv,
    Json,
    Html,
}

/// A run that is done.
#[derive(Debug)]
struct Done {
    in_force: Vec<(&'static str, String)>,
    parameters: Parameters,
    row: Value,
}

/// Runs what is not done yet and shows all of it.
pub(crate) fn run(args: &SweepArgs) -> Result<(), CliError> {
    let stop = interrupt()?;
    let grid = read(&args.grid)?;
    let path = args.results.clone().unwrap_or_else(|| args.grid.with_extension("jsonl"));
    if path == args.grid {
        return Err(CliError::usage("the results are another file than the grid: see --results"));
    }
    let varied = grid.varied();
    let runs = Runs::new(grid, &args.grid)?;
    let mut results = Results::open(&path).map_err(|error| failed(&error))?;
    let runs = runs.read_trace()?;
    let missing: Vec<&Run> =
        runs.all().iter().filter(|run| results.get(&run.key).is_none()).collect();
    let all = runs.all().len();
    if missing.len() < all {
        let done = all - missing.len();
        tracing::info!("{done} of {all} runs are in {} already", path.display());
    }
    let meter = Meter::new(stop);
    simulate(&runs, &missing, &mut results, args.threads, &meter)?;
    let done = |run: &Run| {
        let row = results.get(&run.key).cloned()?;
        Some(Done { in_force: run.in_force(), parameters: run.parameters.clone(), row })
    };
    let done: Vec<Done> = runs.all().iter().filter_map(done).collect();
    if done.len() < all {
        tracing::warn!(
            "interrupted: {} of {all} runs are done; the same command goes on",
            done.len()
        );
    }
    let in_force = runs.all().first().map_or_else(Vec::new, Run::in_force);
    match args.output {
        Output::Table => print(&output::table(&in_force, &varied, &done)),
        Output::Csv => print(&output::csv(&done)),
        Output::Json => print_json(&output::json(&done)),
        Output::Html => print(&output::html(runs.title(), &in_force, &varied, &done)?),
    }?;
    verdict()
}

fn read(path: &Path) -> Result<Grid, CliError> {
    let name = path.display();
    let text = std::fs::read_to_string(path)
        .map_err(|error| CliError::usage(format!("failed to read the grid {name}: {error}")))?;
    Grid::parse(&text).map_err(|error| CliError::usage(format!("{name}: {error}")))
}

/// Runs on all cores; each row is durable before the next is written.
fn simulate(
    runs: &Runs,
    missing: &[&Run],
    results: &mut Results,
    threads: u16,
    meter: &Meter,
) -> Result<(), CliError> {
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(threads.into())
        .build()
        .map_err(|error| CliError::new(exit::BUG, format!("failed to start threads: {error}")))?;
    let mut progress = Progress::new("running simulations", missing.len() as u64);
    let stopped = AtomicBool::new(false);
    let outcome = std::thread::scope(|scope| {
        let (sender, receiver) = mpsc::channel();
        let stopped = &stopped;
        scope.spawn(move || {
            pool.install(|| {
                missing.par_iter().for_each_with(sender, |sender, run| {
                    if stopped.load(Ordering::Relaxed) || meter.is_stopped() {
                        return;
                    }
                    if let Some(row) = runs.simulate(run, meter).transpose() {
                        // Nobody listens any more once a row could not be kept.
                        let _ = sender.send((run.key.as_str(), row));
                    }
                });
            });
        });
        let mut done = 0;
        for (key, row) in receiver {
            let kept = row.and_then(|row| results.add(key, row).map_err(|error| failed(&error)));
            if kept.is_err() {
                stopped.store(true, Ordering::Relaxed);
                return kept;
            }
            done += 1;
            progress.set(done);
        }
        Ok(())
    });
    progress.finish();
    outcome
}

fn failed(error: &ResultsError) -> CliError {
    match error {
        ResultsError::Io { .. } => CliError::unwritable(error),
        ResultsError::InUse(_) | ResultsError::Foreign { .. } => CliError::usage(error),
    }
}
