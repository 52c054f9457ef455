//! When destaging starts.

use super::*;
use crate::policy::When;

fn when(when: When) -> Policy {
    Policy { when, staleness: Span::MAX, ..policy() }
}

fn commit(pair: &mut Pair, request: u64, unit: u32) -> Vec<Effect> {
    pair.write(request, &[unit]);
    pair.synced(request)
}

#[test]
fn async_waits_for_company_as_long_as_it_lingers() {
    let mut lingering = when(When::Async);
    lingering.limits.linger = ms(2);
    lingering.limits.batch_groups_max = 2;
    let mut pair = Pair::new(lingering);
    assert_eq!(commit(&mut pair, 1, 0), [send(1)]);
    assert_eq!(pair.due_in(), Some(ms(2)));
    assert_eq!(pair.at(1), []);
    assert_eq!(pair.at(2), [destage(0)]);
    pair.destaged(0);
    commit(&mut pair, 2, 0);
    assert_eq!(commit(&mut pair, 3, 1), [send(3), destage(1)], "a full batch goes at once");
}

#[test]
fn periodic_updates_come_at_their_beat_and_not_for_what_is_newer() {
    let mut pair = Pair::new(when(When::Periodic { every: ms(100) }));
    assert_eq!(pair.core.next_timeout(), None, "nothing is dirty");
    pair.at(350);
    assert_eq!(commit(&mut pair, 1, 0), [send(1)], "the beats that were missed are not made up");
    assert_eq!(pair.due_in(), Some(ms(50)));
    assert_eq!(pair.at(399), []);
    assert_eq!(pair.at(400), [destage(0)]);
    pair.at(430);
    assert_eq!(commit(&mut pair, 2, 1), [send(2)]);
    pair.destaged(0);
    assert_eq!(pair.at(499), []);
    assert_eq!(pair.at(500), [destage(1)]);
    pair.destaged(1);
    assert_eq!(pair.core.next_timeout(), None);
}

#[test]
fn interval_updates_take_what_has_come_of_age() {
    let mut pair = Pair::new(when(When::Interval { age: ms(100), check: ms(10) }));
    commit(&mut pair, 1, 0);
    pair.at(55);
    commit(&mut pair, 2, 1);
    assert_eq!(pair.at(99), []);
    assert_eq!(pair.at(100), [destage(0)]);
    assert_eq!(pair.batch(0), [1]);
    pair.destaged(0);
    assert_eq!(pair.at(155), [], "ages are looked at every 10 ms");
    assert_eq!(pair.at(160), [destage(1)]);
}

#[test]
fn a_periodic_update_hurries_a_journal_that_commits_at_intervals() {
    let mut lazy = when(When::Periodic { every: ms(100) });
    lazy.commit = ms(10_000);
    let mut pair = Pair::new(lazy);
    pair.write(1, &[0]);
    assert_eq!(pair.at(100), [sync(1)]);
    assert_eq!(pair.synced(1), [destage(0)]);
}

#[test]
fn on_pressure_runs_from_the_high_mark_down_to_the_low_one() {
    let mut lazy = when(When::OnPressure);
    lazy.at_limit = crate::policy::AtLimit::Block;
    lazy.limits.dirty_bytes_max = 65_536;
    lazy.limits.dirty_bytes_low = 3 * 4_196;
    lazy.limits.batch_groups_max = 4;
    let mut pair = Pair::new(lazy);
    for request in 1..=15 {
        assert!(!commit(&mut pair, request, request as u32).contains(&destage(0)));
    }
    pair.at(3_600_000);
    assert_eq!(pair.core.status().dirty_groups, 15, "time alone does nothing");
    // 15 groups of 4,196 bytes leave no room for another one: it waits, and so there is pressure.
    assert_eq!(pair.write(16, &[16]), [destage(0), mode(Mode::Full)]);
    let effects = pair.destaged(0);
    assert!(effects.contains(&execute(16)) && effects.contains(&destage(1)), "{effects:?}");
    pair.synced(16);
    pair.destaged(1);
    pair.destaged(2);
    assert_eq!(pair.core.status().dirty_groups, 4);
    assert_eq!(pair.batch(3).len(), 4, "above the low mark it goes on");
    pair.destaged(3);
    commit(&mut pair, 17, 17);
    assert_eq!(pair.core.status().dirty_groups, 1);
}

#[test]
fn the_staleness_bound_starts_destaging_in_time() {
    let lazy = Policy { when: When::OnPressure, staleness: ms(10_000), ..policy() };
    let mut pair = Pair::new(lazy);
    commit(&mut pair, 1, 0);
    // A tenth of D to spare, and 1.5 times one group at the assumed 1,000 groups per second.
    let lead = Span(1_000_000_000 + 1_500_000);
    assert_eq!(pair.due_in(), Some(ms(10_000).saturating_sub(lead)));
    assert_eq!(pair.at(8_998), []);
    assert_eq!(pair.at(8_999), [destage(0)]);
    // The origin turns out to need a second per group.
    pair.at(9_999);
    pair.destaged(0);
    for request in 2..=5 {
        commit(&mut pair, request, 0);
    }
    let due = pair.due_in().unwrap();
    assert!(due > ms(2_999) && due < ms(3_001), "10 s - 1 s - 4 groups x 1.5 s: {due:?}");
}

#[test]
fn the_staleness_bound_hurries_the_journal_too() {
    let lazy =
        Policy { when: When::OnPressure, staleness: ms(10_000), commit: ms(9_900), ..policy() };
    let mut pair = Pair::new(lazy);
    commit_quickly(&mut pair);
    pair.write(2, &[0]);
    let due = pair.due_in().unwrap();
    assert!(due < ms(8_999), "committed in time for the destage: {due:?}");
}

/// Lets the core learn that a sync takes 1 ms.
fn commit_quickly(pair: &mut Pair) {
    pair.write(1, &[9]);
    pair.wait(100, 1, WaitFor::Committed);
    pair.at(1);
    pair.synced(1);
    pair.wait(101, 1, WaitFor::Decided);
    pair.destaged(0);
}
