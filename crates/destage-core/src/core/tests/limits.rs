//! What happens at the limits.

use super::*;
use crate::policy::{AtLimit, When};

/// Room for 15 groups of 4,196 bytes, low mark at 5 of them, with an origin that does nothing until asked.
fn tight(at_limit: AtLimit) -> Policy {
    let mut policy = policy();
    policy.at_limit = at_limit;
    policy.limits.dirty_bytes_max = 65_536;
    policy.limits.dirty_bytes_low = 5 * 4_196;
    policy.limits.batch_groups_max = 6;
    policy
}

fn stale(at_limit: AtLimit) -> Pair {
    let mut pair = Pair::new(Policy { staleness: ms(1_000), at_limit, ..policy() });
    pair.write(1, &[0]);
    pair.synced(1);
    pair
}

#[test]
fn acknowledgements_stop_at_the_staleness_bound_and_go_on_after_it() {
    let mut pair = stale(AtLimit::Block);
    pair.at(999);
    assert_eq!(pair.write(2, &[1]), [execute(2), sync(2)]);
    assert_eq!(pair.due_in(), Some(ms(1)), "the alarm");
    assert_eq!(pair.at(1_000), [mode(Mode::StalenessExceeded)]);
    assert_eq!(pair.synced(2), [], "executed before, but not acknowledged any more");
    assert_eq!(pair.write(3, &[2]), [], "and this one waits");
    pair.load(7);
    let effects = pair.destaged(0);
    assert_eq!(effects[..3], [forget(1), execute(3), send(2)]);
    assert!(effects.contains(&sync(3)) && effects.contains(&mode(Mode::Normal)), "{effects:?}");
    assert_eq!(pair.synced(3), [send(3)]);
    assert_eq!(pair.core.status().staleness_max, ms(1_000));
}

#[test]
fn past_the_staleness_bound_fail_refuses_at_once() {
    let mut pair = stale(AtLimit::Fail);
    pair.at(1_000);
    assert_eq!(pair.write(2, &[1]), [refuse(2, Refusal::Stale), evict(1)]);
    pair.destaged(0);
    assert_eq!(pair.write(3, &[1]), [execute(3), sync(2)]);
}

#[test]
fn past_the_staleness_bound_throttle_and_write_through_block() {
    for at_limit in [AtLimit::Throttle, AtLimit::WriteThrough] {
        let mut pair = stale(at_limit);
        pair.at(1_000);
        assert_eq!(pair.write(2, &[1]), []);
        assert!(pair.destaged(0).contains(&execute(2)));
    }
}

#[test]
fn old_recovered_groups_hold_back_the_first_acknowledgement() {
    let mut pair = Pair::new(policy());
    let bound = Policy { staleness: ms(1_000), ..policy() };
    pair.core = Core::resume(START, bound, Lsn(0));
    // Stamps: the clock was set back between the two writes, and stands even earlier now.
    for (lsn, stamp) in [(1, START + ms(500)), (2, START - ms(5_000))] {
        pair.core.handle(
            START,
            Input::Recovered {
                lsn: Lsn(lsn),
                stamp,
                domain: DomainId(0),
                level: 0,
                units: &[UnitId(0)],
                bytes: 10,
                journal_bytes: 20,
            },
        );
    }
    assert_eq!(pair.core.staleness(), ms(5_000));
    assert_eq!(pair.effects(), [destage(0), mode(Mode::StalenessExceeded)]);
    assert_eq!(pair.write(1, &[1]), []);
    assert!(pair.destaged(0).contains(&execute(1)));
}

#[test]
fn at_the_dirty_limit_block_waits_in_order_of_arrival() {
    let mut pair = Pair::new(tight(AtLimit::Block));
    for request in 1..=15 {
        assert!(pair.write(request, &[request as u32]).contains(&execute(request)));
    }
    assert_eq!(pair.write(16, &[16]), [mode(Mode::Full)]);
    assert_eq!(
        pair.access(17, Intent::Write { bytes: 1, ack: Ack::Policy, fetch: true }, &[17]),
        []
    );
    assert_eq!(pair.core.status().waiting, 2);
    pair.synced(1);
    let effects = pair.destaged(0);
    let executed = effects.iter().position(|effect| *effect == execute(16));
    assert!(executed.is_some() && effects.contains(&fetch(17)), "{effects:?}");
    pair.fetched(17);
    pair.settle();
    pair.settle();
}

