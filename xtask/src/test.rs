//! `cargo xtask test`: everything that the CI checks, in the order in which it fails fastest.

use crate::programs::{self, Program};
use crate::servers::Server;
use crate::steps::Steps;
use crate::{
    Result, book, cargo, clients, ferretdb, go, guest, leftovers, licences, package, root, soak,
    suites, target, tools,
};
use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::Instant;

/// Runs every step, or the one of that name, or the end-to-end tests whose names contain it. With `release` on the build that
/// users get. True if all passed.
///
/// # Errors
/// What is missing for the tests to run at all.
pub(crate) fn run(only: Option<&str>, release: bool) -> Result<bool> {
    let plan = Plan::new(only);
    let profile = if release { "release" } else { PROFILE };
    if plan.needs_servers {
        tools::can_ensure()?;
    }
    // Much of it is waiting for downloads and for servers that come up: what needs none of it is checked and built meanwhile.
    let needs_servers = plan.needs_servers;
    let prepared = thread::spawn(move || -> Result<Environment> {
        let start = Instant::now();
        let environment = Environment::prepare(needs_servers, profile)?;
        if needs_servers {
            println!("tools, clients and servers: ready in {:.1} s", start.elapsed().as_secs_f64());
        }
        Ok(environment)
    });
    let bare = Environment::with_nothing(profile);
    let mut steps = Steps::default();
    let mut programs = None;
    check_and_build(&mut steps, &bare, &plan, &mut programs);
    let environment = prepared.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
    if plan.wants("book") {
        steps.work("book", book::check);
    }
    if let Some(programs) = programs {
        run_programs(&mut steps, &environment, &plan, &programs);
    }
    Ok(steps.finish())
}

/// What takes the compiler alone.
fn check_and_build(
    steps: &mut Steps,
    environment: &Environment,
    plan: &Plan<'_>,
    programs: &mut Option<Vec<Program>>,
) {
    if plan.wants("fmt") {
        steps.check("fmt", &mut environment.cargo(&["fmt", "--all", "--check"]));
    }
    if plan.wants("clippy") {
        // In the profile of the tests: what build scripts make and macros need is built once.
        let arguments =
            ["clippy", "--workspace", "--all-targets", "--profile", environment.profile];
        steps.check("clippy", environment.cargo(&arguments).args(["--", "-D", "warnings"]));
        steps.work("licences", || licences::check(environment));
        steps.work("what ships", || has_no_controls(environment));
    }
    if ["build", "unit", "e2e", "bench", "package", "soak"].into_iter().any(|step| plan.wants(step))
    {
        steps.work("build", || {
            *programs = Some(programs::build(environment, environment.profile)?);
            Ok(())
        });
    }
}

/// What users get cannot switch off a promise: the feature is there for tests alone.
fn has_no_controls(environment: &Environment) -> Result<()> {
    let shipped = features(environment, "normal,build,features")?;
    // A name that is not found anywhere would be found absent for ever.
    let tested = features(environment, "normal,build,dev,features")?;
    match (shipped.contains(CONTROLS), tested.contains(CONTROLS)) {
        (false, true) => Ok(()),
        (true, _) => Err(format!("destage is built with {CONTROLS}")),
        (false, false) => Err(format!("the tests are built without {CONTROLS}")),
    }
}

fn features(environment: &Environment, edges: &str) -> Result<String> {
    let mut tree = environment.cargo(&["tree", "--package", "destage", "--edges", edges]);
    let output = tree.output().map_err(|error| format!("failed to start {tree:?}: {error}"))?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        Err(String::from_utf8_lossy(&output.stderr).into_owned())
    }
}

fn run_programs(
    steps: &mut Steps,
    environment: &Environment,
    plan: &Plan<'_>,
    programs: &[Program],
) {
    let is_end_to_end = |program: &Program| program.package == "destage" && program.is_integration;
    let is_case = |program: &Program| {
        program.package == "destage-bench"
            && ["block", "growth", "loads", "looped", "mount", "sim", "volumes"]
                .contains(&&*program.target)
    };
    // What is built for the packages takes what these leave of the processors. It is not beside the tests with real databases,
    // which may not answer for ten seconds where a build keeps the disk busy.
    let packages = |steps: &mut Steps| {
        if plan.wants("package") {
            packages(steps, environment);
            steps.work("crates as they are published", || package::check_crates(environment));
        }
    };
    steps.beside(packages, |steps| {
        if plan.wants("unit") {
            let units = programs.iter().filter(|program| !is_end_to_end(program));
            let units = units.map(|program| {
                let name = format!("unit: {} {}", program.package, program.target);
                (name, program.command(environment))
            });
            steps.tests_at_once(units.collect(), UNITS_AT_ONCE);
            let arguments = ["test", "--workspace", "--doc", "--profile", environment.profile];
            steps.tests("unit: documentation", &mut environment.cargo(&arguments));
            // As the tests have built them.
            for example in ["async_orders", "bank_transfer", "social_counter"] {
                let path = environment.built("examples").join(example);
                steps.check(&format!("example: {example}"), &mut Command::new(path));
            }
        }
    });
    if plan.wants("e2e") {
        for program in programs.iter().filter(|program| is_end_to_end(program)) {
            let mut tests = program.command(environment);
            tests.args(plan.filter).arg(format!("--test-threads={TEST_THREADS}"));
            steps.tests(&format!("e2e: {}", program.target), &mut tests);
        }
    }
    if plan.wants("bench") {
        // Every case on a tiny scale: that the benchmark works, not what it measures.
        let cases = programs.iter().filter(|program| is_case(program));
        let cases = cases.map(|program| {
            let mut command = program.command(environment);
            command.arg("--ignored");
            (format!("bench: {}", program.target), command)
        });
        steps.tests_at_once(cases.collect(), usize::MAX);
    }
    if plan.wants("soak") {
        soak::short(steps, environment, programs);
    }
}

