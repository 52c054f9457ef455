//! `cargo xtask soak`: crashes and outages with new seeds for as long as asked.

use crate::steps::Steps;
use crate::test::{Environment, RELEASE_BUILD};
use crate::{Result, root};
use std::process::Command;

/// Runs rounds until the time is up, or the given seed and scenario once. True if all passed.
///
/// # Errors
/// What is missing for the tests to run at all.
pub(crate) fn run(minutes: u64, seed: Option<u64>, case: Option<&str>) -> Result<bool> {
    let environment = Environment::prepare(true)?;
    let mut steps = Steps::default();
    if steps.check("build", &mut environment.cargo(&RELEASE_BUILD)) {
        let mut rounds = command(&environment.cargo(&[]), minutes * 60, seed, case);
        steps.tests("soak", environment.with_servers(&mut rounds));
    }
    Ok(steps.finish())
}

/// The rounds as a command: a test that is left out of ordinary runs. `cargo` gives program and environment.
pub(crate) fn command(
    cargo: &Command,
    seconds: u64,
    seed: Option<u64>,
    case: Option<&str>,
) -> Command {
    let mut command = Command::new(cargo.get_program());
    command.current_dir(root());
    command.envs(cargo.get_envs().filter_map(|(name, value)| Some((name, value?))));
    command.args(["test", "-p", "destage", "--test", "e2e", "--"]);
    command.args(["--ignored", "--exact", "soak::rounds", "--nocapture"]);
    command.env("DESTAGE_SOAK_SECONDS", seconds.to_string());
    command.envs(seed.map(|seed| ("DESTAGE_SOAK_SEED", seed.to_string())));
    command.envs(case.map(|case| ("DESTAGE_SOAK_CASE", case)));
    command
}
