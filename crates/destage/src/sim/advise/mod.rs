//! `destage sim advise`: which policy of a front end to choose, and the command line for it.

mod command;
mod sentences;
mod shown;

use self::command::{command, online};
use self::sentences::{stays, tuning};
use super::machine::settings_in_force;
use super::trace::{TraceArgs, interrupt, is_interrupted, verdict};
use crate::error::CliError;
use crate::file;
use crate::output::{print, print_json};
use crate::values::{bytes, interval};
use destage_core::{Span, Time};
use destage_runtime::child::{end_with, give_way};
use destage_runtime::exit;
use destage_runtime::human::seconds;
use destage_runtime::policy::when_text;
use destage_runtime::progress::Progress;
use destage_runtime::units::{Bytes, Interval};
use destage_sim::advise::{
    Choice, Front, Judged, Losses, Sure, Tuned, Wish, promise, random_times, reason,
};
use destage_sim::machine::{Devices, Meter, Settings, WritePolicy};
use destage_sim::trace::{Extent, Op, Request};
use serde::Serialize;
use std::collections::HashMap;
use std::path::PathBuf;
use std::time::Duration;

/// Flags of `sim advise`.
#[derive(Debug, clap::Args)]
pub(crate) struct AdviseArgs {
    #[command(flatten)]
    trace: TraceArgs,

    /// What losing host and cache may cost: the writes of so long at most. 100ms to 1d.
    #[arg(long, value_parser = |s: &str| interval(s, "100ms", "1d"), value_name = "TIME")]
    rpo: Interval,

    /// Of rows, what a crash may cost that the journal survives: the writes of so long at most. 0 loses nothing acknowledged, else
    /// 1ms to 60s, shorter than --rpo. Without it no more than in the recorded run, or nothing.
    #[arg(long, value_parser = |s: &str| interval(s, "0", "60s"), value_name = "TIME")]
    rpo_crash: Option<Interval>,

    /// 99 % of the reads are to take at most so long.
    #[arg(long, value_name = "TIME")]
    p99_read: Option<Interval>,

    /// 99 % of the writes are to take at most so long.
    #[arg(long, value_name = "TIME")]
    p99_write: Option<Interval>,

    /// Advise on volumes (destage block serve), or on rows (destage serve), for which the trace has to name objects by key:
    /// twitter, oracle-general.
    #[arg(long, value_enum, default_value = "block", value_name = "NAME")]
    front: FrontName,

    /// The size of the flash cache of volumes. 64M to 16T.
    #[arg(
        long,
        value_parser = |s: &str| bytes(s, "64M", "16T"),
        required_if_eq("front", "block"),
        value_name = "SIZE"
    )]
    flash: Option<Bytes>,

    /// Of rows, the memory for them, half of it for buffered writes; of volumes, RAM of the clients in front of the flash, such
    /// as their page cache. 1M to 16T.
    #[arg(
        long,
        value_parser = |s: &str| bytes(s, "1M", "16T"),
        required_if_eq("front", "data"),
        value_name = "SIZE"
    )]
    ram: Option<Bytes>,

    /// The devices: a file with the times of flash, network and filer, as for sim run.
    #[arg(long, value_name = "FILE")]
    devices: Option<PathBuf>,

    /// A flush follows every so many writes, for traces without flushes; 0 for none.
    #[arg(long, default_value = "0", value_name = "N")]
    flush_every: u32,

    /// Look at so many random moments what a crash would lose.
    #[arg(long, default_value = "200", value_parser = clap::value_parser!(u32).range(1..=100_000), value_name = "N")]
    crashes: u32,

    /// What comes first, for so long from the first request on, fills the caches and is not counted. 0 to 1d.
    #[arg(long, default_value = "0", value_parser = |s: &str| interval(s, "0", "1d"), value_name = "TIME")]
    warmup: Interval,

    /// Of all random streams.
    #[arg(long, default_value = "1", value_name = "N")]
    seed: u64,

    /// The form of the result: a table, everything as JSON, or a page of HTML.
    #[arg(long = "format", alias = "output", value_enum, default_value = "table")]
    output: Output,

    /// For --auto-advice: the number of the process that asks, and whose end is this one's.
    #[arg(long, hide = true)]
    ends_with: Option<u32>,
}

/// A front end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum FrontName {
    Block,
    Data,
}

/// The form of a result.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Output {
    Table,
    Json,
    Html,
}

