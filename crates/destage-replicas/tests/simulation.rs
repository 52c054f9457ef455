//! Owners, standbys, servers and clients in virtual time, with everything going wrong that can.

#[path = "simulation/checks.rs"]
mod checks;
#[path = "simulation/client.rs"]
mod client;
#[path = "simulation/events.rs"]
mod events;
#[path = "simulation/faults.rs"]
mod faults;
#[path = "simulation/setup.rs"]
mod setup;
#[path = "simulation/world.rs"]
mod world;

use destage_replicas::Controls;
use setup::{Report, Setup};
use world::{STANDSTILL, run};

const SEEDS: u64 = 1_500;

fn all(setup: &dyn Fn(u64) -> Setup, seeds: u64) -> Result<Report, String> {
    let mut sum = Report::default();
    for seed in 0..seeds {
        let report = run(&setup(seed)).map_err(|error| format!("seed {seed}: {error}"))?;
        sum.add(&report);
    }
    Ok(sum)
}

fn seeds() -> u64 {
    std::env::var("DESTAGE_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(SEEDS)
}

#[test]
fn nothing_acknowledged_is_lost_or_doubled_whatever_happens() {
    let sum = all(&|seed| Setup::of(seed, Controls::default()), seeds()).unwrap();
    // What the runs are about has happened in them, often.
    assert!(sum.acknowledged > 20 * seeds(), "{sum:?}");
    assert!(sum.take_overs > seeds() && sum.lost_memories > seeds() / 4, "{sum:?}");
    assert!(sum.changes > seeds() / 4 && sum.pauses > seeds() / 2, "{sum:?}");
    assert!(sum.through > seeds() && sum.short > seeds() / 20, "{sum:?}");
}

fn all_forget(seed: u64) -> Setup {
    Setup { all_forget: true, ..Setup::of(seed, Controls::default()) }
}

/// > Servers that have all forgotten the log are never taken for a new one.
#[test]
fn an_owner_whose_servers_all_forget_brings_what_it_has_acknowledged_to_the_origin() {
    let sum = all(&all_forget, seeds() / 3).unwrap();
    assert!(sum.forgotten > seeds() / 3, "{sum:?}");
    // Whoever begins a log where it finds nothing deposes the owner.
    let careless = |seed| run(&Setup { founds_unasked: true, ..all_forget(seed) });
    let found = (0..SEEDS).find_map(|seed| careless(seed).err());
    println!("{}", found.expect("the checks notice"));
}

#[test]
fn the_same_seed_gives_the_same_run() {
    for seed in 0..3 {
        let setup = Setup::of(seed, Controls::default());
        assert_eq!(run(&setup), run(&setup));
    }
}

/// The unsafe variant must fail within these seeds.
fn is_caught(change: impl Fn(&mut Setup)) {
    let setup = |seed| {
        let mut setup = Setup::of(seed, Controls::default());
        change(&mut setup);
        setup
    };
    // A run that comes to a standstill breaks no promise.
    // One server and one copy promise too little to be broken in an instructive way.
    let found = (0..SEEDS).filter(|&seed| setup(seed).servers > 1).find_map(|seed| {
        let outcome = run(&setup(seed)).err().filter(|error| !error.contains(STANDSTILL));
        outcome.map(|error| format!("seed {seed}: {error}"))
    });
    println!("{}", found.expect("the checks notice"));
}

#[test]
fn a_server_that_takes_entries_of_anybody_is_caught() {
    is_caught(|setup| setup.controls.no_fence = true);
}

#[test]
fn a_promise_too_few_is_caught() {
    is_caught(|setup| setup.controls.short_quorum = true);
}

/// > A server that was restarted without its memory never counts before the owner has filled it again.
#[test]
fn counting_a_server_without_memory_is_caught() {
    is_caught(|setup| setup.controls.memoryless_counts = true);
}

#[test]
fn choosing_entry_by_entry_is_caught() {
    is_caught(|setup| setup.controls.entry_by_entry = true);
}

#[test]
fn answering_before_the_own_epoch_is_accepted_is_caught() {
    is_caught(|setup| setup.controls.answers_early = true);
}

#[test]
fn owners_that_share_an_epoch_are_caught() {
    is_caught(|setup| setup.controls.shared_epochs = true);
}

#[test]
fn a_configuration_without_the_old_ones_promises_is_caught() {
    is_caught(|setup| setup.controls.no_old_promises = true);
}

#[test]
fn answering_after_the_lease_is_caught() {
    is_caught(|setup| setup.controls.ignores_lease = true);
}

#[test]
fn a_lease_on_too_few_servers_is_caught() {
    is_caught(|setup| setup.controls.short_lease = true);
}

#[test]
fn what_the_origin_has_before_enough_servers_is_caught() {
    is_caught(|setup| (setup.goes_through, setup.destages_early) = (true, true));
    is_caught(|setup| (setup.goes_through, setup.controls.short_secured) = (true, true));
}

#[test]
fn acknowledging_before_the_origin_has_it_is_caught() {
    is_caught(|setup| (setup.goes_through, setup.acknowledges_early) = (true, true));
}

#[test]
fn reclaiming_before_the_origin_has_decided_is_caught() {
    is_caught(|setup| setup.reclaims_early = true);
}
