//! Groups that leave the parked ones again.

use super::destage::dirty;
use super::*;

const HELD: Input<'_> = Input::HoldParked { held: true };
const FREE: Input<'_> = Input::HoldParked { held: false };

fn unparked(units: &[UnitId]) -> Input<'_> {
    Input::Unparked { lsn: Lsn(1), units }
}

/// Group 1, the first write of unit 0, is parked.
fn one_parked(policy: Policy) -> Pair {
    let (mut pair, _) = dirty(policy, &[&[0]]);
    pair.destage_failed(0, Fault::Rejected);
    assert_eq!(pair.parked(1), [forget(1)]);
    pair
}

#[test]
fn what_left_the_parked_ones_is_fetched_again_and_destaged_as_any_other() {
    let mut pair = one_parked(policy());
    pair.load(0);
    assert!(pair.core.is_present(UnitId(0)));
    assert_eq!(pair.send(unparked(&[UnitId(0)])), [evict(0)]);
    assert_eq!(pair.core.status().parked_groups, 0);
    pair.load(0);
    pair.write(2, &[0]);
    assert_eq!(pair.synced(2), [send(2), destage(1)]);
    pair.destaged(1);
    pair.assert_clean(1);
}

#[test]
fn a_unit_stays_parked_while_another_group_of_it_is() {
    let mut pair = one_parked(policy());
    pair.write(2, &[0]);
    assert_eq!(pair.synced(2), [send(2), park(2, Some(1))]);
    pair.parked(2);
    assert_eq!(pair.send(unparked(&[UnitId(0)])), []);
    pair.load(0);
    pair.write(3, &[0]);
    assert_eq!(pair.synced(3), [send(3), park(3, Some(2))]);
    pair.parked(3);
    assert_eq!(pair.core.status().parked_groups, 2);
}

#[test]
fn a_group_joins_the_parked_one_by_whichever_of_its_units() {
    let mut pair = one_parked(policy());
    pair.load(1);
    pair.write(2, &[1, 0]);
    assert_eq!(pair.synced(2), [send(2), park(2, Some(1))]);
}

#[test]
fn a_unit_that_stands_for_many_makes_nothing_build_on_what_is_parked() {
    let (mut pair, _) = dirty(policy(), &[&[0, 5]]);
    pair.destage_failed(0, Fault::Rejected);
    pair.send(Input::Collective { units: &[UnitId(5)] });
    pair.parked(1);
    pair.load(1);
    pair.write(2, &[1, 5]);
    assert_eq!(pair.synced(2), [send(2), destage(1)]);
    pair.destaged(1);
    pair.write(3, &[0, 5]);
    assert_eq!(pair.synced(3), [send(3), park(3, Some(1))], "it changes another unit of it, too");
    pair.parked(3);
    // Nothing of it is parked any more, so the word is void.
    pair.send(unparked(&[UnitId(0), UnitId(5)]));
    pair.send(Input::Unparked { lsn: Lsn(3), units: &[UnitId(0), UnitId(5)] });
    assert_eq!(pair.core.status().parked_groups, 0);
}

#[test]
fn while_parked_groups_are_held_none_joins_them_and_others_pass() {
    let mut pair = one_parked(policy());
    assert_eq!(pair.send(HELD), []);
    pair.load(1);
    pair.write(2, &[1]);
    pair.write(3, &[0]);
    assert_eq!(pair.synced(2), [send(2), sync(3), destage(1)]);
    assert_eq!(pair.synced(3), [send(3)]);
    assert!(!pair.destaged(1).contains(&park(3, Some(1))));
    assert_eq!(pair.core.next_timeout(), pair.core.stale_at(), "nothing to look for meanwhile");
    assert_eq!(pair.send(unparked(&[UnitId(0)])), [destage(2)]);
    assert_eq!(pair.send(FREE), []);
    pair.destaged(2);
    assert_eq!(pair.core.status().parked_groups, 0);
}

#[test]
fn what_is_held_is_parked_afterwards_if_nothing_left() {
    let mut pair = one_parked(policy());
    pair.send(HELD);
    pair.write(2, &[0]);
    assert_eq!(pair.synced(2), [send(2)]);
    assert!(!pair.core.is_parking());
    assert_eq!(pair.send(FREE), [park(2, Some(1))]);
    assert!(pair.core.is_parking());
    pair.parked(2);
    assert!(!pair.core.is_parking());
}

