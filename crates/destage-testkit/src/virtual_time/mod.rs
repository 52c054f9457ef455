//! Drives [`destage_core::Core`] in virtual time, with a journal that loses what was not synced, an origin that fails in
//! every way that matters, and clients that check what they are told.
//!
//! A run is a function of its [`Setup`]: the same setup gives the same effects, whose hash is reported. It crashes where
//! it is told to, recovers from the journal and the origin as a front end would, goes on, drains, and compares the
//! origin with the log of everything that was ever accepted. [`Sabotage`] removes one safety at a time; the same checks
//! must then fail.

mod client;
mod driver;
mod log;
pub(crate) mod rng;
mod setup;

pub use rng::Rng;
pub use setup::{Crash, Report, Sabotage, Setup};

use destage_core::{Span, Time};
use driver::{Driver, End};
use log::Log;
use setup::Options;

/// What survives a crash, and the course of the run.
#[derive(Debug)]
struct World {
    now: Time,
    log: Log,
    options: Options,
    sabotage: Sabotage,
    /// Streams for latencies and faults, and for crashes.
    chance: Rng,
    fate: Rng,
    /// Effects carried out so far, and their hash.
    effects: u64,
    hash: u64,
    crash_at: u64,
    report: Report,
}

/// Runs a setup to its end.
///
/// # Errors
/// The first check that failed, with the virtual time and the options of the run.
pub fn run(setup: &Setup) -> Result<Report, String> {
    let options = Options::choose(setup.seed, setup.steps);
    let mut fate = Rng::new(setup.seed, 1);
    let crash_at = match setup.crash {
        Crash::Never => u64::MAX,
        Crash::AtEffect(effect) => effect,
        Crash::Random => fate.below(20 * u64::from(setup.steps)),
    };
    let mut world = World {
        now: Time::from_secs(1_000),
        log: Log::new(options.keys),
        options,
        sabotage: setup.sabotage,
        chance: Rng::new(setup.seed, 2),
        fate,
        effects: 0,
        hash: 0xcbf2_9ce4_8422_2325,
        crash_at,
        report: Report::default(),
    };
    course(&mut world, setup).map_err(|error| {
        format!("{error}, at {:?}, effect {}\n{:?}", world.now, world.effects, world.options)
    })
}

fn course(world: &mut World, setup: &Setup) -> Result<Report, String> {
    let mut incarnation = 0;
    loop {
        let mut driver = Driver::start(world, setup.seed, incarnation)?;
        match driver.run()? {
            End::Drained => break,
            End::Crashed => {}
        }
        drop(driver);
        incarnation += 1;
        let (now, commit) = (world.now, world.options.policy.commit);
        world.log.crash(now, commit, &mut world.fate)?;
        world.now = now + Span::from_millis(world.fate.pick(&[0, 1, 40, 3_000]));
        let again = setup.crash == Crash::Random && incarnation < 3 && world.fate.chance(50);
        let after = 1 + world.fate.below(200);
        world.crash_at = if again { world.effects + after } else { u64::MAX };
    }
    world.log.check_end()?;
    let report = &mut world.report;
    report.effects = world.effects;
    report.hash = world.hash;
    report.groups = world.log.entries.len() as u64;
    report.crashes = incarnation;
    Ok(report.clone())
}