/// The advice.
#[derive(Debug, Serialize)]
struct Advice<'a> {
    version: &'static str,
    trace: String,
    rpo: Interval,
    rpo_crash: Option<Interval>,
    p99_read: Option<Interval>,
    p99_write: Option<Interval>,
    /// Where the times of the devices are from.
    devices: &'static str,
    front: &'static str,
    flash: Option<Bytes>,
    ram: Option<Bytes>,
    /// What is in force in each candidate beside its policy and when it destages.
    in_force: Vec<String>,
    reason: Vec<String>,
    /// It is what was in force in the recorded run, but for D.
    is_kept: bool,
    /// What starts a server so.
    command: String,
    /// What changes a server that runs, as far as it can be changed then.
    online: String,
    /// Of the advised settings.
    mean_seconds: f64,
    p99_read_seconds: f64,
    p99_write_seconds: f64,
    /// How sure they are, as far as the trace is a recording and tells.
    sure: Vec<Sure>,
    /// What further choices would cost or save.
    choices: &'a [Choice],
    ranking: Vec<Ranked<'a>>,
    /// It is no advice: it was interrupted.
    interrupted: Option<Interrupted>,
}

/// How far the search was when it was interrupted.
#[derive(Clone, Copy, Debug, Serialize)]
struct Interrupted {
    /// Candidates that are ranked, and all.
    ranked: usize,
    candidates: usize,
}

/// A candidate.
#[derive(Debug, Serialize)]
struct Ranked<'a> {
    policy: &'static str,
    when: String,
    meets: bool,
    misses: &'a [String],
    mean_seconds: f64,
    p99_read_seconds: f64,
    p99_write_seconds: f64,
    origin_write_blocks: u64,
    origin_write_requests: u64,
    /// How far the origin was behind at most: what is judged.
    behind_seconds: f64,
    losses: &'a Losses,
    settings: &'a Settings,
}

