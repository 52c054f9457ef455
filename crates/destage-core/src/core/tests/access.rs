//! Hits, misses, locks, cancellation, eviction.

use super::*;
use crate::policy::Acknowledge;

#[test]
fn a_herd_of_misses_makes_one_fetch() {
    let mut pair = Pair::new(policy());
    assert_eq!(pair.read(1, 0), [fetch(0)]);
    for request in 2..100 {
        assert_eq!(pair.read(request, 0), []);
    }
    let answers = pair.fetched(0);
    let (executed, sent): (Vec<_>, Vec<_>) =
        answers.into_iter().partition(|e| matches!(e, Effect::Execute { .. }));
    assert_eq!(executed, (1..100).map(execute).collect::<Vec<_>>());
    assert_eq!(sent, (1..100).map(send).collect::<Vec<_>>());
    assert_eq!(pair.read(200, 0), [execute(200), send(200)]);
    let status = pair.core.status();
    assert_eq!((status.hits, status.misses), (1, 99));
    pair.assert_clean(1);
}

#[test]
fn a_failed_fetch_refuses_every_waiter_and_gives_the_handle_back_once() {
    let mut pair = Pair::new(policy());
    pair.read(1, 0);
    pair.read(2, 0);
    let refused = [refuse(1, Refusal::Unavailable), refuse(2, Refusal::Unavailable), evict(0)];
    assert_eq!(pair.fetch_failed(0, Fault::Unavailable), refused);
    pair.read(3, 0);
    assert_eq!(pair.fetch_failed(0, Fault::Denied), [refuse(3, Refusal::Denied), evict(0)]);
    pair.assert_clean(0);
}

#[test]
fn a_request_for_several_units_waits_for_all_of_them() {
    let mut pair = Pair::new(policy());
    pair.load(1);
    assert_eq!(pair.access(1, Intent::Read, &[0, 1, 2]), [fetch(0), fetch(2)]);
    assert_eq!(pair.fetched(2), []);
    assert_eq!(pair.fetched(0), [execute(1), send(1)]);
    pair.assert_clean(3);
}

#[test]
fn past_the_limit_of_waiting_requests_new_ones_are_refused_without_a_fetch() {
    let mut pair =
        Pair::new(Policy { limits: Limits { waiting_max: 1, ..policy().limits }, ..policy() });
    assert_eq!(pair.read(1, 0), [fetch(0)]);
    assert_eq!(pair.read(2, 1), [refuse(2, Refusal::Busy), evict(1)]);
    pair.fetched(0);
    pair.assert_clean(1);
}

#[test]
fn readers_wait_for_a_write_through_until_it_is_settled() {
    let mut pair = Pair::new(Policy { acknowledge: Acknowledge::Origin, ..policy() });
    pair.load(0);
    assert_eq!(pair.write(1, &[0]), [executed(1, Access::Through, 0), sync(1)]);
    assert_eq!(pair.read(2, 0), []);
    assert_eq!(pair.synced(1), [destage(0)]);
    assert_eq!(pair.destaged(0), [settled(1, true), execute(2), forget(1), send(2)]);
    pair.assert_clean(1);
}

#[test]
fn a_rejected_write_through_is_told_and_drops_the_unit() {
    let mut pair = Pair::new(Policy { acknowledge: Acknowledge::Origin, ..policy() });
    pair.load(0);
    pair.write(1, &[0]);
    pair.read(2, 0);
    pair.synced(1);
    let parking = Effect::Park { lsn: Lsn(1), domain: DomainId(0), depends_on: None, keep: false };
    assert_eq!(pair.destage_failed(0, Fault::Rejected), [parking]);
    assert_eq!(pair.parked(1), [settled(1, false), fetch(0)]);
    assert_eq!(pair.fetched(0), [forget(1), execute(2), send(2)]);
    assert_eq!(pair.core.status().parked_groups, 0);
    pair.assert_clean(1);
}

#[test]
fn write_around_drops_the_unit_at_the_end() {
    let around = Policy { acknowledge: Acknowledge::OriginInvalidate, ..policy() };
    let mut pair = Pair::new(around);
    pair.load(0);
    assert_eq!(pair.write(1, &[0]), [executed(1, Access::Around, 0), sync(1)]);
    pair.synced(1);
    assert_eq!(pair.destaged(0), [settled(1, true), forget(1), evict(0)]);
    pair.assert_clean(0);
}

