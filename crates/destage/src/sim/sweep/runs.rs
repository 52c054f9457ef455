//! The runs of a grid: read by the parser of `sim run`, over one trace in memory.

use crate::error::CliError;
use crate::file::FlagFile;
use crate::sim::report::{Row, failed_blocks};
use crate::sim::run::{RunArgs, setups};
use destage_runtime::exit;
use destage_sim::blocks::Blocks;
use destage_sim::hits::{Recording, Setup};
use destage_sim::sweep::{Grid, Parameters, RequestDigest, key, shown};
use destage_sim::trace::{Counts, Format};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;
use toml::Value as Parameter;

/// One run.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) key: String,
    pub(super) parameters: Parameters,
    args: RunArgs,
    setup: Setup,
}

/// All runs, and what they run on.
#[derive(Debug)]
pub(super) struct Runs {
    runs: Vec<Run>,
    title: String,
    /// The block accesses by size of a block.
    recordings: BTreeMap<u32, Recording>,
    format: Option<Format>,
    counts: Counts,
}

/// How the trace is read: the same for all runs.
const TRACE: [&str; 4] = ["trace", "format", "skip-bad", "block-event"];
/// What only makes sense for a run on its own.
const OTHERS: [&str; 2] = ["output", "help"];

impl Runs {
    /// Checks every run before the first begins. A trace named by a relative path lies beside the grid.
    pub(super) fn new(mut grid: Grid, path: &Path) -> Result<Self, CliError> {
        let name = path.display();
        let wrong = |message: String| CliError::usage(format!("{name}: {message}"));
        let mut trace = Parameters::new();
        for parameter in TRACE {
            match grid.take(parameter).as_deref() {
                None if parameter == "trace" => {
                    return Err(wrong(
                        "'trace' is missing: name the trace that all runs read".into(),
                    ));
                }
                None => {}
                Some([value]) => drop(trace.insert(parameter.into(), value.clone())),
                Some(_) => {
                    return Err(wrong(format!(
                        "'{parameter}' is the same for all runs: give it one value"
                    )));
                }
            }
        }
        if let Some(other) = grid.names().find(|name| OTHERS.contains(name)) {
            return Err(wrong(format!("'{other}' is no parameter of a simulation")));
        }
        let mut title = trace.get("trace").map(shown).unwrap_or_default();
        if title != "-" {
            let folder = path.parent().unwrap_or_else(|| Path::new("."));
            title = folder.join(&title).display().to_string();
            trace.insert("trace".into(), Parameter::String(title.clone()));
        }
        let runs = grid.runs().into_iter().map(|parameters| {
            Run::new(&trace, parameters).map_err(|error| wrong(error.to_string()))
        });
        let runs: Vec<Run> = runs.collect::<Result<_, _>>()?;
        Ok(Self {
            runs,
            title,
            recordings: BTreeMap::new(),
            format: None,
            counts: Counts::default(),
        })
    }

    /// Reads the trace into memory, after which every run has its key.
    pub(super) fn read_trace(mut self) -> Result<Self, CliError> {
        for run in &self.runs {
            let block = run.args.trace.block_bytes();
            self.recordings.entry(block).or_insert_with(|| Recording::new(Blocks::new(block)));
        }
        let mut digest = RequestDigest::default();
        let Some(first) = self.runs.first() else { return Ok(self) };
        let (format, counts) = first.args.trace.read(|request| {
            digest.add(request);
            let mut recordings = self.recordings.values_mut();
            recordings.try_for_each(|recording| recording.request(request)).map_err(failed_blocks)
        })?;
        let digest = digest.finish();
        for run in &mut self.runs {
            let block = run.args.trace.block_bytes();
            run.key = key(&digest, &("hits", block, run.setup));
        }
        Ok(Self { format: Some(format), counts, ..self })
    }

    /// In the order of the grid.
    pub(super) fn all(&self) -> &[Run] {
        &self.runs
    }

    pub(super) fn title(&self) -> &str {
        &self.title
    }

    /// The row of a run, as `sim run` shows it.
    pub(super) fn simulate(&self, run: &Run) -> Result<Value, CliError> {
        let bug = |message: String| CliError::new(exit::BUG, message);
        let trace = &run.args.trace;
        let recording = self.recordings.get(&trace.block_bytes());
        let (Some(recording), Some(format)) = (recording, self.format) else {
            return Err(bug("the trace was not read for this size of blocks".into()));
        };
        let outcome = recording.run(&run.setup).map_err(CliError::usage)?;
        let distinct = recording.blocks().len();
        let row = Row::new(trace, format, self.counts, distinct, &run.setup, &outcome);
        serde_json::to_value(row).map_err(|error| bug(format!("failed to write a row: {error}")))
    }
}

impl Run {
    fn new(trace: &Parameters, parameters: Parameters) -> Result<Self, CliError> {
        let wrong = |reason: String| {
            let parts = parameters.iter().map(|(name, value)| format!("{name} = {}", shown(value)));
            let parts: Vec<_> = parts.collect();
            CliError::usage(format!("{reason} ({})", parts.join(", ")))
        };
        let all: Parameters = trace.clone().into_iter().chain(parameters.clone()).collect();
        let flags = FlagFile::<RunArgs>::section(Parameter::Table(all)).map_err(wrong)?;
        let args = flags.alone().map_err(wrong)?;
        let setups = setups(&args).map_err(|error| wrong(error.to_string()))?;
        let &[setup] = &setups[..] else {
            let message = "several values are a list, [\"1G\", \"4G\"], not one text";
            return Err(wrong(message.into()));
        };
        setup.check().map_err(|error| wrong(error.to_string()))?;
        Ok(Self { key: String::new(), parameters, args, setup })
    }
}