/// Runs the candidates and shows their ranking.
pub(crate) fn run(args: &AdviseArgs) -> Result<(), CliError> {
    if let Some(parent) = args.ends_with {
        give_way();
        end_with(parent).map_err(|error| CliError::usage(format!("--ends-with: {error}")))?;
    }
    // Before a long trace is read.
    let rpo_crash = rpo_crash(args)?;
    let stop = interrupt()?;
    let mut requests: Vec<Request> = Vec::new();
    let warmup = args.warmup.span();
    let mut reading = args.trace.open_warm("reading", warmup)?;
    for request in &mut reading {
        requests.push(request?);
    }
    let (measured, mut recorded) = (reading.devices(), reading.recorded_run());
    reading.finish();
    if args.devices.is_some()
        && let Some(run) = &mut recorded
    {
        // Other devices than those that were recorded are asked about.
        run.load = None;
    }
    let wish = Wish {
        rpo: args.rpo.span(),
        rpo_crash,
        p99_read: args.p99_read.map(Interval::span),
        p99_write: args.p99_write.map(Interval::span),
        front: front(args, &requests, recorded.is_some())?,
    };
    let Some(last) = requests.last().filter(|last| last.time > Time::ZERO) else {
        let message =
            "the trace has no times, without which nothing can be said of latencies and losses";
        return Err(CliError::new(exit::TRACE_UNUSABLE, message));
    };
    let counted = last.time.since(Time::ZERO + warmup);
    if counted == Span::ZERO {
        return Err(CliError::usage(format!(
            "--warmup {} leaves nothing to be counted: the last request comes after {}",
            args.warmup,
            seconds(last.time.since(Time::ZERO).as_secs_f64())
        )));
    }
    let crashes = random_times(args.crashes, counted, args.seed).into_iter();
    let base = Settings {
        block: args.trace.block(),
        devices: devices(args, measured.as_ref())?,
        flush_every: args.flush_every,
        warmup_requests: requests.partition_point(|it| it.time < Time::ZERO + warmup) as u64,
        crashes: crashes.map(|at| Interval(Span(at.span().0 + warmup.0))).collect(),
        seed: args.seed,
        ..Settings::default()
    };
    let mut candidates = wish.candidates(&base);
    if let Some(run) = &recorded {
        wish.keep_unasked(run, &mut candidates);
    }
    for candidate in &candidates {
        candidate.validate().map_err(CliError::usage)?;
    }
    let asked = candidates.len();
    let meter = Meter::new(stop);
    let total = |runs: usize| runs as u64 * requests.len() as u64;
    let mut ranking = watched(&meter, total(asked), || {
        wish.judge_recorded(&requests, recorded.as_ref(), candidates, &meter)
            .map_err(CliError::usage)
    })?;
    let Some(best) = ranking.first() else {
        let message = "interrupted before the first candidate was done: there is nothing to advise";
        return Err(CliError::new(exit::INTERRUPTED, message));
    };
    let runs = wish.tune_runs_max(best, &ranking);
    let tuned = watched(&meter, total(runs), || {
        wish.tune_best(&requests, recorded.as_ref(), best, &ranking, &meter)
            .map_err(CliError::usage)
    })?;
    let fastest = tuned.clone();
    let tuned = match recorded.as_ref().filter(|run| run.load.is_some()) {
        Some(run) => {
            let runs = ranking.iter().map(|base| wish.tune_runs_max(base, &[])).max();
            let tuned = watched(&meter, total(runs.unwrap_or(0)), || {
                wish.tune_in_force(&requests, run, &ranking, tuned, &meter).map_err(CliError::usage)
            })?;
            wish.keep_in_force(run, &ranking, tuned)
        }
        None => tuned,
    };
    let ranked_runs = ranking.len();
    // What is advised is the first of those that are shown, also where no candidate is so good as it is.
    if !tuned.is_kept && is_better_than_all(&tuned, best) {
        ranking.insert(0, tuned.best.clone());
    }
    let reasons = if tuned.is_kept {
        vec![stays(recorded.as_ref(), &tuned.best, fastest.best.mean())]
    } else if tuned.base.report.settings != fastest.base.report.settings {
        let stays = format!(
            "How writes are treated and when they are destaged stays as it is in force. At best requests are predicted to take {} \
             on average: not so much less than those of this one that it counts.",
            seconds(fastest.best.mean())
        );
        [vec![stays], tuning(&tuned), vec![promise(&wish, &tuned.best)]].concat()
    } else {
        [reason(&wish, &ranking), tuning(&tuned)].concat()
    };
    let trust = match &recorded {
        Some(run) => watched(&meter, total(1), || {
            wish.trust(run, &requests, &base, &meter).map_err(CliError::usage)
        })?,
        None => None,
    };
    let sure = trust.map(|trust| trust.of(&tuned)).unwrap_or_default();
    let doubts: Vec<String> = sure.iter().filter_map(|sure| sure.doubt(&wish)).collect();
    let interrupted = Interrupted { ranked: ranked_runs, candidates: asked };
    let interrupted = Some(interrupted).filter(|_| is_interrupted());
    let live = wish.live_policy(&tuned.best.report.settings);
    let advice = Advice {
        version: env!("CARGO_PKG_VERSION"),
        trace: args.trace.trace.display().to_string(),
        rpo: args.rpo,
        rpo_crash: args.rpo_crash,
        p99_read: args.p99_read,
        p99_write: args.p99_write,
        devices: match (&args.devices, &measured) {
            (Some(_), _) => "as the file of devices has them",
            (None, Some(_)) => "as the recording measured them",
            (None, None) => "assumed: measure yours and give them by --devices",
        },
        front: if args.front == FrontName::Data { "data" } else { "block" },
        flash: args.flash.filter(|_| args.front == FrontName::Block),
        ram: args.ram,
        in_force: settings_in_force(&tuned.best.report.settings, Some(&live))
            .into_iter()
            .map(|(tier, policy)| format!("{tier}: {policy}"))
            .collect(),
        reason: [reasons, doubts].concat(),
        is_kept: tuned.is_kept,
        command: command(&wish, &tuned.best.report.settings),
        online: online(&wish, &tuned.best.report.settings),
        mean_seconds: tuned.best.mean(),
        p99_read_seconds: tuned.best.report.reads.latency.p99,
        p99_write_seconds: tuned.best.report.writes.latency.p99,
        sure,
        choices: &tuned.choices,
        ranking: ranking.iter().map(|judged| ranked(&wish, judged)).collect(),
        interrupted,
    };
    match args.output {
        Output::Table => print(&advice.text()),
        Output::Json => print_json(&advice),
        Output::Html => print(&advice.html()?),
    }?;
    verdict()
}

