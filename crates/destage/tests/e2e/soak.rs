//! Crashes and outages with new seeds for as long as asked: `cargo xtask soak`.

use crate::crash::{self, Case};
use crate::origin_away::Outage;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// What a round is about.
#[derive(Clone, Copy)]
enum Scenario {
    /// The server is killed.
    Crash(Case),
    /// The database goes away and returns. One takes as long as ten crashes.
    Outage,
}

const SCENARIOS: [Scenario; 7] = [
    Scenario::Crash(crash::SQLITE),
    Scenario::Crash(crash::POSTGRES),
    Scenario::Crash(crash::SQLITE_SECOND),
    Scenario::Crash(crash::POSTGRES_SECOND),
    Scenario::Crash(crash::SQLITE_PARKED),
    Scenario::Crash(crash::POSTGRES_PARKED),
    Scenario::Outage,
];
/// Shorter runs leave the outages to the tests of their own.
const WITH_OUTAGES_MIN: Duration = Duration::from_secs(600);

impl Scenario {
    /// The name that a `reproduce:` line gives.
    fn name(&self) -> &'static str {
        match self {
            Self::Crash(case) => case.name,
            Self::Outage => "outage",
        }
    }

    /// One round: the operations acknowledged in it, or what is wrong, also where a check panicked.
    fn round(&self, seed: u64) -> Result<i64, String> {
        let round = std::panic::catch_unwind(|| match self {
            Self::Crash(case) => crash::round(case, seed),
            Self::Outage => Outage::seeded(seed).run().map(Ok),
        });
        match round {
            Ok(result) => result.unwrap_or(Ok(0)),
            Err(_) => Err(format!("{}, seed {seed}: see the panic above", self.name())),
        }
    }
}

/// The rounds so far.
#[derive(Default)]
struct Tally {
    /// For each scenario the rounds and the operations acknowledged in them.
    rounds: Vec<(&'static str, u64, i64)>,
    failures: Vec<String>,
}

impl Tally {
    fn add(&mut self, scenario: Scenario, seed: u64, result: Result<i64, String>) {
        let acks = *result.as_ref().unwrap_or(&0);
        match self.rounds.iter_mut().find(|(name, ..)| *name == scenario.name()) {
            Some((_, rounds, total)) => (*rounds, *total) = (*rounds + 1, *total + acks),
            None => self.rounds.push((scenario.name(), 1, acks)),
        }
        if let Err(what) = result {
            println!("{what}");
            let name = scenario.name();
            self.failures.push(format!("reproduce: cargo xtask soak --case {name} --seed {seed}"));
        }
    }
}

fn number(variable: &str) -> Option<u64> {
    let value = std::env::var(variable).ok()?;
    Some(value.parse().unwrap_or_else(|_| panic!("{variable} is not a number: {value}")))
}

#[test]
#[ignore = "runs for as long as DESTAGE_SOAK_SECONDS says"]
fn rounds() {
    let wanted = std::env::var("DESTAGE_SOAK_CASE").ok();
    let time = Duration::from_secs(number("DESTAGE_SOAK_SECONDS").unwrap_or(60));
    let mut scenarios = SCENARIOS.to_vec();
    scenarios.retain(|scenario| match wanted.as_deref() {
        Some(name) => scenario.name() == name,
        None => time >= WITH_OUTAGES_MIN || matches!(scenario, Scenario::Crash(_)),
    });
    assert!(!scenarios.is_empty(), "no such case: {wanted:?}");
    let tally = Mutex::new(Tally::default());
    match number("DESTAGE_SOAK_SEED") {
        Some(seed) => {
            let mut tally = tally.lock().expect("no holder panics");
            scenarios.iter().for_each(|scenario| tally.add(*scenario, seed, scenario.round(seed)));
        }
        None => until(Instant::now() + time, &scenarios, &tally),
    }
    let tally = tally.into_inner().expect("no holder panics");
    for (name, rounds, acks) in &tally.rounds {
        println!("soak: {name}: {rounds} rounds, {acks} operations acknowledged in them");
    }
    println!("soak: {} failures", tally.failures.len());
    assert!(tally.failures.is_empty(), "{}", tally.failures.join("\n"));
}

/// Starts rounds until `end`, two at a time, each with a seed of its own.
fn until(end: Instant, scenarios: &[Scenario], tally: &Mutex<Tally>) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("the clock is past 1970");
    let next = AtomicU64::new(now.as_secs() * 1_000);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while Instant::now() < end {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    let scenario = scenarios[seed as usize % scenarios.len()];
                    let result = scenario.round(seed);
                    tally.lock().expect("no holder panics").add(scenario, seed, result);
                }
            });
        }
    });
}
