//! Crashes with new seeds for as long as asked: `cargo xtask soak`.

use crate::crash::{self, Case};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

const CASES: [Case; 6] = [
    crash::SQLITE,
    crash::POSTGRES,
    crash::SQLITE_SECOND,
    crash::POSTGRES_SECOND,
    crash::SQLITE_PARKED,
    crash::POSTGRES_PARKED,
];

/// The rounds so far.
#[derive(Default)]
struct Tally {
    /// For each case the rounds and the operations acknowledged in them.
    rounds: Vec<(&'static str, u64, i64)>,
    failures: Vec<String>,
}

impl Tally {
    fn add(&mut self, case: &Case, seed: u64, result: Result<i64, String>) {
        let acks = *result.as_ref().unwrap_or(&0);
        match self.rounds.iter_mut().find(|(name, ..)| *name == case.name) {
            Some((_, rounds, total)) => (*rounds, *total) = (*rounds + 1, *total + acks),
            None => self.rounds.push((case.name, 1, acks)),
        }
        if let Err(what) = result {
            println!("{what}");
            self.failures
                .push(format!("reproduce: cargo xtask soak --case {} --seed {seed}", case.name));
        }
    }
}

fn number(variable: &str) -> Option<u64> {
    let value = std::env::var(variable).ok()?;
    Some(value.parse().unwrap_or_else(|_| panic!("{variable} is not a number: {value}")))
}

/// One round; an error also where a check panicked.
fn round(case: &Case, seed: u64) -> Result<i64, String> {
    let round = std::panic::catch_unwind(|| crash::round(case, seed));
    match round {
        Ok(result) => result.unwrap_or(Ok(0)),
        Err(_) => Err(format!("{}, seed {seed}: see the panic above", case.name)),
    }
}

#[test]
#[ignore = "runs for as long as DESTAGE_SOAK_SECONDS says"]
fn rounds() {
    let wanted = std::env::var("DESTAGE_SOAK_CASE").ok();
    let cases: Vec<Case> =
        CASES.into_iter().filter(|c| wanted.as_deref().is_none_or(|name| c.name == name)).collect();
    assert!(!cases.is_empty(), "no such case: {wanted:?}");
    let tally = Mutex::new(Tally::default());
    match number("DESTAGE_SOAK_SEED") {
        Some(seed) => {
            let mut tally = tally.lock().expect("no holder panics");
            cases.iter().for_each(|case| tally.add(case, seed, round(case, seed)));
        }
        None => until(end(), &cases, &tally),
    }
    let tally = tally.into_inner().expect("no holder panics");
    for (case, rounds, acks) in &tally.rounds {
        println!("soak: {case}: {rounds} crashes, {acks} operations acknowledged before them");
    }
    println!("soak: {} failures", tally.failures.len());
    assert!(tally.failures.is_empty(), "{}", tally.failures.join("\n"));
}

fn end() -> Instant {
    Instant::now() + Duration::from_secs(number("DESTAGE_SOAK_SECONDS").unwrap_or(60))
}

/// Starts rounds until `end`, two at a time, each with a seed of its own.
fn until(end: Instant, cases: &[Case], tally: &Mutex<Tally>) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("the clock is past 1970");
    let next = AtomicU64::new(now.as_secs() * 1_000);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while Instant::now() < end {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    let case = &cases[seed as usize % cases.len()];
                    let result = round(case, seed);
                    tally.lock().expect("no holder panics").add(case, seed, result);
                }
            });
        }
    });
}
