//! Batches: their order, failures, rejected groups.

use super::*;
use crate::io::StopReason;
use crate::policy::When;

/// Writes groups 1.. over these units, all committed, with destaging held back until now.
pub(super) fn dirty(policy: Policy, groups: &[&[u32]]) -> (Pair, Vec<Effect>) {
    let mut pair = Pair::new(policy);
    pair.send(Input::Pause);
    for (index, units) in groups.iter().enumerate() {
        pair.write(index as u64 + 1, units);
    }
    pair.synced(1);
    if groups.len() > 1 {
        pair.synced(groups.len() as u64);
    }
    let effects = pair.send(Input::Resume);
    (pair, effects)
}

#[test]
fn a_domain_sends_prefixes_one_batch_at_a_time() {
    let mut small = policy();
    small.limits.batch_groups_max = 2;
    let (mut pair, effects) = dirty(small, &[&[0], &[0], &[1], &[2], &[3]]);
    assert_eq!(effects, [destage(0)]);
    assert_eq!(pair.batch(0), [1, 2]);
    assert_eq!(pair.destaged(0), [forget(2), destage(1), evict(0)]);
    assert_eq!(pair.batch(1), [3, 4]);
    assert_eq!(pair.destaged(1), [forget(4), destage(2), evict(1), evict(2)]);
    assert_eq!(pair.destaged(2), [forget(5), evict(3)]);
    pair.assert_clean(0);
}

#[test]
fn batches_are_bounded_by_bytes_and_hold_at_least_one_group() {
    let mut small = policy();
    small.limits.batch_bytes_max = 4_096;
    let (mut pair, effects) = dirty(small, &[&[0], &[1]]);
    assert_eq!(effects, [destage(0)]);
    assert_eq!(pair.batch(0), [1]);
    pair.settle();
}

#[test]
fn domains_are_independent() {
    let mut pair = Pair::new(policy());
    pair.write_to(0, 1, &[0], Ack::Policy);
    pair.write_to(1, 2, &[1], Ack::Policy);
    assert_eq!(pair.synced(1), [send(1), sync(2), destage(0)]);
    let other = Effect::Destage { batch: BatchId(1), domain: DomainId(1) };
    assert_eq!(pair.synced(2), [send(2), other]);
    assert_eq!(pair.destage_failed(0, Fault::Unavailable), []);
    assert_eq!(pair.destaged(1), [evict(1)], "nothing can be forgotten before group 1 is decided");
    assert_eq!(pair.at(50), [Effect::Destage { batch: BatchId(2), domain: DomainId(0) }]);
    assert_eq!(pair.destaged(2), [forget(2), evict(0)]);
    pair.assert_clean(0);
}

#[test]
fn units_in_order_of_their_own_let_others_pass() {
    let mut order = by_unit(3);
    order.limits.batch_groups_max = 2;
    let (mut pair, effects) = dirty(order, &[&[0], &[1], &[0, 2], &[2], &[3], &[4]]);
    assert_eq!(effects, [destage(0), destage(1)]);
    assert_eq!(pair.batch(0), [1, 2]);
    assert_eq!(pair.batch(1), [5, 6], "3 waits for 1, and 4 for 3");
    assert_eq!(pair.destaged(1), [evict(3), evict(4)]);
    assert_eq!(pair.due_in().filter(|span| *span == Span::ZERO), None, "nothing can start");
    assert_eq!(pair.destaged(0), [forget(2), destage(2), evict(1)]);
    assert_eq!(pair.batch(2), [3, 4]);
    assert_eq!(pair.destaged(2), [forget(6), evict(0), evict(2)]);
    pair.assert_clean(0);
}

