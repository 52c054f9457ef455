//! `cargo xtask bench`: builds and runs the benchmarks with the same servers at hand as the tests.

use crate::test::Environment;
use crate::{Result, tools};
use std::process::Command;

/// Runs `destage-bench` with these arguments. True if it succeeded.
///
/// # Errors
/// What is missing for the benchmarks to run at all.
pub(crate) fn run(arguments: &[String]) -> Result<bool> {
    // Those of block volumes take no database and no clients of other languages.
    let is_block = arguments.first().is_some_and(|name| name == "block");
    if is_block {
        tools::ensure()?;
    }
    let environment = Environment::prepare(!is_block, "release")?;
    if !succeeds(&mut environment.cargo(&["build", "--release", "-p", "destage"]))? {
        return Ok(false);
    }
    let mut bench = environment.cargo(&["run", "--release", "-p", "destage-bench", "--"]);
    succeeds(bench.args(arguments))
}

fn succeeds(command: &mut Command) -> Result<bool> {
    match command.status() {
        Ok(status) => Ok(status.success()),
        Err(error) => Err(format!("failed to start {command:?}: {error}")),
    }
}
