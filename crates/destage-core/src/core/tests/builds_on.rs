//! Groups that build on others with which they share no unit.

use super::*;

/// Writes groups 1.. over these units, all committed, each building on others, with destaging held back until the end.
fn built(policy: Policy, groups: &[(&[u32], &[u64])]) -> (Pair, Vec<Effect>) {
    let mut pair = Pair::new(policy);
    pair.send(Input::Pause);
    for (index, (units, on)) in groups.iter().enumerate() {
        let number = index as u64 + 1;
        pair.write(number, units);
        builds_on(&mut pair, number, on);
    }
    pair.synced(1);
    if groups.len() > 1 {
        pair.synced(groups.len() as u64);
    }
    let effects = pair.send(Input::Resume);
    (pair, effects)
}

fn builds_on(pair: &mut Pair, lsn: u64, on: &[u64]) -> Vec<Effect> {
    let on: Vec<Lsn> = on.iter().copied().map(Lsn).collect();
    pair.send(Input::BuildsOn { lsn: Lsn(lsn), on: &on })
}

/// The origin rejects group 1, the first of this many in a batch.
fn reject_the_first(pair: &mut Pair, groups: usize) -> Vec<Effect> {
    assert_eq!(pair.batch(0).len(), groups);
    let mut batch = 0;
    while pair.batch(batch).len() > 1 {
        pair.destage_failed(batch, Fault::Rejected);
        batch += 1;
    }
    assert_eq!(pair.batch(batch), [1]);
    assert_eq!(pair.destage_failed(batch, Fault::Rejected), [park(1, None)]);
    pair.parked(1)
}

#[test]
fn what_builds_on_a_rejected_group_is_parked_behind_it_and_so_on_while_others_go() {
    let groups: [(&[u32], &[u64]); 5] =
        [(&[0], &[]), (&[1], &[1]), (&[2], &[]), (&[3], &[2]), (&[4], &[3])];
    let (mut pair, effects) = built(policy(), &groups);
    assert_eq!(effects, [destage(0)]);
    let next = reject_the_first(&mut pair, 5);
    assert_eq!(next, [forget(1), park(2, Some(1))]);
    assert_eq!(pair.parked(2), [forget(2), destage(3)]);
    assert_eq!(pair.batch(3), [3], "a batch ends before what is to be parked");
    assert_eq!(pair.destaged(3), [forget(3), park(4, Some(2)), evict(2)]);
    assert_eq!(pair.parked(4), [forget(4), destage(4)]);
    assert_eq!(pair.batch(4), [5], "what it builds on was applied");
    pair.destaged(4);
    assert_eq!(pair.core.status().parked_groups, 3);
    assert!(pair.core.is_open(Lsn(1)) && !pair.core.is_open(Lsn(3)));
}

/// The negative control of the test above.
#[test]
fn groups_of_other_units_that_build_on_nothing_go() {
    let groups: [(&[u32], &[u64]); 3] = [(&[0], &[]), (&[1], &[]), (&[2], &[])];
    let (mut pair, _) = built(policy(), &groups);
    assert_eq!(reject_the_first(&mut pair, 3), [forget(1), destage(2)]);
    assert_eq!(pair.batch(2), [2, 3]);
    pair.settle();
    assert_eq!(pair.core.status().parked_groups, 1);
}

#[test]
fn what_was_applied_or_left_the_parked_ones_holds_nothing_back() {
    let (mut pair, _) = built(policy(), &[(&[0], &[])]);
    reject_the_first(&mut pair, 1);
    pair.write(2, &[1]);
    builds_on(&mut pair, 2, &[1]);
    pair.send(Input::Unparked { lsn: Lsn(1), units: &[UnitId(0)] });
    assert_eq!(pair.synced(2), [send(2), destage(1)]);
    pair.destaged(1);
    pair.write(3, &[2]);
    builds_on(&mut pair, 3, &[1, 2]);
    assert_eq!(pair.synced(3), [send(3), destage(2)]);
    pair.destaged(2);
    pair.assert_clean(0);
}

#[test]
fn while_parked_groups_are_held_none_joins_them_by_what_it_has_read() {
    let (mut pair, _) = built(policy(), &[(&[0], &[])]);
    reject_the_first(&mut pair, 1);
    pair.send(Input::HoldParked { held: true });
    pair.write(2, &[1]);
    builds_on(&mut pair, 2, &[1]);
    assert_eq!(pair.synced(2), [send(2)]);
    assert!(!pair.core.is_parking());
    assert_eq!(pair.send(Input::HoldParked { held: false }), [park(2, Some(1))]);
    pair.parked(2);
}

#[test]
fn a_group_of_an_earlier_run_builds_on_what_was_parked_then() {
    let mut pair = Pair::new(policy());
    pair.core = Core::resume(START, policy(), Lsn(1));
    for (lsn, unit, on) in [(2, 1, Lsn(1)), (3, 2, Lsn(2))] {
        pair.core.handle(
            START,
            Input::Recovered {
                lsn: Lsn(lsn),
                stamp: START,
                domain: DomainId(0),
                level: 0,
                units: &[UnitId(unit)],
                bytes: WRITE_BYTES,
                journal_bytes: WRITE_BYTES,
            },
        );
        pair.core.handle(START, Input::BuildsOn { lsn: Lsn(lsn), on: &[on] });
    }
    // In whatever order they are told of.
    pair.core.handle(START, Input::RecoveredParked { lsn: Lsn(1), units: &[UnitId(0)] });
    pair.core.handle(START, Input::RecoveredUpto { lsn: Lsn(3) });
    assert_eq!(pair.effects(), [park(2, Some(1))]);
    assert_eq!(pair.parked(2), [forget(2), park(3, Some(2))]);
}

