//! `destage sim convert`: a trace in another format, all of it or a part.

use super::report::failed_blocks;
use super::trace::{Reading, TraceArgs};
use crate::error::CliError;
use destage_core::{Span, Time};
use destage_runtime::units::Interval;
use destage_sim::blocks::Blocks;
use destage_sim::trace::{Extent, Op, Request};
use std::collections::{BTreeMap, HashMap};
use std::io::{self, BufWriter, ErrorKind, Write};
use std::str::FromStr;

/// Flags of `sim convert`.
#[derive(Debug, clap::Args)]
pub(crate) struct ConvertArgs {
    #[command(flatten)]
    trace: TraceArgs,

    /// The format: csv, the simulator's own, with everything that is known (of objects the key in place of device and offset); or
    /// oracle-general, libCacheSim's, with a record for each block or object that is read or written.
    #[arg(long, value_enum, default_value = "csv", value_name = "FORMAT")]
    to: To,

    /// Leave out what is before this time of the trace.
    #[arg(long, default_value = "0", value_name = "TIME")]
    from: Interval,

    /// Leave out what is at this time of the trace or later.
    #[arg(long, value_name = "TIME")]
    until: Option<Interval>,

    /// Only these devices or volumes: by the name in the trace, with ':' for a comma in it, or numbered from 0 in the order of their
    /// appearance. A name that is a number has '=' before it. Several, separated by commas.
    #[arg(long, value_delimiter = ',', value_name = "DEVICES")]
    device: Vec<Device>,

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

/// Which device is meant.
#[derive(Clone, Debug)]
enum Device {
    Number(u32),
    Name(String),
}

impl FromStr for Device {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.strip_prefix('=') {
            None if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) => {
                text.parse().map(Self::Number)
            }
            name => Ok(Self::Name(name.unwrap_or(text).to_owned())),
        }
    }
}

impl Device {
    fn is(&self, number: u32, name: Option<&String>) -> bool {
        match self {
            Self::Number(own) => *own == number,
            Self::Name(own) => Some(own) == name,
        }
    }
}

/// Most devices that a message lists.
const LISTED_MAX: usize = 20;

/// The devices of a trace, by number, with their names and whether they are wanted.
type Found = BTreeMap<u32, (Option<String>, bool)>;

impl ConvertArgs {
    /// Reads what is wanted of the trace.
    fn read(&self, mut take: impl FnMut(&Request) -> Result<(), CliError>) -> Result<(), CliError> {
        let mut reading = self.trace.open("reading")?;
        let mut found = Found::new();
        while let Some(request) = reading.next() {
            let request = request?;
            if self.is_of_device(&request, &reading, &mut found) && self.wants(&request) {
                take(&request)?;
            }
        }
        let is_found = |wanted: &&Device| {
            !found.iter().any(|(number, (name, _))| wanted.is(*number, name.as_ref()))
        };
        let missing = self.device.iter().find(is_found);
        reading.finish();
        missing.map_or(Ok(()), |missing| Err(self.lacks(missing, &found)))
    }

    fn is_of_device(&self, request: &Request, reading: &Reading, found: &mut Found) -> bool {
        match request.extent {
            _ if self.device.is_empty() => true,
            Extent::Object { .. } => false,
            Extent::Range { .. } if request.op == Op::Flush => true,
            Extent::Range { device, .. } => {
                let new = || {
                    let name = reading.device_name(device);
                    let is_wanted = self.device.iter().any(|it| it.is(device, name.as_ref()));
                    (name, is_wanted)
                };
                found.entry(device).or_insert_with(new).1
            }
        }
    }

    fn lacks(&self, missing: &Device, found: &Found) -> CliError {
        let listed = found.iter().take(LISTED_MAX).map(|(number, (name, _))| match name {
            Some(name) => format!("{name} ({number})"),
            None => number.to_string(),
        });
        let mut listed: Vec<String> = listed.collect();
        listed.extend(
            (found.len() > LISTED_MAX).then(|| format!("and {} more", found.len() - LISTED_MAX)),
        );
        let has = if listed.is_empty() { "none".into() } else { listed.join(", ") };
        let trace = self.trace.trace.display();
        CliError::usage(match missing {
            Device::Name(name) => format!("{trace} has no device '{name}': it has {has}"),
            Device::Number(number) => format!(
                "{trace} has no device {number}: it has {has}; a name that is a number is --device ={number}"
            ),
        })
    }

    fn wants(&self, request: &Request) -> bool {
        let at = request.time.since(Time::ZERO);
        let is_in_time = at >= self.from.span() && self.until.is_none_or(|until| at < until.span());
        let operation = match request.op {
            Op::Read => Operation::Read,
            Op::Write => Operation::Write,
            Op::Discard => Operation::Discard,
            Op::Flush => Operation::Flush,
        };
        is_in_time && (self.op.is_empty() || self.op.contains(&operation))
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

/// The columns of a trace of ranges, and of one of objects.
const RANGES: &str = "time_ns,op,device,offset_bytes,size_bytes,host,thread";
const OBJECTS: &str = "time_ns,op,key,size_bytes,host,thread";

fn csv(args: &ConvertArgs, out: &mut impl Write) -> Result<io::Result<()>, CliError> {
    let mut outcome = Ok(());
    // Flushes touch nothing. Those at the beginning wait for what says which columns there are.
    let mut early = Vec::new();
    let mut columns = None;
    let read = args.read(|request| {
        if columns.is_none() && request.op == Op::Flush {
            early.push(*request);
            return Ok(());
        }
        let is_first = columns.is_none();
        let columns = *columns.get_or_insert(match request.extent {
            Extent::Range { .. } => RANGES,
            Extent::Object { .. } => OBJECTS,
        });
        let begun = if is_first { begin(args, columns, &early, out) } else { Ok(()) };
        outcome = begun.and_then(|()| line(args, columns, request, out));
        // Nothing more of the trace is read for nobody.
        outcome.as_ref().map_err(CliError::unwritable).copied()
    });
    match (outcome, columns) {
        (Err(error), _) => Ok(Err(error)),
        (Ok(()), Some(_)) => read.map(Ok),
        (Ok(()), None) => read.map(|()| begin(args, RANGES, &early, out)),
    }
}

/// The header, and the flushes before all else.
fn begin(
    args: &ConvertArgs,
    columns: &str,
    early: &[Request],
    out: &mut impl Write,
) -> io::Result<()> {
    writeln!(out, "{columns}")?;
    early.iter().try_for_each(|request| line(args, columns, request, out))
}

fn line(
    args: &ConvertArgs,
    columns: &str,
    request: &Request,
    out: &mut impl Write,
) -> io::Result<()> {
    let op = match request.op {
        Op::Read => 'R',
        Op::Write => 'W',
        Op::Discard => 'D',
        Op::Flush => 'F',
    };
    let time = shifted(args, request.time);
    let (host, thread) = (request.host, request.thread);
    match request.extent {
        Extent::Object { id, bytes } => {
            writeln!(out, "{time},{op},{id},{bytes},{host},{thread}")
        }
        Extent::Range { .. } if columns == OBJECTS => {
            writeln!(out, "{time},{op},,0,{host},{thread}")
        }
        Extent::Range { device, offset, bytes } => {
            writeln!(out, "{time},{op},{device},{offset},{bytes},{host},{thread}")
        }
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
    args.read(|request| {
        if matches!(request.op, Op::Discard | Op::Flush) {
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
