//! Traces on the command line.

use super::replay::refuse_what_cannot_be;
use crate::error::CliError;
use destage_core::Span;
use destage_runtime::exit;
use destage_runtime::human::count;
use destage_runtime::progress::Progress;
use destage_runtime::shutdown;
use destage_runtime::units::Bytes;
use destage_sim::machine::Devices;
use destage_sim::replay::RecordedRun;
use destage_sim::trace::{
    BlockEvent, ColumnMap, Counts, Format, Options, Request, Trace, TraceError,
};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

/// Which trace, and how it is read.
#[derive(Debug, clap::Args)]
pub(crate) struct TraceArgs {
    /// The trace, or a recording as --record of a server named it; '-' for the standard input. zstd, gzip and xz are seen through.
    #[arg(long, value_name = "FILE")]
    pub(crate) trace: PathBuf,

    /// Its format: auto, csv (named columns), msr, spc, systor17, alibaba, tencent, twitter, vscsi, blkparse, blktrace, fio, lis,
    /// disksim, mqsim, srt, octf, oracle-general or recording.
    #[arg(long = "trace-format", default_value = "auto", value_parser = format, value_name = "FORMAT")]
    pub(crate) format: ChosenFormat,

    /// Of a text separated by commas with other columns than those of csv: what they are, each by the name in its header or by its
    /// number. For example time_ms=Timestamp,op=Opcode,offset_sectors=3,size_bytes=4. Instead of op there may be is_write or
    /// is_read (0 or 1), and key instead of an offset.
    #[arg(long = "trace-columns", value_name = "COLUMNS")]
    columns: Option<ColumnMap>,

    /// Pass over so many damaged records; they are counted in the result.
    #[arg(long, default_value = "0", value_name = "N")]
    pub(crate) skip_bad: u64,

    /// Which events of blkparse and blktrace traces are requests.
    #[arg(long, value_enum, default_value = "queued", value_name = "EVENT")]
    pub(crate) block_event: Event,

    /// The size of a block, a power of two; 512 to 1M, 4K unless told. The counts of the ARC paper (lis) are of blocks of 512.
    #[arg(long, value_parser = block_size, value_name = "SIZE")]
    pub(super) block: Option<Bytes>,
}

/// A format, or none for what is recognised.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChosenFormat(Option<Format>);

/// The events of the block layer.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(crate) enum Event {
    /// Q: handed to the block layer.
    Queued,
    /// D: issued to the driver.
    Issued,
    /// C: completed.
    Completed,
}

fn format(text: &str) -> Result<ChosenFormat, String> {
    match text {
        "auto" => Ok(ChosenFormat(None)),
        _ => text.parse().map(|format| ChosenFormat(Some(format))),
    }
}

fn block_size(text: &str) -> Result<Bytes, String> {
    let size = crate::values::bytes(text, "512", "1M")?;
    if size.get().is_power_of_two() { Ok(size) } else { Err("it is no power of two".into()) }
}

/// Set by the first SIGINT once [`interrupt`] was called.
static INTERRUPT: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// From now on the first SIGINT ends reading and simulating early, so that what there is can be shown.
pub(crate) fn interrupt() -> Result<Arc<AtomicBool>, CliError> {
    if let Some(stop) = INTERRUPT.get() {
        return Ok(Arc::clone(stop));
    }
    let stop = shutdown::on_interrupt().map_err(|error| {
        CliError::new(exit::BUG, format!("failed to listen for SIGINT: {error}"))
    })?;
    Ok(Arc::clone(INTERRUPT.get_or_init(|| stop)))
}

/// Whether it was.
pub(crate) fn is_interrupted() -> bool {
    INTERRUPT.get().is_some_and(|stop| stop.load(Ordering::Relaxed))
}

/// What a command that was interrupted ends with, behind what it has shown.
pub(crate) fn verdict() -> Result<(), CliError> {
    if is_interrupted() {
        let message = "interrupted: what is shown is what there was by then";
        return Err(CliError::new(exit::INTERRUPTED, message));
    }
    Ok(())
}

/// A block unless told.
const BLOCK: Bytes = Bytes(4 << 10);
/// The blocks of the ARC paper's traces, bytes.
const LIS_BLOCK: u64 = 512;
/// So many requests are read between two updates of the progress.
const PROGRESS_EVERY: u64 = 4_096;
/// So many requests are read before they are simulated.
const READ_AT_ONCE: usize = 2_048;

impl TraceArgs {
    /// The size of a block.
    pub(crate) fn block(&self) -> Bytes {
        self.block.unwrap_or(BLOCK)
    }

    /// Bytes of a block.
    pub(crate) fn block_bytes(&self) -> u32 {
        self.block().get() as u32
    }

    /// Begins to read the trace; `doing` is shown with the progress.
    pub(crate) fn open(&self, doing: &str) -> Result<Reading, CliError> {
        self.open_warm(doing, Span::ZERO)
    }

