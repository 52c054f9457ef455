//! Domains that stand still until someone has looked.

use super::destage::dirty;
use super::*;

fn stopping() -> Policy {
    Policy { on_reject: OnReject::Stop, ..policy() }
}

fn few_per_minute(most: u32) -> Policy {
    let limits = Limits { parked_per_minute_max: most, ..policy().limits };
    Policy { limits, ..policy() }
}

fn halted(domain: u16, lsn: u64) -> Effect {
    Effect::Halted { domain: DomainId(domain), halt: Halt::Rejected(Lsn(lsn)) }
}

fn too_fast(domain: u16) -> Effect {
    Effect::Halted { domain: DomainId(domain), halt: Halt::ParkedTooFast }
}

/// Groups 1 to 3 are one batch, of which the second is rejected: the domain halts there.
fn halted_at_the_second(policy: Policy) -> Pair {
    let (mut pair, _) = dirty(policy, &[&[0], &[1], &[2]]);
    assert_eq!(pair.destage_failed(0, Fault::Rejected), [destage(1)]);
    assert_eq!(pair.batch(1), [1]);
    assert_eq!(pair.destaged(1), [forget(1), destage(2), evict(0)]);
    assert_eq!(pair.batch(2), [2, 3]);
    assert_eq!(pair.destage_failed(2, Fault::Rejected), [destage(3)]);
    assert_eq!(pair.batch(3), [2]);
    assert_eq!(pair.destage_failed(3, Fault::Rejected), [halted(0, 2)]);
    pair
}

#[test]
fn a_domain_that_stops_parks_nothing_and_nothing_overtakes_what_it_halted_at() {
    let mut pair = halted_at_the_second(stopping());
    pair.write(4, &[3]);
    assert_eq!(pair.synced(4), [send(4)]);
    assert_eq!(pair.core.next_timeout(), pair.core.stale_at(), "nothing to look for meanwhile");
    assert_eq!(pair.core.decided(), Lsn(1));
    assert_eq!(pair.core.status().parked_groups, 0);
    assert!(pair.core.is_halted());
    // Past D nothing is acknowledged.
    assert_eq!(pair.at(30_000), [mode(Mode::StalenessExceeded)]);
    pair.write(5, &[4]);
    assert_eq!(pair.settle(), []);
}

#[test]
fn what_the_origin_owes_an_answer_for_is_in_doubt_until_it_is_decided_or_rejected_alone() {
    let (mut pair, _) = dirty(policy(), &[&[0], &[1]]);
    assert!(pair.core.is_in_doubt(), "it is under way");
    pair.destage_failed(0, Fault::Unavailable);
    assert!(pair.core.is_in_doubt(), "its answer is lost");
    pair.at(50);
    pair.settle();
    assert!(!pair.core.is_in_doubt());
    pair.send(Input::Pause);
    pair.write(9, &[0]);
    pair.synced(3);
    assert!(!pair.core.is_in_doubt(), "it was not sent");
    // The second of three is rejected, and the first may have landed.
    let (mut pair, _) = dirty(stopping(), &[&[0], &[1], &[2]]);
    pair.send(Input::Pause);
    pair.destage_failed(0, Fault::Rejected);
    assert!(pair.core.is_in_doubt());
    assert!(!halted_at_the_second(stopping()).core.is_in_doubt());
    let (mut pair, _) = dirty(policy(), &[&[0]]);
    assert_eq!(pair.destage_failed(0, Fault::Rejected), [park(1, None)]);
    assert!(pair.core.is_in_doubt(), "it is being parked");
    pair.parked(1);
    assert!(!pair.core.is_in_doubt());
}

#[test]
fn resume_tries_again_alone_and_goes_on_or_halts_again() {
    let mut pair = halted_at_the_second(stopping());
    assert_eq!(pair.send(Input::Resume), [destage(4)]);
    assert!(!pair.core.is_halted());
    assert_eq!(pair.batch(4), [2]);
    assert_eq!(pair.destage_failed(4, Fault::Rejected), [halted(0, 2)]);
    assert_eq!(pair.send(Input::Resume), [destage(5)]);
    assert_eq!(pair.destaged(5), [forget(2), destage(6), evict(1)]);
    assert_eq!(pair.batch(6), [3]);
    pair.destaged(6);
    assert_eq!(pair.core.halts().next(), None);
    pair.assert_clean(0);
}