/// Makes and tries out what users install, as `cargo xtask package` does, but of a static binary that is built quickly.
fn packages(steps: &mut Steps, environment: &Environment) {
    let mut binary = None;
    let is_built = steps.work("static binary", || {
        binary = package::static_binary_of_tests(environment.profile)?;
        Ok(())
    });
    if is_built && binary.is_none() {
        let needs = format!("needs the target {} of Rust", package::STATIC_TARGET);
        steps.leave_out("package: static binary and image", &needs);
    }
    let binary = binary.unwrap_or_else(|| environment.built("destage"));
    steps.work("package", || package::make(binary, target().join("package-of-tests")));
}

/// Runs a command, by default the user's shell, in the environment of the tests. True if it succeeded.
///
/// # Errors
/// What is missing for the tests to run at all, and a command that cannot be started.
pub(crate) fn with(command: &[String]) -> Result<bool> {
    let environment = Environment::prepare(true, PROFILE)?;
    let shell = [std::env::var("SHELL").unwrap_or_else(|_| "sh".to_owned())];
    let words = if command.is_empty() { &shell } else { command };
    let mut child = Command::new(&words[0]);
    child.args(&words[1..]);
    environment.give_to(&mut child);
    child.env_remove("DESTAGE_BIN");
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
    /// The profile that the tests are built in.
    pub(crate) profile: &'static str,
    /// They stop when dropped.
    _servers: Vec<Server>,
}

impl Environment {
    /// Installs what is missing and starts the servers, if they are needed.
    ///
    /// # Errors
    /// What could not be installed or started.
    pub(crate) fn prepare(servers: bool, profile: &'static str) -> Result<Self> {
        if !servers {
            return Ok(Self::with_nothing(profile));
        }
        tools::ensure()?;
        leftovers::remove();
        let go = go::go()?;
        let mut variables = clients::install(&go)?;
        variables.extend(ferretdb::build(&go)?);
        variables.extend(suites::build()?);
        variables.extend(guest::prepare());
        let mut servers = vec![Server::postgres()?, Server::mariadb()?];
        servers.extend(Server::cephfs()?);
        variables.extend(traces().map(|folder| (TRACES, folder.display().to_string())));
        Ok(Self::with(variables, servers, profile))
    }

    /// Only what the tests of `destage mount` need.
    ///
    /// # Errors
    /// As [`Environment::prepare`].
    pub(crate) fn of_files(profile: &'static str) -> Result<Self> {
        tools::ensure()?;
        leftovers::remove();
        let mut variables = suites::build()?;
        variables.extend(Server::postgres_programs()?);
        let servers = Server::cephfs()?.into_iter().collect();
        Ok(Self::with(variables, servers, profile))
    }

    /// What the compiler needs: nothing that is not there.
    fn with_nothing(profile: &'static str) -> Self {
        Self { variables: Vec::new(), profile, _servers: Vec::new() }
    }

    /// With what those servers say, and everything installed: a test that misses its tool is to fail.
    fn with(
        mut variables: Vec<(&'static str, String)>,
        servers: Vec<Server>,
        profile: &'static str,
    ) -> Self {
        variables.extend(servers.iter().flat_map(Server::environment));
        variables.push(("DESTAGE_TEST_REQUIRE", "1".to_owned()));
        Self { variables, profile, _servers: servers }
    }

    /// A cargo command in the workspace's folder.
    pub(crate) fn cargo(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(cargo());
        command.args(arguments).current_dir(root());
        self.give_to(&mut command);
        command
    }

    /// Tells a command of the servers and tools, and which `destage` to test.
    pub(crate) fn give_to(&self, command: &mut Command) {
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        command.env("DESTAGE_BIN", self.built("destage"));
    }

    /// A file or folder that the build leaves.
    pub(crate) fn built(&self, name: &str) -> PathBuf {
        target().join(self.profile).join(name)
    }
}

/// Where the real traces are: the folder that the caller names, or `shared/traces` beside the checkout. They are not part of the
/// project, so the tests on them say where they miss them.
pub(crate) fn traces() -> Option<PathBuf> {
    if let Some(named) = std::env::var_os(TRACES) {
        return Some(named.into());
    }
    let folder = root().join("../shared/traces");
    let found = folder.canonicalize().ok();
    if found.is_none() {
        println!("no real traces in {}: the tests on them are left out", folder.display());
    }
    found
}

const CONTROLS: &str = "destage-engine feature \"controls\"";
const TRACES: &str = "DESTAGE_TRACES";
const STEPS: [&str; 9] =
    ["fmt", "book", "clippy", "unit", "build", "e2e", "bench", "package", "soak"];
/// More would let the tests of time bounds wait for a processor.
const TEST_THREADS: usize = 6;
/// Programs of unit tests: many end with one long test.
const UNITS_AT_ONCE: usize = 2;
/// As the development profile, with the project's own code optimised a little: the simulations run in the tests.
pub(crate) const PROFILE: &str = "ci";
