//! `destage sim replay`: a recorded run once more; then the same load under another policy.

use super::trace::{interrupt, is_interrupted, verdict};
use crate::error::CliError;
use crate::output::{Format, print, print_json};
use crate::values::{bytes, interval, staleness};
use destage_core::{Core, Effect, Input, Order, Policy, Span, Time, UnitId};
use destage_engine::{WritePolicy, commit_on_flush, fit_running_volume};
use destage_record::{Asked, End, ListError, Part, list};
use destage_runtime::exit;
use destage_runtime::human;
use destage_runtime::policy::{
    change, in_force, parse_at_limit, parse_when, summary, volume_summary,
};
use destage_runtime::progress::Progress;
use destage_runtime::units::{Bytes, Interval};
use destage_sim::blocks::BLOCK_BYTES;
use destage_sim::machine;
use destage_sim::replay::{
    Latency, Load, Observer, Outcome, RecordedRun, ReplayError, Summary, Tally, Watched, replay,
    what_if_with,
};
use serde::Serialize;
use std::fmt::Write;
use std::fs;
use std::panic::PanicHookInfo;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// Flags of `sim replay`.
#[derive(Debug, clap::Args)]
pub(crate) struct ReplayArgs {
    /// What --record named: all its parts; or one of them.
    #[arg(value_name = "FILE")]
    file: PathBuf,

    /// What if: write-back, write-through, write-around, or of a volume ordered or journaled.
    #[arg(long, value_parser = policy_word, value_name = "POLICY")]
    policy: Option<WritePolicy>,

    /// What if it destaged async, adaptive, periodic:10s, interval:30s,1s (age, check) or pressure.
    #[arg(long, value_parser = |s: &str| parse_when(s).map(|_| s.to_owned()), value_name = "WHEN")]
    when: Option<String>,

    /// What if it yielded to reads at the origin: on or off.
    #[arg(long, value_parser = ["on", "off"], value_name = "CHOICE")]
    read_priority: Option<String>,

    /// What if d, the most that a crash of the host may lose, were 0, or 1ms to 60s.
    #[arg(short = 'd', long, value_parser = |s: &str| interval(s, "0", "60s"), value_name = "TIME")]
    commit: Option<Interval>,

    /// What if D, the staleness bound, were 100ms to 1d, or none.
    #[arg(short = 'D', long, value_parser = staleness, value_name = "TIME")]
    staleness: Option<Interval>,

    /// What if a limit meant throttle, block, write-through or fail.
    #[arg(long, value_parser = |s: &str| parse_at_limit(s).map(|_| s.to_owned()), value_name = "CHOICE")]
    at_limit: Option<String>,

    /// What if so many bytes could be dirty. 64K to 1T.
    #[arg(long, value_parser = |s: &str| bytes(s, "64K", "1T"), value_name = "SIZE")]
    dirty_limit: Option<Bytes>,

    /// What if the cache had so many bytes. 0 to 16T.
    #[arg(long, value_parser = |s: &str| bytes(s, "0", "16T"), value_name = "SIZE")]
    cache_size: Option<Bytes>,

    /// What if a lone write waited so long for company. 0 to 1s.
    #[arg(long, value_parser = |s: &str| interval(s, "0", "1s"), value_name = "TIME")]
    linger: Option<Interval>,

    /// The form of the result.
    #[arg(long = "format", alias = "output", value_enum, default_value = "table")]
    output: Format,
}

/// A policy as either front end names it.
fn policy_word(text: &str) -> Result<WritePolicy, String> {
    WritePolicy::parse(text).filter(|named| *named != WritePolicy::Strict).ok_or_else(|| {
        format!(
            "'{text}' is not a policy: use write-back, write-through or write-around; of a volume also ordered or journaled"
        )
    })
}

/// One part, replayed.
#[derive(Debug, Serialize)]
struct PartReport {
    file: String,
    subject: String,
    run: u64,
    part: u32,
    bytes: u64,
    inputs: u64,
    effects: u64,
    seconds: f64,
    /// The recording broke off here; what was read up to there is the same.
    broken_off_at: Option<u64>,
    /// The replay was interrupted here.
    interrupted_at: Option<u64>,
    /// Something is missing between the part before and this one.
    after_gap: bool,
}

/// Everything.
#[derive(Debug, Serialize)]
struct Report {
    parts: Vec<PartReport>,
    /// Whether the core gave the recorded effects; a difference ends the command instead.
    same_effects: bool,
    policy: Option<String>,
    recorded: Option<Recorded>,
    modelled: Option<Outcome>,
    what_if: Option<WhatIf>,
    assumptions: Vec<&'static str>,
}