/// How many writes of units of their own pass before one waits, and what the status then says that counts.
fn passed(core: fn(Core) -> Core) -> (usize, u64) {
    let mut pair = Pair::new(tight(AtLimit::Block));
    pair.core = core(pair.core);
    let passed = (1..100).take_while(|&n| pair.write(n, &[n as u32]).contains(&execute(n))).count();
    (passed, pair.core.status().limited_bytes)
}

#[test]
fn the_dirty_limit_counts_the_units_where_they_take_the_same_room() {
    // 65,536 bytes: writes of 4,096 bytes, with a unit of 100 bytes each or without.
    assert_eq!(passed(|core| core), (15, 15 * 4_196));
    assert_eq!(passed(Core::counting_writes_only), (16, 16 * 4_096));
}

#[test]
fn what_a_group_holds_no_more_makes_room_and_it_is_decided_all_the_same() {
    let mut pair = Pair::new(tight(AtLimit::Block));
    pair.core = pair.core.counting_writes_only();
    pair.write_all(1..17);
    assert!(!pair.write(17, &[17]).contains(&execute(17)));
    let shrunk = |lsn, bytes| Input::Shrunk { lsn: Lsn(lsn), bytes };
    assert!(!pair.send(shrunk(3, WRITE_BYTES - 1)).contains(&execute(17)), "not enough");
    // More than there is, and of what is not there.
    assert!(pair.send(shrunk(3, WRITE_BYTES)).contains(&execute(17)));
    let before = pair.core.status().dirty_bytes;
    pair.send(shrunk(99, 1));
    pair.send(shrunk(3, 1));
    assert_eq!(pair.core.status().dirty_bytes, before);
    pair.synced(17);
    pair.settle();
    let status = pair.core.status();
    assert_eq!((status.dirty_groups, status.dirty_bytes), (0, 0));
    pair.send(shrunk(3, 1));
    assert_eq!(pair.core.status().dirty_bytes, 0, "it is decided");
}

#[test]
fn at_the_dirty_limit_fail_refuses() {
    let mut pair = Pair::new(tight(AtLimit::Fail));
    pair.write_all(1..16);
    assert_eq!(pair.write(16, &[16]), [refuse(16, Refusal::Full), mode(Mode::Full), evict(16)]);
    assert_eq!(pair.core.status().refused, 1);
}

#[test]
fn a_write_larger_than_the_limit_passes_alone() {
    let mut pair = Pair::new(tight(AtLimit::Block));
    let huge = Intent::Write { bytes: 100_000, ack: Ack::Policy, fetch: false };
    pair.write(1, &[1]);
    assert_eq!(pair.access(2, huge, &[0]), []);
    pair.synced(1);
    assert!(pair.destaged(0).contains(&execute(2)));
}

#[test]
fn fallback_writes_through_until_the_low_mark() {
    let mut pair = Pair::new(tight(AtLimit::WriteThrough));
    pair.write_all(1..16);
    let effects = pair.write(16, &[16]);
    assert_eq!(effects, [executed(16, Access::Through, 0), mode(Mode::Fallback)]);
    pair.synced(1);
    pair.synced(16);
    assert!(pair.batch(0) == [1]);
    pair.destaged(0);
    pair.destaged(1);
    assert!(pair.core.status().dirty_bytes > 5 * 4_196);
    assert_eq!(
        pair.write(17, &[17])[0],
        executed(17, Access::Through, 0),
        "still above the low mark"
    );
    let effects = pair.settle();
    assert!(effects.contains(&mode(Mode::Normal)), "{effects:?}");
    assert_eq!(pair.write(18, &[18])[0], execute(18));
}

#[test]
fn fallback_ends_at_the_low_mark_without_another_write() {
    let mut pair = Pair::new(tight(AtLimit::WriteThrough));
    pair.write_all(1..17);
    pair.synced(1);
    pair.synced(16);
    for batch in 0..3 {
        pair.destaged(batch);
    }
    assert_eq!(pair.core.status().mode, Mode::Normal);
}

