//! The runs of a grid: read by the parser of `sim run`, over one trace in memory.

use crate::error::CliError;
use crate::file::FlagFile;
use crate::sim::machine::settings_in_force;
use crate::sim::report::{Row, failed_blocks, in_force};
use crate::sim::run::{RunArgs, setups};
use destage_core::Time;
use destage_runtime::exit;
use destage_sim::blocks::Blocks;
use destage_sim::hits::{Recording, Setup};
use destage_sim::machine::{self, Meter, Settings};
use destage_sim::sweep::{Grid, Parameters, RequestDigest, key, shown};
use destage_sim::trace::{Counts, Format, Request};
use serde_json::Value;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::path::Path;
use toml::Value as Parameter;

/// One run.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) key: String,
    pub(super) parameters: Parameters,
    args: RunArgs,
    work: Work,
}

/// What is simulated.
#[derive(Debug)]
enum Work {
    /// A cache without times.
    Hits(Setup),
    /// Hosts and devices in virtual time.
    Machine(Box<Settings>),
}

/// All runs, and what they run on.
#[derive(Debug)]
pub(super) struct Runs {
    runs: Vec<Run>,
    title: String,
    /// The block accesses by size of a block, for runs without times.
    recordings: BTreeMap<u32, Recording>,
    /// The requests, for runs with devices.
    requests: Vec<Request>,
    format: Option<Format>,
    counts: Counts,
}

/// How the trace is read: the same for all runs.
const TRACE: [&str; 4] = ["trace", "trace-format", "skip-bad", "block-event"];
/// What only makes sense for a run on its own.
const OTHERS: [&str; 4] = ["format", "output", "check", "help"];

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
            let instead = if other == "format" {
                ": the format of the trace is 'trace-format', and the form of the result is given to 'destage sim sweep'"
            } else {
                ""
            };
            return Err(wrong(format!("'{other}' is no parameter of a simulation{instead}")));
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
            requests: Vec::new(),
            format: None,
            counts: Counts::default(),
        })
    }

    /// Reads the trace into memory, after which every run has its key.
    pub(super) fn read_trace(mut self) -> Result<Self, CliError> {
        let mut has_times = false;
        for run in &self.runs {
            match run.work {
                Work::Machine(_) => has_times = true,
                Work::Hits(_) => {
                    let block = run.args.trace.block_bytes();
                    let recording = || Recording::new(Blocks::new(block));
                    self.recordings.entry(block).or_insert_with(recording);
                }
            }
        }
        let mut digest = RequestDigest::default();
        let mut last = Time::ZERO;
        let Some(first) = self.runs.first() else { return Ok(self) };
        let (format, counts) = first.args.trace.read(|request| {
            digest.add(request);
            last = request.time;
            self.requests.extend(has_times.then_some(*request));
            let mut recordings = self.recordings.values_mut();
            recordings.try_for_each(|recording| recording.request(request)).map_err(failed_blocks)
        })?;
        let digest = digest.finish();
        for run in &mut self.runs {
            let block = run.args.trace.block_bytes();
            run.key = match &mut run.work {
                Work::Hits(setup) => key(&digest, &("hits", block, setup)),
                Work::Machine(settings) => {
                    run.args.machine.set_random_crashes(settings, last.since(Time::ZERO));
                    key(&digest, &("machine", run.args.machine.loses_cache(), settings))
                }
            };
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

    /// The row of a run, as `sim run` shows it; `None` if it was interrupted.
    pub(super) fn simulate(&self, run: &Run, meter: &Meter) -> Result<Option<Value>, CliError> {
        let row = match &run.work {
            Work::Hits(setup) => Some(self.hits(run, setup)?),
            Work::Machine(settings) => self.machine(run, settings, meter)?,
        };
        row.transpose()
            .map_err(|error| CliError::new(exit::BUG, format!("failed to write a row: {error}")))
    }

    fn hits(&self, run: &Run, setup: &Setup) -> Result<serde_json::Result<Value>, CliError> {
        let trace = &run.args.trace;
        let recording = self.recordings.get(&trace.block_bytes());
        let (Some(recording), Some(format)) = (recording, self.format) else {
            let message = "the trace was not read for this size of blocks";
            return Err(CliError::new(exit::BUG, message));
        };
        let outcome = recording.run(setup).map_err(CliError::usage)?;
        let distinct = recording.blocks().len();
        let row = Row::new(trace, format, self.counts, distinct, setup, &outcome);
        Ok(serde_json::to_value(row))
    }

    fn machine(
        &self,
        run: &Run,
        settings: &Settings,
        meter: &Meter,
    ) -> Result<Option<serde_json::Result<Value>>, CliError> {
        let source = self.requests.iter().map(|&request| Ok::<_, Infallible>(request));
        let report = machine::run_metered(source, settings, meter).map_err(CliError::usage)?;
        let Some(mut report) = Some(report).filter(|report| report.interrupted.is_none()) else {
            return Ok(None);
        };
        let losses = run.args.machine.losses(&report);
        // They are summed up, and may be thousands.
        report.crashes.clear();
        report.settings.crashes.clear();
        Ok(Some(serde_json::to_value(report).and_then(|mut row| {
            row["losses"] = serde_json::to_value(losses)?;
            row["trace"] = self.title.clone().into();
            Ok(row)
        })))
    }
}

impl Run {
    /// What is in force in it, with labels.
    pub(super) fn in_force(&self) -> Vec<(&'static str, String)> {
        match &self.work {
            Work::Hits(setup) => in_force(self.args.trace.block(), &[*setup]),
            Work::Machine(settings) => settings_in_force(settings, None),
        }
    }

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
        let work = if args.machine.is_asked() {
            let settings = args.machine.settings(&args.caches());
            Work::Machine(Box::new(settings.map_err(|error| wrong(error.to_string()))?))
        } else {
            args.machine.check_unused().map_err(|error| wrong(error.to_string()))?;
            setup.check().map_err(|error| wrong(error.to_string()))?;
            Work::Hits(setup)
        };
        Ok(Self { key: String::new(), parameters, args, work })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runs(grid: &str) -> Result<Runs, String> {
        let grid = Grid::parse(grid).unwrap_or_else(|error| panic!("{error}"));
        Runs::new(grid, Path::new("/grid.toml")).map_err(|error| error.to_string())
    }

    #[test]
    fn how_the_trace_is_read_is_the_same_for_all_runs() {
        let all = runs("trace = \"t\"\ntrace-format = \"msr\"\nram = [\"1G\", \"4G\"]");
        let all = all.unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(all.all().len(), 2);
        assert!(all.all().iter().all(|run| run.parameters.len() == 1), "{:?}", all.all());
        let two = runs("trace = \"t\"\ntrace-format = [\"msr\", \"spc\"]\nram = \"1G\"");
        assert!(two.is_err_and(|error| error.contains("'trace-format' is the same for all runs")));
    }

    #[test]
    fn the_form_of_the_result_is_no_parameter_and_is_not_taken_for_the_traces_format() {
        for format in ["msr", "json"] {
            let refused = runs(&format!("trace = \"t\"\nformat = \"{format}\"\nram = \"1G\""));
            let error = refused.err().unwrap_or_default();
            assert!(error.contains("the format of the trace is 'trace-format'"), "{error}");
        }
    }
}