#[test]
fn in_another_domain_what_is_parked_counts_and_what_is_undecided_is_not_waited_for() {
    let mut pair = Pair::new(policy());
    pair.write_to(0, 1, &[0], Ack::Policy);
    pair.synced(1);
    for (lsn, unit) in [(2, 1), (3, 2)] {
        pair.send(Input::Pause);
        pair.write_to(1, lsn, &[unit], Ack::Policy);
        builds_on(&mut pair, lsn, &[1]);
        pair.synced(lsn);
        let effects = pair.send(Input::Resume);
        let domain = DomainId(1);
        if lsn == 2 {
            assert_eq!(effects, [Effect::Destage { batch: BatchId(1), domain }]);
            pair.destaged(1);
            pair.destage_failed(0, Fault::Rejected);
            pair.parked(1);
        } else {
            let depends_on = Some(Lsn(1));
            assert_eq!(effects, [Effect::Park { lsn: Lsn(3), domain, depends_on, keep: true }]);
        }
    }
}

/// A rejected batch may have landed in part. What has landed must not be parked for what another domain decides meanwhile.
#[test]
fn what_has_been_sent_is_sent_again_whatever_another_domain_has_parked_since() {
    let mut pair = Pair::new(policy());
    pair.send(Input::Pause);
    pair.write_to(0, 1, &[0], Ack::Policy);
    pair.write_to(1, 2, &[1], Ack::Policy);
    builds_on(&mut pair, 2, &[1]);
    pair.write_to(1, 3, &[2], Ack::Policy);
    builds_on(&mut pair, 3, &[2]);
    pair.write_to(1, 4, &[3], Ack::Policy);
    pair.synced(4);
    let (first, other) = (destage(0), DomainId(1));
    let second = Effect::Destage { batch: BatchId(1), domain: other };
    assert_eq!(pair.send(Input::Resume), [first, second]);
    assert_eq!(pair.core.batch(BatchId(1)), [Lsn(2), Lsn(3), Lsn(4)]);
    // The first domain's group is parked while the other's batch is narrowed down: group 2 has landed, for all that is known.
    pair.destage_failed(0, Fault::Rejected);
    pair.parked(1);
    let effects = pair.destage_failed(1, Fault::Rejected);
    assert_eq!(effects, [Effect::Destage { batch: BatchId(2), domain: other }]);
    assert_eq!(pair.core.batch(BatchId(2)), [Lsn(2)]);
    // In its own domain order says what has landed: what builds on a rejected group is parked behind it.
    let park = |lsn, depends_on| Effect::Park { lsn, domain: other, depends_on, keep: true };
    assert_eq!(pair.destage_failed(2, Fault::Rejected), [park(Lsn(2), None)]);
    assert!(pair.parked(2).contains(&park(Lsn(3), Some(Lsn(2)))));
}

/// A batch of several domains is one transaction at the origin: nothing of one that is rejected has landed.
#[test]
fn what_builds_on_a_rejected_group_behind_one_of_several_domains_is_parked_behind_it() {
    let mut pair = Pair::new(policy());
    let other = DomainId(1);
    pair.send(Input::Pause);
    pair.write_to(0, 1, &[0], Ack::Policy);
    pair.send(Input::Spans { lsn: Lsn(1), domains: &[DomainId(0), other] });
    pair.write_to(1, 2, &[1], Ack::Policy);
    pair.write_to(1, 3, &[2], Ack::Policy);
    builds_on(&mut pair, 3, &[2]);
    pair.synced(3);
    assert_eq!(pair.send(Input::Resume), [destage(0)]);
    assert_eq!(pair.batch(0), [1, 2, 3]);
    pair.destage_failed(0, Fault::Rejected);
    let mut batch = 1;
    // The first group is applied, and of the others the first one is the bad one.
    while pair.core.batch(BatchId(batch)) != [Lsn(2)] {
        match pair.core.batch(BatchId(batch)) {
            [Lsn(1)] => drop(pair.destaged(batch)),
            _ => drop(pair.destage_failed(batch, Fault::Rejected)),
        }
        batch += 1;
    }
    let park = |lsn, depends_on| Effect::Park { lsn, domain: other, depends_on, keep: true };
    assert_eq!(pair.destage_failed(batch, Fault::Rejected), [park(Lsn(2), None)]);
    assert!(pair.parked(2).contains(&park(Lsn(3), Some(Lsn(2)))));
}

#[test]
fn a_client_that_waits_for_the_origin_is_told_what_its_write_builds_on() {
    let (mut pair, _) = built(policy(), &[(&[0], &[])]);
    reject_the_first(&mut pair, 1);
    pair.write_to(0, 2, &[1], Ack::Origin);
    builds_on(&mut pair, 2, &[1]);
    let (lsn, depends_on) = (Lsn(2), Some(Lsn(1)));
    let told = Effect::Park { lsn, domain: DomainId(0), depends_on, keep: false };
    assert!(pair.synced(2).contains(&told));
    assert!(pair.parked(2).contains(&settled(2, false)));
}

#[test]
fn where_units_alone_are_ordered_what_builds_on_a_parked_group_is_found_in_its_turn() {
    let (mut pair, _) = built(by_unit(2), &[(&[0], &[])]);
    reject_the_first(&mut pair, 1);
    pair.send(Input::Pause);
    pair.write(2, &[1]);
    pair.write(3, &[2]);
    builds_on(&mut pair, 3, &[1]);
    pair.synced(2);
    pair.synced(3);
    assert_eq!(pair.send(Input::Resume), [destage(1), park(3, Some(1))]);
    assert_eq!(pair.batch(1), [2]);
}