#[test]
fn what_a_domain_halted_at_may_be_parked_and_only_that() {
    let mut pair = halted_at_the_second(stopping());
    assert_eq!(pair.send(Input::ResumeParking), [destage(4)]);
    assert_eq!(pair.destage_failed(4, Fault::Rejected), [park(2, None)]);
    assert_eq!(pair.parked(2), [forget(2), destage(5)]);
    assert_eq!(pair.destage_failed(5, Fault::Rejected), [halted(0, 3)]);
    // What builds on the parked one is parked behind it all the same.
    pair.write(4, &[1]);
    pair.synced(4);
    assert_eq!(pair.send(Input::Resume), [destage(6)]);
    assert_eq!(pair.destaged(6), [forget(3), park(4, Some(2)), evict(2)]);
}

#[test]
fn a_policy_that_parks_ends_the_halt() {
    let mut pair = halted_at_the_second(stopping());
    let effects = pair.set_policy(|policy| policy.limits.batch_groups_max = 7);
    assert_eq!(effects, [], "it still stops");
    let effects = pair.set_policy(|policy| policy.on_reject = OnReject::Park);
    assert_eq!(effects, [destage(4)]);
    assert_eq!(pair.destage_failed(4, Fault::Rejected), [park(2, None)]);
}

#[test]
fn a_client_that_waits_for_the_origin_is_told_and_nothing_halts() {
    let mut pair = Pair::new(stopping());
    pair.write_to(0, 1, &[0], Ack::Origin);
    assert_eq!(pair.synced(1), [destage(0)]);
    let told = Effect::Park { lsn: Lsn(1), domain: DomainId(0), depends_on: None, keep: false };
    assert_eq!(pair.destage_failed(0, Fault::Rejected), [told]);
    assert!(pair.parked(1).contains(&settled(1, false)));
    assert_eq!(pair.core.halts().next(), None);
}

#[test]
fn other_domains_go_on_and_one_may_choose_otherwise() {
    let mut pair = Pair::new(stopping());
    pair.core = Core::new(START, stopping()).with_on_reject(DomainId(1), OnReject::Park);
    pair.write_to(0, 1, &[0], Ack::Policy);
    pair.write_to(1, 2, &[1], Ack::Policy);
    pair.synced(1);
    pair.synced(2);
    assert_eq!(pair.destage_failed(0, Fault::Rejected), [halted(0, 1)]);
    let parks = pair.destage_failed(1, Fault::Rejected);
    let park = Effect::Park { lsn: Lsn(2), domain: DomainId(1), depends_on: None, keep: true };
    assert_eq!(parks, [park]);
    pair.parked(2);
    pair.write_to(1, 3, &[2], Ack::Policy);
    let other = Effect::Destage { batch: BatchId(2), domain: DomainId(1) };
    assert_eq!(pair.synced(3), [send(3), other]);
    pair.destaged(2);
    assert!(pair.core.is_halted(), "the other one has nothing to do");
}

/// Group 1 is of two domains, the second of which stops: both halt at it.
fn halted_spanning() -> Pair {
    let mut pair = Pair::new(policy());
    pair.core = Core::new(START, policy()).with_on_reject(DomainId(1), OnReject::Stop);
    pair.write_to(0, 1, &[0, 1], Ack::Policy);
    pair.core.handle(START, Input::Spans { lsn: Lsn(1), domains: &[DomainId(0), DomainId(1)] });
    pair.synced(1);
    assert_eq!(pair.destage_failed(0, Fault::Rejected), [halted(0, 1), halted(1, 1)]);
    pair
}

#[test]
fn a_group_of_several_domains_halts_each_of_them() {
    let mut pair = halted_spanning();
    pair.write_to(0, 2, &[2], Ack::Policy);
    assert_eq!(pair.synced(2), [send(2)]);
    assert_eq!(pair.send(Input::Resume), [destage(1)]);
    assert_eq!(pair.batch(1), [1]);
    pair.destaged(1);
    assert_eq!(pair.settle().last(), Some(&evict(2)));
    pair.assert_clean(0);
}

