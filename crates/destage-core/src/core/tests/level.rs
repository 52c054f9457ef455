//! Levels of the ordered policies, writes carried through without a group, and read priority.

use super::*;
use crate::policy::{Acknowledge, When};
use alloc::vec;
use proptest::prelude::*;

fn ordered(order: Order) -> Policy {
    Policy { order, commit: ms(1_000), when: When::OnPressure, ..policy() }
}

/// Destages everything and tells which groups went together.
fn batches(pair: &mut Pair) -> Vec<Vec<u64>> {
    let mut batches = Vec::new();
    // Only what the journal holds is destaged: it shall hold everything first.
    pair.send(Input::Pause);
    pair.send(Input::Drain);
    pair.settle();
    pair.send(Input::Resume);
    while let Some(effect) = pair.under_way.first().cloned() {
        match effect {
            Effect::Sync { upto } => {
                pair.synced(upto.0);
            }
            Effect::Destage { batch, .. } => {
                batches.push(pair.batch(batch.0));
                pair.destaged(batch.0);
            }
            other => panic!("not under way: {other:?}"),
        }
    }
    batches
}

#[test]
fn an_epoch_ends_where_a_flush_is_answered() {
    let mut pair = Pair::new(ordered(Order::Epoch));
    assert_eq!(pair.core.level(), 1);
    pair.write_all(1..3);
    assert_eq!(pair.core.level(), 1, "acknowledgements alone end no epoch");
    assert_eq!(pair.wait(10, 2, WaitFor::Committed), [sync(2)]);
    pair.write(3, &[3]);
    assert_eq!(pair.synced(2), [waited(10, Outcome::Done)]);
    assert_eq!(pair.core.level(), 2);
    pair.write_all(4..6);
    pair.wait(11, 2, WaitFor::Committed);
    assert_eq!(pair.core.level(), 3, "also where nothing was left to do");
    pair.write(6, &[6]);
    assert_eq!(batches(&mut pair), [vec![1, 2, 3], vec![4, 5], vec![6]]);
    pair.assert_clean(0);
}

#[test]
fn a_strict_level_ends_where_a_write_is_acknowledged() {
    let mut pair = Pair::new(ordered(Order::Strict));
    pair.write_all(1..3);
    assert_eq!(batches(&mut pair), [[1], [2]], "each was issued after the one before completed");
    // With d = 0 the writes that one sync covers complete together: none was issued after another completed.
    let mut pair = Pair::new(Policy { commit: Span::ZERO, ..ordered(Order::Strict) });
    assert_eq!(pair.write(1, &[1]), [execute(1), sync(1)]);
    pair.write_all(2..4);
    pair.synced(1);
    pair.write(4, &[4]);
    assert_eq!(batches(&mut pair), [vec![1, 2, 3], vec![4]]);
}

#[test]
fn no_order_and_atomic_groups_heed_no_levels() {
    for order in [Order::Any, Order::Domain] {
        let mut pair = Pair::new(ordered(order));
        pair.write(1, &[1]);
        pair.wait(10, 1, WaitFor::Committed);
        pair.synced(1);
        pair.write(2, &[1]);
        assert_eq!(batches(&mut pair), [[1, 2]]);
        assert_eq!(pair.core.level(), 2, "counted all the same: the policy may change");
    }
}

#[test]
fn levels_go_on_after_a_restart() {
    let mut pair = Pair::new(policy());
    pair.core = Core::resume(START, ordered(Order::Epoch), Lsn(4));
    for (lsn, level) in [(5, 7), (6, 7), (7, 8)] {
        pair.core.handle(
            START,
            Input::Recovered {
                lsn: Lsn(lsn),
                stamp: START,
                domain: DomainId(0),
                level,
                units: &[UnitId(0)],
                bytes: 10,
                journal_bytes: 20,
            },
        );
    }
    assert_eq!(pair.core.level(), 9);
    pair.write(1, &[0]);
    assert_eq!(batches(&mut pair), [vec![5, 6], vec![7], vec![8]]);
}

