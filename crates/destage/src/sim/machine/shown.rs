//! What a run with devices came to, for people and programs.

use super::Row;
use crate::error::CliError;
use crate::sim::report::csv_line;
use destage_core::Policy;
use destage_runtime::exit;
use destage_runtime::human::{bytes, count, percent, seconds};
use destage_runtime::policy::{in_force, summary, volume_summary};
use destage_runtime::units::Bytes;
use destage_sim::advise::Losses;
use destage_sim::hits::Replacements;
use destage_sim::machine::{Arrivals, Destage, Kind, Overload, Settings};
use destage_sim::sweep::{cell, columns};
use std::fmt::Write;

/// More crashes are only summed up in the table.
const CRASHES_SHOWN_MAX: usize = 20;

/// The settings that decide, tier by tier, with labels. What flash stands for may have a policy in other units, as memory for rows
/// has.
pub(in crate::sim) fn settings_in_force(
    settings: &Settings,
    of_flash: Option<&Policy>,
) -> Vec<(&'static str, String)> {
    let tiers = [("RAM", &settings.ram, true), ("flash", &settings.flash, false)];
    let tiers = tiers.into_iter().filter(|(_, tier, _)| tier.size.get() > 0);
    let told = |(name, tier, is_ram): (&'static str, &destage_sim::machine::Tier, bool)| {
        let block = settings.block.get();
        let own = tier.core_policy(tier.size.get() / block, block, is_ram);
        let policy = of_flash.filter(|_| !is_ram).unwrap_or(&own);
        let name = if tier.rows && of_flash.is_some() { "rows" } else { name };
        // As a volume shows it, or as a server of rows does.
        let line = if tier.rows { summary(policy) } else { volume_summary(policy) };
        (name, format!("{}; {}", in_force(&line, policy), applied(tier.replacement)))
    };
    tiers.map(told).collect()
}

/// The replacement of a tier, and whether a server has it.
fn applied(replacement: Replacements) -> String {
    if replacement == Replacements::of(destage_engine::defaults::REPLACEMENT) {
        return format!("replacement {}", replacement.name());
    }
    let served = Replacements::of(destage_engine::defaults::REPLACEMENT).name();
    format!("replacement {} (a what-if: servers have {served} only)", replacement.name())
}

pub(super) fn table(row: &Row<'_>) -> String {
    let report = row.report;
    let settings = &report.settings;
    let size = |size: Bytes| if size.get() == 0 { "none".to_owned() } else { bytes(size.get()) };
    let arrivals = match settings.arrivals {
        Arrivals::Open { speed_percent: 100 } => "open loop, at the times of the trace".to_owned(),
        Arrivals::Open { speed_percent } => {
            format!("open loop, at {speed_percent} % of the trace's speed")
        }
        Arrivals::Closed { threads, think } => {
            format!("closed loop, {threads} threads, think time {think}")
        }
    };
    let mut rows = settings_in_force(settings, None);
    rows.extend([
        ("trace", format!("{} ({})", row.trace, row.format)),
        ("arrivals", arrivals),
        (
            "caches",
            format!(
                "RAM {}, flash {}, {} host(s)",
                size(settings.ram.size),
                size(settings.flash.size),
                settings.hosts
            ),
        ),
        ("duration", seconds(report.duration_seconds)),
    ]);
    for (name, kind) in [("reads", &report.reads), ("writes", &report.writes)] {
        rows.push((name, counts(kind)));
        rows.push(("", times(kind)));
    }
    if report.failed > 0 {
        rows.push(("failed", format!("{} requests", count(report.failed))));
    }
    if let Some(overload) = &report.overload {
        rows.push(("overload", overloaded(overload)));
    }
    if let Some(waiting) = report.interrupted {
        let waiting = count(waiting);
        rows.push(("interrupted", format!("{waiting} requests were under way and are not in it")));
    }
    let origin = &report.origin;
    rows.push((
        "origin",
        format!(
            "{} blocks read in {} requests, {} written in {}, {} to the redo store",
            count(origin.read_blocks),
            count(origin.read_requests),
            count(origin.write_blocks),
            count(origin.write_requests),
            count(origin.redo_blocks)
        ),
    ));
    rows.push(("destaged", destaged(&report.destage)));
    if let Some(ram) = &report.ram_destage {
        rows.push(("RAM to flash", destaged(ram)));
    }
    if report.invalidated.all > 0 && settings.hosts > 1 {
        let ratio = percent(report.invalidated.ratio());
        rows.push((
            "invalidated",
            format!("{ratio} of the blocks written were held by another host"),
        ));
    }
    let busy: Vec<_> = report
        .stations
        .iter()
        .map(|load| format!("{} {}", load.name, percent(load.busy)))
        .collect();
    rows.push(("busy", busy.join(", ")));
    rows.push(("hash", report.hash.clone()));
    let mut out: String =
        rows.iter().map(|(label, value)| format!("{label:<14}{value}\n")).collect();
    if let Some(losses) = &row.losses {
        out.push_str(&lost(losses));
    }
    for crash in report.crashes.iter().filter(|_| report.crashes.len() <= CRASHES_SHOWN_MAX) {
        let _ = writeln!(
            out,
            "crash at {}: {} writes lost, with the cache {}; origin {} behind; {} writes out of order, {} across flushes, \
             {} torn",
            seconds(crash.at_seconds),
            count(crash.lost_writes),
            count(crash.lost_writes_with_cache),
            seconds(crash.staleness_seconds),
            count(crash.order_violations),
            count(crash.epoch_violations),
            count(crash.torn_writes)
        );
    }
    out
}

