//! The volume in virtual time, with the real cache device, journal and redo store on a simulated disk; it crashes anywhere.
//!
//! A run is a function of its seed. `DESTAGE_SEEDS=n` runs more of them, `DESTAGE_SEED=n` one.

mod after_through;
mod ahead;
mod auto;
mod bench;
mod changes;
mod choice;
mod claims;
mod client;
mod consistency;
mod damage;
mod evidence;
mod full_log;
mod lost_at_origin;
mod model;
pub(super) mod random;
mod reads_first;
mod running;
mod sim;
mod upkeep;
mod world;
mod zeros;

use choice::Choice;
use sim::{Counts, Sim};
use std::panic::{AssertUnwindSafe, catch_unwind};

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Runs the seeds that the environment asks for, or `usual` many.
fn run_seeds(usual: u64, choose: impl Fn(u64) -> Choice) -> Counts {
    let seeds = match number("DESTAGE_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("DESTAGE_SEEDS").unwrap_or(usual),
    };
    let mut total = Counts::default();
    for seed in seeds {
        match catch_unwind(AssertUnwindSafe(|| Sim::new(choose(seed)).run())) {
            Ok((counts, _)) => total.add(&counts),
            Err(panic) => {
                eprintln!(
                    "reproduce: DESTAGE_SEED={seed} cargo test -p destage-block --lib engine::tests"
                );
                std::panic::resume_unwind(panic);
            }
        }
    }
    eprintln!("{total:?}");
    total
}

/// How many seeds break a promise: of 50 with the unsafe variant, of 10 without it.
fn broken(choose: impl Fn(u64, bool) -> Choice) -> (usize, usize) {
    let run = |is_unsafe: bool| {
        let choose = &choose;
        move |seed: u64| {
            Sim::new(choose(seed, is_unsafe)).run();
        }
    };
    (broken_by(50, run(true)), broken_by(10, run(false)))
}

/// How many of so many seeds a run does not survive.
fn broken_by(seeds: u64, run: impl Fn(u64)) -> usize {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let is_broken = |&seed: &u64| catch_unwind(AssertUnwindSafe(|| run(seed))).is_err();
    let broken = (0..seeds).filter(is_broken).count();
    std::panic::set_hook(hook);
    broken
}

#[test]
fn nothing_promised_is_broken_whatever_happens() {
    let total = run_seeds(120, Choice::any);
    if number("DESTAGE_SEED").is_none() && number("DESTAGE_SEEDS").is_none() {
        // A run that never comes to what it is to check would prove nothing.
        assert!(total.crashes > 100 && total.losses > 30 && total.hits > 500, "{total:?}");
        assert!(total.compared > 40, "{total:?}");
        assert!(total.aheads > 100 && total.syncs_beside > 100, "{total:?}");
        assert!(total.reads_now > 100, "{total:?}");
        assert!(total.flushes > 100 && total.merges > 100 && total.marks > 20, "{total:?}");
    }
}

#[test]
fn a_run_is_a_function_of_its_seed() {
    for seed in 0..5 {
        let (_, first) = Sim::new(Choice::any(seed)).run();
        let (_, second) = Sim::new(Choice::any(seed)).run();
        assert_eq!(first, second, "seed {seed}");
    }
}

/// Negative control: conventional write-back does not keep the order of epochs.
#[test]
fn plain_write_back_fails_the_check_of_the_ordered_policy() {
    let (plain, ordered) = broken(Choice::epochs);
    assert!(plain > 0 && ordered == 0, "plain {plain}, ordered {ordered}");
}

/// Negative control: long sequential writes that go straight to the origin overtake what is dirty.
#[test]
fn streams_straight_to_the_origin_fail_the_check_of_the_ordered_policy() {
    let (straight, logged) = broken(Choice::streams);
    assert!(straight > 0 && logged == 0, "straight {straight}, logged {logged}");
}

/// Negative control: a sync that is taken for one of what was logged while it ran.
#[test]
fn a_sync_that_claims_what_was_logged_meanwhile_loses_acknowledged_writes() {
    let (late, in_time) = broken(Choice::syncing);
    assert!(late > 0 && in_time == 0, "too much claimed {late}, what is true {in_time}");
}

#[test]
fn what_a_start_sees_after_failed_syncs_outlives_the_next_loss_of_power() {
    let failing = |seed| Choice { failing_syncs: true, ..Choice::any(seed) };
    let total = (0..40).fold(Counts::default(), |mut total, seed| {
        total.add(&Sim::new(failing(seed)).run().0);
        total
    });
    assert!(total.failed_syncs > 10, "{total:?}");
}

/// Negative control: a start that syncs what it sees, and does not write it again.
#[test]
fn a_start_that_only_syncs_what_it_sees_after_failed_syncs_loses_it() {
    let (synced, rewritten) = broken(Choice::failing);
    assert!(synced > 0 && rewritten == 0, "synced {synced}, written again {rewritten}");
}

/// Negative control: what the cache held of a block before an earlier group is taken for what the origin holds.
#[test]
fn outdated_copies_taken_for_what_the_origin_holds_fail_the_replay() {
    let (outdated, current) = broken(Choice::overwrites);
    assert!(outdated > 0 && current == 0, "outdated {outdated}, current {current}");
}

/// Negative control: a log that is let go past the index checkpoint.
#[test]
fn a_log_let_go_past_the_checkpoint_gives_outdated_blocks() {
    let (past, upto) = broken(Choice::short_log);
    assert!(past > 0 && upto == 0, "past the checkpoint {past}, up to it {upto}");
}

/// Negative control: a journaled origin whose redo store is never replayed.
#[test]
fn an_origin_without_replay_fails_the_check_of_the_journaled_policy() {
    let (raw, replayed) = broken(Choice::journaled);
    assert!(raw > 0 && replayed == 0, "raw {raw}, replayed {replayed}");
}

/// A run in which the log had room for a part of a request only when a batch was begun.
#[test]
fn no_write_is_lost_where_a_batch_holds_a_request_that_is_committed_in_part() {
    Sim::new(Choice::short_log(8, false)).run();
}

/// Power goes twice, the second time while a start sends again what the origin held already: none of it is foreign.
#[test]
fn what_a_start_sends_again_is_not_foreign_after_the_next_crash() {
    let like = Choice::any(166);
    let (policy, checked, blocks) = (like.policy, like.checked, like.blocks);
    let choice = Choice { policy, checked, blocks, has_redo: true, ..Choice::any(953) };
    let (counts, _) = Sim::new(choice).run();
    assert!(counts.crashes == 2 && counts.compared > 0, "{counts:?}");
}