#[test]
fn what_a_fetch_saw_before_the_origin_decided_a_write_around_or_rejected_one_is_fetched_again() {
    for acknowledge in [Acknowledge::Origin, Acknowledge::OriginInvalidate] {
        let mut pair = Pair::new(Policy { acknowledge, ..policy() });
        assert_eq!(pair.read(1, 0), [fetch(0)]);
        pair.write(2, &[0]);
        pair.synced(1);
        match acknowledge {
            Acknowledge::Origin => {
                pair.destage_failed(0, Fault::Rejected);
                assert_eq!(pair.parked(1), [settled(1, false)]);
            }
            _ => assert_eq!(pair.destaged(0), [settled(1, true)]),
        }
        assert_eq!(pair.fetched(0), [forget(1), fetch(0)]);
        assert_eq!(pair.fetched(0), [execute(1), send(1)]);
        pair.assert_clean(1);
    }
}

#[test]
fn a_blind_write_behind_a_write_around_keeps_its_handle() {
    let around = Policy { acknowledge: Acknowledge::OriginInvalidate, ..policy() };
    let mut pair = Pair::new(around);
    pair.write(1, &[0]);
    pair.synced(1);
    pair.set_policy(|policy| policy.acknowledge = Acknowledge::Journal);
    assert_eq!(pair.write(2, &[0]), []);
    // The first write leaves nothing behind, but the second is executed before anyone looks.
    let effects = pair.destaged(0);
    assert_eq!(effects, [settled(1, true), execute(2), forget(1), sync(2)]);
    pair.settle();
    pair.assert_clean(0);
}

#[test]
fn a_request_that_writes_nothing_after_all_leaves_nothing_behind() {
    let mut pair = Pair::new(Policy { acknowledge: Acknowledge::Origin, ..policy() });
    let blind = Intent::Write { bytes: 10, ack: Ack::Policy, fetch: false };
    assert_eq!(pair.access(1, blind, &[0]), [executed(1, Access::Through, 0), send(1)]);
    assert_eq!(pair.send(Input::Release { units: &[UnitId(0)] }), [evict(0)]);
    pair.set_policy(|policy| policy.acknowledge = Acknowledge::Journal);
    assert_eq!(pair.access(2, blind, &[0]), [execute(2), send(2), evict(0)]);
    pair.assert_clean(0);
}

#[test]
fn a_unit_that_follows_the_write_of_another_one_stays_locked_for_whoever_has_it() {
    for (access, answers) in
        [(Access::Back, Vec::new()), (Access::Through, [execute(3), send(3)].into())]
    {
        let mut pair = Pair::new(Policy { acknowledge: Acknowledge::Origin, ..policy() });
        pair.load(0);
        pair.load(1);
        let write = Intent::Write { bytes: 10, ack: Ack::Policy, fetch: true };
        let effects = pair.access(1, write, &[0, 1]);
        assert!(matches!(effects[0], Effect::Execute { access: Access::Through, .. }));
        assert_eq!(pair.read(3, 0), []);
        let units = [(UnitId(0), 50)];
        assert_eq!(pair.send(Input::Through { units: &units, access, result: Ok(()) }), answers);
        assert_eq!(pair.core.status().cache_bytes, 150, "its size is the new one");
        pair.send(Input::Release { units: &[UnitId(0), UnitId(1)] });
    }
}

#[test]
fn a_reader_observes_the_write_executed_just_before_it() {
    let mut pair = Pair::new(policy());
    pair.plans.insert(RequestId(1), (DomainId(0), [UnitId(0)].to_vec()));
    let write = Intent::Write { bytes: 10, ack: Ack::Policy, fetch: true };
    assert_eq!(pair.access(1, write, &[0]), [fetch(0)]);
    pair.read(2, 0);
    // Both wait for one fetch: the read must not leave before the write is durable.
    assert_eq!(pair.fetched(0), [execute(1), executed(2, Access::Back, 1), sync(1)]);
    assert_eq!(pair.synced(1), [send(1), send(2), destage(0)]);
}

#[test]
fn a_settled_read_waits_for_the_origin_and_fetches_again() {
    let mut pair = Pair::new(policy());
    pair.load(0);
    pair.write(1, &[0]);
    assert_eq!(pair.access(2, Intent::ReadSettled, &[0]), []);
    assert_eq!(pair.read(3, 0), [], "the unit is locked until the settled read is done");
    assert_eq!(pair.synced(1), [send(1), destage(0)]);
    assert_eq!(pair.destaged(0), [fetch(0)]);
    assert_eq!(pair.fetched(0), [forget(1), execute(2), execute(3), send(2), send(3)]);
    pair.assert_clean(1);
}

