//! `cargo xtask suites`: the tests of `destage mount` alone, with those that take long.

use crate::programs::{Program, built_by};
use crate::steps::Steps;
use crate::test::Environment;
use crate::{Result, soak};
use clap::Args;

/// Which of them.
#[derive(Args)]
pub(crate) struct SuitesArgs {
    /// Run the tests whose names contain this.
    name: Option<String>,
    /// Without those that take minutes, as `cargo xtask test` runs them.
    #[arg(long)]
    short: bool,
    /// Test the build that users get.
    #[arg(long)]
    release: bool,
}

/// Runs them with what they need, and nothing else, prepared. True if all passed.
///
/// # Errors
/// What is missing for the tests to run at all.
pub(crate) fn run(arguments: &SuitesArgs) -> Result<bool> {
    let profile = if arguments.release { "release" } else { crate::test::PROFILE };
    let environment = Environment::of_files(profile)?;
    let mut steps = Steps::default();
    let mut programs: Vec<Program> = Vec::new();
    steps.work("build", || {
        let build = ["test", "-p", "destage", "--test", "mount", "--bin", "destage", "--no-run"];
        programs = built_by(environment.cargo(&build).args(["--profile", profile]))?;
        Ok(())
    });
    for program in programs.iter().filter(|one| one.is_integration) {
        let mut tests = program.command(&environment);
        tests.args(arguments.name.as_deref()).args(["--test-threads=2", "--skip", soak::ROUNDS]);
        if !arguments.short {
            tests.arg("--include-ignored");
        }
        steps.tests("suites", &mut tests);
    }
    Ok(steps.finish())
}
