//! `cargo xtask soak`: crashes and outages with new seeds for as long as asked.

use crate::Result;
use crate::programs::{self, Program};
use crate::steps::Steps;
use crate::test::Environment;
use clap::{Args, ValueEnum};
use std::process::Command;

/// How long, and what.
#[derive(Args)]
pub(crate) struct SoakArgs {
    /// How long to go on starting new rounds, for each front end.
    #[arg(long, default_value_t = 10)]
    minutes: u64,
    /// The same in seconds, instead of --minutes.
    #[arg(long, conflicts_with = "minutes")]
    seconds: Option<u64>,
    /// End after so many rounds of each front end, even if there is time left. Most rounds are one kill each.
    #[arg(long, value_name = "COUNT")]
    kills: Option<u64>,
    /// Only this front end.
    #[arg(long)]
    front: Option<Front>,
    /// Run only this seed, once for each scenario; with --kills so many seeds from this one on.
    #[arg(long)]
    seed: Option<u64>,
    /// Run only this scenario (the `reproduce:` line names it).
    #[arg(long, value_name = "NAME", requires = "front")]
    case: Option<String>,
    /// Then run so many seeds of each simulation of engines with crashes and faults. Always the same ones, from 0. Unless given
    /// 300 for each minute of the rounds, at least 300, and none where one front end, scenario or seed is asked for. With any come
    /// the papers' figures, with all seeds and all simulators that are wrong on purpose.
    #[arg(long, value_name = "SEEDS")]
    simulations: Option<u64>,
}

/// The test that has the rounds, in each program.
pub(crate) const ROUNDS: &str = "soak::rounds";
/// Seeds of each simulation for each minute of rounds, if nothing else is said. Fewer in all would be too few for the negative
/// controls among them, which need some seed to show what is broken.
const SEEDS_PER_MINUTE: u64 = 300;

/// A front end that can be killed.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Front {
    /// `destage serve` before SQLite, PostgreSQL, MariaDB and FerretDB.
    Data,
    /// `destage block serve` before a slow disk.
    Block,
    /// `destage mount` in front of a local folder and of a CephFS.
    Mount,
    /// `destage serve` with its buffered writes on other servers, and a standby.
    Replicas,
}

const FRONTS: [Front; 4] = [Front::Data, Front::Block, Front::Mount, Front::Replicas];
/// The simulations: package, test program, and where its tests are.
const SIMULATIONS: [(&str, &str, Option<&str>); 4] = [
    ("destage-core", "virtual_time", None),
    ("destage-data", "destage_data", Some("engine::tests")),
    ("destage-block", "destage_block", Some("engine::tests")),
    ("destage-replicas", "simulation", None),
];
/// Test programs of the papers' figures whose tests that take minutes are left out of ordinary runs.
const FIGURES: [&str; 2] = ["seeds", "sabotage"];

impl Front {
    fn name(self) -> &'static str {
        match self {
            Self::Data => "soak: data",
            Self::Block => "soak: block",
            Self::Mount => "soak: mount",
            Self::Replicas => "soak: replicas",
        }
    }

    /// The test program that has the rounds.
    fn program(self) -> &'static str {
        match self {
            Self::Data => "e2e",
            Self::Block => "block",
            Self::Mount => "mount",
            Self::Replicas => "replicas",
        }
    }
}

/// Runs rounds until the time is up, or the given seed and scenario once. True if all passed.
///
/// # Errors
/// What is missing for the tests to run at all.
pub(crate) fn run(arguments: &SoakArgs) -> Result<bool> {
    let environment = Environment::prepare(true, "release")?;
    let mut steps = Steps::default();
    let mut programs = Vec::new();
    steps.work("build", || {
        programs = programs::build(&environment, environment.profile)?;
        Ok(())
    });
    let seconds = arguments.time_seconds();
    for front in FRONTS.into_iter().filter(|&one| arguments.front.is_none_or(|f| f == one)) {
        if let Some(mut rounds) = rounds(&environment, &programs, front, seconds, arguments) {
            steps.tests(front.name(), &mut rounds);
        }
    }
    let seeds = arguments.simulated_seeds();
    for (package, target, filter) in SIMULATIONS.into_iter().filter(|_| seeds > 0) {
        for program in programs.iter().filter(|one| one.package == package && one.target == target)
        {
            let mut command = program.command(&environment);
            command.args(filter).env("DESTAGE_SEEDS", seeds.to_string());
            steps.tests("simulations", &mut command);
        }
    }
    for target in FIGURES.into_iter().filter(|_| seeds > 0) {
        let is_wanted = |one: &&Program| one.package == "destage-figures" && one.target == target;
        // A name that is not found anywhere would pass for ever.
        let program = programs.iter().find(is_wanted).ok_or("the figures' tests are not built")?;
        steps.tests("figures", program.command(&environment).arg("--ignored"));
    }
    Ok(steps.finish())
}