#[test]
fn a_settled_read_waits_for_every_unit_even_if_the_newest_change_is_decided_first() {
    let mut pair = Pair::new(policy());
    pair.write_to(0, 1, &[0], Ack::Policy);
    pair.write_to(1, 2, &[1], Ack::Policy);
    assert_eq!(pair.access(3, Intent::ReadSettled, &[0, 1]), []);
    pair.synced(1);
    pair.synced(2);
    assert_eq!(pair.destaged(1), [], "the older change is still on its way");
    let effects = pair.destaged(0);
    assert_eq!(effects, [fetch(0), fetch(1)]);
    pair.fetched(0);
    assert_eq!(pair.fetched(1), [forget(2), execute(3), send(3)]);
    pair.assert_clean(2);
}

#[test]
fn a_settled_read_is_not_content_with_a_fetch_that_began_before() {
    let mut pair = Pair::new(policy());
    pair.write(1, &[0]);
    assert_eq!(pair.read(2, 0), [fetch(0)]);
    pair.access(3, Intent::ReadSettled, &[0]);
    pair.synced(1);
    assert_eq!(pair.destaged(0), [], "the fetch under way is awaited, then repeated");
    assert_eq!(pair.fetched(0), [forget(1), fetch(0)]);
    assert_eq!(pair.fetched(0), [execute(3), execute(2), send(3), send(2)]);
    pair.assert_clean(1);
}

#[test]
fn invalidate_drops_clean_units_repeats_fetches_and_spares_dirty_ones() {
    let mut pair = Pair::new(policy());
    let unit = UnitId(0);
    pair.load(0);
    assert_eq!(pair.send(Input::Invalidate { unit }), [evict(0)]);
    pair.read(1, 0);
    assert_eq!(pair.send(Input::Invalidate { unit }), []);
    assert_eq!(pair.fetched(0), [fetch(0)], "what came may be older than the invalidation");
    assert_eq!(pair.fetched(0), [execute(1), send(1)]);
    pair.write(2, &[0]);
    assert_eq!(pair.send(Input::Invalidate { unit }), []);
    assert!(pair.core.is_present(unit));
    pair.settle();
    pair.assert_clean(1);
}

#[test]
fn reload_drops_dirty_units_too_which_are_fetched_before_they_are_used() {
    let mut pair = Pair::new(policy());
    let unit = UnitId(0);
    pair.load(0);
    assert_eq!(
        pair.send(Input::Reload { unit }),
        [evict(0)],
        "a clean one is as good as invalidated"
    );
    pair.write(1, &[0]);
    assert_eq!(pair.send(Input::Reload { unit }), []);
    assert!(!pair.core.is_present(unit) && pair.core.has_undecided(unit));
    assert_eq!(pair.read(2, 0), [fetch(0)]);
    assert_eq!(pair.send(Input::Reload { unit }), [], "the driver repeats what it fetches");
    assert_eq!(
        pair.fetched(0),
        [executed(2, Access::Back, 1)],
        "the reply waits for the write that it shows"
    );
    assert!(pair.core.is_present(unit));
    pair.send(Input::Reload { unit });
    pair.settle();
    assert!(!pair.core.has_undecided(unit));
    pair.assert_clean(0);
}

#[test]
fn cancelling_at_any_stage_leaves_nothing_behind() {
    let mut pair = Pair::new(policy());
    // Before the fetch ends.
    pair.read(1, 0);
    pair.cancel(1);
    assert_eq!(pair.fetched(0), []);
    // A settled read that waits for the origin, holding its lock; others wait for that lock.
    pair.write(2, &[0]);
    pair.access(3, Intent::ReadSettled, &[0]);
    pair.read(4, 0);
    pair.cancel(4);
    pair.read(5, 0);
    assert_eq!(pair.cancel(3), [executed(5, Access::Back, 1)]);
    // Waits for the journal and for the origin.
    pair.wait(6, 1, WaitFor::Committed);
    pair.wait(7, 1, WaitFor::Decided);
    pair.cancel(6);
    pair.cancel(7);
    let rest = pair.settle();
    assert!(!rest.iter().any(|e| matches!(e, Effect::Waited { .. })), "{rest:?}");
    // A settled read whose second fetch is under way.
    pair.access(8, Intent::ReadSettled, &[0]);
    pair.cancel(8);
    assert_eq!(pair.fetched(0), []);
    pair.assert_clean(1);
}

#[test]
fn the_number_of_a_cancelled_request_may_be_used_again_at_once() {
    let mut pair = Pair::new(Policy {
        at_limit: crate::policy::AtLimit::Block,
        limits: Limits { dirty_bytes_max: 65_536, dirty_bytes_low: 1, ..policy().limits },
        ..policy()
    });
    pair.write_all(1..18);
    assert_eq!(pair.core.status().waiting, 2);
    // It stood in line behind another one; the read that takes its number must not be taken for it.
    pair.cancel(17);
    assert_eq!(pair.read(17, 99), [fetch(99)]);
    pair.settle();
    assert!(pair.fetched(99).contains(&execute(17)));
    pair.assert_clean(1);
}

