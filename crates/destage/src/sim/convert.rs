//! `destage sim convert`: a trace in another format, all of it or a part.

use super::report::failed_blocks;
use super::trace::TraceArgs;
use crate::error::CliError;
use destage_core::{Span, Time};
use destage_runtime::units::Interval;
use destage_sim::blocks::Blocks;
use destage_sim::trace::{Extent, Op, Request};
use std::collections::HashMap;
use std::io::{self, BufWriter, ErrorKind, Write};

/// Flags of `sim convert`.
#[derive(Debug, clap::Args)]
pub(crate) struct ConvertArgs {
    #[command(flatten)]
    trace: TraceArgs,

    /// The format: csv, the simulator's own, with everything that is known; or oracle-general, libCacheSim's, with a record for each
    /// block or object that is read or written.
    #[arg(long, value_enum, default_value = "csv", value_name = "FORMAT")]
    to: To,

    /// Leave out what is before this time of the trace.
    #[arg(long, default_value = "0", value_name = "TIME")]
    from: Interval,

    /// Leave out what is at this time of the trace or later.
    #[arg(long, value_name = "TIME")]
    until: Option<Interval>,

    /// Only these devices, numbered from 0 in the order of their appearance; several, separated by commas.
    #[arg(long, value_delimiter = ',', value_name = "NUMBERS")]
    device: Vec<u32>,

    /// Only these operations; several, separated by commas.
    #[arg(long, value_enum, value_delimiter = ',', value_name = "OPERATIONS")]
    op: Vec<Operation>,
}

/// A format that is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum To {
    Csv,
    OracleGeneral,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Operation {
    Read,
    Write,
    Discard,
    Flush,
}

impl ConvertArgs {
    fn wants(&self, request: &Request) -> bool {
        let at = request.time.since(Time::ZERO);
        let is_in_time = at >= self.from.span() && self.until.is_none_or(|until| at < until.span());
        let is_of_device = match request.extent {
            Extent::Range { device, .. } if request.op != Op::Flush => {
                self.device.is_empty() || self.device.contains(&device)
            }
            Extent::Object { .. } => self.device.is_empty(),
            Extent::Range { .. } => true,
        };
        let operation = match request.op {
            Op::Read => Operation::Read,
            Op::Write => Operation::Write,
            Op::Discard => Operation::Discard,
            Op::Flush => Operation::Flush,
        };
        is_in_time && is_of_device && (self.op.is_empty() || self.op.contains(&operation))
    }
}

/// Writes what is asked for.
pub(crate) fn run(args: &ConvertArgs) -> Result<(), CliError> {
    if args.until.is_some_and(|until| until.span() <= args.from.span()) {
        return Err(CliError::usage("--until is not after --from: nothing would be left"));
    }
    let mut out = BufWriter::new(io::stdout().lock());
    let outcome = match args.to {
        To::Csv => csv(args, &mut out)?,
        To::OracleGeneral => oracle_general(args, &mut out)?,
    };
    match outcome.and_then(|()| out.flush()) {
        // The reader has seen enough.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        Err(error) => Err(CliError::unwritable(format!("failed to write the trace: {error}"))),
        Ok(()) => Ok(()),
    }
}

fn csv(args: &ConvertArgs, out: &mut impl Write) -> Result<io::Result<()>, CliError> {
    let header = "time_ns,op,device,offset_bytes,size_bytes,host,thread";
    let mut outcome = Ok(());
    // Nothing is written before the trace is known to have what can be.
    let mut is_begun = false;
    let read = args.trace.read(|request| {
        if !args.wants(request) {
            return Ok(());
        }
        let Extent::Range { device, offset, bytes } = request.extent else {
            return Err(CliError::usage(
                "the trace is of objects by key, which csv has no column for: --to oracle-general takes them",
            ));
        };
        let op = match request.op {
            Op::Read => 'R',
            Op::Write => 'W',
            Op::Discard => 'D',
            Op::Flush => 'F',
        };
        let time = shifted(args, request.time);
        let (host, thread) = (request.host, request.thread);
        let begun = if is_begun { Ok(()) } else { writeln!(out, "{header}") };
        is_begun = true;
        outcome = begun.and_then(|()| {
            writeln!(out, "{time},{op},{device},{offset},{bytes},{host},{thread}")
        });
        // Nothing more of the trace is read for nobody.
        outcome.as_ref().map_err(CliError::unwritable).copied()
    });
    match outcome {
        Err(_) => Ok(outcome),
        Ok(()) => read.map(|_| if is_begun { Ok(()) } else { writeln!(out, "{header}") }),
    }
}