/// So many seconds of rounds of every front end, each with new seeds: what the CI runs, all at once.
pub(crate) fn short(steps: &mut Steps, environment: &Environment, programs: &[Program]) {
    let fronts = [(Front::Data, 60), (Front::Block, 45), (Front::Mount, 45)];
    let rounds = fronts.into_iter().filter_map(|(front, seconds)| {
        let rounds = rounds(environment, programs, front, seconds, &SoakArgs::nothing_else())?;
        Some((front.name().to_owned(), rounds))
    });
    steps.tests_at_once(rounds.collect(), fronts.len());
}

impl SoakArgs {
    fn nothing_else() -> Self {
        let (seconds, kills, front, seed, case) = (None, None, None, None, None);
        Self { minutes: 0, seconds, kills, front, seed, case, simulations: None }
    }

    fn time_seconds(&self) -> u64 {
        self.seconds.unwrap_or_else(|| self.minutes.saturating_mul(60))
    }

    fn simulated_seeds(&self) -> u64 {
        let is_about_one = self.front.is_some() || self.case.is_some() || self.seed.is_some();
        self.simulations.unwrap_or_else(|| {
            if is_about_one {
                0
            } else {
                self.time_seconds().max(60).saturating_mul(SEEDS_PER_MINUTE) / 60
            }
        })
    }
}

/// The rounds are a test that is left out of ordinary runs.
fn rounds(
    environment: &Environment,
    programs: &[Program],
    front: Front,
    seconds: u64,
    arguments: &SoakArgs,
) -> Option<Command> {
    let is_wanted = |one: &&Program| one.package == "destage" && one.target == front.program();
    let mut command = programs.iter().find(is_wanted)?.command(environment);
    command.args(["--ignored", "--exact", ROUNDS, "--nocapture"]);
    command.env("DESTAGE_SOAK_SECONDS", seconds.to_string());
    command.envs(arguments.seed.map(|seed| ("DESTAGE_SOAK_SEED", seed.to_string())));
    command.envs(arguments.kills.map(|kills| ("DESTAGE_SOAK_KILLS", kills.to_string())));
    command.envs(arguments.case.as_ref().map(|case| ("DESTAGE_SOAK_CASE", case)));
    Some(command)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_figures_have_tests_that_ordinary_runs_leave_out() {
        for target in FIGURES {
            let path = crate::root().join(format!("crates/destage-figures/tests/{target}.rs"));
            let text = std::fs::read_to_string(&path).unwrap();
            assert!(text.contains("#[ignore"), "{}", path.display());
        }
    }

    #[test]
    fn simulations_are_in_proportion_to_the_time_unless_told_or_one_thing_is_asked_for() {
        let all = || SoakArgs { minutes: 10, ..SoakArgs::nothing_else() };
        for (arguments, seeds) in [
            (all(), 3_000),
            (SoakArgs { seconds: Some(30), ..all() }, 300),
            (SoakArgs { seconds: Some(90), ..all() }, 450),
            (SoakArgs { simulations: Some(7), ..all() }, 7),
            (SoakArgs { front: Some(Front::Data), simulations: Some(7), ..all() }, 7),
            (SoakArgs { front: Some(Front::Data), ..all() }, 0),
            (SoakArgs { seed: Some(1), ..all() }, 0),
            (SoakArgs { simulations: Some(0), ..all() }, 0),
        ] {
            assert_eq!(arguments.simulated_seeds(), seeds);
        }
    }
}
