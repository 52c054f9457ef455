//! The engine in virtual time, with the real journal on a simulated disk and a model origin; it crashes anywhere.
//!
//! A run is a function of its seed. `DESTAGE_SEEDS=n` runs more of them, `DESTAGE_SEED=n` one.

mod claims;
mod client;
mod command;
mod derived;
mod history;
mod options;
mod plain;
mod shop;
mod sim;

use destage_core::{Span, Time};
use options::Options;
use sim::{Counts, Sim};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// How long the clients write before everything is drained.
const LOAD: Span = Span::from_millis(400);

/// Runs a seed to its end; what it met and the hash of everything that was told.
fn run(options: Options) -> (Counts, u64) {
    let mut sim = Sim::new(options);
    sim.run(Time::from_secs(1_000) + LOAD);
    sim.finish();
    (sim.counts, sim.hash)
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// The message of the first check that failed.
fn failure(options: Options) -> Option<String> {
    let result = catch_unwind(AssertUnwindSafe(|| run(options)));
    result.err().map(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
            .unwrap_or_else(|| "a panic without words".into())
    })
}

#[test]
fn nothing_promised_is_broken_whatever_happens() {
    let seeds = match number("DESTAGE_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("DESTAGE_SEEDS").unwrap_or(200),
    };
    let mut total = Counts::default();
    for seed in seeds {
        match catch_unwind(AssertUnwindSafe(|| run(Options::choose(seed)))) {
            Ok((counts, _)) => total.add(&counts),
            Err(panic) => {
                eprintln!(
                    "reproduce: DESTAGE_SEED={seed} cargo test -p destage-data --lib engine::tests"
                );
                std::panic::resume_unwind(panic);
            }
        }
    }
    eprintln!("{total:?}");
    let met = total.not_done > 0 && total.watched > total.not_done;
    let met = met && total.derived > 0 && total.unparked > 0;
    assert!(met || number("DESTAGE_SEED").is_some(), "{total:?}");
}

/// Found at random: a write that waited for room was let in by a tick, and its reply stayed where it was.
#[test]
fn what_a_tick_lets_in_is_answered() {
    run(Options { watches: false, derives: false, ..Options::choose(1_776) });
}

/// Found at random: a sync of the journal failed, the process started anew on what the system still showed, and then the power
/// went.
fn after_a_failed_sync(seed: u64, step: u64) -> Options {
    Options { crash_at: step, watches: false, derives: false, ..Options::choose(seed) }
}

const FAILED_SYNCS: [(u64, u64); 3] = [(2, 9), (34, 18), (36, 32)];

#[test]
fn what_a_start_saw_after_a_failed_sync_outlives_a_power_loss() {
    for (seed, step) in FAILED_SYNCS {
        run(after_a_failed_sync(seed, step));
    }
}

#[test]
fn a_start_that_only_syncs_what_it_saw_after_a_failed_sync_is_noticed() {
    for (seed, step) in FAILED_SYNCS {
        let options = Options { unsafe_no_rewrites: true, ..after_a_failed_sync(seed, step) };
        let message = failure(options).expect("the journal lacks what it called durable");
        assert!(message.contains("the journal is unusable"), "seed {seed}: {message}");
    }
}

/// Found at random: the origin went back a little while several fetches were under way, and a row that it had lacked since
/// then passed for one that never was.
#[test]
fn an_origin_that_goes_back_during_a_fetch_shows_no_row_as_absent() {
    run(Options { crash_at: 31, watches: false, derives: false, ..Options::choose(3) });
}

#[test]
fn a_seed_gives_the_same_run_twice() {
    for seed in 0..10 {
        assert_eq!(run(Options::choose(seed)).1, run(Options::choose(seed)).1, "seed {seed}");
    }
}

/// The first seed that notices, of the fifty that a sabotage may take.
fn caught(sabotage: impl Fn(&mut Options)) -> Option<(u64, String)> {
    (0..50).find_map(|seed| {
        let mut options = Options::choose(seed);
        sabotage(&mut options);
        failure(options).map(|message| (seed, message))
    })
}