#[test]
fn an_unknown_outcome_is_repeated_with_the_same_groups() {
    for order in [policy(), by_unit(4)] {
        let mut pair = Pair::new(order);
        pair.write(1, &[0]);
        assert_eq!(pair.synced(1), [send(1), destage(0)]);
        pair.write(2, &[0]);
        pair.synced(2);
        assert_eq!(pair.destage_failed(0, Fault::Unavailable), []);
        assert!(pair.core.status().origin_down);
        assert_eq!(pair.due_in(), Some(ms(50)));
        assert_eq!(pair.at(49), []);
        assert_eq!(pair.at(50), [destage(1)]);
        assert_eq!(pair.batch(1), [1], "group 2 has come since, and must not join");
        pair.destage_failed(1, Fault::Unavailable);
        assert_eq!(pair.due_in(), Some(ms(100)), "the wait doubles");
        assert_eq!(pair.at(150), [destage(2)]);
        assert_eq!(pair.batch(2), [1]);
        assert_eq!(pair.destaged(2), [forget(1), destage(3)]);
        assert!(!pair.core.status().origin_down);
        pair.destaged(3);
        pair.assert_clean(0);
    }
}

#[test]
fn several_batches_of_unknown_outcome_are_each_repeated_one_at_a_time() {
    let mut order = by_unit(2);
    order.limits.batch_groups_max = 2;
    let (mut pair, _) = dirty(order, &[&[0], &[1], &[2], &[3], &[0, 3]]);
    pair.destage_failed(1, Fault::Unavailable);
    assert_eq!(pair.destage_failed(0, Fault::Unavailable), []);
    assert_eq!(pair.at(200), [destage(2)]);
    assert_eq!(pair.batch(2), [3, 4]);
    assert_eq!(pair.destaged(2), [destage(3), evict(2)]);
    assert_eq!(pair.batch(3), [1, 2]);
    assert_eq!(pair.destaged(3), [forget(4), destage(4), evict(1)]);
    assert_eq!(pair.batch(4), [5]);
    pair.settle();
}

#[test]
fn a_denied_origin_is_tried_again_at_the_longest_wait() {
    let (mut pair, _) = dirty(policy(), &[&[0]]);
    pair.destage_failed(0, Fault::Denied);
    assert_eq!(pair.due_in(), Some(ms(2_000)));
    assert_eq!(pair.send(Input::Resume), [destage(1)], "whoever mended it need not wait");
    pair.destaged(1);
    pair.assert_clean(0);
}

#[test]
fn the_bad_group_is_found_and_its_neighbours_go_on() {
    let units: Vec<[u32; 1]> = (0..8).map(|unit| [unit]).collect();
    let groups: Vec<&[u32]> = units.iter().map(|unit| &unit[..]).collect();
    let (mut pair, effects) = dirty(policy(), &groups);
    assert_eq!(effects, [destage(0)]);
    let (mut batch, mut parked, mut applied) = (0, Vec::new(), Vec::new());
    for _ in 0..20 {
        if pair.core.status().dirty_groups == 0 {
            break;
        }
        let lsns = pair.batch(batch);
        let effects = if lsns.contains(&6) {
            pair.destage_failed(batch, Fault::Rejected)
        } else {
            applied.extend(lsns);
            pair.destaged(batch)
        };
        batch += 1;
        if effects.contains(&park(6, None)) {
            parked.push(6);
            pair.parked(6);
        }
    }
    assert_eq!((parked, applied), ([6].to_vec(), [1, 2, 3, 4, 5, 7, 8].to_vec()));
    assert!(batch <= 8, "found in {batch} batches");
    let status = pair.core.status();
    assert_eq!((status.parked_groups, status.rejected, status.destaged), (1, 1, 7));
    assert_eq!((status.dirty_groups, status.dirty_bytes, status.pinned_bytes), (0, 0, 0));
}

