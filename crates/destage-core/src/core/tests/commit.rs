//! The journal's side: what leaves when.

use super::*;
use crate::io::StopReason;

#[test]
fn with_d_zero_a_write_is_acknowledged_after_the_sync() {
    let mut pair = Pair::new(policy());
    assert_eq!(pair.write(1, &[0]), [execute(1), sync(1)]);
    assert_eq!(pair.write(2, &[1]), [execute(2)], "one sync at a time");
    assert_eq!(pair.synced(1), [send(1), sync(2), destage(0)]);
    assert_eq!(pair.synced(2), [send(2)]);
}

#[test]
fn with_d_zero_a_reader_of_an_uncommitted_write_waits_too() {
    let mut pair = Pair::new(policy());
    pair.load(0);
    pair.load(1);
    pair.write(1, &[0]);
    assert_eq!(pair.read(2, 0), [executed(2, Access::Back, 1)]);
    assert_eq!(pair.read(3, 1), [execute(3), send(3)], "this one reveals nothing");
    assert_eq!(pair.synced(1), [send(1), send(2), destage(0)]);
    assert_eq!(pair.read(4, 0), [executed(4, Access::Back, 1), send(4)], "committed, undecided");
}

#[test]
fn a_sync_that_covers_more_than_it_was_asked_to_releases_that_too() {
    let mut pair = Pair::new(policy());
    pair.write(1, &[0]);
    pair.write(2, &[1]);
    pair.wait(3, 2, WaitFor::Committed);
    assert_eq!(pair.synced(2), [send(1), send(2), waited(3, Outcome::Done), destage(0)]);
    assert_eq!(pair.core.status().syncs, 1);
}

#[test]
fn a_sync_of_a_part_releases_that_part_and_the_rest_is_asked_for_again() {
    let mut pair = Pair::new(Policy { commit: ms(1_000), ..policy() });
    pair.write(1, &[0]);
    pair.write(2, &[1]);
    assert_eq!(pair.wait(3, 1, WaitFor::Committed), [sync(2)]);
    assert_eq!(pair.wait(4, 2, WaitFor::Committed), []);
    pair.at(100);
    assert_eq!(pair.synced(1), [waited(3, Outcome::Done), sync(2), destage(0)]);
    assert_eq!(pair.core.status().uncommitted_age, ms(100));
    assert_eq!(pair.synced(2), [waited(4, Outcome::Done)]);
}

#[test]
fn what_was_written_early_counts_or_stops_as_what_was_asked_for() {
    let interval = || Policy { commit: ms(1_000), ..policy() };
    let mut pair = Pair::new(interval());
    pair.write(1, &[0]);
    assert_eq!(pair.synced(1), [destage(0)], "nobody had asked");
    assert_eq!(pair.core.status().uncommitted_age, Span::ZERO);
    let mut pair = Pair::new(interval());
    pair.write(1, &[0]);
    let effects = pair.send(Input::Synced { upto: Lsn::ZERO, result: Err(Fault::Failed) });
    assert_eq!(effects, [Effect::Stop(StopReason::JournalFailed)]);
}

#[test]
fn with_an_interval_memory_is_enough_and_the_sync_ends_within_it() {
    let mut pair = Pair::new(Policy { commit: ms(1_000), ..policy() });
    assert_eq!(pair.write(1, &[0]), [execute(1), send(1)]);
    assert_eq!(pair.due_in(), Some(ms(500)), "half of d while nothing is known of the medium");
    pair.at(100);
    pair.write(2, &[1]);
    assert_eq!(pair.at(500), [sync(2)]);
    pair.at(510);
    assert_eq!(pair.synced(2), [destage(0)]);
    pair.destaged(0);
    pair.at(600);
    pair.write(3, &[0]);
    assert_eq!(pair.due_in(), Some(ms(900)), "a tenth of d covers twice the usual 10 ms");
    assert_eq!(pair.core.status().uncommitted_age, Span::ZERO);
}

#[test]
fn no_write_is_acknowledged_while_the_journal_is_behind_by_more_than_the_interval() {
    let mut pair = Pair::new(Policy { commit: ms(1_000), ..policy() });
    pair.write(1, &[0]);
    assert_eq!(pair.at(500), [sync(1)]);
    // The medium hangs.
    pair.at(999);
    assert_eq!(pair.write(2, &[1]), [execute(2), send(2)]);
    pair.at(1_000);
    assert_eq!(pair.write(3, &[2]), [execute(3)]);
    assert_eq!(pair.read(4, 2), [fetch(2)], "readers go on");
    pair.at(3_000);
    assert_eq!(pair.synced(1), [sync(3), destage(0)]);
    assert_eq!(pair.synced(3), [send(3)]);
}

#[test]
fn waiting_for_a_commit_or_a_decision_hurries_both() {
    let lazy = Policy { commit: ms(1_000), when: crate::When::OnPressure, ..policy() };
    let mut pair = Pair::new(lazy);
    pair.write(1, &[0]);
    assert_eq!(pair.wait(2, 1, WaitFor::Committed), [sync(1)]);
    assert_eq!(pair.synced(1), [waited(2, Outcome::Done)]);
    assert_eq!(pair.wait(3, 1, WaitFor::Committed), [waited(3, Outcome::Done)]);
    pair.write(4, &[0]);
    assert_eq!(pair.wait(5, 2, WaitFor::Decided), [sync(2), destage(0)]);
    assert_eq!(pair.batch(0), [1], "what the journal holds goes first");
    assert_eq!(pair.synced(2), []);
    assert_eq!(pair.destaged(0), [forget(1), destage(1)]);
    assert_eq!(pair.destaged(1), [waited(5, Outcome::Done), forget(2), evict(0)]);
    assert_eq!(pair.wait(6, 2, WaitFor::Decided), [waited(6, Outcome::Done)]);
    pair.assert_clean(0);
}

#[test]
fn a_failed_sync_stops_everything_for_good() {
    let mut pair = Pair::new(policy());
    pair.read(1, 9);
    pair.write(2, &[0]);
    let failed = Input::Synced { upto: Lsn(1), result: Err(Fault::Failed) };
    let stop = Effect::Stop(StopReason::JournalFailed);
    assert_eq!(pair.send(failed), [stop, refuse(1, Refusal::Stopped)]);
    assert_eq!(pair.read(3, 1), [refuse(3, Refusal::Stopped), evict(1)]);
    assert_eq!(pair.fetched(9), []);
    assert_eq!((pair.core.next_timeout(), pair.core.status().waiting), (None, 0));
    assert_eq!(pair.core.status().mode, Mode::Stopped);
}

#[test]
fn changing_d_keeps_what_was_promised() {
    let mut pair = Pair::new(Policy { commit: ms(1_000), ..policy() });
    pair.load(0);
    pair.write(1, &[0]);
    assert_eq!(pair.set_policy(|policy| policy.commit = Span::ZERO), [sync(1)]);
    assert_eq!(
        pair.read(2, 0),
        [executed(2, Access::Back, 1)],
        "no longer shown before it is safe"
    );
    assert_eq!(pair.write(3, &[0]), [executed(3, Access::Back, 1)]);
    pair.set_policy(|policy| policy.commit = ms(1_000));
    assert_eq!(pair.synced(1), [send(2), sync(2), destage(0)], "promised d = 0, gets it at once");
    assert_eq!(pair.synced(2), [send(3)]);
}
