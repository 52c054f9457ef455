//! `destage sim run`: caches over a trace.

use super::machine::{Caches, MachineArgs, Output};
use super::report::{self, Row, failed_blocks};
use super::trace::{TraceArgs, interrupt, verdict};
use crate::error::CliError;
use crate::output::{print, print_json};
use destage_engine::defaults;
use destage_runtime::human::{count, seconds};
use destage_runtime::units::Bytes;
use destage_sim::hits::{Hits, Replacements, Setup};
use std::time::Instant;

/// Flags of `sim run`.
#[derive(Debug, clap::Args)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(super) trace: TraceArgs,

    /// Cache in RAM; several sizes, separated by commas, are simulated side by side. 0, for none, unless told.
    #[arg(long, value_delimiter = ',', value_name = "SIZES")]
    ram: Vec<Bytes>,

    /// Cache in flash, behind the RAM; several sizes as for --ram. 0, for none, unless told.
    #[arg(long, value_delimiter = ',', value_name = "SIZES")]
    flash: Vec<Bytes>,

    /// Which blocks leave the flash, or the RAM where there is no flash: unless told s3-fifo, as in the servers; as a what-if fifo,
    /// lru, clock, 2q, arc, sieve, belady; several, separated by commas, side by side.
    #[arg(long, value_delimiter = ',', value_name = "POLICIES")]
    replacement: Vec<Replacements>,

    /// Which blocks leave the RAM where it stands before flash; lru unless told.
    #[arg(long, value_name = "POLICY")]
    ram_replacement: Option<Replacements>,

    /// The form of the result: a table for people, or every parameter and count as CSV or JSON.
    #[arg(long = "format", alias = "output", value_enum, default_value = "table")]
    output: Output,

    #[command(flatten)]
    pub(super) machine: MachineArgs,
}

impl RunArgs {
    /// The settings of a run with devices.
    #[cfg(test)]
    pub(super) fn settings(&self) -> Result<destage_sim::machine::Settings, CliError> {
        self.machine.settings(&self.caches())
    }

    pub(super) fn caches(&self) -> Caches<'_> {
        Caches {
            block: self.trace.block,
            ram: &self.ram,
            flash: &self.flash,
            replacement: &self.replacement,
            ram_replacement: self.ram_replacement,
        }
    }
}

/// The replacement unless told: that of the servers.
pub(super) const REPLACEMENT: Replacements = Replacements::of(defaults::REPLACEMENT);
/// That of RAM before flash.
pub(super) const RAM_REPLACEMENT: Replacements = Replacements::Lru;
/// Most caches side by side.
const SETUPS_MAX: usize = 1_000;

/// Runs every combination and shows what it came to.
pub(crate) fn run(args: &RunArgs) -> Result<(), CliError> {
    interrupt()?;
    simulate(args)?;
    verdict()
}

fn simulate(args: &RunArgs) -> Result<(), CliError> {
    if args.machine.is_asked() {
        return args.machine.run(&args.trace, &args.caches(), args.output);
    }
    args.machine.check_unused()?;
    let setups = setups(args)?;
    let mut hits = Hits::new(args.trace.block_bytes(), &setups).map_err(CliError::usage)?;
    let started = Instant::now();
    let (format, counts) =
        args.trace.read_many(|requests| hits.requests(requests).map_err(failed_blocks))?;
    let distinct = hits.distinct_blocks();
    let outcomes = hits.finish();
    let elapsed = started.elapsed().as_secs_f64();
    let accesses: u64 = outcomes.iter().map(|(_, outcome)| outcome.total().blocks.all).sum();
    tracing::info!(
        "{} requests in {}: {:.1} million block accesses per second in all caches",
        count(counts.requests),
        seconds(elapsed),
        accesses as f64 / elapsed.max(1e-9) / 1e6,
    );
    let rows: Vec<Row> = outcomes
        .iter()
        .map(|(setup, outcome)| Row::new(&args.trace, format, counts, distinct, setup, outcome))
        .collect();
    match args.output {
        Output::Table => print(&report::table(args.trace.block(), &setups, &rows)),
        Output::Csv => print(&report::csv(&rows)),
        Output::Json => print_json(&rows),
    }
}

/// What was given, or what holds unless told.
fn or<T: Copy>(given: &[T], unless_told: T) -> Vec<T> {
    if given.is_empty() { vec![unless_told] } else { given.to_vec() }
}

/// Every combination of the sizes and policies.
pub(super) fn setups(args: &RunArgs) -> Result<Vec<Setup>, CliError> {
    let block = args.trace.block().get();
    let blocks = |size: &Bytes| match size.get() / block {
        0 if size.get() > 0 => Err(CliError::usage(format!("{size} is less than one block"))),
        blocks if blocks > u32::MAX.into() => {
            Err(CliError::usage(format!("{size} is more than 4294967295 blocks")))
        }
        blocks => Ok(blocks),
    };
    let sizes = |sizes: &[Bytes]| sizes.iter().map(blocks).collect::<Result<Vec<_>, _>>();
    let (rams, flashes) = (or(&args.ram, Bytes(0)), or(&args.flash, Bytes(0)));
    let (rams, flashes) = (sizes(&rams)?, sizes(&flashes)?);
    let mut setups = Vec::new();
    for &ram_blocks in &rams {
        for &flash_blocks in &flashes {
            for replacement in or(&args.replacement, REPLACEMENT) {
                let ram_replacement = args.ram_replacement.unwrap_or(RAM_REPLACEMENT);
                setups.push(Setup { replacement, ram_replacement, ram_blocks, flash_blocks });
            }
        }
    }
    if setups.len() > SETUPS_MAX {
        let message = format!("{} caches; at most {SETUPS_MAX} at once", setups.len());
        return Err(CliError::usage(message));
    }
    Ok(setups)
}