#[test]
fn later_groups_of_a_parked_unit_are_parked_behind_it() {
    let mut small = policy();
    small.limits.batch_groups_max = 1;
    let (mut pair, _) = dirty(small, &[&[0], &[0, 1], &[2], &[1]]);
    assert_eq!(pair.destage_failed(0, Fault::Rejected), [park(1, None)]);
    pair.wait(7, 2, WaitFor::Decided);
    assert_eq!(pair.parked(1), [forget(1), park(2, Some(1))]);
    let effects = pair.parked(2);
    assert_eq!(effects, [waited(7, Outcome::Parked), forget(2), destage(1)]);
    assert_eq!(pair.destaged(1), [forget(3), park(4, Some(2)), evict(2)]);
    assert_eq!(pair.parked(4), [forget(4)]);
    assert_eq!(pair.wait(8, 4, WaitFor::Decided), [waited(8, Outcome::Parked)]);
    assert_eq!(pair.core.status().parked_groups, 3);
}

#[test]
fn nothing_overtakes_a_group_that_is_being_parked() {
    let mut order = by_unit(4);
    order.limits.batch_groups_max = 1;
    let (mut pair, effects) = dirty(order, &[&[0], &[0], &[1]]);
    assert_eq!(effects, [destage(0), destage(1)]);
    assert_eq!((pair.batch(0), pair.batch(1)), ([1].to_vec(), [3].to_vec()));
    assert_eq!(pair.destage_failed(0, Fault::Rejected), [park(1, None)], "2 waits");
    assert_eq!(pair.parked(1), [forget(1), park(2, Some(1))]);
    pair.parked(2);
    pair.destaged(1);
    assert_eq!(pair.core.status().dirty_groups, 0);
}

/// Each one that is parked lets batches grow, however many there are.
#[test]
fn behind_many_groups_that_are_parked_in_turn_the_rest_is_destaged() {
    let mut units: Vec<&[u32]> = [&[0][..]; 100].to_vec();
    units.extend([&[1][..], &[2]]);
    let (mut pair, mut effects) = dirty(policy(), &units);
    while pair.core.status().parked_groups < 100 {
        let next = effects.iter().find_map(|effect| match effect {
            Effect::Park { lsn, .. } => Some((true, lsn.0)),
            Effect::Destage { batch, .. } => Some((false, batch.0)),
            _ => None,
        });
        effects = match next.expect("something is under way until all are parked") {
            (true, lsn) => pair.parked(lsn),
            (false, batch) => pair.destage_failed(batch, Fault::Rejected),
        };
    }
    let is_destage = |effect: &Effect| matches!(effect, Effect::Destage { .. });
    assert!(effects.iter().any(is_destage), "{effects:?}");
}

#[test]
fn a_parking_of_unknown_outcome_is_repeated_as_a_parking() {
    let (mut pair, _) = dirty(policy(), &[&[0]]);
    assert_eq!(pair.destage_failed(0, Fault::Rejected), [park(1, None)]);
    let failed = Input::Parked { lsn: Lsn(1), result: Err(Fault::Unavailable) };
    assert_eq!(pair.send(failed), []);
    assert_eq!(pair.at(50), [park(1, None)]);
    assert_eq!(pair.parked(1), [forget(1)]);
}

#[test]
fn too_many_parked_groups_pause_the_destager() {
    let mut few = policy();
    few.limits.parked_max = 1;
    few.limits.batch_groups_max = 1;
    let (mut pair, _) = dirty(few, &[&[0], &[1]]);
    pair.destage_failed(0, Fault::Rejected);
    assert_eq!(pair.parked(1), [forget(1)]);
    assert!(pair.core.status().paused);
    assert_eq!(pair.send(Input::Resume), [destage(1)]);
}

#[test]
fn fenced_and_failed_stop_for_good() {
    for (fault, reason) in [
        (Fault::Fenced, StopReason::Fenced),
        (Fault::Failed, StopReason::OriginChanged),
        (Fault::JournalDamaged, StopReason::JournalFailed),
    ] {
        let (mut pair, _) = dirty(policy(), &[&[0]]);
        pair.read(5, 9);
        let effects = pair.destage_failed(0, fault);
        assert_eq!(effects, [Effect::Stop(reason), refuse(5, Refusal::Stopped)]);
        assert_eq!(pair.at(5_000), []);
        assert_eq!(pair.core.next_timeout(), None);
        assert_eq!(pair.write(6, &[0]), [refuse(6, Refusal::Stopped)]);
    }
}

