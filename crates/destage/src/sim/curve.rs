//! `destage sim curve`: miss ratios by size of the cache.

use super::report::{self, failed_blocks};
use super::run::REPLACEMENT;
use super::trace::TraceArgs;
use crate::error::CliError;
use crate::output::{print, print_json};
use destage_runtime::exit;
use destage_runtime::human::{bytes, count, percent};
use destage_runtime::progress::Progress;
use destage_runtime::units::Bytes;
use destage_sim::curves::{Curve, Curves, Method, Sample, Sizes};
use destage_sim::hits::Replacements;
use destage_sim::report::{Axis, Chart, Mark, Page, Scale, Series};
use serde::Serialize;
use std::fmt::Write;

/// Flags of `sim curve`.
#[derive(Debug, clap::Args)]
pub(crate) struct CurveArgs {
    #[command(flatten)]
    trace: TraceArgs,

    /// Which blocks leave the cache: fifo, lru, clock, 2q, arc, s3-fifo, sieve, belady; several, separated by commas, give a curve
    /// each. Unless told lru, since one pass gives all its sizes; the servers, and sim run unless told, have s3-fifo.
    #[arg(long, value_delimiter = ',', default_value = "lru", value_name = "POLICIES")]
    replacement: Vec<Replacements>,

    /// Look at this share of the blocks only, chosen by a hash: SHARDS for lru, miniature caches for the others. 0.0001 to 1;
    /// without it and --sample-blocks the curves are exact.
    #[arg(long, value_parser = rate, value_name = "SHARE", conflicts_with = "sample_blocks")]
    sample_rate: Option<f64>,

    /// Look at no more than so many blocks, whatever the length of the trace.
    #[arg(long, value_parser = clap::value_parser!(u32).range(100..), value_name = "N")]
    sample_blocks: Option<u32>,

    /// The sizes of the cache, separated by commas; without it --points of them, up to the blocks of the trace.
    #[arg(long, value_delimiter = ',', value_name = "SIZES", conflicts_with = "points")]
    sizes: Vec<Bytes>,

    /// How many sizes, each larger than the last by the same factor. 2 to 1000.
    #[arg(long, default_value = "20", value_parser = clap::value_parser!(u32).range(2..=1_000), value_name = "N")]
    points: u32,

    /// The form of the result: a table, every number as CSV or JSON, a chart as SVG, or a page of HTML with both.
    #[arg(long = "format", alias = "output", value_enum, default_value = "table")]
    output: Output,
}

/// The form of a result.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Output {
    Table,
    Csv,
    Json,
    Svg,
    Html,
}

fn rate(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(rate) if (0.000_1..=1.0).contains(&rate) => Ok(rate),
        _ => Err("out of range: 0.0001 to 1".into()),
    }
}

/// What was found, with where it comes from.
#[derive(Debug, Serialize)]
struct Found {
    version: &'static str,
    trace: String,
    format: &'static str,
    block_bytes: u32,
    block_accesses: u64,
    /// An estimate where the trace was sampled.
    distinct_blocks: u64,
    curves: Vec<Curve>,
}

/// Reads the trace once and shows the curves.
pub(crate) fn run(args: &CurveArgs) -> Result<(), CliError> {
    let sizes = sizes(args)?;
    let sample = match (args.sample_rate, args.sample_blocks) {
        (Some(rate), _) => Sample::Rate(rate),
        (_, Some(blocks)) => Sample::Blocks(blocks),
        _ => Sample::All,
    };
    let mut curves = Curves::new(args.trace.block_bytes(), &args.replacement, sample);
    let (format, _) =
        args.trace.read_many(|requests| curves.requests(requests).map_err(failed_blocks))?;
    let (accesses, distinct) = (curves.accesses(), curves.distinct_blocks());
    let shown = Progress::new("simulating sizes", 0).together();
    let curves = curves.finish_with(&sizes, &|done, total| shown.set(done, total));
    shown.finish();
    let found = Found {
        version: env!("CARGO_PKG_VERSION"),
        trace: args.trace.trace.display().to_string(),
        format: format.name(),
        block_bytes: args.trace.block_bytes(),
        block_accesses: accesses,
        distinct_blocks: distinct,
        curves,
    };
    match args.output {
        Output::Table => print(&found.table()),
        Output::Csv => print(&found.csv()),
        Output::Json => print_json(&found),
        Output::Svg => print(&found.svg()?),
        Output::Html => print(&found.html()?),
    }
}

fn sizes(args: &CurveArgs) -> Result<Sizes, CliError> {
    if args.sizes.is_empty() {
        return Ok(Sizes::Spread(args.points));
    }
    let mut sizes: Vec<u64> =
        args.sizes.iter().map(|size| size.get() / args.trace.block().get()).collect();
    if sizes.contains(&0) {
        let message = format!("--sizes: each is at least one block of {}", args.trace.block());
        return Err(CliError::usage(message));
    }
    sizes.sort_unstable();
    sizes.dedup();
    Ok(Sizes::Given(sizes))
}

impl Found {
    fn size(&self, blocks: u64) -> u64 {
        blocks.saturating_mul(self.block_bytes.into())
    }