#[test]
fn a_missing_overlay_is_noticed() {
    assert!(caught(|options| options.unsafe_flags.no_overlay = true).is_some());
}

#[test]
fn a_missing_read_gate_is_noticed() {
    let caught = caught(|options| options.unsafe_flags.no_read_gate = true);
    assert!(caught.expect("fifty seeds notice").1.contains("was seen by a client"));
}

#[test]
fn a_query_before_what_it_must_show_is_destaged_is_noticed() {
    let caught = caught(|options| {
        (options.derives, options.unsafe_flags.no_query_destage) = (true, true);
    });
    assert!(caught.expect("fifty seeds notice").1.contains("an old result"));
}

#[test]
fn results_that_writes_leave_alone_are_noticed() {
    let caught = caught(|options| {
        (options.derives, options.unsafe_flags.no_query_invalidation) = (true, true);
    });
    assert!(caught.expect("fifty seeds notice").1.contains("an old result"));
}

#[test]
fn a_journal_without_syncs_is_noticed() {
    assert!(caught(|options| options.unsafe_flags.no_fsync = true).is_some());
}

#[test]
fn a_transaction_that_watches_nothing_is_noticed() {
    let caught = caught(|options| {
        (options.watches, options.forgets_to_watch) = (true, true);
    });
    assert!(caught.expect("fifty seeds notice").1.contains("a watched row changed"));
}

#[test]
fn a_transaction_that_is_journaled_in_parts_is_noticed() {
    assert!(caught(|options| options.unsafe_flags.split_sessions = true).is_some());
}

#[test]
fn a_missing_watermark_is_noticed() {
    assert!(caught(|options| options.unsafe_no_watermark = true).is_some());
}

/// `DESTAGE_SWEEP=n` takes the first n seeds, `DESTAGE_SEED` one.
#[test]
fn a_crash_at_any_step_keeps_every_promise() {
    let seeds: Vec<u64> = match (number("DESTAGE_SEED"), number("DESTAGE_SWEEP")) {
        (Some(seed), _) => vec![seed],
        (None, Some(count)) => (0..count).collect(),
        (None, None) => vec![1, 4],
    };
    let mut broken = Vec::new();
    for (seed, step) in seeds.iter().flat_map(|&seed| (1..100).map(move |step| (seed, step))) {
        let options = Options { crash_at: step, ..Options::choose(seed) };
        let message = failure(options);
        broken.extend(message.map(|why| format!("seed {seed}, crash at step {step}: {why}")));
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

/// The same with several ordering domains, whose batches are under way at once.
fn with_domains(seed: u64) -> Options {
    let mut options = Options::choose(seed);
    options.domains = Some([1, 2, 4][seed as usize % 3]);
    options
}

#[test]
fn nothing_promised_is_broken_with_several_ordering_domains() {
    let mut total = Counts::default();
    for seed in 0..number("DESTAGE_SEEDS").unwrap_or(100) {
        match catch_unwind(AssertUnwindSafe(|| run(with_domains(seed)))) {
            Ok((counts, _)) => total.add(&counts),
            Err(panic) => {
                eprintln!("domains, seed {seed}");
                std::panic::resume_unwind(panic);
            }
        }
    }
    eprintln!("{total:?}");
    assert!(total.across > 100 && total.parallel > 100 && total.parked > 10, "{total:?}");
}

#[test]
fn a_crash_at_any_step_keeps_every_promise_of_every_domain() {
    for seed in [1, 5] {
        for step in 1..80 {
            let options = Options { crash_at: step, ..with_domains(seed) };
            if let Some(message) = failure(options) {
                panic!("seed {seed}, crash at step {step}: {message}");
            }
        }
    }
}

#[test]
fn one_watermark_for_domains_that_are_destaged_at_once_is_noticed() {
    assert!(
        caught(|options| {
            options.domains = Some(4);
            options.unsafe_flags.one_watermark = true;
        })
        .is_some()
    );
}