/// What the recorded run itself came to.
#[derive(Debug, Serialize)]
struct Recorded {
    #[serde(flatten)]
    tally: Tally,
    /// Requests that read, and those that wrote; nothing where the recording does not tell how long they took.
    read_times: Option<Latency>,
    write_times: Option<Latency>,
}

#[derive(Debug, Serialize)]
struct WhatIf {
    policy: String,
    outcome: Outcome,
}

impl From<RecordedRun> for Recorded {
    fn from(run: RecordedRun) -> Self {
        let times = |latency: &Option<machine::Latency>| latency.as_ref().map(Latency::from);
        Self { read_times: times(&run.reads), write_times: times(&run.writes), tally: run.tally }
    }
}

/// Replays a recording.
pub(crate) fn run(args: &ReplayArgs) -> Result<(), CliError> {
    interrupt()?;
    let paths = list(&args.file).map_err(|error| match error {
        ListError::Io { .. } => CliError::new(exit::TRACE_UNUSABLE, error),
        ListError::Missing(_) => CliError::usage(error),
    })?;
    let lengths = paths.iter().map(|path| fs::metadata(path).map_or(0, |found| found.len()));
    let mut reading = Reading {
        newest: Watched::new(Span::ZERO),
        last: None,
        bar: Progress::new("replaying the recording (bytes)", lengths.sum()),
        before: 0,
    };
    let mut parts = Vec::new();
    for path in paths.iter().take_while(|_| !is_interrupted()) {
        match reading.part(path)? {
            Some(part) => parts.push(part),
            None => {
                let path = path.display();
                tracing::warn!("{path} is left out: the recording broke off before it began there");
            }
        }
    }
    let Reading { newest, bar, .. } = reading;
    let (load, recorded) = newest.into_run();
    bar.finish();
    if parts.is_empty() {
        verdict()?;
        let file = args.file.display();
        let message = format!("{file}: nothing was recorded: it broke off before it began");
        return Err(CliError::new(exit::TRACE_UNUSABLE, message));
    }
    // A volume's policy has a name by its order, too.
    let is_volume = parts_are_volumes(&parts);
    let line = if is_volume { volume_summary } else { summary };
    let policy_summary = |policy: &Policy| in_force(&line(policy), policy);
    let mut report = Report {
        parts,
        same_effects: true,
        policy: load.policy().map(policy_summary),
        recorded: None,
        modelled: None,
        what_if: None,
        assumptions: Vec::new(),
    };
    if args.asks_what_if() && !is_interrupted() {
        if let Some(policy) = load.policy() {
            args.change(policy, is_volume)?;
        }
        // Each policy of the recording is changed alike; one that does not fit with the change stays.
        let changed =
            |policy: &Policy| args.change(policy, is_volume).unwrap_or_else(|_| policy.clone());
        report.modelled = simulated(&load, "simulating the recorded policy", Policy::clone);
        report.what_if = simulated(&load, "simulating the other policy", changed)
            .zip(load.policy())
            .map(|(outcome, policy)| WhatIf { policy: policy_summary(&changed(policy)), outcome });
        report.recorded = recorded.map(Recorded::from);
        report.assumptions = assumptions(&load);
    }
    match args.output {
        Format::Table => print(&table(&report)),
        Format::Json => print_json(&report),
    }?;
    verdict()
}

impl ReplayArgs {
    fn changes(&self) -> Vec<String> {
        let bytes = |size: Bytes| size.to_string();
        [
            ("when", self.when.clone()),
            ("read-priority", self.read_priority.clone()),
            ("commit", self.commit.map(|time| time.to_string())),
            ("staleness", self.staleness.map(|time| time.to_string())),
            ("at-limit", self.at_limit.clone()),
            ("dirty-limit", self.dirty_limit.map(bytes)),
            ("cache-size", self.cache_size.map(bytes)),
            ("linger", self.linger.map(|time| time.to_string())),
        ]
        .into_iter()
        .filter_map(|(part, value)| value.map(|value| format!("{part}={value}")))
        .collect()
    }

    fn asks_what_if(&self) -> bool {
        self.policy.is_some() || !self.changes().is_empty()
    }