    /// What is in force, and what the trace holds.
    fn head(&self) -> [String; 2] {
        let policies: Vec<&str> = self.curves.iter().map(|curve| curve.replacement).collect();
        let served = REPLACEMENT.name();
        let note = if policies.contains(&served) {
            String::new()
        } else {
            format!(" (servers have {served} only: --replacement {served})")
        };
        let points = self.curves.iter().flat_map(|curve| &curve.points).map(|point| point.blocks);
        let [least, most] = [points.clone().min(), points.max()].map(Option::unwrap_or_default);
        let about = if self.is_sampled() { "about " } else { "" };
        [
            format!(
                "replacement {}{note}; block {}; sizes {} to {}",
                policies.join(", "),
                bytes(self.block_bytes.into()),
                bytes(self.size(least)),
                bytes(self.size(most)),
            ),
            format!(
                "{} ({}): {} block accesses, {about}{} distinct blocks ({about}{})",
                self.trace,
                self.format,
                count(self.block_accesses),
                count(self.distinct_blocks),
                bytes(self.size(self.distinct_blocks)),
            ),
        ]
    }

    fn is_sampled(&self) -> bool {
        self.curves.iter().any(|curve| matches!(curve.method, Method::Shards | Method::Miniature))
    }

    /// The sizes of all curves, and the miss ratio of each curve there.
    fn rows(&self) -> Vec<Vec<String>> {
        let mut sizes: Vec<u64> =
            self.curves.iter().flat_map(|curve| &curve.points).map(|point| point.blocks).collect();
        sizes.sort_unstable();
        sizes.dedup();
        let cell = |curve: &Curve, blocks: u64| {
            let point = curve.points.iter().find(|point| point.blocks == blocks);
            point.map_or_else(|| "-".into(), |point| percent(point.block_miss_ratio))
        };
        let row = |blocks: u64| {
            let cells = self.curves.iter().map(|curve| cell(curve, blocks));
            std::iter::once(bytes(self.size(blocks))).chain(cells).collect()
        };
        sizes.into_iter().map(row).collect()
    }

    fn header(&self) -> Vec<&str> {
        std::iter::once("size").chain(self.curves.iter().map(|curve| curve.replacement)).collect()
    }

    /// For people.
    fn table(&self) -> String {
        let head = self.head().join("\n");
        let mut out = format!("{head}\n\nblock accesses that miss, in percent of all:\n");
        for name in self.header() {
            let _ = write!(out, "{name:>12}");
        }
        out.push('\n');
        for row in self.rows() {
            row.iter().for_each(|cell| out.push_str(&format!("{cell:>12}")));
            out.push('\n');
        }
        for curve in &self.curves {
            let _ = writeln!(out, "{}", note(curve));
        }
        out
    }

    /// For programs: a header, and a line per point.
    fn csv(&self) -> String {
        let mut out = String::from(
            "version,trace,format,block_bytes,block_accesses,distinct_blocks,replacement,method,sample_rate,\
             sampled_accesses,cache_bytes,block_miss_ratio,read_block_miss_ratio\n",
        );
        for curve in &self.curves {
            for point in &curve.points {
                let cells = [
                    self.version.into(),
                    report::quoted(&self.trace),
                    self.format.into(),
                    self.block_bytes.to_string(),
                    self.block_accesses.to_string(),
                    self.distinct_blocks.to_string(),
                    curve.replacement.into(),
                    method(curve.method).into(),
                    format!("{:.6}", curve.sample_rate),
                    curve.sampled_accesses.to_string(),
                    self.size(point.blocks).to_string(),
                    format!("{:.6}", point.block_miss_ratio),
                    format!("{:.6}", point.read_block_miss_ratio),
                ];
                let _ = writeln!(out, "{}", cells.join(","));
            }
        }
        out
    }

    fn svg(&self) -> Result<String, CliError> {
        let series = |curve: &Curve| Series {
            name: curve.replacement.into(),
            points: curve
                .points
                .iter()
                .map(|point| (self.size(point.blocks) as f64, point.block_miss_ratio))
                .collect(),
            mark: Mark::Line,
        };
        let chart = Chart {
            title: "block accesses that miss, by size of the cache".into(),
            x: Axis {
                label: "size of the cache".into(),
                scale: Scale::Logarithmic,
                format: |value| bytes(value as u64),
            },
            y: Axis { label: "misses".into(), scale: Scale::Linear, format: percent },
            series: self.curves.iter().map(series).collect(),
        };
        chart.svg().map_err(|error| CliError::new(exit::BUG, error))
    }

    fn html(&self) -> Result<String, CliError> {
        let mut page = Page::new("What a cache of each size would miss");
        self.head().iter().for_each(|line| page.paragraph(line));
        page.paragraph(
            "A cache stands between the program that made these requests and a slow store. Each line is a rule by which blocks \
             leave the cache when it is full; the further left and the lower, the better. Where a line turns flat, more cache \
             buys nothing.",
        );
        page.svg(&self.svg()?);
        page.heading("The numbers");
        page.paragraph("Block accesses that miss, in percent of all reads and writes of blocks.");
        page.table(&self.header(), &self.rows(), None);
        page.heading("How they were made");
        page.list(&self.curves.iter().map(note).collect::<Vec<_>>());
        Ok(page.html())
    }
}

fn method(method: Method) -> &'static str {
    match method {
        Method::StackDistances => "stack-distances",
        Method::Shards => "shards",
        Method::Simulation => "simulation",
        Method::Miniature => "miniature",
    }
}

fn note(curve: &Curve) -> String {
    let name = curve.replacement;
    let sample = format!(
        "from {} accesses to {} of the blocks",
        count(curve.sampled_accesses),
        percent(curve.sample_rate)
    );
    match curve.method {
        Method::StackDistances => format!("{name}: exact, from stack distances"),
        Method::Simulation => format!("{name}: exact, each size simulated"),
        Method::Shards => format!("{name}: estimated by SHARDS {sample}"),
        Method::Miniature => format!("{name}: estimated by caches in miniature {sample}"),
    }
}
