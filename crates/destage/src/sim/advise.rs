//! `destage sim advise`: which policy of the block front end to choose, and the command line for it.

use super::trace::TraceArgs;
use crate::error::CliError;
use crate::file;
use crate::output::{print, print_json};
use crate::values::{bytes, interval};
use destage_core::Time;
use destage_runtime::exit;
use destage_runtime::human::{count, seconds};
use destage_runtime::policy::{at_limit_name, when_text};
use destage_runtime::units::{Bytes, Interval};
use destage_sim::advise::{Judged, Losses, Wish, random_times, reason};
use destage_sim::machine::{Devices, Settings, WritePolicy};
use destage_sim::report::Page;
use destage_sim::trace::Request;
use serde::Serialize;
use std::path::PathBuf;

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

    /// The size of the flash cache. 64M to 16T.
    #[arg(long, value_parser = |s: &str| bytes(s, "64M", "16T"), value_name = "SIZE")]
    flash: Bytes,

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
    #[arg(long, value_enum, default_value = "table")]
    output: Output,
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
    flash: Bytes,
    reason: Vec<String>,
    command: String,
    ranking: Vec<Ranked<'a>>,
}

/// A candidate.
#[derive(Debug, Serialize)]
struct Ranked<'a> {
    policy: WritePolicy,
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
    let wish = Wish {
        rpo: args.rpo.span(),
        p99_read: args.p99_read.map(Interval::span),
        p99_write: args.p99_write.map(Interval::span),
        flash: args.flash.get(),
    };
    let mut requests: Vec<Request> = Vec::new();
    args.trace.read(|request| {
        requests.push(*request);
        Ok(())
    })?;
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
    tracing::info!("running {} candidates", candidates.len());
    let ranking = wish.judge(&requests, candidates).map_err(CliError::usage)?;
    let Some(best) = ranking.first() else {
        return Err(CliError::new(exit::BUG, "there are no candidates"));
    };
    let advice = Advice {
        version: env!("CARGO_PKG_VERSION"),
        trace: args.trace.trace.display().to_string(),
        rpo: args.rpo,
        p99_read: args.p99_read,
        p99_write: args.p99_write,
        flash: args.flash,
        reason: reason(&wish, &ranking),
        command: command(&wish, &best.report.settings),
        ranking: ranking.iter().map(ranked).collect(),
    };
    match args.output {
        Output::Table => print(&advice.text()),
        Output::Json => print_json(&advice),
        Output::Html => print(&advice.html()),
    }
}

fn devices(args: &AdviseArgs) -> Result<Devices, CliError> {
    match &args.devices {
        None => Ok(Devices::default()),
        Some(path) => file::read(path, |text| toml::from_str(text).map_err(|e| e.to_string())),
    }
}

fn ranked(judged: &Judged) -> Ranked<'_> {
    let Judged { report, losses, misses } = judged;
    Ranked {
        policy: judged.policy(),
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
    let tier = &settings.flash;
    let (policy, order) = match tier.policy {
        WritePolicy::WriteThrough | WritePolicy::WriteAround => ("write-through", ""),
        WritePolicy::WriteBack => ("write-back", ""),
        WritePolicy::Ordered => ("ordered", " --order epoch"),
        WritePolicy::Strict => ("ordered", " --order strict"),
        WritePolicy::Journaled => ("journaled", ""),
    };
    let limits = tier
        .core_policy(tier.size.get() / settings.block.get(), settings.block.get(), false)
        .limits;
    format!(
        "destage block serve --origin nbd://STORAGE/VOLUME --cache /SSD/VOLUME --cache-size {} --log-size {} \
         --dirty-limit {} --policy {policy}{order} --commit {} --staleness {} --when {} --at-limit {} --batch-size {} \
         --linger {}",
        Bytes(wish.flash),
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
            "{}: at most the writes of {} lost with host and cache{}{}, {} of flash",
            self.trace,
            self.rpo,
            limit("reads", self.p99_read),
            limit("writes", self.p99_write),
            self.flash
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
                policy_name(ranked.policy).to_owned(),
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

    fn html(&self) -> String {
        let mut page = Page::new("Which policy for this load");
        page.paragraph(&self.asked());
        self.reason.iter().for_each(|sentence| page.paragraph(sentence));
        page.heading("To put it into service");
        page.verbatim(&self.command);
        page.heading("All candidates, the best first");
        page.paragraph(
            "Each was simulated on the whole load. 'Origin behind' and 'out of order' are what crashes at random moments would \
             have left at the origin if host and cache were lost: how old it would have been at most, and in how many crashes it \
             held a write but not one that was complete before.",
        );
        page.table(&Self::header(), &self.rows(), Some(0));
        let misses = self.ranking.iter().filter(|ranked| !ranked.meets).map(|ranked| {
            let name = policy_name(ranked.policy);
            format!("{name}, {}: {}", ranked.when, ranked.misses.join("; "))
        });
        let misses: Vec<String> = misses.collect();
        if !misses.is_empty() {
            page.heading("What the others miss");
            page.list(&misses);
        }
        page.html()
    }
}

fn policy_name(policy: WritePolicy) -> &'static str {
    match policy {
        WritePolicy::WriteThrough => "write-through",
        WritePolicy::WriteAround => "write-around",
        WritePolicy::WriteBack => "write-back",
        WritePolicy::Ordered => "ordered",
        WritePolicy::Strict => "strict",
        WritePolicy::Journaled => "journaled",
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
            let wish = Wish { rpo: Span::from_millis(rpo), p99_read: None, p99_write: None, flash };
            for settings in wish.candidates(&Settings::default()) {
                settings.validate().expect("candidates can be run");
                let command = command(&wish, &settings);
                let live = parsed(&command);
                let [volume] = &live.volumes[..] else { panic!("one volume: {command}") };
                assert_eq!((volume.cache_bytes, volume.log_bytes), (flash, Some(wish.log())));
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
                assert_eq!(ours.journal_bytes_max, theirs.journal_bytes_max, "{command}");
                assert_eq!(ours.batch_bytes_max, theirs.batch_bytes_max, "{command}");
                assert_eq!(ours.batch_groups_max, theirs.batch_groups_max, "{command}");
                assert_eq!(ours.linger, theirs.linger, "{command}");
                policies.insert(policy_name(tier.policy));
            }
        }
        assert_eq!(policies.len(), 4, "{policies:?}");
    }
}
