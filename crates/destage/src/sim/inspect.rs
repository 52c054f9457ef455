//! `destage sim inspect`: what a trace holds.

use super::report::failed_blocks;
use super::trace::TraceArgs;
use crate::error::CliError;
use crate::output::{Format, print, print_json};
use destage_core::Time;
use destage_runtime::human::{bytes, count, percent, seconds};
use destage_sim::blocks::Blocks;
use destage_sim::trace::{Op, Request};
use serde::Serialize;

/// Flags of `sim inspect`.
#[derive(Debug, clap::Args)]
pub(crate) struct InspectArgs {
    #[command(flatten)]
    trace: TraceArgs,

    /// The form of the result.
    #[arg(long = "format", alias = "output", value_enum, default_value = "table")]
    output: Format,
}

#[derive(Debug, Default, Serialize)]
struct Kind {
    requests: u64,
    block_accesses: u64,
    bytes: u64,
}

/// What a trace holds.
#[derive(Debug, Default, Serialize)]
struct Contents {
    trace: String,
    format: &'static str,
    block_bytes: u32,
    reads: Kind,
    writes: Kind,
    discards: Kind,
    flushes: u64,
    distinct_blocks: u32,
    distinct_blocks_written: u64,
    duration_seconds: f64,
    bad_records: u64,
    late_requests: u64,
    empty_requests: u64,
}

/// Reads the trace and shows it.
pub(crate) fn run(args: &InspectArgs) -> Result<(), CliError> {
    let trace = &args.trace;
    let mut blocks = Blocks::new(trace.block_bytes());
    let mut found = Vec::new();
    let mut written: Vec<bool> = Vec::new();
    let mut last = Time::ZERO;
    let mut contents = Contents {
        trace: trace.trace.display().to_string(),
        block_bytes: trace.block_bytes(),
        ..Contents::default()
    };
    let (format, counts) = trace.read(|request: &Request| {
        blocks.of(request, &mut found).map_err(failed_blocks)?;
        last = request.time;
        let kind = match request.op {
            Op::Read => &mut contents.reads,
            Op::Write => &mut contents.writes,
            Op::Discard => &mut contents.discards,
            Op::Flush => {
                contents.flushes += 1;
                return Ok(());
            }
        };
        kind.requests += 1;
        kind.block_accesses += found.len() as u64;
        kind.bytes += found.iter().map(|block| u64::from(block.bytes)).sum::<u64>();
        if request.op == Op::Write {
            written.resize(blocks.len() as usize, false);
            found.iter().for_each(|block| written[block.id as usize] = true);
        }
        Ok(())
    })?;
    contents.format = format.name();
    contents.distinct_blocks = blocks.len();
    contents.distinct_blocks_written = written.iter().filter(|&&written| written).count() as u64;
    contents.duration_seconds = last.0 as f64 / 1e9;
    contents.bad_records = counts.bad;
    contents.late_requests = counts.late;
    contents.empty_requests = counts.empty;
    match args.output {
        Format::Table => print(&table(&contents)),
        Format::Json => print_json(&contents),
    }
}

fn table(contents: &Contents) -> String {
    let Contents { reads, writes, discards, .. } = contents;
    let accessed = reads.requests + writes.requests;
    let share = writes.requests as f64 / (accessed.max(1)) as f64;
    let kind = |kind: &Kind| {
        format!(
            "{} requests, {} block accesses, {}",
            count(kind.requests),
            count(kind.block_accesses),
            bytes(kind.bytes)
        )
    };
    let size = |blocks: u64| bytes(blocks * u64::from(contents.block_bytes));
    let mut rows = vec![
        ("trace", contents.trace.clone()),
        ("format", contents.format.into()),
        ("duration", seconds(contents.duration_seconds)),
        ("reads", kind(reads)),
        ("writes", kind(writes)),
        ("discards", format!("{} requests", count(discards.requests))),
        ("flushes", count(contents.flushes)),
        ("write share", format!("{} of reads and writes", percent(share))),
        ("block size", bytes(contents.block_bytes.into())),
        (
            "distinct blocks",
            format!(
                "{} ({})",
                count(contents.distinct_blocks.into()),
                size(contents.distinct_blocks.into())
            ),
        ),
        (
            "distinct written",
            format!(
                "{} ({})",
                count(contents.distinct_blocks_written),
                size(contents.distinct_blocks_written)
            ),
        ),
    ];
    if contents.bad_records > 0 {
        rows.push(("damaged records", count(contents.bad_records)));
    }
    rows.iter().map(|(label, value)| format!("{label:<18}{value}\n")).collect()
}
