//! Rounds with new seeds for as long as asked: what `cargo xtask soak` runs.

use std::panic::AssertUnwindSafe;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// What a round is about, and how to run one.
pub(crate) struct Scenario {
    /// The name that a `reproduce:` line gives.
    pub(crate) name: &'static str,
    /// How much of the time it takes.
    pub(crate) length: Length,
    /// One round: the operations acknowledged in it, or what is wrong; `None` where what it needs is missing. May panic
    /// instead.
    pub(crate) round: Box<dyn Fn(u64) -> Option<Result<i64, String>> + Sync>,
}

/// How much of a run's time a round takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Length {
    Short,
    /// As long as ten others: left out of shorter runs.
    Long,
    /// A share of the time, whatever that is: one round in each run, before all others.
    Share,
}

/// So many operations are acknowledged in a round, on average, at the least. Usually it is hundreds: but a loaded machine may
/// kill some rounds before anything is, and a server that acknowledges nothing loses nothing.
const ACKNOWLEDGED_MIN: i64 = 3;

/// Whether so many rounds have acknowledged enough to prove something.
///
/// # Errors
/// They have not.
fn proves_something(name: &str, rounds: u64, acknowledged: i64) -> Result<(), String> {
    if acknowledged >= rounds.cast_signed() * ACKNOWLEDGED_MIN {
        Ok(())
    } else {
        Err(format!(
            "{name}: {acknowledged} operations were acknowledged in {rounds} rounds: that proves nothing"
        ))
    }
}

/// So many times as many rounds are tried where a loaded machine kills most of them before anything is acknowledged.
const ROUNDS_FACTOR_MAX: u64 = 5;

/// Runs rounds with many seeds, two at a time, and further ones while these have acknowledged too little; what they acknowledged
/// in all, or `None` where their database is missing.
///
/// # Panics
/// With every round that failed; and if hardly anything was acknowledged.
#[track_caller]
pub(crate) fn hold(
    name: &str,
    seeds: u64,
    round: impl Fn(u64) -> Option<Result<i64, String>> + Sync,
) -> Option<i64> {
    let next = AtomicU64::new(0);
    let results = Mutex::new(Some((Vec::new(), 0)));
    let is_enough = |seed: u64| {
        let results = results.lock().expect("no holder panics");
        let sum = results.as_ref().map_or(0, |(_, sum)| *sum);
        seed >= seeds * ROUNDS_FACTOR_MAX || proves_something(name, seed, sum).is_ok()
    };
    let test = thread::current().name().unwrap_or(name).to_owned();
    thread::scope(|scope| {
        for _ in 0..2 {
            let named = thread::Builder::new().name(test.clone());
            let thread = named.spawn_scoped(scope, || {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds && is_enough(seed) {
                        return;
                    }
                    let result = round(seed);
                    let mut results = results.lock().expect("no holder panics");
                    match (result, results.as_mut()) {
                        (Some(Ok(count)), Some((_, sum))) => *sum += count,
                        (Some(Err(what)), Some((failures, _))) => failures.push(what),
                        _ => return *results = None,
                    }
                }
            });
            thread.expect("a thread starts");
        }
    });
    let (failures, sum) = results.into_inner().expect("no holder panics")?;
    // Two threads have taken a number each and not used it.
    let seeds = next.into_inner() - 2;
    assert!(
        failures.is_empty(),
        "{} of {seeds} seeds failed:\n{}\nreproduce: cargo xtask soak --front data --case {name} --seed N",
        failures.len(),
        failures.join("\n"),
    );
    proves_something(name, seeds, sum).unwrap_or_else(|what| panic!("{what}"));
    Some(sum)
}

const WITH_LONG_MIN: Duration = Duration::from_secs(600);

impl Scenario {
    /// One round, also where a check panics.
    fn run(&self, seed: u64) -> Option<Result<i64, String>> {
        std::panic::catch_unwind(AssertUnwindSafe(|| (self.round)(seed))).unwrap_or_else(|_| {
            Some(Err(format!("{}, seed {seed}: see the panic above", self.name)))
        })
    }
}

/// The rounds so far.
#[derive(Default)]
struct Tally {
    front: &'static str,
    /// For each scenario the rounds and the operations acknowledged in them.
    rounds: Vec<(&'static str, u64, i64)>,
    failures: Vec<String>,
}

impl Tally {
    fn add(&mut self, scenario: &Scenario, seed: u64, result: Option<Result<i64, String>>) {
        let Some(result) = result else { return };
        let acks = *result.as_ref().unwrap_or(&0);
        let name = scenario.name;
        match self.rounds.iter_mut().find(|(known, ..)| *known == name) {
            Some((_, rounds, total)) => (*rounds, *total) = (*rounds + 1, *total + acks),
            None => self.rounds.push((name, 1, acks)),
        }
        if let Err(what) = result {
            println!("{what}");
            let front = self.front;
            self.failures.push(format!(
                "reproduce: cargo xtask soak --front {front} --case {name} --seed {seed}"
            ));
        }
    }

