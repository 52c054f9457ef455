//! The result of a run: one row per cache, with every parameter.

use super::trace::TraceArgs;
use crate::error::CliError;
use destage_runtime::exit;
use destage_runtime::human::{bytes, count, percent};
use destage_runtime::units::Bytes;
use destage_sim::blocks::TooManyBlocks;
use destage_sim::hits::{self, Outcome, Setup};
use destage_sim::trace::{self, Format};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write;

/// A cache and what it came to.
#[derive(Debug, Serialize)]
pub(crate) struct Row {
    version: &'static str,
    trace: String,
    format: &'static str,
    bad_records: u64,
    block_bytes: u32,
    distinct_blocks: u32,
    replacement: &'static str,
    ram_replacement: &'static str,
    ram_bytes: u64,
    flash_bytes: u64,
    request_hit_ratio: f64,
    block_hit_ratio: f64,
    byte_hit_ratio: f64,
    reads: Counts,
    writes: Counts,
    discarded_blocks: u64,
    evicted_blocks: u64,
    evicted_dirty_blocks: u64,
    dirty_left_blocks: u64,
}

/// What was counted of one kind of requests.
#[derive(Debug, Serialize)]
struct Counts {
    requests: u64,
    request_hits: u64,
    blocks: u64,
    block_hits: u64,
    block_hits_in_ram: u64,
    bytes: u64,
    byte_hits: u64,
}

impl Row {
    pub(crate) fn new(
        args: &TraceArgs,
        format: Format,
        met: trace::Counts,
        distinct_blocks: u32,
        setup: &Setup,
        outcome: &Outcome,
    ) -> Self {
        let total = outcome.total();
        let size = |blocks: u64| blocks * args.block().get();
        let has_both = setup.ram_blocks > 0 && setup.flash_blocks > 0;
        let above = if has_both { setup.ram_replacement } else { setup.replacement };
        Self {
            version: env!("CARGO_PKG_VERSION"),
            trace: args.trace.display().to_string(),
            format: format.name(),
            bad_records: met.bad,
            block_bytes: args.block_bytes(),
            distinct_blocks,
            replacement: setup.replacement.name(),
            ram_replacement: if setup.ram_blocks > 0 { above.name() } else { "" },
            ram_bytes: size(setup.ram_blocks),
            flash_bytes: size(setup.flash_blocks),
            request_hit_ratio: total.requests.ratio(),
            block_hit_ratio: total.blocks.ratio(),
            byte_hit_ratio: total.bytes.ratio(),
            reads: Counts::new(&outcome.reads),
            writes: Counts::new(&outcome.writes),
            discarded_blocks: outcome.discarded_blocks,
            evicted_blocks: outcome.evicted_blocks,
            evicted_dirty_blocks: outcome.evicted_dirty_blocks,
            dirty_left_blocks: outcome.dirty_left_blocks,
        }
    }
}

impl Counts {
    fn new(counts: &hits::Counts) -> Self {
        Self {
            requests: counts.requests.all,
            request_hits: counts.requests.hits,
            blocks: counts.blocks.all,
            block_hits: counts.blocks.hits,
            block_hits_in_ram: counts.ram_block_hits,
            bytes: counts.bytes.all,
            byte_hits: counts.bytes.hits,
        }
    }