    pub(in crate::sim) fn change(
        &self,
        policy: &Policy,
        is_volume: bool,
    ) -> Result<Policy, CliError> {
        let mut changed = policy.clone();
        if let Some(named) = self.policy {
            changed.acknowledge = named.acknowledge();
            if is_volume || named.order() != Order::Any {
                changed.order = named.order();
            }
        }
        // A volume that commits on flush does so within a share of D, whatever that is.
        let on_flush = is_volume
            && self.commit.is_none()
            && policy.commit == commit_on_flush(policy.staleness);
        if on_flush {
            changed.commit = Span::ZERO;
        }
        let mut changed = change(&changed, &self.changes())
            .map_err(|error| CliError::usage(format!("the policy does not fit: {error}")))?;
        if on_flush {
            changed.commit = commit_on_flush(changed.staleness);
        }
        if is_volume && self.dirty_limit.is_some() && self.cache_size.is_none() {
            fit_running_volume(&mut changed, policy, BLOCK_BYTES.into());
        }
        Ok(changed)
    }
}

/// The load under another policy, with what is shown meanwhile; nothing if it is interrupted.
fn simulated(load: &Load, doing: &str, policy: impl Fn(&Policy) -> Policy) -> Option<Outcome> {
    let mut bar = Progress::new(doing, 0);
    let outcome = what_if_with(load, policy, |done, total| {
        bar.set_total(total);
        bar.set(done);
        !is_interrupted()
    });
    bar.finish();
    outcome
}

/// Whether the newest run was one of a volume.
fn parts_are_volumes(parts: &[PartReport]) -> bool {
    parts.last().is_some_and(|part| destage_sim::replay::is_of_volume(&part.subject))
}

/// How far the replay is in its file, bytes.
static REACHED: AtomicU64 = AtomicU64::new(0);

/// Notes how far the replay is, for [`refuse_what_cannot_be`] and for who waits.
struct Reached<'w> {
    watched: &'w mut Watched,
    bar: &'w mut Progress,
    /// Bytes of the files before this one.
    before: u64,
}

impl Observer for Reached<'_> {
    fn reached(&mut self, byte: u64) {
        REACHED.store(byte, Ordering::Relaxed);
        self.bar.set(self.before + byte);
    }

    fn is_stopped(&self) -> bool {
        is_interrupted()
    }

    fn asked(&mut self, now: Time, asked: &Asked) {
        self.watched.asked(now, asked);
    }

    fn named(&mut self, unit: UnitId, identity: u64) {
        self.watched.named(unit, identity);
    }

    fn input(&mut self, now: Time, input: &Input<'_>, core: &Core) {
        self.watched.input(now, input, core);
    }

    fn effect(&mut self, now: Time, effect: &Effect, core: &Core) {
        self.watched.effect(now, effect, core);
    }
}

/// Restores the hook that was in force before.
pub(super) struct Hooked(Option<Hook>);