/// That more came than can be done.
fn overloaded(overload: &Overload) -> String {
    format!(
        "more came than the devices can do: {} requests waited when the last one came, and were answered {} later; busiest: {}",
        count(overload.waiting),
        seconds(overload.behind_seconds),
        overload.busiest
    )
}

/// What the crashes lose, as far as it can differ.
fn lost(losses: &Losses) -> String {
    let writes = &losses.lost_writes;
    let mut out = format!(
        "{} crashes {}: writes lost: mean {:.1}, p50 {}, p99 {}, max {}\n",
        count(losses.crashes),
        if losses.lose_cache { "that lose the caches too" } else { "that spare persistent flash" },
        writes.mean,
        writes.p50,
        writes.p99,
        writes.max
    );
    if losses.lose_cache {
        let behind = &losses.staleness_seconds;
        let _ = writeln!(
            out,
            "  the origin is behind: mean {}, p50 {}, p99 {}, max {}",
            seconds(behind.mean),
            seconds(behind.p50),
            seconds(behind.p99),
            seconds(behind.max)
        );
        for (what, found) in [
            ("writes out of order", losses.order_violations),
            ("writes out of order across flushes", losses.epoch_violations),
            ("torn writes", losses.torn_writes),
        ] {
            let _ = writeln!(
                out,
                "  {what}: in {} crashes, at most {} in one",
                count(found.crashes),
                count(found.max)
            );
        }
    }
    out
}

fn counts(kind: &Kind) -> String {
    let counts = &kind.counts;
    format!(
        "{} requests, hits {}; {} blocks, hits {}, in RAM {}; bytes {}",
        count(counts.requests.all),
        percent(counts.requests.ratio()),
        count(counts.blocks.all),
        percent(counts.blocks.ratio()),
        percent(counts.ram_block_hits as f64 / counts.blocks.all.max(1) as f64),
        percent(counts.bytes.ratio())
    )
}

fn times(kind: &Kind) -> String {
    let latency = &kind.latency;
    format!(
        "mean {} +- {}, p50 {}, p99 {}, p99.9 {}, p99.99 {}, max {}; per block {}",
        seconds(latency.mean),
        seconds(latency.deviation),
        seconds(latency.p50),
        seconds(latency.p99),
        seconds(latency.p999),
        seconds(latency.p9999),
        seconds(latency.max),
        seconds(kind.block_mean_seconds)
    )
}

fn destaged(destage: &Destage) -> String {
    format!(
        "{} of {} blocks written ({} on dirty), {} bursts of {:.1}, largest {}; age {}, oldest {}; {} left dirty",
        count(destage.destaged_blocks),
        count(destage.written_blocks),
        count(destage.written_on_dirty),
        count(destage.bursts),
        destage.burst_mean,
        count(destage.burst_max),
        seconds(destage.dirty_age_mean),
        seconds(destage.staleness_max),
        count(destage.dirty_left)
    )
}

/// A header and a line: every value of the report but the histograms and lists.
pub(super) fn csv(row: &Row<'_>) -> Result<String, CliError> {
    let value = serde_json::to_value(row)
        .map_err(|error| CliError::new(exit::BUG, format!("failed to write CSV: {error}")))?;
    let cells = columns(&value).into_iter().map(|(name, value)| (name, cell(&value)));
    let (names, values): (Vec<_>, Vec<_>) = cells.unzip();
    Ok(format!("{}\n{}\n", csv_line(&names), csv_line(&values)))
}