    fn named(&self) -> [(&'static str, u64); 7] {
        [
            ("requests", self.requests),
            ("request_hits", self.request_hits),
            ("blocks", self.blocks),
            ("block_hits", self.block_hits),
            ("block_hits_in_ram", self.block_hits_in_ram),
            ("bytes", self.bytes),
            ("byte_hits", self.byte_hits),
        ]
    }

    fn blocks(&self) -> String {
        percent(self.block_hits as f64 / self.blocks.max(1) as f64)
    }
}

/// What is in force where hits are counted, with labels: for caches that differ, what each of them has.
pub(super) fn in_force(block: Bytes, setups: &[Setup]) -> Vec<(&'static str, String)> {
    let all = |of: &dyn Fn(&Setup) -> String| {
        let mut found: Vec<String> = Vec::new();
        for text in setups.iter().map(of) {
            if !found.contains(&text) {
                found.push(text);
            }
        }
        found.join(", ")
    };
    let size = |blocks: u64| match blocks {
        0 => "none".to_owned(),
        blocks => bytes(blocks.saturating_mul(block.get())),
    };
    let mut lines = vec![
        ("block", bytes(block.get())),
        ("RAM", all(&|setup| size(setup.ram_blocks))),
        ("flash", all(&|setup| size(setup.flash_blocks))),
        ("replacement", all(&|setup| setup.replacement.name().to_owned())),
    ];
    let mut both = setups.iter().filter(|setup| setup.ram_blocks > 0 && setup.flash_blocks > 0);
    if let Some(setup) = both.next() {
        // It is the same for all of them.
        lines.push(("RAM replacement", setup.ram_replacement.name().to_owned()));
    }
    lines
}

/// The same for programs, by the labels as names of fields.
pub(super) fn named(lines: &[(&'static str, String)]) -> BTreeMap<String, String> {
    let name = |label: &str| label.to_lowercase().replace(' ', "_");
    lines.iter().map(|(label, text)| (name(label), text.clone())).collect()
}

/// Lines of a label and what stands behind it.
pub(super) fn labelled(lines: &[(&'static str, String)]) -> String {
    lines.iter().map(|(label, value)| format!("{label:<18}{value}\n")).collect()
}

/// For people.
pub(crate) fn table(block: Bytes, setups: &[Setup], rows: &[Row]) -> String {
    let mut out = labelled(&in_force(block, setups));
    if let Some(row) = rows.first() {
        let _ = writeln!(
            out,
            "{} ({}): {} requests, {} block accesses, {} distinct blocks\n\nhits, in percent of all:",
            row.trace,
            row.format,
            count(row.reads.requests + row.writes.requests),
            count(row.reads.blocks + row.writes.blocks),
            count(row.distinct_blocks.into()),
        );
    }
    let header = [
        "replacement",
        "RAM",
        "flash",
        "requests",
        "blocks",
        "bytes",
        "blocks read",
        "blocks written",
        "dirty evicted",
    ];
    let cells = rows.iter().map(|row| {
        let size = |size| if size == 0 { "none".to_owned() } else { bytes(size) };
        [
            row.replacement.to_owned(),
            size(row.ram_bytes),
            size(row.flash_bytes),
            percent(row.request_hit_ratio),
            percent(row.block_hit_ratio),
            percent(row.byte_hit_ratio),
            row.reads.blocks(),
            row.writes.blocks(),
            count(row.evicted_dirty_blocks),
        ]
    });
    for line in std::iter::once(header.map(str::to_owned)).chain(cells) {
        let [name, rest @ ..] = line;
        let _ = write!(out, "{name:<12}");
        rest.iter().for_each(|cell| out.push_str(&format!("{cell:>15}")));
        out.push('\n');
    }
    out
}

/// For programs: a header, and a line per row.
pub(crate) fn csv(rows: &[Row]) -> String {
    let mut out = String::new();
    for (index, row) in rows.iter().enumerate() {
        let cells = row.cells();
        if index == 0 {
            let names: Vec<_> = cells.iter().map(|(name, _)| name.clone()).collect();
            out.push_str(&csv_line(&names));
            out.push('\n');
        }
        let values: Vec<_> = cells.into_iter().map(|(_, value)| value).collect();
        out.push_str(&csv_line(&values));
        out.push('\n');
    }
    out
}

impl Row {
    fn cells(&self) -> Vec<(String, String)> {
        let mut cells = vec![
            ("version".into(), self.version.into()),
            ("trace".into(), self.trace.clone()),
            ("format".into(), self.format.into()),
            ("bad_records".into(), self.bad_records.to_string()),
            ("block_bytes".into(), self.block_bytes.to_string()),
            ("distinct_blocks".into(), self.distinct_blocks.to_string()),
            ("replacement".into(), self.replacement.into()),
            ("ram_replacement".into(), self.ram_replacement.into()),
            ("ram_bytes".into(), self.ram_bytes.to_string()),
            ("flash_bytes".into(), self.flash_bytes.to_string()),
            ("request_hit_ratio".into(), format!("{:.6}", self.request_hit_ratio)),
            ("block_hit_ratio".into(), format!("{:.6}", self.block_hit_ratio)),
            ("byte_hit_ratio".into(), format!("{:.6}", self.byte_hit_ratio)),
        ];
        for (kind, counts) in [("read", &self.reads), ("write", &self.writes)] {
            let named = counts.named();
            cells.extend(named.map(|(name, value)| (format!("{kind}_{name}"), value.to_string())));
        }
        cells.push(("discarded_blocks".into(), self.discarded_blocks.to_string()));
        for (name, count) in [
            ("evicted_blocks", self.evicted_blocks),
            ("evicted_dirty_blocks", self.evicted_dirty_blocks),
            ("dirty_left_blocks", self.dirty_left_blocks),
        ] {
            cells.push((name.into(), count.to_string()));
        }
        cells
    }
}

/// A line of CSV.
pub(crate) fn csv_line(cells: &[String]) -> String {
    let cells: Vec<_> = cells.iter().map(|cell| quoted(cell)).collect();
    cells.join(",")
}

/// A cell of CSV.
pub(crate) fn quoted(text: &str) -> String {
    if text.contains([',', '"', '\n']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}

/// A trace that touches too much.
pub(crate) fn failed_blocks(error: TooManyBlocks) -> CliError {
    CliError::new(exit::TRACE_UNUSABLE, error)
}