type Hook = Box<dyn Fn(&PanicHookInfo<'_>) + Send + Sync>;

impl Drop for Hooked {
    fn drop(&mut self) {
        if let Some(before) = self.0.take() {
            std::panic::set_hook(before);
        }
    }
}

/// The core panics where a driver does what it must not, and no driver that was recorded did: the file was changed. As long as
/// what is returned lives, the process then ends with the place in the file instead.
pub(super) fn refuse_what_cannot_be(path: &Path) -> Hooked {
    let before = std::panic::take_hook();
    let file = path.display().to_string();
    REACHED.store(0, Ordering::Relaxed);
    std::panic::set_hook(Box::new(move |info| {
        // Who reads it as a trace does not note how far that is.
        let place = match REACHED.load(Ordering::Relaxed) {
            0 => String::new(),
            byte => format!("byte {byte}: "),
        };
        let why = info.payload_as_str().unwrap_or("it breaks the core's contract");
        eprintln!(
            "error: {file}: {place}the recording was changed: what it tells the core here cannot have happened ({why})"
        );
        std::process::exit(exit::TRACE_UNUSABLE.into());
    }));
    Hooked(Some(before))
}

/// The newest stretch of parts without a gap, as it was watched.
struct Reading {
    newest: Watched,
    last: Option<(u64, u32)>,
    bar: Progress,
    /// Bytes of the files that were replayed.
    before: u64,
}

impl Reading {
    /// `None` for a part that was not begun.
    fn part(&mut self, path: &Path) -> Result<Option<PartReport>, CliError> {
        let file = path.display();
        let unusable = |error: &dyn std::fmt::Display| {
            CliError::new(exit::TRACE_UNUSABLE, format!("{file}: {error}"))
        };
        let content = fs::read(path).map_err(|error| unusable(&error))?;
        let part = Part::read_begun(content, env!("CARGO_PKG_VERSION"));
        let Some(part) = part.map_err(|error| unusable(&error))? else {
            self.last = None;
            return Ok(None);
        };
        let begin = &part.begin;
        let follows = self.last == Some((begin.run, begin.part.wrapping_sub(1)));
        if !follows || begin.after_gap {
            self.newest = Watched::new(Span::ZERO);
        }
        self.newest.note_subject(&begin.subject);
        self.last = Some((begin.run, begin.part));
        let guard = refuse_what_cannot_be(path);
        let (watched, bar, before) = (&mut self.newest, &mut self.bar, self.before);
        let replayed = replay(&part, &mut Reached { watched, bar, before });
        drop(guard);
        self.before += part.len();
        let summary = replayed.map_err(|error| match error {
            ReplayError::Damaged(_) => unusable(&error),
            ReplayError::Differs(_) => CliError::new(
                exit::UNEXPECTED_RESULT,
                format!("{file}: {error}. The recording was changed, or this core is another one"),
            ),
        })?;
        Ok(Some(report(path, &part, &summary)))
    }
}

fn report(path: &Path, part: &Part, summary: &Summary) -> PartReport {
    PartReport {
        file: path.display().to_string(),
        subject: part.begin.subject.clone(),
        run: part.begin.run,
        part: part.begin.part,
        bytes: part.len(),
        inputs: summary.inputs,
        effects: summary.effects,
        seconds: summary.duration().as_secs_f64(),
        broken_off_at: match part.end {
            End::Whole => None,
            End::BrokenOff { at } => Some(at),
        },
        interrupted_at: is_interrupted().then(|| REACHED.load(Ordering::Relaxed)),
        after_gap: part.begin.after_gap,
    }
}

fn assumptions(load: &Load) -> Vec<&'static str> {
    let assumed = load.assumed();
    [
        (assumed.sync, "no sync was recorded: each is taken to last 1 ms"),
        (assumed.fetch, "no fetch was recorded: each is taken to last 1 ms"),
        (assumed.destage, "no batch was recorded: each is taken to last 1 ms"),
    ]
    .into_iter()
    .filter_map(|(is_assumed, text)| is_assumed.then_some(text))
    .collect()
}

fn table(report: &Report) -> String {
    let mut out = String::new();
    if let Some(policy) = &report.policy {
        let _ = writeln!(out, "policy: {policy}");
    }
    for part in &report.parts {
        let end = match (part.interrupted_at, part.broken_off_at) {
            (Some(at), _) => format!("; interrupted at byte {at}"),
            (_, Some(at)) => format!("; the recording broke off at byte {at}"),
            _ => String::new(),
        };
        let gap = if part.after_gap { "after a gap; " } else { "" };
        let _ = writeln!(
            out,
            "{} ({}): {gap}{} inputs in {}, {} effects, all as recorded{end}",
            part.file,
            part.subject,
            human::count(part.inputs),
            human::seconds(part.seconds),
            human::count(part.effects),
        );
    }
    if let (Some(recorded), Some(modelled), Some(what_if)) =
        (&report.recorded, &report.modelled, &report.what_if)
    {
        let _ = writeln!(out, "what if: {}\n", what_if.policy);
        compare(&mut out, recorded, modelled, &what_if.outcome);
        for assumption in &report.assumptions {
            let _ = writeln!(out, "assumed: {assumption}");
        }
    }
    out
}

type Count = fn(&Tally) -> u64;
type Seconds = fn(&Latency) -> f64;

