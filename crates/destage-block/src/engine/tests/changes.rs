//! Changes of what a volume does with writes: of its policy, and as its cache is lost.

use super::bench::{Bench, lazy};
use crate::block::BLOCK;
use crate::engine::{JobKind, VolumeMode};
use crate::request::{Reply, RequestError};
use destage_core::{Acknowledge, Order, Policy};
use destage_engine::Drive;

/// What an earlier run left in the log comes to the origin after a start that writes through, and is not sent once more by the
/// next start: a newer write may have gone past the log meanwhile, and been flushed.
#[test]
fn what_was_written_through_is_not_overwritten_by_what_the_log_still_has() {
    for is_change in [false, true] {
        let mut bench = Bench::new(lazy(Order::Any));
        let through = Policy { acknowledge: Acknowledge::Origin, ..bench.choice.policy.clone() };
        if is_change {
            // It has written through before, so no checkpoint lists a block.
            bench.volume.set_policy(bench.now, &through).unwrap();
            bench.write(1, 0, &[9; BLOCK], true);
            bench.run();
            bench.volume.set_policy(bench.now, &bench.choice.policy.clone()).unwrap();
        }
        bench.write(2, 0, &[1; BLOCK], true);
        bench.run();
        if is_change {
            bench.volume.set_policy(bench.now, &through).unwrap();
        } else {
            bench.choice.policy = through;
            bench.reopen();
        }
        // The origin is slow: whatever else is due comes first.
        bench.run_except(Some(JobKind::Destage));
        bench.run();
        assert_eq!(bench.volume.undecided(), 0);
        bench.write(3, 0, &[2; BLOCK], true);
        bench.run();
        assert_eq!(bench.reply(3), Some(&Reply::Done));
        assert!(bench.world.origin.bytes()[..BLOCK] == [2; BLOCK], "it went past the log");
        bench.reopen();
        bench.run();
        assert!(bench.read(4, 0, BLOCK as u32) == [2; BLOCK], "changed: {is_change}");
        assert!(bench.world.origin.bytes()[..BLOCK] == [2; BLOCK], "changed: {is_change}");
    }
}

/// A mark is in the log while writes go past it. They need not wait until it is decided, which may take until destaging goes on.
#[test]
fn a_mark_holds_up_no_write_that_goes_through() {
    let mut bench = Bench::new(lazy(Order::Any));
    bench.choice.policy.acknowledge = Acknowledge::Origin;
    bench.reopen();
    bench.write(1, 0, &[1; BLOCK], true);
    bench.run();
    bench.volume.pause(bench.now);
    bench.volume.mark(bench.now);
    bench.volume.freeze(bench.now, 2);
    bench.run();
    bench.volume.thaw(bench.now);
    bench.write(3, 0, &[2; BLOCK], true);
    bench.run();
    assert_eq!(bench.reply(3), Some(&Reply::Done));
}

/// A batch of an epoch may be on its way in part: nothing is told of the change before the origin has all of it.
#[test]
fn a_policy_with_more_order_waits_until_everything_is_at_the_origin() {
    let orders = [Order::Any, Order::Epoch, Order::Strict];
    for (place, order) in orders.into_iter().enumerate() {
        let mut choice = lazy(order);
        choice.has_redo = true;
        let mut bench = Bench::new(choice);
        bench.write(1, 0, &[1; BLOCK], true);
        bench.run();
        let next = orders.into_iter().chain([Order::Domain]).skip(place + 1);
        for order in next {
            let stricter = Policy { order, ..bench.choice.policy.clone() };
            bench.volume.set_policy(bench.now, &stricter).unwrap();
            let mode = bench.volume.status().mode;
            assert_eq!(mode, VolumeMode::ChangingPolicy, "{place}: {order:?}");
            bench.run();
            assert_eq!(bench.volume.undecided(), 0);
            bench.volume.set_policy(bench.now, &bench.choice.policy.clone()).unwrap();
            bench.write(2, 0, &[2; BLOCK], true);
            bench.run();
        }
    }
}

/// What is logged from the moment on at which the cache's file is found lost may not be there after a crash.
#[test]
fn nothing_that_waited_when_the_cache_was_lost_counts_as_durable() {
    let mut bench = Bench::new(lazy(Order::Epoch));
    bench.write(1, 0, &[1; BLOCK], true);
    bench.run_except(Some(JobKind::Log));
    assert_eq!(bench.reply(1), None, "it waits for the log");
    bench.volume.freeze(bench.now, 2);
    bench.write(3, BLOCK as u64, &[3; BLOCK], false);
    bench.run_except(Some(JobKind::Log));
    assert_eq!(bench.reply(3), None, "it waits for the thaw");
    bench.volume.lose_cache(bench.now);
    bench.run();
    let refused = Some(&Reply::Error(RequestError::Io));
    assert_eq!([bench.reply(1), bench.reply(3)], [refused; 2]);
    // What was logged is sent to the origin all the same, as far as it goes.
    assert!(bench.world.origin.bytes()[..BLOCK] == [1; BLOCK]);
}
