//! `cargo xtask bench`: builds and runs the benchmarks with the same servers at hand as the tests.

use crate::test::Environment;
use crate::{Result, suites, tools};
use std::process::Command;

/// Runs `destage-bench` with these arguments. True if it succeeded.
///
/// # Errors
/// What is missing for the benchmarks to run at all.
pub(crate) fn run(arguments: &[String]) -> Result<bool> {
    // Those of volumes and of mounts take no database and no clients of other languages.
    let is_one = |name| arguments.first().is_some_and(|first| first == name);
    let is_alone = is_one("block") || is_one("mount");
    if is_alone {
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
    succeeds(bench.args(arguments))
}

fn succeeds(command: &mut Command) -> Result<bool> {
    match command.status() {
        Ok(status) => Ok(status.success()),
        Err(error) => Err(format!("failed to start {command:?}: {error}")),
    }
}