fn compare(out: &mut String, recorded: &Recorded, modelled: &Outcome, what_if: &Outcome) {
    let count = human::count;
    let seconds = human::seconds;
    let mut line = |name: &str, cells: [String; 3]| {
        let [recorded, modelled, what_if] = cells;
        let _ = writeln!(out, "{name:<36}{recorded:>14}{modelled:>14}{what_if:>14}");
    };
    line("", ["recorded", "modelled", "what if"].map(str::to_owned));
    let tallies = [&recorded.tally, &modelled.tally, &what_if.tally];
    let counts: [(&str, Count); 10] = [
        ("write groups", |tally| tally.writes),
        ("units written by them", |tally| tally.written_units),
        ("units written to the origin", |tally| tally.origin_writes),
        ("batches", |tally| tally.batches),
        ("largest batch, units", |tally| tally.burst_max),
        ("units fetched from the origin", |tally| tally.fetches),
        ("units evicted", |tally| tally.evictions),
        ("syncs of the journal", |tally| tally.syncs),
        ("requests refused", |tally| tally.refused),
        ("groups still dirty at the end", |tally| tally.left_dirty),
    ];
    for (name, of) in counts {
        line(name, tallies.map(|tally| count(of(tally))));
    }
    line("most dirty bytes", tallies.map(|tally| human::bytes(tally.dirty_bytes_max)));
    line("dirty age when sent, mean", tallies.map(|tally| seconds(tally.dirty_age_mean)));
    line("dirty age when sent, longest", tallies.map(|tally| seconds(tally.dirty_age_max)));
    line("staleness, largest", tallies.map(|tally| seconds(tally.staleness_max)));
    let outcomes = [modelled, what_if];
    let [late, later] = outcomes.map(|outcome| count(outcome.unanswered));
    line("requests unanswered at the end", [String::new(), late, later]);
    let times: [(&str, Seconds); 3] = [
        ("mean", |latency| latency.mean),
        ("99 %", |latency| latency.p99),
        ("longest", |latency| latency.max),
    ];
    let reads = [recorded.read_times, Some(modelled.reads), Some(what_if.reads)];
    let writes = [recorded.write_times, Some(modelled.writes), Some(what_if.writes)];
    for (what, all) in [("read until answered", reads), ("write until acknowledged", writes)] {
        for (name, of) in times {
            let cells = all.map(|latency| latency.map(|all| seconds(of(&all))).unwrap_or_default());
            line(&format!("{what}, {name}"), cells);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, Subcommand};
    use crate::sim::SimCommand;
    use clap::Parser;
    use destage_engine::defaults;

    fn changed(words: &[&str], policy: &Policy, is_volume: bool) -> Result<Policy, String> {
        let all = ["destage", "sim", "replay", "run"];
        let cli = Cli::try_parse_from(all.iter().chain(words));
        let cli = cli.unwrap_or_else(|error| panic!("{error}"));
        let Subcommand::Sim { command: SimCommand::Replay(args) } = cli.command else {
            panic!("it is a replay")
        };
        args.change(policy, is_volume).map_err(|error| error.to_string())
    }

    #[test]
    fn what_else_may_be_dirty_of_a_volume_takes_the_room_of_clean_blocks() {
        const MIB: u64 = 1 << 20;
        let mut policy = defaults::volume::policy(64 * MIB);
        destage_engine::fit_volume(&mut policy, 16_384, 4_096, 64 * MIB);
        let (clean, dirty) = (policy.limits.cache_bytes_max, policy.limits.dirty_bytes_max);
        assert_eq!((clean, dirty), (40 * MIB, 16 * MIB));
        let with = |words: &[&str]| {
            let limits = changed(words, &policy, true).expect("it fits").limits;
            (limits.cache_bytes_max / MIB, limits.dirty_bytes_max / MIB)
        };
        assert_eq!(with(&["--dirty-limit", "8M"]), (48, 8));
        assert_eq!(with(&["--dirty-limit", "24M"]), (32, 24));
        // Half at most, as the server has it.
        assert_eq!(with(&["--dirty-limit", "1T"]), (28, 28));
        assert_eq!(with(&["--dirty-limit", "24M", "--cache-size", "1M"]), (1, 24));
        // The control: nothing is said of it.
        assert_eq!(with(&["--linger", "7ms"]), (40, 16));
    }

    #[test]
    fn what_a_volume_that_commits_on_flush_commits_follows_from_its_bound() {
        let policy = defaults::volume::policy(64 << 20);
        let with = |words: &[&str]| changed(words, &policy, true);
        let commit = |words: &[&str]| with(words).map(|policy| policy.commit);
        assert_eq!(commit(&["-D", "4s"]), Ok(Span::from_secs(1)));
        assert_eq!(commit(&["-D", "1h"]), Ok(policy.commit));
        // Unless it is said what d is, or was another one.
        assert_eq!(commit(&["-D", "4s", "-d", "2s"]), Ok(Span::from_secs(2)));
        let other = Policy { commit: Span::from_secs(3), ..policy.clone() };
        let kept = changed(&["-D", "4s"], &other, true).map(|policy| policy.commit);
        assert_eq!(kept, Ok(other.commit));
        // Rows commit when they are told to.
        let refused = changed(&["-D", "4s"], &policy, false);
        assert!(refused.is_err_and(|error| error.contains("must exceed the commit interval")));
    }
}
