//! A policy with an order after one that wrote through: what went past the log is durable at the origin before.

use super::bench::{Bench, lazy};
use super::world::SECTOR;
use crate::block::BLOCK;
use crate::engine::{JobKind, VolumeMode};
use crate::request::{Reply, RequestError};
use destage_core::{Acknowledge, Order, Policy};
use destage_engine::Drive;

/// A volume that has written the first block through, without a flush, and is to have this order.
fn changing(order: Order) -> Bench {
    let mut choice = lazy(Order::Any);
    choice.has_redo = true;
    choice.policy.acknowledge = Acknowledge::Origin;
    (choice.log_bytes, choice.slots) = (1 << 20, 100);
    let mut bench = Bench::new(choice);
    bench.run();
    bench.write(1, 0, &[1; BLOCK], false);
    bench.run();
    assert_eq!(bench.reply(1), Some(&Reply::Done));
    assert!(bench.volume.is_origin_unflushed());
    let next = Policy { acknowledge: Acknowledge::Journal, order, ..bench.choice.policy.clone() };
    bench.volume.set_policy(bench.now, &next).unwrap();
    bench
}

/// Changes to this order, writes a block from `at` on, and lets the power go at this operation from the change on. Whether it
/// went, and the second write was found at the origin afterwards. With `forgets` the origin loses what it has not flushed as
/// the change begins, which the flush tells of.
fn crashed(order: Order, at: usize, step: u64, seed: u64, forgets: bool) -> Option<bool> {
    let mut bench = changing(order);
    if forgets {
        bench.world.origin.edit(|bytes| bytes[..BLOCK].fill(0));
        bench.world.origin.lose();
        bench.run();
        assert_eq!(bench.volume.status().mode, VolumeMode::ChangingPolicy, "the flush has failed");
        bench.now = bench.volume.next_timeout().expect("it tries again");
    }
    bench.world.disk.power_off_after(step);
    bench.run();
    bench.write(2, at as u64, &[2; BLOCK], false);
    bench.run();
    bench.volume.hurry(bench.now);
    bench.run();
    if !bench.world.disk.is_powered_off() {
        assert_eq!(bench.volume.undecided(), 0);
        assert_eq!(bench.volume.policy().order, order);
        return None;
    }
    bench.world.disk.crash(seed);
    let mut redo = bench.world.redo().expect("the store is whole");
    let replay = redo.recover(&bench.world.origin, false);
    assert!(replay.is_ok(), "{order:?}, at {at}, step {step}, seed {seed}: {replay:?}");
    let origin = bench.world.origin.bytes();
    let sectors_of = |at: usize, write: u8| {
        let block = &origin[at..at + BLOCK];
        block.chunks(SECTOR).filter(|sector| *sector == [write; SECTOR]).count()
    };
    let has_second = sectors_of(at, 2) > 0;
    let is_whole = forgets || at == 0 || sectors_of(0, 1) * SECTOR == BLOCK;
    assert!(
        is_whole || !has_second,
        "{order:?}, step {step}, seed {seed}: the second write without the first"
    );
    Some(has_second)
}

#[test]
fn what_went_past_the_log_outlives_whatever_was_written_under_an_order() {
    let (same, other) = (0, 4 * BLOCK);
    let places = [
        (Order::Domain, same, false),
        (Order::Domain, other, false),
        (Order::Strict, other, false),
        (Order::Domain, same, true),
    ];
    for (order, at, forgets) in places {
        let mut found = 0;
        for seed in 0..4 {
            let steps =
                (1..).map_while(|step| crashed(order, at, step, 100 * seed + step, forgets));
            found += steps.filter(|&has_second| has_second).count();
        }
        assert!(found > 0, "{order:?}, forgets: {forgets}");
    }
}

#[test]
fn the_change_waits_for_an_origin_that_cannot_be_flushed() {
    let bench = changing(Order::Any);
    assert!(matches!(bench.volume.status().mode, VolumeMode::Serving(_)), "it has no order");
    let mut bench = changing(Order::Domain);
    bench.world.origin.go_away_after(1);
    bench.write(2, 0, &[2; BLOCK], false);
    for _ in 0..3 {
        let calls = bench.world.origin.calls();
        bench.run();
        assert_eq!(bench.volume.status().mode, VolumeMode::ChangingPolicy);
        assert_eq!(bench.reply(2), None);
        assert_eq!(bench.world.origin.calls() - calls, 1, "it does not ask again and again");
        let next = bench.volume.next_timeout().expect("it tries again");
        assert!(next > bench.now);
        bench.now = next;
    }
    bench.world.origin.come_back();
    bench.run();
    assert_eq!(bench.volume.policy().order, Order::Domain);
    assert_eq!(bench.reply(2), Some(&Reply::Done));
    assert!(!bench.volume.is_origin_unflushed());
}

#[test]
fn an_end_refuses_writes_that_wait_for_a_change_which_does_not_come() {
    let mut bench = changing(Order::Domain);
    bench.world.origin.go_away_after(1);
    bench.write(2, 0, &[2; BLOCK], false);
    bench.run();
    assert_eq!(bench.reply(2), None);
    bench.volume.close(bench.now);
    bench.run();
    assert!(bench.volume.is_closed());
    assert_eq!(bench.reply(2), Some(&Reply::Error(RequestError::Stopping)));
    assert!(bench.volume.is_origin_unflushed());
}

#[test]
fn a_change_that_waits_is_given_up_where_it_would_need_a_cache_that_is_lost() {
    let mut bench = changing(Order::Domain);
    bench.write(2, 0, &[2; BLOCK], true);
    bench.volume.lose_cache(bench.now);
    bench.run();
    assert_eq!(bench.volume.policy().order, Order::Any);
    assert_eq!(bench.reply(2), Some(&Reply::Done), "it is written through");
    assert!(bench.world.origin.bytes()[..BLOCK] == [2; BLOCK]);
}

/// What an earlier run left is sent while writes go past the log: a change must not come into the middle of it.
#[test]
fn the_change_waits_for_what_an_earlier_run_left() {
    let mut choice = lazy(Order::Any);
    choice.has_redo = true;
    let mut bench = Bench::new(choice);
    bench.write(1, 0, &[1; BLOCK], true);
    bench.run();
    bench.choice.policy.acknowledge = Acknowledge::Origin;
    bench.reopen();
    bench.run_except(Some(JobKind::Destage));
    assert!(bench.volume.undecided() > 0);
    let journaled = Policy { order: Order::Domain, ..lazy(Order::Domain).policy };
    bench.volume.set_policy(bench.now, &journaled).unwrap();
    // A flush of the origin is not enough.
    bench.run_except(Some(JobKind::Destage));
    assert_eq!(bench.volume.status().mode, VolumeMode::ChangingPolicy);
    bench.run();
    assert_eq!((bench.volume.undecided(), bench.volume.policy().order), (0, Order::Domain));
}