/// Nanoseconds since the first time that is kept.
fn shifted(args: &ConvertArgs, time: Time) -> u64 {
    let since: Span = time.since(Time::ZERO);
    since.0 - args.from.span().0
}

/// Each record has the number of the next one of its object, so that all are held until the end.
fn oracle_general(args: &ConvertArgs, out: &mut impl Write) -> Result<io::Result<()>, CliError> {
    let mut blocks = Blocks::new(args.trace.block_bytes());
    let mut found = Vec::new();
    // Seconds, object, bytes.
    let mut records: Vec<(u32, u64, u32)> = Vec::new();
    args.trace.read(|request| {
        if !args.wants(request) || matches!(request.op, Op::Discard | Op::Flush) {
            return Ok(());
        }
        let seconds = (shifted(args, request.time) / 1_000_000_000) as u32;
        if let Extent::Object { id, bytes } = request.extent {
            records.push((seconds, id, u32::try_from(bytes).unwrap_or(u32::MAX)));
            return Ok(());
        }
        blocks.of(request, &mut found).map_err(failed_blocks)?;
        let size = args.trace.block_bytes();
        records.extend(found.iter().map(|block| (seconds, u64::from(block.id), size)));
        Ok(())
    })?;
    let mut upcoming: HashMap<u64, i64> = HashMap::new();
    let mut next: Vec<i64> = vec![NEVER; records.len()];
    for (at, (_, object, _)) in records.iter().enumerate().rev() {
        // Counted from 1, as libCacheSim's own are.
        let later = upcoming.insert(*object, at as i64 + 1);
        next[at] = later.unwrap_or(NEVER);
    }
    let mut write = |(&(seconds, object, size), next): (&(u32, u64, u32), &i64)| {
        out.write_all(&seconds.to_le_bytes())?;
        out.write_all(&object.to_le_bytes())?;
        out.write_all(&size.to_le_bytes())?;
        out.write_all(&next.to_le_bytes())
    };
    Ok(records.iter().zip(&next).try_for_each(&mut write))
}

/// The next access of an object that is not used again.
const NEVER: i64 = -1;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, Subcommand};
    use crate::sim::SimCommand;
    use clap::Parser;

    /// Takes so many bytes.
    struct Full(usize);

    impl Write for Full {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 = self.0.checked_sub(bytes.len()).ok_or(ErrorKind::StorageFull)?;
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn nothing_more_is_read_once_nothing_can_be_written() {
        let folder = tempfile::tempdir().expect("it works");
        let trace = folder.path().join("trace.csv");
        let lines = (0..20_000).map(|n| format!("{n},W,{},4096\n", n * 4_096));
        let lines: String = lines.collect();
        let text = format!("time_us,op,offset_bytes,size_bytes\n{lines}damage\n");
        std::fs::write(&trace, text).expect("it works");
        let trace = trace.display().to_string();
        let cli = Cli::try_parse_from(["destage", "sim", "convert", "--trace", &trace]);
        let cli = cli.unwrap_or_else(|error| panic!("{error}"));
        let Subcommand::Sim { command: SimCommand::Convert(args) } = cli.command else {
            panic!("it is a conversion")
        };
        // What is wrong at the end of the trace is not met.
        let outcome = csv(&args, &mut Full(1_000)).unwrap_or_else(|error| panic!("{error}"));
        assert!(outcome.is_err_and(|error| error.kind() == ErrorKind::StorageFull));
        assert!(csv(&args, &mut Full(1 << 30)).is_err(), "the control: it is");
    }
}