    /// As [`TraceArgs::open`]; what becomes of a recording in its first `warmup` is not counted.
    pub(crate) fn open_warm(&self, doing: &str, warmup: Span) -> Result<Reading, CliError> {
        if self.columns.is_some() && self.format.0.is_some_and(|format| format != Format::Csv) {
            return Err(CliError::usage(
                "--trace-columns says what the columns of a text separated by commas are: leave out --trace-format",
            ));
        }
        let options = Options {
            format: self.format.0,
            columns: self.columns.clone().unwrap_or_default(),
            skip_bad_max: self.skip_bad,
            block_event: match self.block_event {
                Event::Queued => BlockEvent::Queued,
                Event::Issued => BlockEvent::Issued,
                Event::Completed => BlockEvent::Completed,
            },
            warmup,
        };
        let guard =
            Trace::is_recording(&self.trace, &options).then(|| refuse_what_cannot_be(&self.trace));
        let trace = Trace::open(&self.trace, &options).map_err(|e| failed(&e))?;
        drop(guard);
        let label = format!("{doing} {} (bytes)", trace.name());
        let progress = Progress::new(&label, trace.progress().1.unwrap_or(0));
        Ok(Reading { trace, progress, began: Instant::now(), block: self.block() })
    }

    /// Reads the trace to its end. What was met, and the format.
    pub(crate) fn read(
        &self,
        mut take: impl FnMut(&Request) -> Result<(), CliError>,
    ) -> Result<(Format, Counts), CliError> {
        self.read_many(|requests| requests.iter().try_for_each(&mut take))
    }

    /// As [`TraceArgs::read`], many requests at a time.
    pub(crate) fn read_many(
        &self,
        mut take: impl FnMut(&[Request]) -> Result<(), CliError>,
    ) -> Result<(Format, Counts), CliError> {
        let mut reading = self.open("reading")?;
        let mut requests = Vec::with_capacity(READ_AT_ONCE);
        while !is_interrupted() {
            reading.trace.next_requests(&mut requests).map_err(|e| failed(&e))?;
            if requests.is_empty() {
                break;
            }
            take(&requests)?;
            reading.show();
        }
        Ok(reading.finish())
    }
}

/// A trace on its way, with its progress.
pub(crate) struct Reading {
    trace: Trace,
    progress: Progress,
    began: Instant,
    block: Bytes,
}

impl Iterator for Reading {
    type Item = Result<Request, CliError>;

    fn next(&mut self) -> Option<Self::Item> {
        if is_interrupted() {
            return None;
        }
        let request = self.trace.next_request().map_err(|e| failed(&e)).transpose();
        if self.trace.counts().requests.is_multiple_of(PROGRESS_EVERY) {
            self.show();
        }
        request
    }
}

impl Reading {
    /// Shows how far it is.
    fn show(&mut self) {
        let requests = self.trace.counts().requests;
        let rate = requests as f64 / self.began.elapsed().as_secs_f64().max(1e-9);
        self.progress.note(format_args!("{} requests/s", count(rate as u64)));
        let (read, total) = self.trace.progress();
        // The length of a pipe is not known.
        self.progress.set_total(total.unwrap_or(read));
        self.progress.set(read);
    }

    /// What a device is called, where the trace says so.
    pub(crate) fn device_name(&self, number: u32) -> Option<String> {
        self.trace.device_name(number)
    }

    /// How slow devices were, if the trace is a recording.
    pub(crate) fn devices(&self) -> Option<Devices> {
        self.trace.devices().cloned()
    }

    /// What became of the requests, if the trace is a recording.
    pub(crate) fn recorded_run(&self) -> Option<RecordedRun> {
        self.trace.recorded_run().cloned()
    }

    /// The format and what was met; what was passed over is warned of.
    pub(crate) fn finish(self) -> (Format, Counts) {
        let Self { trace, progress, began: _, block } = self;
        progress.finish();
        let counts = trace.counts();
        if let Some(note) = trace.note() {
            tracing::info!("{}: {note}", trace.name());
        }
        if counts.requests == 0 {
            let hint = match trace.format() {
                Format::Blkparse | Format::Blktrace => "; --block-event chooses other events",
                _ => "",
            };
            tracing::warn!("{}: there are no requests in it{hint}", trace.name());
        }
        if trace.format() == Format::Lis && block.get() != LIS_BLOCK {
            tracing::warn!(
                "{}: its paper counts blocks of {LIS_BLOCK} bytes, here they have {block}: --block {LIS_BLOCK} counts as it does",
                trace.name()
            );
        }
        for (number, what) in [
            (counts.bad, "damaged records were passed over"),
            (counts.late, "requests had a time before that of an earlier one"),
            (counts.empty, "requests touched nothing and are left out"),
        ] {
            if number > 0 {
                tracing::warn!("{}: {} {what}", trace.name(), count(number));
            }
        }
        (trace.format(), counts)
    }
}

fn failed(error: &TraceError) -> CliError {
    CliError::new(exit::TRACE_UNUSABLE, error)
}