#[test]
fn the_order_may_change_while_batches_are_under_way() {
    let (mut pair, effects) = dirty(policy(), &[&[0]]);
    assert_eq!(effects, [destage(0)]);
    pair.write(2, &[0]);
    pair.write(3, &[1]);
    pair.synced(2);
    pair.synced(3);
    let effects = pair.set_policy(|policy| policy.order = Order::Unit { batches_max: 4 });
    assert_eq!(effects, [destage(1)]);
    assert_eq!(pair.batch(1), [3], "2 shares a unit with the batch under way");
    pair.set_policy(|policy| policy.order = Order::Domain);
    pair.destaged(1);
    assert_eq!(pair.destaged(0), [forget(1), destage(2)]);
    pair.set_policy(|policy| policy.order = Order::Unit { batches_max: 4 });
    pair.write(4, &[1]);
    assert_eq!(pair.synced(4), [send(4), destage(3)], "nothing of the past is in the way");
    pair.settle();
    pair.assert_clean(0);
}

#[test]
fn recovered_groups_are_destaged_in_order_and_the_numbering_goes_on() {
    let mut pair = Pair::new(policy());
    pair.core = Core::resume(START, policy(), Lsn(4));
    for (lsn, unit) in [(5, 0), (7, 0), (8, 1)] {
        pair.core.handle(
            START,
            Input::Recovered {
                lsn: Lsn(lsn),
                stamp: START,
                domain: DomainId(0),
                level: 0,
                units: &[UnitId(unit)],
                bytes: 10,
                journal_bytes: 20,
            },
        );
    }
    pair.core.handle(START, Input::RecoveredParked { lsn: Lsn(3), units: &[UnitId(2)] });
    pair.core.handle(START, Input::RecoveredUpto { lsn: Lsn(9) });
    assert_eq!(pair.core.next_lsn(), Lsn(10));
    assert_eq!(pair.core.committed(), Lsn(9));
    assert_eq!(pair.effects(), [destage(0)]);
    assert_eq!(pair.batch(0), [5, 7, 8]);
    assert_eq!(pair.destaged(0), [forget(9), evict(0), evict(1)]);
    // A write to a unit that was parked in an earlier life joins it.
    pair.write(1, &[2]);
    assert_eq!(pair.synced(10), [send(1), park(10, Some(3))]);
    pair.parked(10);
    assert_eq!(pair.core.status().parked_groups, 2);
}

#[test]
fn pause_holds_everything_back_and_drain_sends_everything() {
    let lazy = Policy { when: When::OnPressure, commit: ms(1_000), ..policy() };
    let mut pair = Pair::new(lazy);
    pair.write(1, &[0]);
    assert_eq!(pair.send(Input::Drain), [sync(1)]);
    pair.send(Input::Pause);
    assert_eq!(pair.synced(1), []);
    assert_eq!(pair.send(Input::Resume), [destage(0)]);
    pair.destaged(0);
    pair.assert_clean(0);
}

#[test]
fn a_settled_read_of_a_parked_unit_repeats_a_fetch_that_began_before() {
    let (mut pair, _) = dirty(policy(), &[&[0]]);
    pair.destage_failed(0, Fault::Rejected);
    pair.parked(1);
    assert_eq!(pair.read(1, 0), [fetch(0)]);
    assert_eq!(pair.access(2, Intent::ReadSettled, &[0]), []);
    assert_eq!(pair.fetched(0), [fetch(0)]);
    assert!(pair.fetched(0).contains(&execute(2)));
}