#[test]
fn what_stands_behind_a_halted_domain_waits_for_it_too() {
    let mut pair = Pair::new(policy());
    pair.core = Core::new(START, policy()).with_on_reject(DomainId(0), OnReject::Stop);
    pair.write_to(0, 1, &[0], Ack::Policy);
    for (lsn, domains) in [(2, [DomainId(0), DomainId(1)]), (3, [DomainId(1), DomainId(2)])] {
        pair.write_to(domains[0].0, lsn, &[lsn as u32], Ack::Policy);
        pair.core.handle(START, Input::Spans { lsn: Lsn(lsn), domains: &domains });
    }
    pair.write_to(3, 4, &[4], Ack::Policy);
    (1..=4).for_each(|lsn| drop(pair.synced(lsn)));
    assert_eq!(pair.destage_failed(0, Fault::Rejected), [halted(0, 1)]);
    assert!(!pair.core.is_halted(), "the last domain is at work");
    pair.destaged(1);
    assert!(pair.core.is_halted(), "the others wait, one behind the other");
}

#[test]
fn the_domains_of_one_group_go_on_together() {
    let mut pair = halted_spanning();
    assert_eq!(pair.set_policy(|policy| policy.limits.batch_groups_max = 7), []);
    assert_eq!(pair.core.halts().count(), 2, "the first one waits for the second one");
}

#[test]
fn groups_that_overtake_halt_together_and_may_be_parked_together() {
    let both = Policy { on_reject: OnReject::Stop, ..by_unit(2) };
    let mut one = both.clone();
    one.limits.batch_groups_max = 1;
    let (mut pair, effects) = dirty(one, &[&[0], &[1]]);
    assert_eq!(effects, [destage(0), destage(1)]);
    assert_eq!(pair.destage_failed(1, Fault::Rejected), [halted(0, 2)]);
    assert_eq!(pair.destage_failed(0, Fault::Rejected), [halted(0, 2)]);
    assert_eq!(pair.send(Input::ResumeParking), [destage(2)]);
    assert_eq!(pair.destage_failed(2, Fault::Rejected), [park(1, None)]);
    assert!(pair.parked(1).contains(&destage(3)));
    assert_eq!(pair.destage_failed(3, Fault::Rejected), [park(2, None)]);
}

#[test]
fn too_many_parked_in_a_minute_halt_the_domain_until_someone_has_looked() {
    let (mut pair, _) = dirty(few_per_minute(1), &[&[0], &[0], &[0], &[1]]);
    pair.destage_failed(0, Fault::Rejected);
    pair.destage_failed(1, Fault::Rejected);
    assert_eq!(pair.destage_failed(2, Fault::Rejected), [park(1, None)]);
    assert_eq!(pair.parked(1), [forget(1), park(2, Some(1))]);
    assert_eq!(pair.parked(2), [too_fast(0), forget(2)]);
    assert_eq!(pair.core.halts().next(), Some((DomainId(0), Halt::ParkedTooFast)));
    // Time alone does not end it.
    assert_eq!(pair.at(61_000), [mode(Mode::StalenessExceeded)]);
    assert_eq!(pair.send(Input::Resume), [park(3, Some(1))]);
    assert_eq!(pair.parked(3), [forget(3), destage(3)], "a minute begins anew");
}

#[test]
fn what_is_parked_slowly_halts_nothing() {
    let mut pair = Pair::new(few_per_minute(1));
    for n in 1..=5 {
        pair.at(n * 60_000);
        pair.write(n, &[0]);
        pair.synced(n);
        if n == 1 {
            pair.destage_failed(0, Fault::Rejected);
        }
        pair.parked(n);
        assert_eq!(pair.core.halts().next(), None);
    }
    pair.at(5 * 60_000 + 59_999);
    pair.write(6, &[0]);
    pair.synced(6);
    assert!(pair.parked(6).contains(&too_fast(0)));
}

#[test]
fn what_is_to_be_parked_again_is_paused_by_a_halt() {
    let mut overtaking = few_per_minute(0);
    overtaking.order = Order::Unit { batches_max: 2 };
    overtaking.limits.batch_groups_max = 1;
    let (mut pair, _) = dirty(overtaking, &[&[0], &[1]]);
    assert_eq!(pair.destage_failed(0, Fault::Rejected), [park(1, None)]);
    assert_eq!(pair.destage_failed(1, Fault::Rejected), [park(2, None)]);
    pair.send(Input::Parked { lsn: Lsn(2), result: Err(Fault::Unavailable) });
    assert!(!pair.core.is_parking_paused());
    assert!(pair.parked(1).contains(&too_fast(0)));
    assert!(pair.core.is_parking_paused(), "a decision would wait for ever");
}