#[test]
fn while_copies_of_the_journal_are_lacking_what_is_secured_goes_to_the_origin_and_is_answered_after_it()
 {
    let mut pair = Pair::new(Policy { when: When::Periodic { every: ms(100_000) }, ..policy() });
    pair.write(1, &[1]);
    pair.write(2, &[2]);
    let effects = pair.send(Input::Lacking { secured: Some(Lsn(1)) });
    assert!(effects.contains(&mode(Mode::Fallback)), "{effects:?}");
    assert_eq!(pair.batch(0), [1], "the other one is not secured");
    let replies = |effects: &[Effect]| {
        effects.iter().filter(|effect| matches!(effect, Effect::Send { .. })).count()
    };
    assert_eq!(replies(&pair.destaged(0)), 0, "the driver says what is durable");
    assert_eq!(pair.write(3, &[3])[0], executed(3, Access::Through, 0));
    let effects = pair.send(Input::Lacking { secured: Some(Lsn(3)) });
    assert!(effects.contains(&Effect::Destage { batch: BatchId(1), domain: DomainId(0) }));
    assert_eq!(pair.batch(1), [2, 3]);
    let effects = pair.destaged(1);
    assert!(effects.contains(&Effect::Settled { lsn: Lsn(3), applied: true }), "{effects:?}");
    // Another write is not secured, and the copies are there again: it waits for its time.
    pair.write(4, &[4]);
    let effects = pair.send(Input::Lacking { secured: None });
    assert!(effects.contains(&mode(Mode::Normal)), "{effects:?}");
    assert_eq!(pair.write(5, &[5])[0], execute(5));
    assert_eq!(pair.core.lacking(), None);
}

#[test]
fn throttling_slows_down_to_the_rate_of_the_origin() {
    let mut pair = Pair::new(tight(AtLimit::Throttle));
    pair.write_all(1..6);
    // From the low mark on, writes are spaced: the more dirt, the more slowly, down to 100 a second while the origin's
    // rate is unknown.
    let mut waits = Vec::new();
    let mut clock = 0;
    for request in 6..16 {
        let mut effects = pair.write(request, &[request as u32]);
        let began = pair.now;
        while !effects.contains(&execute(request)) {
            let due = pair.core.next_timeout().expect("a throttled write passes in time");
            assert!(due > pair.now, "a timeout lies ahead");
            clock = due.since(START).0;
            pair.now = due;
            effects = pair.effects();
        }
        waits.push(pair.now.since(began));
    }
    assert!(clock > 0);
    assert!(waits.windows(2).skip(1).all(|pair| pair[0] <= pair[1]), "{waits:?}");
    let slowest = *waits.last().unwrap();
    assert!(slowest > ms(8) && slowest <= ms(10), "{waits:?}");
    assert_eq!(pair.core.status().mode, Mode::Throttled);
    assert_eq!(pair.write(16, &[16]), [mode(Mode::Full)], "and at the high mark they wait");
}

/// 12 groups of 4,196 bytes are at the low mark, 15 at the limit; nothing is due by itself for an hour.
fn lazy(when: When, at_limit: AtLimit) -> Pair {
    let mut policy = Policy { when, staleness: Span::MAX, ..tight(at_limit) };
    policy.limits.dirty_bytes_low = 49_152;
    policy.limits.batch_groups_max = 100;
    Pair::new(policy)
}

const HOUR: When = When::Periodic { every: Span::from_secs(3_600) };

fn of(bytes: u32) -> Intent {
    Intent::Write { bytes, ack: Ack::Policy, fetch: false }
}

/// The journal commits all that is written.
fn committed(pair: &mut Pair) -> Vec<Effect> {
    let mut all = Vec::new();
    while let Some(&Effect::Sync { upto }) = pair.under_way.iter().find(|it| !is_destage(it)) {
        all.extend(pair.synced(upto.0));
    }
    all
}

