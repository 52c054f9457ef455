//! `destage sim advise`: which policy of a front end to choose, and the command line for it.

use super::trace::{TraceArgs, interrupt, verdict};
use crate::error::CliError;
use crate::file;
use crate::output::{print, print_json};
use crate::values::{bytes, interval};
use destage_core::Time;
use destage_runtime::exit;
use destage_runtime::human::{count, seconds};
use destage_runtime::policy::{at_limit_name, when_text};
use destage_runtime::progress::Progress;
use destage_runtime::units::{Bytes, Interval};
use destage_sim::advise::{Front, Judged, Losses, Wish, random_times, reason};
use destage_sim::machine::{Devices, Meter, Settings, WritePolicy};
use destage_sim::report::{Axis, Chart, Page, Scale, Series};
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

    /// Of rows, the memory for them, half of it for buffered writes; of volumes, RAM of the clients before the flash, such as
    /// their page cache. 1M to 16T.
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

    /// Of all random streams.
    #[arg(long, default_value = "1", value_name = "N")]
    seed: u64,

    /// The form of the result: a table, everything as JSON, or a page of HTML.
    #[arg(long = "format", alias = "output", value_enum, default_value = "table")]
    output: Output,
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
    p99_read: Option<Interval>,
    p99_write: Option<Interval>,
    front: &'static str,
    flash: Option<Bytes>,
    ram: Option<Bytes>,
    reason: Vec<String>,
    command: String,
    ranking: Vec<Ranked<'a>>,
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
    losses: &'a Losses,
    settings: &'a Settings,
}

/// Runs the candidates and shows their ranking.
pub(crate) fn run(args: &AdviseArgs) -> Result<(), CliError> {
    let stop = interrupt()?;
    let mut requests: Vec<Request> = Vec::new();
    args.trace.read(|request| {
        requests.push(*request);
        Ok(())
    })?;
    let wish = Wish {
        rpo: args.rpo.span(),
        p99_read: args.p99_read.map(Interval::span),
        p99_write: args.p99_write.map(Interval::span),
        front: front(args, &requests)?,
    };
    let Some(last) = requests.last().filter(|last| last.time > Time::ZERO) else {
        let message =
            "the trace has no times, without which nothing can be said of latencies and losses";
        return Err(CliError::new(exit::TRACE_UNUSABLE, message));
    };
    let base = Settings {
        block: args.trace.block,
        devices: devices(args)?,
        flush_every: args.flush_every,
        crashes: random_times(args.crashes, last.time.since(Time::ZERO), args.seed),
        seed: args.seed,
        ..Settings::default()
    };
    let candidates = wish.candidates(&base);
    for candidate in &candidates {
        candidate.validate().map_err(CliError::usage)?;
    }
    let asked = candidates.len();
    let meter = Meter::new(stop);
    let ranking = watched(&meter, asked as u64 * requests.len() as u64, || {
        wish.judge(&requests, candidates, &meter).map_err(CliError::usage)
    })?;
    let Some(best) = ranking.first() else {
        let message = "interrupted before the first candidate was done: there is nothing to advise";
        return Err(CliError::new(exit::INTERRUPTED, message));
    };
    if ranking.len() < asked {
        tracing::warn!("interrupted: only {} of {asked} candidates are ranked", ranking.len());
    }
    let advice = Advice {
        version: env!("CARGO_PKG_VERSION"),
        trace: args.trace.trace.display().to_string(),
        rpo: args.rpo,
        p99_read: args.p99_read,
        p99_write: args.p99_write,
        front: if args.front == FrontName::Data { "data" } else { "block" },
        flash: args.flash.filter(|_| args.front == FrontName::Block),
        ram: args.ram,
        reason: reason(&wish, &ranking),
        command: command(&wish, &best.report.settings),
        ranking: ranking.iter().map(|judged| ranked(&wish, judged)).collect(),
    };
    match args.output {
        Output::Table => print(&advice.text()),
        Output::Json => print_json(&advice),
        Output::Html => print(&advice.html()?),
    }?;
    verdict()
}

