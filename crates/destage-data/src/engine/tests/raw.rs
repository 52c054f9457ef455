//! Runs with raw SQL among the writes, with one ordering domain or several.

use super::options::Options;
use super::sim::Counts;
use super::{failure, number, run, sweep, with_domains};
use destage_core::{Acknowledge, AtLimit};
use std::panic::{AssertUnwindSafe, catch_unwind};

fn with_raw(seed: u64) -> Options {
    let mut options =
        if seed.is_multiple_of(3) { with_domains(seed / 3) } else { Options::choose(seed) };
    options.raw = true;
    options.distrusts = seed.is_multiple_of(4);
    // On its way through to the origin, it does not look at what is parked of single rows.
    let policy = options.settings().policy;
    let is_behind = policy.acknowledge == Acknowledge::Journal
        && policy.at_limit != AtLimit::WriteThrough
        && !options.switches;
    options.raw_tables = is_behind;
    // What is derived, and what becomes of parked writes, is told by the changes of rows.
    (options.derives, options.decides) = (false, false);
    options
}

#[test]
fn nothing_promised_is_broken_with_raw_sql() {
    let mut total = Counts::default();
    for seed in 0..number("DESTAGE_SEEDS").unwrap_or(60) {
        match catch_unwind(AssertUnwindSafe(|| run(with_raw(seed)))) {
            Ok((counts, _)) => total.add(&counts),
            Err(panic) => {
                eprintln!("raw SQL, seed {seed}");
                std::panic::resume_unwind(panic);
            }
        }
    }
    eprintln!("{total:?}");
    assert!(total.raw_parked > 0 && total.across > 0, "{total:?}");
}

#[test]
fn a_crash_at_any_step_keeps_every_promise_of_raw_sql() {
    sweep(&[1], 1..80, with_raw);
}

#[test]
fn reads_that_do_not_wait_for_the_raw_sql_that_covers_them_are_noticed() {
    let caught = (0..50).find_map(|seed| {
        let mut options = with_raw(seed);
        options.unsafe_flags.no_opaque_wait = true;
        failure(options)
    });
    assert!(caught.is_some());
}

/// Found at random: a row that was being fetched showed raw SQL on its whole table which the origin had applied, before the
/// client that had sent it, and waited for the origin's word, was told.
#[test]
fn a_row_shows_raw_sql_to_nobody_before_the_origins_word_on_it_is_known() {
    run(Options { raw_tables: true, ..with_raw(142) });
}

/// Found at random: a cached row lacked raw SQL that had been parked before the origin went back, which nobody knew yet.
#[test]
fn rows_stay_as_they_were_while_nobody_knows_that_the_origin_went_back() {
    sweep(&[35], 4..5, with_raw);
}