#[test]
fn what_is_carried_through_is_present_unless_it_failed() {
    let through = Policy { acknowledge: Acknowledge::Origin, ..policy() };
    let mut pair = Pair::new(through);
    let intent = Intent::Write { bytes: 100, ack: Ack::Policy, fetch: false };
    let units = [UnitId(1)];
    let ask = Input::Access { request: RequestId(1), intent, units: &units };
    // No plan: the pair would write a group, a driver that carries writes through by itself does not.
    pair.core.handle(pair.now, ask);
    assert_eq!(pair.core.poll_effect(), Some(executed(1, Access::Through, 0)));
    assert_eq!(pair.read(2, 1), [fetch(1)], "a read comes while it is under way");
    let written = [(UnitId(1), 100)];
    let carried = |result| Input::Through { units: &written, access: Access::Through, result };
    assert_eq!(pair.send(carried(Ok(()))), []);
    assert_eq!(pair.fetched(1), [fetch(1)], "what was read before the write is read again");
    assert_eq!(pair.fetched(1), [execute(2), send(2)]);
    assert!(pair.core.is_present(UnitId(1)));
    pair.send(carried(Err(Fault::Unavailable)));
    assert!(!pair.core.is_present(UnitId(1)), "nobody knows what the origin holds");
    pair.send(carried(Ok(())));
    assert!(pair.core.is_present(UnitId(1)));
    pair.assert_clean(1);
}

#[test]
fn with_read_priority_destaging_waits_for_fetches_until_d_is_near() {
    let policy = Policy { read_priority: true, staleness: ms(1_000), ..policy() };
    let mut pair = Pair::new(policy.clone());
    assert_eq!(pair.read(1, 1), [fetch(1)]);
    pair.write(2, &[2]);
    assert_eq!(pair.synced(1), [send(2)]);
    assert_eq!(pair.at(500), []);
    assert!(pair.at(900).contains(&destage(0)), "D leaves no more time");
    pair.settle();
    pair.write(3, &[3]);
    pair.synced(2);
    assert!(pair.fetched(1).contains(&destage(1)), "nobody reads at the origin any more");
    // The control: without it nothing waits.
    let mut pair = Pair::new(Policy { read_priority: false, ..policy });
    pair.read(1, 1);
    pair.write(2, &[2]);
    assert_eq!(pair.synced(1), [send(2), destage(0)]);
}

/// What happens to a client's writes: each is issued, later completed.
fn history() -> impl Strategy<Value = Vec<(bool, usize)>> {
    proptest::collection::vec((any::<bool>(), any::<usize>()), 1..60)
}

proptest! {
    /// Levels allow a subset of what the paper's completion-issue graph allows: whatever completed before a write was issued
    /// has a lower level.
    #[test]
    fn levels_respect_the_graph(history in history()) {
        let mut level = crate::core::level::Level::default();
        let mut open: Vec<u64> = Vec::new();
        let mut completed_max = 0;
        for (issues, which) in history {
            if issues || open.is_empty() {
                let given = level.begin();
                prop_assert!(given > completed_max, "{given} after {completed_max} completed");
                open.push(given);
            } else {
                let done = open.swap_remove(which % open.len());
                completed_max = completed_max.max(done);
                level.close();
            }
        }
    }
}

#[test]
fn parts_of_one_request_go_together_whatever_the_limits_are() {
    for order in [Order::Any, Order::Epoch, Order::Domain] {
        let mut limited = ordered(order);
        limited.limits.batch_groups_max = 2;
        let mut pair = Pair::new(limited);
        for lsn in 1..=9 {
            pair.write(lsn, &[lsn as u32]);
            if [3, 4, 5, 7].contains(&lsn) {
                pair.send(Input::Join { lsn: Lsn(lsn) });
            }
        }
        let expected = [vec![1, 2], vec![3, 4, 5, 6], vec![7, 8], vec![9]];
        assert_eq!(batches(&mut pair), expected, "{order:?}");
        pair.assert_clean(0);
    }
}
