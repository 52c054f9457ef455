//! `cargo xtask bench`: builds and runs the benchmarks with the same servers at hand as the tests.

use crate::test::{Environment, traces};
use crate::{Result, cachesim, suites, tools};
use std::process::Command;

/// Runs `destage-bench` with these arguments. True if it succeeded.
///
/// # Errors
/// What is missing for the benchmarks to run at all.
pub(crate) fn run(arguments: &[String]) -> Result<bool> {
    // Those of volumes and of mounts take no database and no clients of other languages, and that of the simulator no tools.
    let is_one = |name| arguments.first().is_some_and(|first| first == name);
    let is_alone = is_one("block") || is_one("mount") || is_one("sim");
    if is_alone && !is_one("sim") {
        tools::ensure()?;
    }
    let environment = Environment::prepare(!is_alone, "release")?;
    if !succeeds(&mut environment.cargo(&["build", "--release", "-p", "destage"]))? {
        return Ok(false);
    }
    let mut bench = environment.cargo(&["run", "--release", "-p", "destage-bench", "--"]);
    if is_one("mount") {
        bench.envs(suites::build()?);
        bench.envs(suites::ceph()?.map(|scripts| ("DESTAGE_CEPH", scripts)));
    }
    if is_one("sim") {
        bench.envs(cachesim::prepare(traces().as_deref())?);
    }
    succeeds(bench.args(arguments))
}

fn succeeds(command: &mut Command) -> Result<bool> {
    match command.status() {
        Ok(status) => Ok(status.success()),
        Err(error) => Err(format!("failed to start {command:?}: {error}")),
    }
}
