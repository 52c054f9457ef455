//! `cargo xtask test`: everything that the CI checks, in the order in which it fails fastest.

use crate::servers::Server;
use crate::steps::Steps;
use crate::{Result, cargo, clients, ferretdb, go, leftovers, root, soak, target, tools};
use std::process::Command;

/// Runs every step, or the one of that name, or the end-to-end tests whose names contain it. True if all passed.
///
/// # Errors
/// What is missing for the tests to run at all.
pub(crate) fn run(only: Option<&str>) -> Result<bool> {
    let plan = Plan::new(only);
    let environment = Environment::prepare(plan.needs_servers)?;
    let mut steps = Steps::default();
    if plan.wants("fmt") {
        steps.check("fmt", &mut environment.cargo(&["fmt", "--all", "--check"]));
    }
    if plan.wants("clippy") {
        let arguments = ["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"];
        steps.check("clippy", &mut environment.cargo(&arguments));
    }
    if plan.wants("unit") {
        // The end-to-end tests come later, with the release build.
        let rest = ["test", "--workspace", "--exclude", "destage", "--no-fail-fast"];
        steps.tests("unit", &mut environment.cargo(&rest));
        steps.tests(
            "unit: command line",
            &mut environment.cargo(&["test", "-p", "destage", "--bins"]),
        );
        // As the tests have built them.
        for example in ["bank_transfer", "social_counter"] {
            let program = target().join("debug/examples").join(example);
            steps.check(&format!("example: {example}"), &mut Command::new(program));
        }
    }
    let built = !["build", "e2e", "bench", "soak"].into_iter().any(|step| plan.wants(step))
        || steps.check("build", &mut environment.cargo(&RELEASE_BUILD));
    if built && plan.wants("e2e") {
        let mut tests = environment.cargo(&["test", "-p", "destage", "--no-fail-fast"]);
        tests.args([
            "--test",
            "e2e",
            "--test",
            "semantics_doc",
            "--test",
            "block",
            "--test",
            "docs",
            "--test",
            "sim",
        ]);
        tests.arg("--").args(plan.filter).arg(format!("--test-threads={TEST_THREADS}"));
        steps.tests("e2e", environment.with_servers(&mut tests));
    }
    if built && plan.wants("bench") {
        // Every case on a tiny scale: that the benchmark works, not what it measures.
        let mut cases = environment.cargo(&["test", "-p", "destage-bench", "--no-fail-fast"]);
        cases.args(["--test", "block", "--test", "loads", "--", "--ignored"]);
        steps.tests("bench", environment.with_servers(&mut cases));
    }
    if built && plan.wants("soak") {
        soak::short(&mut steps, &environment);
    }
    Ok(steps.finish())
}

/// Runs a command, by default the user's shell, in the environment of the tests. True if it succeeded.
///
/// # Errors
/// What is missing for the tests to run at all, and a command that cannot be started.
pub(crate) fn with(command: &[String]) -> Result<bool> {
    let environment = Environment::prepare(true)?;
    let shell = [std::env::var("SHELL").unwrap_or_else(|_| "sh".to_owned())];
    let words = if command.is_empty() { &shell } else { command };
    let mut child = Command::new(&words[0]);
    child.args(&words[1..]);
    child.envs(environment.variables.iter().map(|(name, value)| (name, value)));
    let status = child.status().map_err(|error| format!("cannot run {}: {error}", words[0]))?;
    Ok(status.success())
}

/// Which steps to run.
struct Plan<'a> {
    step: Option<&'a str>,
    filter: Option<&'a str>,
    needs_servers: bool,
}

impl<'a> Plan<'a> {
    fn new(only: Option<&'a str>) -> Self {
        let (step, filter) = match only {
            Some(name) if STEPS.contains(&name) => (Some(name), None),
            Some(name) => (Some("e2e"), Some(name)),
            None => (None, None),
        };
        let needs_servers =
            step.is_none_or(|name| ["unit", "e2e", "bench", "soak"].contains(&name));
        Self { step, filter, needs_servers }
    }

    fn wants(&self, step: &str) -> bool {
        self.step.is_none_or(|name| name == step)
    }
}

/// What the steps run in: installed tools, private databases.
pub(crate) struct Environment {
    variables: Vec<(&'static str, String)>,
    /// They stop when dropped.
    _servers: Vec<Server>,
}

impl Environment {
    /// Installs what is missing and starts the servers, if they are needed.
    ///
    /// # Errors
    /// What could not be installed or started.
    pub(crate) fn prepare(servers: bool) -> Result<Self> {
        if !servers {
            return Ok(Self { variables: Vec::new(), _servers: Vec::new() });
        }
        tools::ensure()?;
        leftovers::remove();
        let go = go::go()?;
        let mut variables = clients::install(&go)?;
        variables.extend(ferretdb::build(&go)?);
        let servers = vec![Server::postgres()?, Server::mariadb()?];
        variables.extend(servers.iter().flat_map(Server::environment));
        // Everything has just been installed: a test that misses its tool is to fail.
        variables.push(("DESTAGE_TEST_REQUIRE", "1".to_owned()));
        variables.extend(traces());
        Ok(Self { variables, _servers: servers })
    }

    /// A cargo command in the workspace's folder.
    pub(crate) fn cargo(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(cargo());
        command.args(arguments).current_dir(root());
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        command
    }

    /// Points the end-to-end tests at the release build.
    pub(crate) fn with_servers<'c>(&self, command: &'c mut Command) -> &'c mut Command {
        command.env("DESTAGE_BIN", target().join("release/destage"))
    }
}

/// Where the real traces are: the folder that the caller names, or `shared/traces` beside the checkout. They are not part of the
/// project, so the tests on them say where they miss them.
fn traces() -> Option<(&'static str, String)> {
    if std::env::var_os(TRACES).is_some() {
        return None;
    }
    let folder = root().join("../shared/traces");
    let Ok(folder) = folder.canonicalize() else {
        println!("no real traces in {}: the tests on them are left out", folder.display());
        return None;
    };
    Some((TRACES, folder.display().to_string()))
}

const TRACES: &str = "DESTAGE_TRACES";
const STEPS: [&str; 7] = ["fmt", "clippy", "unit", "build", "e2e", "bench", "soak"];
/// More would let the tests of time bounds wait for a processor.
const TEST_THREADS: usize = 3;
pub(crate) const RELEASE_BUILD: [&str; 4] = ["build", "--release", "-p", "destage"];