#[test]
fn groups_that_a_fetch_may_need_are_not_forgotten() {
    let mut pair = Pair::new(policy());
    assert_eq!(pair.read(1, 7), [fetch(7)]);
    pair.write(2, &[0]);
    pair.synced(1);
    assert_eq!(pair.destaged(0), [evict(0)], "decided, but the fetch may not have seen it");
    assert_eq!(pair.core.decided(), Lsn(1));
    pair.write(3, &[0]);
    assert_eq!(pair.read(4, 8), [fetch(8)]);
    assert_eq!(
        pair.fetched(7),
        [execute(1), send(1)],
        "the second one began before anything was forgotten"
    );
    assert_eq!(pair.fetched(8), [forget(1), execute(4), send(4)]);
    pair.settle();
    pair.assert_clean(2);
}

#[test]
fn the_cache_stays_within_its_size_and_never_drops_what_is_dirty_or_waited_for() {
    let mut pair = Pair::new(Policy {
        limits: Limits { cache_bytes_max: 250, ..policy().limits },
        ..policy()
    });
    pair.load(0);
    pair.load(1);
    pair.read(1, 2);
    let effects = pair.fetched(2);
    assert!(effects.iter().any(|effect| matches!(effect, Effect::Evict { .. })), "{effects:?}");
    assert_eq!(pair.core.status().cache_bytes, 200);
    let dirty: Vec<u32> = (10..20).collect();
    for &unit in &dirty {
        pair.write(u64::from(unit), &[unit]);
    }
    assert_eq!(pair.core.status().pinned_bytes, 1_000);
    assert_eq!(pair.core.status().cache_bytes, 200, "pinned and evictable are counted apart");
    let gone = pair.settle();
    let evicted = gone.iter().filter(|effect| matches!(effect, Effect::Evict { .. })).count();
    assert_eq!(evicted, 10, "blind writes leave no row behind: {gone:?}");
    pair.assert_clean(2);
}

#[test]
fn an_execution_that_makes_a_unit_dirty_saves_it_from_eviction() {
    let mut pair = Pair::new(policy());
    pair.load(0);
    // The limit falls and the write comes before the core is asked for effects.
    let mut smaller = pair.core.policy().clone();
    smaller.limits.cache_bytes_max = 0;
    pair.core.handle(pair.now, Input::SetPolicy(&smaller));
    assert_eq!(pair.write(1, &[0]), [execute(1), sync(1)]);
    assert!(pair.core.is_present(UnitId(0)));
    assert_eq!(pair.synced(1), [send(1), destage(0)]);
    assert_eq!(pair.destaged(0), [forget(1), evict(0)]);
    pair.assert_clean(0);
}

#[test]
fn restored_units_are_read_without_a_fetch_and_leave_when_room_is_short() {
    let mut pair = Pair::new(policy());
    pair.send(Input::Restored { units: &[UnitId(7), UnitId(3)], bytes: 100 });
    assert_eq!(pair.core.status().cache_bytes, 200);
    assert_eq!(pair.access(1, Intent::Read, &[3, 7]), [execute(1), send(1)]);
    assert_eq!(pair.core.status().misses, 0);
    let mut small = policy();
    small.limits.cache_bytes_max = 150;
    let mut pair = Pair::new(small);
    let effects = pair.send(Input::Restored { units: &[UnitId(7), UnitId(3)], bytes: 100 });
    assert_eq!(effects, [Effect::Evict { unit: UnitId(7) }]);
}

#[test]
fn the_use_that_a_unit_was_fetched_for_is_no_second_one() {
    let limits = Limits { cache_bytes_max: 2_000, ..policy().limits };
    let mut pair = Pair::new(Policy { limits, ..policy() });
    let mut request = 0;
    let mut read = |pair: &mut Pair, unit: u32, uses: u32| {
        for _ in 0..uses {
            request += 1;
            let effects = pair.read(request, unit);
            if effects.contains(&Effect::Fetch { unit: UnitId(unit) }) {
                pair.fetched(unit);
            }
        }
    };
    (0..5).for_each(|unit| read(&mut pair, unit, 3));
    // Each is fetched and used once more, which is too little for the main queue.
    (100..400).for_each(|unit| read(&mut pair, unit, 2));
    assert!(
        (0..5).all(|unit| pair.core.is_present(UnitId(unit))),
        "what is in use outlives a scan"
    );
    // Those used three times each push the others out in the end.
    (500..600).for_each(|unit| read(&mut pair, unit, 3));
    assert!((0..5).all(|unit| !pair.core.is_present(UnitId(unit))));
}