/// Does the work and shows how far the simulations are.
fn watched<T: Send>(meter: &Meter, total: u64, work: impl FnOnce() -> T + Send) -> T {
    let mut progress = Progress::new("simulating (requests of all candidates)", total);
    let outcome = std::thread::scope(|scope| {
        let work = scope.spawn(work);
        while !work.is_finished() {
            std::thread::sleep(LOOK_EVERY);
            progress.set(meter.requests());
        }
        work.join()
    });
    progress.finish();
    outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// How often the progress is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(20);

fn devices(args: &AdviseArgs) -> Result<Devices, CliError> {
    match &args.devices {
        None => Ok(Devices::default()),
        Some(path) => file::read(path, |text| toml::from_str(text).map_err(|e| e.to_string())),
    }
}

/// The front end with what it has.
fn front(args: &AdviseArgs, requests: &[Request]) -> Result<Front, CliError> {
    let ram = args.ram.map_or(0, Bytes::get);
    if args.front == FrontName::Block {
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
    let Judged { report, losses, misses } = judged;
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
        losses,
        settings: &report.settings,
    }
}

/// What puts the settings into service. Origin and cache are the user's to name.
fn command(wish: &Wish, settings: &Settings) -> String {
    match wish.front {
        Front::Block { flash, .. } => command_of_volumes(wish, flash, settings),
        Front::Data { ram, .. } => command_of_rows(wish, ram, settings),
    }
}

fn command_of_rows(wish: &Wish, ram: u64, settings: &Settings) -> String {
    let tier = &settings.flash;
    format!(
        "destage serve --origin postgres://USER@HOST/DATABASE --cache-size {} --dirty-limit {} --policy {} --commit {} \
         --staleness {} --when {} --at-limit {} --batch {} --linger {}",
        Bytes(ram - ram / 2),
        Bytes(ram / 2),
        policy_name(wish, tier.policy),
        tier.commit,
        tier.staleness,
        when_text(tier.when),
        at_limit_name(tier.at_limit),
        tier.batch_groups,
        tier.linger,
    )
}

fn command_of_volumes(wish: &Wish, flash: u64, settings: &Settings) -> String {
    let tier = &settings.flash;
    let (policy, order) = match tier.policy {
        WritePolicy::WriteAround => (WritePolicy::WriteThrough.name(), ""),
        WritePolicy::Ordered => (WritePolicy::Ordered.name(), " --order epoch"),
        WritePolicy::Strict => (WritePolicy::Ordered.name(), " --order strict"),
        named => (named.name(), ""),
    };
    let limits = tier
        .core_policy(tier.size.get() / settings.block.get(), settings.block.get(), false)
        .limits;
    format!(
        "destage block serve --origin nbd://STORAGE/VOLUME --cache /SSD/VOLUME --cache-size {} --log-size {} \
         --dirty-limit {} --policy {policy}{order} --commit {} --staleness {} --when {} --at-limit {} --batch-size {} \
         --linger {}",
        Bytes(flash),
        Bytes(wish.log()),
        Bytes(limits.dirty_bytes_max),
        tier.commit,
        tier.staleness,
        when_text(tier.when),
        at_limit_name(tier.at_limit),
        tier.batch,
        tier.linger,
    )
}

impl Advice<'_> {
    fn asked(&self) -> String {
        let limit = |what: &str, limit: Option<Interval>| {
            limit.map(|limit| format!(", 99 % of the {what} within {limit}")).unwrap_or_default()
        };
        format!(
            "{}: at most the writes of {} lost with host and cache{}{}{}{}",
            self.trace,
            self.rpo,
            limit("reads", self.p99_read),
            limit("writes", self.p99_write),
            self.flash.map(|size| format!(", {size} of flash")).unwrap_or_default(),
            self.ram.map(|size| format!(", {size} of RAM")).unwrap_or_default()
        )
    }

    fn header() -> [&'static str; 9] {
        [
            "policy",
            "when",
            "meets",
            "mean",
            "p99 read",
            "p99 write",
            "origin behind",
            "out of order",
            "origin blocks",
        ]
    }

    fn rows(&self) -> Vec<Vec<String>> {
        let row = |ranked: &Ranked<'_>| {
            let losses = ranked.losses;
            vec![
                ranked.policy.to_owned(),
                ranked.when.clone(),
                if ranked.meets { "yes" } else { "no" }.to_owned(),
                seconds(ranked.mean_seconds),
                seconds(ranked.p99_read_seconds),
                seconds(ranked.p99_write_seconds),
                seconds(losses.staleness_seconds.max),
                format!("{} of {}", losses.order_violations.crashes, losses.crashes),
                count(ranked.origin_write_blocks),
            ]
        };
        self.ranking.iter().map(row).collect()
    }

    /// For people.
    fn text(&self) -> String {
        let mut out = format!("{}\n\n", self.asked());
        let header = Self::header().map(str::to_owned).to_vec();
        let rows = self.rows();
        let all = || std::iter::once(&header).chain(&rows);
        let width = |column: usize| all().map(|row| row[column].chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..header.len()).map(width).collect();
        for row in all() {
            let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
            out.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
            out.push('\n');
        }
        let sentences = self.reason.iter().map(|sentence| format!("{sentence}\n"));
        out.push('\n');
        out.extend(sentences);
        out.push_str(&format!("\n{}\n", self.command));
        out
    }

    /// How long requests took against how old the origin was, a line for each policy.
    fn chart(&self) -> Chart {
        let mut series: Vec<Series> = Vec::new();
        for ranked in &self.ranking {
            let point = (ranked.losses.staleness_seconds.max, ranked.mean_seconds);
            match series.iter_mut().find(|series| series.name == ranked.policy) {
                Some(series) => series.points.push(point),
                None => series.push(Series { name: ranked.policy.into(), points: vec![point] }),
            }
        }
        for series in &mut series {
            series.points.sort_by(|left, right| left.0.total_cmp(&right.0));
        }
        let axis =
            |label: &str| Axis { label: label.into(), scale: Scale::Linear, format: seconds };
        Chart {
            title: "What a lower age of the origin costs".into(),
            x: axis("the origin is behind, at most"),
            y: axis("a request takes, mean"),
            series,
        }
    }

    fn html(&self) -> Result<String, CliError> {
        let mut page = Page::new("Which policy for this load");
        page.paragraph(&self.asked());
        self.reason.iter().for_each(|sentence| page.paragraph(sentence));
        page.heading("To put it into service");
        page.verbatim(&self.command);
        page.heading("What they come to");
        let svg = self.chart().svg();
        page.svg(&svg.map_err(|error| CliError::new(exit::BUG, error))?);
        page.heading("All candidates, the best first");
        page.paragraph(
            "Each was simulated on the whole load. 'Origin behind' and 'out of order' are what crashes at random moments would \
             have left at the origin if host and cache were lost: how old it would have been at most, and in how many crashes it \
             held a write but not one that was complete before.",
        );
        page.table(&Self::header(), &self.rows(), Some(0));
        let misses = self.ranking.iter().filter(|ranked| !ranked.meets).map(|ranked| {
            format!("{}, {}: {}", ranked.policy, ranked.when, ranked.misses.join("; "))
        });
        let misses: Vec<String> = misses.collect();
        if !misses.is_empty() {
            page.heading("What the others miss");
            page.list(&misses);
        }
        Ok(page.html())
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
mod tests {
    use super::*;
    use crate::block::BlockCommand;
    use crate::cli::{Cli, Subcommand};
    use clap::Parser;
    use destage_core::Span;

    /// The settings that the block server makes of a command line.
    fn parsed(command: &str) -> destage_block::settings::Settings {
        let words = shlex::split(command).expect("it is a command line");
        let cli = Cli::try_parse_from(words).unwrap_or_else(|error| panic!("{command}: {error}"));
        let Subcommand::Block { command: BlockCommand::Serve(args) } = cli.command else {
            panic!("it starts the block server: {command}");
        };
        args.into_settings(Vec::new()).unwrap_or_else(|error| panic!("{command}: {error}"))
    }

    #[test]
    fn the_command_line_says_what_was_simulated() {
        let mut policies = std::collections::BTreeSet::new();
        for (rpo, flash) in [(100, 64 << 20), (5_000, 20 << 30), (86_400_000, 16 << 40)] {
            let front = Front::Block { flash, ram: 1 << 30 };
            let wish = Wish { rpo: Span::from_millis(rpo), p99_read: None, p99_write: None, front };
            for settings in wish.candidates(&Settings::default()) {
                settings.validate().expect("candidates can be run");
                let command = command(&wish, &settings);
                let live = parsed(&command);
                let [volume] = &live.volumes[..] else { panic!("one volume: {command}") };
                assert_eq!((volume.cache_bytes, volume.log_bytes), (Some(flash), Some(wish.log())));
                assert!(!volume.commit_on_flush, "{command}");
                let tier = &settings.flash;
                let blocks = tier.size.get() / settings.block.get();
                let simulated = tier.core_policy(blocks, settings.block.get(), false);
                let policy = &volume.policy;
                assert_eq!(policy.acknowledge, simulated.acknowledge, "{command}");
                assert_eq!((policy.order, policy.when), (simulated.order, simulated.when));
                assert_eq!(
                    (policy.commit, policy.staleness),
                    (simulated.commit, simulated.staleness)
                );
                assert_eq!(policy.at_limit, simulated.at_limit, "{command}");
                let (ours, theirs) = (&policy.limits, &simulated.limits);
                assert_eq!(ours.dirty_bytes_max, theirs.dirty_bytes_max, "{command}");
                assert!(tier.counts_writes, "as a volume does");
                assert_eq!(ours.journal_bytes_max, theirs.journal_bytes_max, "{command}");
                assert_eq!(ours.batch_bytes_max, theirs.batch_bytes_max, "{command}");
                assert_eq!(ours.batch_groups_max, theirs.batch_groups_max, "{command}");
                assert_eq!(ours.linger, theirs.linger, "{command}");
                policies.insert(policy_name(&wish, tier.policy));
            }
        }
        assert_eq!(policies.len(), 5, "{policies:?}");
    }

    #[test]
    fn the_command_line_for_rows_says_what_was_simulated() {
        let mut policies = std::collections::BTreeSet::new();
        for (rpo, ram) in [(100, 1 << 20), (5_000, 20 << 30), (86_400_000, 1 << 40)] {
            let front = Front::Data { ram, row: 333 };
            let wish = Wish { rpo: Span::from_millis(rpo), p99_read: None, p99_write: None, front };
            for settings in wish.candidates(&Settings::default()) {
                settings.validate().expect("candidates can be run");
                let command = command(&wish, &settings);
                let words = shlex::split(&command).expect("it is a command line");
                let cli = Cli::try_parse_from(words).unwrap_or_else(|error| panic!("{error}"));
                let Subcommand::Serve(args) = cli.command else { panic!("{command}") };
                let live = args.into_settings().unwrap_or_else(|error| panic!("{error}")).policy;
                let tier = &settings.flash;
                let blocks = tier.size.get() / settings.block.get();
                let simulated = tier.core_policy(blocks, settings.block.get(), false);
                assert_eq!(live.acknowledge, simulated.acknowledge, "{command}");
                assert_eq!((live.commit, live.staleness), (simulated.commit, simulated.staleness));
                assert_eq!((live.when, live.at_limit), (simulated.when, simulated.at_limit));
                let (ours, theirs) = (&live.limits, &simulated.limits);
                assert_eq!(ours.batch_groups_max, theirs.batch_groups_max, "{command}");
                assert_eq!(ours.linger, theirs.linger, "{command}");
                assert_eq!(ours.dirty_bytes_max + ours.cache_bytes_max, ram, "{command}");
                // Rows are simulated as blocks: so many fit.
                let dirty_rows = theirs.dirty_bytes_max / settings.block.get();
                assert_eq!(dirty_rows, ours.dirty_bytes_max / 333 / 2 * 2, "{command}");
                if tier.policy != WritePolicy::WriteThrough {
                    assert_eq!(live.order, simulated.order, "{command}");
                }
                policies.insert(policy_name(&wish, tier.policy));
            }
        }
        assert_eq!(policies.into_iter().collect::<Vec<_>>(), ["write-back", "write-through"]);
    }
}
