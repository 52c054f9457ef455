//! The engine in virtual time, with the real journal on a simulated disk and a model origin; it crashes anywhere.
//!
//! A run is a function of its seed. `DESTAGE_SEEDS=n` runs more of them, `DESTAGE_SEED=n` one.

mod absent;
mod assumed;
mod builds_on;
mod cascade;
mod claims;
mod client;
mod client_wait;
mod command;
mod derived;
mod ended;
mod given;
mod halts;
mod handed;
mod history;
mod leased;
mod merged;
mod numbers;
mod observers;
mod once;
mod options;
mod parents;
mod plain;
mod put_off;
mod raw;
mod raw_sql;
mod report;
mod scripts;
mod sets;
mod shop;
mod sim;
mod tracking;
mod uniques;
mod users;

use destage_core::{Span, Time};
use options::{DURABLE_WRITES_MAX, Options};
use sim::{Counts, Sim};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// How long the clients write before everything is drained.
const LOAD: Span = Span::from_millis(400);

/// Runs a seed to its end; what it met and the hash of everything that was told.
fn run(options: Options) -> (Counts, u64) {
    let load = options.load;
    let mut sim = Sim::new(options);
    sim.run(Time::from_secs(1_000) + load);
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

/// Runs so many seeds of a test, or the one that is asked for; what they met.
fn run_all(test: &str, seeds: u64, options: impl Fn(u64) -> Options) -> Counts {
    let seeds = match number("DESTAGE_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("DESTAGE_SEEDS").unwrap_or(seeds),
    };
    let mut total = Counts::default();
    for seed in seeds {
        match catch_unwind(AssertUnwindSafe(|| run(options(seed)))) {
            Ok((counts, _)) => total.add(&counts),
            Err(panic) => {
                eprintln!("reproduce: DESTAGE_SEED={seed} cargo test -p destage-data --lib {test}");
                std::panic::resume_unwind(panic);
            }
        }
    }
    eprintln!("{total:?}");
    total
}

#[test]
fn nothing_promised_is_broken_whatever_happens() {
    let total = run_all("nothing_promised_is_broken_whatever_happens", 200, Options::choose);
    let met = total.not_done > 0 && total.watched > total.not_done;
    let met = met && total.derived > 0 && total.unparked > 0 && total.durable_writes > 1_000;
    assert!(met || number("DESTAGE_SEED").is_some(), "{total:?}");
}

/// Negative control: what one durable write says counts although an earlier one is under way.
#[test]
fn durable_writes_that_count_as_they_end_are_noticed() {
    let caught = (0..60).find_map(|seed| {
        let chosen = Options::choose(seed);
        failure(Options {
            durable_writes: DURABLE_WRITES_MAX,
            syncs_here: false,
            commit: Span::ZERO,
            unsafe_any_order: true,
            ..chosen
        })
    });
    assert!(caught.is_some());
}

/// With a sorted set, on whose parked changes is decided; or with raw SQL that changes its members.
fn with_sets(seed: u64) -> Options {
    let chosen = Options::choose(seed).with_sets();
    let is_raw = seed % 4 == 3;
    Options {
        domains: [None, Some(1), Some(3)][seed as usize % 3],
        distrusts: seed.is_multiple_of(2),
        fails_syncs: seed.is_multiple_of(5),
        raw: is_raw,
        raw_tables: is_raw,
        decides: !is_raw,
        // A part of a large set may show what follows an insert that was given up.
        skips: !is_raw && chosen.sets == Some(sets::ALL),
        ..chosen
    }
}

#[test]
fn nothing_promised_is_broken_of_sets_whose_parked_changes_are_decided_on() {
    let name = "nothing_promised_is_broken_of_sets_whose_parked_changes_are_decided_on";
    let total = run_all(name, 100, with_sets);
    let met = total.members > 1_000 && total.unparked > 50 && total.parked > 10;
    let met = met && total.skipped > 0 && total.raw_parked > 0;
    assert!(met || number("DESTAGE_SEED").is_some(), "{total:?}");
}

#[test]
fn a_crash_at_any_step_keeps_every_promise_of_sets() {
    sweep(&[2, 7], 1..80, with_sets);
}

#[test]
fn a_set_that_is_read_without_its_buffered_changes_is_noticed() {
    let caught = (0..50).find_map(|seed| {
        let mut options = with_sets(seed);
        options.unsafe_flags.no_overlay = true;
        failure(options).filter(|message| message.contains("as the reply to Asked"))
    });
    assert!(caught.is_some());
}

/// Found at random: a write that waited for room was let in by a tick, and its reply stayed where it was.
#[test]
fn what_a_tick_lets_in_is_answered() {
    run(Options { watches: false, derives: false, ..Options::choose(1_776) });
}

/// Found at random: a sync of the journal failed, the process started anew on what the system still showed, and then the power
/// went. One sync at a time, by a thread.
fn after_a_failed_sync(seed: u64, step: u64) -> Options {
    let (one_lane, syncs_here, durable_writes) = (true, false, 0);
    let chosen = Options { one_lane, syncs_here, durable_writes, ..Options::choose(seed) };
    Options { crash_at: step, watches: false, derives: false, ..chosen }
}

const FAILED_SYNCS: [(u64, u64); 3] = [(2, 9), (34, 18), (36, 32)];

#[test]
fn what_a_start_saw_after_a_failed_sync_outlives_a_power_loss() {
    for (seed, step) in FAILED_SYNCS {
        run(after_a_failed_sync(seed, step));
    }
}

/// Negative control: a start syncs what it has found, and does not write it anew.
#[test]
fn a_start_that_only_syncs_what_it_saw_after_a_failed_sync_is_noticed() {
    let messages = FAILED_SYNCS.map(|(seed, step)| {
        failure(Options { unsafe_no_rewrites: true, ..after_a_failed_sync(seed, step) })
    });
    let is_noticed = |message: &&Option<String>| {
        message.as_ref().is_some_and(|message| message.contains("the journal is unusable"))
    };
    assert!(messages.iter().any(|message| is_noticed(&message)), "{messages:?}");
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
fn a_transaction_that_goes_without_what_it_watched_is_noticed() {
    let caught = caught(|options| {
        (options.watches, options.unsafe_flags.no_builds_on) = (true, true);
    });
    assert!(caught.expect("fifty seeds notice").1.contains("it builds on a parked one"));
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

/// Which runs of a kind break something, each with a crash at one of these steps. `DESTAGE_SWEEP=n` takes the first n seeds,
/// from `DESTAGE_FROM` on, `DESTAGE_SEED` one; `DESTAGE_STEP` one step of each.
fn sweep(seeds: &[u64], steps: std::ops::Range<u64>, options: impl Fn(u64) -> Options) {
    let from = number("DESTAGE_FROM").unwrap_or(0);
    let seeds: Vec<u64> = match (number("DESTAGE_SEED"), number("DESTAGE_SWEEP")) {
        (Some(seed), _) => vec![seed],
        (None, Some(count)) => (from..from + count).collect(),
        (None, None) => seeds.to_vec(),
    };
    let steps = number("DESTAGE_STEP").map_or(steps, |step| step..step + 1);
    let mut broken = Vec::new();
    for (seed, step) in seeds.iter().flat_map(|&seed| steps.clone().map(move |step| (seed, step))) {
        let message = failure(Options { crash_at: step, ..options(seed) });
        broken.extend(message.map(|why| format!("seed {seed}, crash at step {step}: {why}")));
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

#[test]
fn a_crash_at_any_step_keeps_every_promise() {
    sweep(&[1, 4], 1..100, Options::choose);
}

/// What a bounded sweep over seeds found, with the step of the crash.
fn crashed_at(pairs: &[(u64, u64)]) {
    for &(seed, step) in pairs {
        let options = Options { crash_at: step, ..Options::choose(seed) };
        if let Some(message) = failure(options) {
            panic!("seed {seed}, crash at step {step}: {message}");
        }
    }
}

/// Found at random: a reply told of a parked group that had left by the time at which it was read, and transactions were not
/// done because a decision had their rows fetched again.
#[test]
fn a_decision_on_parked_groups_explains_what_those_are_told_who_asked_before_it() {
    crashed_at(&[(170, 44), (12, 73), (195, 72)]);
}

/// Found at random: the origin would not take such a row, though nothing of it would be left.
#[test]
fn an_incomplete_row_may_be_refused_also_where_its_transaction_deletes_it_again() {
    crashed_at(&[(16, 16), (40, 48), (58, 76), (58, 77)]);
}

/// Parked groups are decided on one at a time; some are given up.
fn with_skips(seed: u64) -> Options {
    let chosen = Options::choose(seed);
    Options {
        rewind: None,
        derives: false,
        decides: true,
        skips: true,
        poison_percent: 15,
        domains: [None, Some(1), Some(4)][seed as usize % 3],
        ..chosen
    }
}

#[test]
fn what_is_given_up_is_not_seen_again_and_nothing_else_is() {
    let total = run_all("what_is_given_up_is_not_seen_again_and_nothing_else_is", 60, with_skips);
    let met = total.skipped > 10 && total.parked > 10;
    assert!(met || number("DESTAGE_SEED").is_some(), "{total:?}");
}

#[test]
fn a_skip_that_the_engine_does_not_hear_of_is_noticed() {
    let hides = |seed| Options { unsafe_hides_skips: true, ..with_skips(seed) };
    assert!((0..50).any(|seed| failure(hides(seed)).is_some()));
}

/// Children go with their parents when the origin applies a delete, also one that a crash left behind.
fn with_cascades(seed: u64) -> Options {
    let domains = [None, Some(1), Some(4)][seed as usize % 3];
    let (rewind, watches, derives) = (None, false, false);
    Options { cascades: true, rewind, watches, derives, domains, ..Options::choose(seed) }
}

#[test]
fn rows_that_go_with_others_are_seen_no_more() {
    let total = run_all("rows_that_go_with_others_are_seen_no_more", 60, with_cascades);
    assert!(total.implied > 10 || number("DESTAGE_SEED").is_some(), "{total:?}");
}

#[test]
fn a_cascade_that_the_schema_does_not_tell_of_is_noticed() {
    let hides = |seed| Options { unsafe_hides_cascades: true, ..with_cascades(seed) };
    assert!((0..50).any(|seed| failure(hides(seed)).is_some()));
}

/// Found at random: SCAN showed rows that had gone with another one, as long as other domains had not decided what was older than
/// they.
#[test]
fn a_scan_shows_no_row_that_went_with_another_while_other_domains_are_behind() {
    sweep(&[25], 34..36, with_cascades);
}

/// Found at random: a row that was made and deleted again in a transaction stayed among what was parked of that, for ever; and
/// what clients were told before they could know of a cascade or of a decision.
#[test]
fn a_transaction_leaves_nothing_of_what_it_did_not_change_in_the_end() {
    for (seed, steps) in [(86, 37..38), (78, 16..18), (129, 35..36)] {
        sweep(&[seed], steps, with_cascades);
    }
}

/// Syncs of the journal fail once in a while: the process stops, and starts on what the system still shows.
fn with_failed_syncs(seed: u64) -> Options {
    let domains = [None, Some(4)][seed as usize % 2];
    Options { fails_syncs: true, domains, ..Options::choose(seed) }
}

#[test]
fn nothing_promised_is_broken_by_syncs_that_fail() {
    let total = run_all("nothing_promised_is_broken_by_syncs_that_fail", 60, with_failed_syncs);
    assert!(total.failed_syncs > 10 || number("DESTAGE_SEED").is_some(), "{total:?}");
}

#[test]
fn a_crash_at_any_step_keeps_every_promise_beside_syncs_that_fail() {
    sweep(&[3], 1..30, with_failed_syncs);
}

#[test]
fn a_failed_sync_that_is_taken_for_a_success_is_noticed() {
    let hides = |seed| Options { unsafe_hides_failed_syncs: true, ..with_failed_syncs(seed) };
    assert!((0..50).any(|seed| failure(hides(seed)).is_some()));
}

/// The same with several ordering domains, whose batches are under way at once.
fn with_domains(seed: u64) -> Options {
    let mut options = Options::choose(seed);
    options.domains = Some([1, 2, 4][seed as usize % 3]);
    options
}

#[test]
fn nothing_promised_is_broken_with_several_ordering_domains() {
    let total =
        run_all("nothing_promised_is_broken_with_several_ordering_domains", 100, with_domains);
    let met = total.across > 100 && total.parallel > 100 && total.parked > 10;
    assert!(met || number("DESTAGE_SEED").is_some(), "{total:?}");
}

#[test]
fn a_crash_at_any_step_keeps_every_promise_of_every_domain() {
    sweep(&[1, 5], 1..80, with_domains);
}

/// Found at random: a result was read before the origin went back and told after it, without what was parked in between.
#[test]
fn a_result_is_told_that_was_read_before_the_origin_went_back() {
    sweep(&[59], 50..52, with_domains);
}

#[test]
fn a_crash_at_any_step_shows_nothing_that_was_given_up() {
    sweep(&[2], 1..60, with_skips);
}

#[test]
fn a_crash_at_any_step_shows_no_row_that_went_with_another() {
    sweep(&[2], 1..60, with_cascades);
}

/// All of that at once: transactions that watch, rows that go with others and are doubted, decisions on parked groups, and syncs
/// that fail.
fn with_everything(seed: u64) -> Options {
    let chosen = with_skips(seed);
    let fails_syncs = seed.is_multiple_of(4);
    Options { cascades: true, distrusts: seed.is_multiple_of(2), fails_syncs, ..chosen }
}

#[test]
fn nothing_promised_is_broken_where_everything_comes_together() {
    let total =
        run_all("nothing_promised_is_broken_where_everything_comes_together", 60, with_everything);
    let met = total.implied > 10 && total.skipped > 0 && total.failed_syncs > 0;
    assert!(met || number("DESTAGE_SEED").is_some(), "{total:?}");
}

#[test]
fn a_crash_at_any_step_keeps_every_promise_where_everything_comes_together() {
    sweep(&[3], 1..40, with_everything);
}

/// While rows are said to have changed at the origin; with one ordering domain, or several.
fn with_distrust(seed: u64) -> Options {
    let options = if seed.is_multiple_of(2) { Options::choose(seed) } else { with_domains(seed) };
    Options { distrusts: true, ..options }
}

#[test]
fn rows_that_are_fetched_again_under_undecided_changes_hold_them_still() {
    let mut total = Counts::default();
    for seed in 0..number("DESTAGE_SEEDS").unwrap_or(100) {
        match catch_unwind(AssertUnwindSafe(|| run(with_distrust(seed)))) {
            Ok((counts, _)) => total.add(&counts),
            Err(panic) => {
                eprintln!("distrust, seed {seed}");
                std::panic::resume_unwind(panic);
            }
        }
    }
    eprintln!("{total:?}");
    let met = total.distrusted > 100 && total.parked > 10 && total.unparked > 0;
    assert!(met && total.across > 10, "{total:?}");
}

#[test]
fn a_crash_at_any_step_keeps_every_promise_while_rows_are_fetched_again() {
    sweep(&[1, 2], 1..60, with_distrust);
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