    /// What of all this proves nothing; a few rounds may have been killed too early.
    fn hardly_acknowledged(&self) -> Vec<String> {
        let (rounds, acks) = self
            .rounds
            .iter()
            .fold((0, 0), |sum, (_, rounds, acks)| (sum.0 + rounds, sum.1 + acks));
        let checked = self.rounds.iter().copied().chain([(self.front, rounds, acks)]);
        checked
            .filter(|(_, rounds, _)| *rounds >= JUDGED_ROUNDS_MIN)
            .filter_map(|(name, rounds, acks)| proves_something(name, rounds, acks).err())
            .collect()
    }
}

/// Fewer rounds are not held against [`ACKNOWLEDGED_MIN`].
const JUDGED_ROUNDS_MIN: u64 = 5;

fn number(variable: &str) -> Option<u64> {
    let value = std::env::var(variable).ok()?;
    Some(value.parse().unwrap_or_else(|_| panic!("{variable} is not a number: {value}")))
}

/// How long a run is to take.
pub(crate) fn soak_time() -> Duration {
    Duration::from_secs(number("DESTAGE_SOAK_SECONDS").unwrap_or(60))
}

/// Runs rounds of these scenarios of a front end: until `DESTAGE_SOAK_SECONDS` are over or `DESTAGE_SOAK_KILLS` rounds are done; those of
/// `DESTAGE_SOAK_CASE` alone; from `DESTAGE_SOAK_SEED` on, and then, unless kills are given, one of each.
///
/// # Panics
/// With the lines to reproduce what failed.
pub(crate) fn soak(front: &'static str, mut scenarios: Vec<Scenario>) {
    let wanted = std::env::var("DESTAGE_SOAK_CASE").ok();
    let time = soak_time();
    let (seed, kills) = (number("DESTAGE_SOAK_SEED"), number("DESTAGE_SOAK_KILLS"));
    scenarios.retain(|scenario| match wanted.as_deref() {
        Some(name) => scenario.name == name,
        None => time >= WITH_LONG_MIN || scenario.length != Length::Long,
    });
    assert!(!scenarios.is_empty(), "no such case: {wanted:?}");
    let tally = Mutex::new(Tally { front, ..Tally::default() });
    match (seed, kills) {
        (Some(seed), None) => {
            let mut tally = tally.lock().expect("no holder panics");
            scenarios.iter().for_each(|scenario| tally.add(scenario, seed, scenario.run(seed)));
        }
        _ => {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("the clock is past 1970");
            let first = seed.unwrap_or_else(|| now.as_secs() * 1_000);
            println!("soak: seeds from {first}");
            let last = kills.map_or(u64::MAX, |kills| first.saturating_add(kills));
            until(Instant::now() + time, first..last, &scenarios, &tally);
        }
    }
    let mut tally = tally.into_inner().expect("no holder panics");
    tally.failures.extend(tally.hardly_acknowledged());
    for (name, rounds, acks) in &tally.rounds {
        println!("soak: {name}: {rounds} rounds, {acks} operations acknowledged in them");
    }
    println!("soak: {} failures", tally.failures.len());
    assert!(tally.failures.is_empty(), "{}", tally.failures.join("\n"));
}

/// Starts rounds until `end`, two at a time, each with a seed of its own: first one of those that take a share of the time.
fn until(end: Instant, seeds: std::ops::Range<u64>, scenarios: &[Scenario], tally: &Mutex<Tally>) {
    let (shares, others): (Vec<_>, Vec<_>) =
        scenarios.iter().partition(|scenario| scenario.length == Length::Share);
    let next = AtomicU64::new(seeds.start);
    let seed = || Some(next.fetch_add(1, Ordering::Relaxed)).filter(|&seed| seed < seeds.end);
    let run = |scenario: &Scenario, seed| {
        let result = scenario.run(seed);
        tally.lock().expect("no holder panics").add(scenario, seed, result);
    };
    let first = AtomicU64::new(0);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some(scenario) =
                    shares.get(first.fetch_add(1, Ordering::Relaxed) as usize)
                    && let Some(seed) = seed()
                {
                    run(scenario, seed);
                }
                let others = if others.is_empty() { &shares } else { &others };
                while Instant::now() < end
                    && let Some(seed) = seed()
                {
                    run(others[seed as usize % others.len()], seed);
                }
            });
        }
    });
}

#[test]
fn rounds_that_were_killed_too_early_are_made_up_for() {
    let sum = hold("a slow machine", 10, |seed| Some(Ok(if seed < 10 { 0 } else { 90 })));
    assert!(sum >= Some(90), "{sum:?}");
}

/// A server that acknowledges nothing loses nothing.
#[test]
#[should_panic(expected = "0 operations were acknowledged in 100 rounds")]
fn rounds_in_which_nothing_is_acknowledged_prove_nothing() {
    hold("a server that acknowledges nothing", 20, |_| Some(Ok(0)));
}

#[test]
fn a_soak_in_which_one_scenario_acknowledges_nothing_fails_for_it() {
    let mut tally = Tally { front: "data", ..Tally::default() };
    let scenario = |name, acks| Scenario {
        name,
        length: Length::Short,
        round: Box::new(move |_| Some(Ok(acks))),
    };
    let (works, idle) = (scenario("works", 100), scenario("idle", 0));
    for seed in 0..JUDGED_ROUNDS_MIN {
        assert_eq!(tally.hardly_acknowledged(), [""; 0], "too few to tell");
        tally.add(&works, seed, works.run(seed));
        tally.add(&idle, seed, idle.run(seed));
    }
    let found = tally.hardly_acknowledged();
    assert!(found.len() == 1 && found[0].starts_with("idle: 0 operations"), "{found:?}");
    tally.rounds.retain(|(name, ..)| *name == "idle");
    assert_eq!(tally.hardly_acknowledged().len(), 2, "nor has the front end done anything");
}