#[test]
fn a_write_that_waits_for_room_has_what_is_dirty_destaged_below_the_low_mark_too() {
    let aged = When::Interval { age: Span::from_secs(3_600), check: Span::from_secs(60) };
    let mut paced = lazy(HOUR, AtLimit::Throttle);
    paced.set_policy(|policy| {
        (policy.when, policy.staleness) = (When::Adaptive, Span::from_secs(3_600));
    });
    let mut reading = lazy(When::Async, AtLimit::Block);
    reading.set_policy(|policy| policy.read_priority = true);
    reading.read(70, 70);
    for mut pair in [lazy(HOUR, AtLimit::Block), lazy(aged, AtLimit::Block), paced, reading] {
        // Nine groups are below the low mark, and beside a single one there is no room for the largest write.
        for (groups, bytes) in [(9, 30_000), (1, 100_000)] {
            pair.write_all(groups..2 * groups);
            assert!(!committed(&mut pair).iter().any(is_destage));
            let effects = pair.access(99, of(bytes), &[99]);
            assert!(effects.iter().any(is_destage), "{effects:?}");
            let effects = pair.destaged(pair.core.status().batches);
            assert!(effects.contains(&execute(99)), "{effects:?}");
        }
        // It waits no more, and what comes next is not due.
        pair.write(50, &[50]);
        assert!(!committed(&mut pair).iter().any(is_destage));
    }
}

#[test]
fn a_write_that_is_refused_for_want_of_room_finds_some_when_it_comes_again() {
    for (when, dirty, bytes) in
        [(HOUR, 9, 30_000), (HOUR, 1, 100_000), (When::OnPressure, 15, 4_096)]
    {
        let mut pair = lazy(when, AtLimit::Fail);
        pair.write_all(1..dirty + 1);
        assert!(!committed(&mut pair).iter().any(is_destage));
        let effects = pair.access(99, of(bytes), &[99]);
        assert_eq!(effects[0], refuse(99, Refusal::Full));
        assert!(effects.contains(&destage(0)), "{effects:?}");
        pair.destaged(0);
        assert_eq!(pair.access(99, of(bytes), &[99])[0], execute(99));
    }
}

fn is_destage(effect: &Effect) -> bool {
    matches!(effect, Effect::Destage { .. })
}

#[test]
fn the_journal_limit_holds_as_well() {
    let mut pair = Pair::new(tight(AtLimit::Block));
    let limits = Limits { journal_bytes_max: 1 << 20, ..policy().limits };
    pair.set_policy(|policy| policy.limits = limits);
    let last = (1..).find(|&request| {
        pair.write(request, &[1]);
        pair.core.status().waiting > 0
    });
    assert_eq!(last, Some((1 << 20) / 4_196 + 2), "the last one may pass the mark by its own size");
}

#[test]
fn a_switch_of_the_policy_lets_waiting_writes_go_their_new_way() {
    for (at_limit, expected) in [
        (AtLimit::Fail, refuse(16, Refusal::Full)),
        (AtLimit::WriteThrough, executed(16, Access::Through, 0)),
    ] {
        let mut pair = Pair::new(tight(AtLimit::Block));
        pair.write_all(1..16);
        assert_eq!(pair.write(16, &[16]), [mode(Mode::Full)]);
        let effects = pair.set_policy(|policy| policy.at_limit = at_limit);
        assert_eq!(effects[0], expected);
    }
    let mut pair = Pair::new(tight(AtLimit::Block));
    pair.write_all(1..17);
    let effects = pair.set_policy(|policy| policy.limits.dirty_bytes_max = 1 << 20);
    assert!(effects.contains(&execute(16)), "{effects:?}");
}

#[test]
fn the_smallest_bounds_do_not_make_the_core_spin() {
    for at_limit in [AtLimit::Throttle, AtLimit::Block, AtLimit::WriteThrough, AtLimit::Fail] {
        let mut pair = Pair::new(Policy { staleness: ms(100), ..tight(at_limit) });
        pair.write_all(1..40);
        pair.synced(1);
        // The origin hangs. However often the core is woken, it moves its timeout on or rests.
        for _ in 0..50 {
            let Some(at) = pair.core.next_timeout() else { break };
            pair.now = at;
            pair.effects();
        }
        assert_eq!(pair.core.status().mode, Mode::StalenessExceeded);
    }
}