#[test]
fn the_pause_of_the_cap_ends_with_room_but_not_one_by_request() {
    let mut few = policy();
    few.limits.parked_max = 1;
    let mut pair = one_parked(few.clone());
    assert!(pair.core.status().paused);
    pair.send(unparked(&[UnitId(0)]));
    assert!(!pair.core.status().paused);
    let mut pair = one_parked(few);
    pair.send(Input::Pause);
    pair.send(unparked(&[UnitId(0)]));
    assert!(pair.core.status().paused);
}

#[test]
fn while_destaging_is_paused_nothing_is_sent_to_the_parked_ones_again() {
    let (mut pair, _) = dirty(policy(), &[&[0]]);
    pair.destage_failed(0, Fault::Rejected);
    pair.send(Input::Pause);
    assert!(pair.core.is_parking() && !pair.core.is_parking_paused(), "it is on its way");
    let result = Err(Fault::Unavailable);
    pair.send(Input::Parked { lsn: Lsn(1), result });
    assert!(pair.core.is_parking_paused());
    assert_eq!(pair.send(Input::Resume), [park(1, None)]);
    assert!(!pair.core.is_parking_paused());
}

#[test]
fn room_among_the_parked_ones_ends_no_halt() {
    let mut few = policy();
    (few.limits.parked_max, few.limits.parked_per_minute_max) = (1, 0);
    let (mut pair, _) = dirty(few, &[&[0], &[1]]);
    pair.destage_failed(0, Fault::Rejected);
    pair.destage_failed(1, Fault::Rejected);
    pair.parked(1);
    assert!(pair.core.status().paused);
    assert_eq!(pair.send(unparked(&[UnitId(0)])), [evict(0)]);
    assert!(!pair.core.status().paused);
    assert_eq!(pair.core.halts().count(), 1);
    assert_eq!(pair.send(Input::Resume), [destage(2)]);
}

#[test]
fn what_the_origin_denies_to_park_no_decision_waits_for() {
    let (mut pair, _) = dirty(policy(), &[&[0]]);
    pair.destage_failed(0, Fault::Rejected);
    let failed = |fault| Input::Parked { lsn: Lsn(1), result: Err(fault) };
    assert_eq!(pair.send(failed(Fault::Unavailable)), []);
    assert!(pair.core.is_parking() && !pair.core.is_parking_denied(), "time alone may end it");
    assert_eq!(pair.send(Input::Resume), [park(1, None)]);
    assert_eq!(pair.send(failed(Fault::Denied)), []);
    assert!(pair.core.is_parking_denied() && !pair.core.is_parking_paused());
    assert_eq!(pair.send(Input::Resume), [park(1, None)]);
    assert!(!pair.core.is_parking_denied(), "the origin is being asked");
    assert_eq!(pair.send(failed(Fault::Unavailable)), []);
    assert!(!pair.core.is_parking_denied(), "what it says is not known");
    assert_eq!(pair.send(Input::Resume), [park(1, None)]);
    pair.send(failed(Fault::Denied));
    pair.send(Input::Resume);
    pair.parked(1);
    assert!(!pair.core.is_parking() && !pair.core.is_parking_denied());
}

#[test]
fn what_one_domain_may_still_park_a_decision_waits_for() {
    let mut pair = Pair::new(policy());
    for (domain, lsn) in [(0, 1), (1, 2)] {
        pair.load(lsn as u32);
        pair.write_to(domain, lsn, &[lsn as u32], Ack::Policy);
    }
    pair.synced(2);
    let failed = |lsn, fault| Input::Parked { lsn: Lsn(lsn), result: Err(fault) };
    pair.destage_failed(0, Fault::Rejected);
    pair.destage_failed(1, Fault::Rejected);
    pair.send(failed(1, Fault::Denied));
    assert!(!pair.core.is_parking_denied(), "the other one is on its way");
    pair.send(failed(2, Fault::Unavailable));
    assert!(!pair.core.is_parking_denied(), "the other one goes when the origin is back");
    pair.send(Input::Resume);
    pair.parked(2);
    pair.send(failed(1, Fault::Denied));
    assert!(pair.core.is_parking_denied());
}