/// Whether what is advised is of another policy than the best candidate, or meets more than it.
fn is_better_than_all(tuned: &Tuned, best: &Judged) -> bool {
    let is_other = tuned.base.report.settings != best.report.settings;
    tuned.best.report.settings != tuned.base.report.settings
        && (is_other || tuned.best.misses.len() < best.misses.len())
}

/// Does the work and shows how far its simulations are.
fn watched<T: Send>(meter: &Meter, total: u64, work: impl FnOnce() -> T + Send) -> T {
    let before = meter.requests();
    let mut progress = Progress::new("simulating (requests of all candidates)", total);
    let outcome = std::thread::scope(|scope| {
        let work = scope.spawn(work);
        while !work.is_finished() {
            std::thread::sleep(LOOK_EVERY);
            progress.set(meter.requests() - before);
        }
        work.join()
    });
    progress.finish();
    outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// How often the progress is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Those of the file; else those that the recording measured; else assumed ones.
fn devices(args: &AdviseArgs, measured: Option<&Devices>) -> Result<Devices, CliError> {
    match &args.devices {
        None => Ok(measured.cloned().unwrap_or_default()),
        Some(path) => file::read(path, |text| toml::from_str(text).map_err(|e| e.to_string())),
    }
}

/// What a crash may cost that the journal survives.
fn rpo_crash(args: &AdviseArgs) -> Result<Option<Span>, CliError> {
    let Some(asked) = args.rpo_crash else { return Ok(None) };
    if args.front == FrontName::Block {
        return Err(CliError::usage(
            "--rpo-crash is about rows (--front data): a volume keeps what was flushed, as a disk does",
        ));
    }
    if asked >= args.rpo {
        return Err(CliError::usage(format!(
            "--rpo-crash {asked} is not shorter than --rpo {}: what a crash loses is lost with host and journal, too",
            args.rpo
        )));
    }
    if Span::ZERO < asked.span() && asked.span() < Span::from_millis(1) {
        return Err(CliError::usage(format!("--rpo-crash {asked} is too short: 0, or 1ms to 60s")));
    }
    Ok(Some(asked.span()))
}

/// The front end with what it has.
fn front(args: &AdviseArgs, requests: &[Request], is_recording: bool) -> Result<Front, CliError> {
    let ram = args.ram.map_or(0, Bytes::get);
    if args.front == FrontName::Block {
        let is_of_rows = |request: &Request| matches!(request.extent, Extent::Object { .. });
        if is_recording && requests.iter().any(is_of_rows) {
            return Err(CliError::usage(
                "the recording is of rows, not of a volume: ask with --front data, and --ram instead of --flash",
            ));
        }
        let flash = args.flash.ok_or_else(|| CliError::usage("advice on volumes needs --flash"))?;
        return Ok(Front::Block { flash: flash.get(), ram });
    }
    let mut sizes: HashMap<u64, u64> = HashMap::new();
    for request in requests {
        match request.extent {
            Extent::Object { id, bytes } => {
                let size = sizes.entry(id).or_default();
                *size = bytes.max(*size);
            }
            Extent::Range { .. } if request.op == Op::Flush => {}
            Extent::Range { .. } => {
                return Err(CliError::usage(
                    "the trace is of places on a disk, not of rows: --front data takes traces that name objects by key (twitter, \
                     oracle-general)",
                ));
            }
        }
    }
    let all: u64 = sizes.values().fold(0, |all, &size| all.saturating_add(size));
    Ok(Front::Data { ram, row: (all / (sizes.len() as u64).max(1)).max(1) })
}

fn ranked<'a>(wish: &Wish, judged: &'a Judged) -> Ranked<'a> {
    let Judged { report, losses, misses, .. } = judged;
    Ranked {
        policy: policy_name(wish, judged.policy()),
        when: when_text(report.settings.flash.when),
        meets: judged.meets(),
        misses,
        mean_seconds: judged.mean(),
        p99_read_seconds: report.reads.latency.p99,
        p99_write_seconds: report.writes.latency.p99,
        origin_write_blocks: report.origin.write_blocks,
        origin_write_requests: report.origin.write_requests,
        behind_seconds: judged.behind,
        losses,
        settings: &report.settings,
    }
}

/// As the front end calls it.
fn policy_name(wish: &Wish, policy: WritePolicy) -> &'static str {
    match policy {
        WritePolicy::Journaled if matches!(wish.front, Front::Data { .. }) => {
            WritePolicy::WriteBack.name()
        }
        _ => policy.name(),
    }
}

#[cfg(test)]
mod tests;
