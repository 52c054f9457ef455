//! Changes of what a volume does with writes: of its policy, and as its cache is lost.

use super::bench::{Bench, lazy};
use super::world::SECTOR;
use crate::block::BLOCK;
use crate::engine::{JobKind, VolumeMode};
use crate::request::{Reply, RequestError};
use destage_core::{Acknowledge, Order, Policy, Span};
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

/// A batch may be on its way in part, and be repeated: nothing is told of the change before the origin has all of it.
#[test]
fn a_policy_with_another_order_waits_until_everything_is_at_the_origin() {
    let orders = [Order::Any, Order::Epoch, Order::Strict, Order::Domain];
    let pairs = orders.into_iter().flat_map(|from| orders.map(|to| (from, to)));
    for (from, to) in pairs.filter(|(from, to)| from != to) {
        let mut choice = lazy(from);
        choice.has_redo = true;
        let mut bench = Bench::new(choice);
        bench.write(1, 0, &[1; BLOCK], true);
        bench.run();
        let next = Policy { order: to, ..bench.choice.policy.clone() };
        bench.volume.set_policy(bench.now, &next).unwrap();
        let is_waited_for = bench.volume.status().mode == VolumeMode::ChangingPolicy;
        assert_eq!(is_waited_for, to != Order::Any, "{from:?}: {to:?}");
        bench.run();
        assert_eq!(bench.volume.undecided() == 0, to != Order::Any, "{from:?}: {to:?}");
        assert_eq!(bench.volume.policy().order, to);
    }
}

/// A write that had begun is logged while the change waits: it is hurried, too, since no other write can begin.
#[test]
fn a_write_under_way_holds_up_a_change_no_longer_than_it_takes() {
    let mut choice = lazy(Order::Any);
    choice.has_redo = true;
    let mut bench = Bench::new(choice);
    let next = Policy { order: Order::Domain, ..bench.choice.policy.clone() };
    // Its block is read at the origin first.
    bench.write(1, 512, &[1; 512], false);
    bench.run_except(Some(JobKind::Fetch));
    assert_eq!(bench.reply(1), None);
    bench.volume.pause(bench.now);
    bench.volume.set_policy(bench.now, &next).expect_err("it would wait until destaging goes on");
    bench.volume.resume(bench.now);
    bench.volume.set_policy(bench.now, &next).unwrap();
    bench.run();
    assert_eq!(bench.reply(1), Some(&Reply::Done));
    assert_eq!((bench.volume.undecided(), bench.volume.policy().order), (0, Order::Domain));
    assert!(matches!(bench.volume.status().mode, VolumeMode::Serving(_)));
}

/// The power goes during each operation that follows a change of the policy. `before` makes two writes, of these blocks, and
/// changes the policy. Returns how often the second one was found at the origin.
fn found_after_power_loss(before: impl Fn(&mut Bench, [u64; 2])) -> u32 {
    const PLACES: [usize; 2] = [0, 4 * BLOCK];
    let mut found = 0;
    for seed in 0..8 {
        for step in 1.. {
            let mut choice = lazy(Order::Domain);
            (choice.log_bytes, choice.slots) = (1 << 20, 100);
            let mut bench = Bench::new(choice);
            before(&mut bench, PLACES.map(|at| at as u64));
            bench.world.disk.power_off_after(step);
            bench.volume.hurry(bench.now);
            bench.now = bench.now + Span::from_secs(60);
            bench.run();
            if !bench.world.disk.is_powered_off() {
                assert_eq!(bench.volume.undecided(), 0);
                assert!(step > 5);
                break;
            }
            bench.world.disk.crash(100 * seed + step);
            bench.world.open_redo(true);
            let origin = bench.world.origin.bytes();
            let sectors_of = |write: u8| {
                let block = &origin[PLACES[usize::from(write) - 1]..][..BLOCK];
                block.chunks(SECTOR).filter(|sector| *sector == [write; SECTOR]).count()
            };
            let (first, second) = (sectors_of(1), sectors_of(2));
            assert!(
                second == 0 || first * SECTOR == BLOCK,
                "step {step}, seed {seed}: {first}, {second}"
            );
            found += u32::from(second > 0);
        }
    }
    found
}

fn change_order(bench: &mut Bench, order: Order) {
    let next = Policy { order, ..bench.volume.policy().clone() };
    bench.volume.set_policy(bench.now, &next).unwrap();
}

/// Under `journaled` a reply that promises nothing ends no level, which the strict order needs.
#[test]
fn what_was_answered_under_journaled_keeps_its_order_under_strict() {
    let found = found_after_power_loss(|bench, [first, second]| {
        bench.write(1, first, &[1; BLOCK], false);
        bench.run();
        bench.write(2, second, &[2; BLOCK], false);
        bench.run();
        assert_eq!([bench.reply(1), bench.reply(2)], [Some(&Reply::Done); 2]);
        change_order(bench, Order::Strict);
    });
    assert!(found > 0);
}

/// > Under `ordered` the origin always holds all epochs up to one, and a part of the next.
#[test]
fn an_atomic_batch_that_failed_is_not_repeated_in_parts() {
    let found = found_after_power_loss(|bench, [first, second]| {
        bench.write(1, first, &[1; BLOCK], true);
        bench.run();
        bench.write(2, second, &[2; BLOCK], true);
        bench.run();
        assert_eq!([bench.reply(1), bench.reply(2)], [Some(&Reply::Done); 2]);
        bench.world.origin.go_away_after(1);
        bench.volume.hurry(bench.now);
        bench.run();
        assert_eq!(bench.volume.undecided(), 2);
        change_order(bench, Order::Epoch);
        bench.world.origin.come_back();
    });
    assert!(found > 0);
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

/// With d = 0 every reply says that the write is durable.
#[test]
fn a_reply_held_until_the_log_is_synced_is_no_success_once_the_cache_is_lost() {
    let mut choice = lazy(Order::Epoch);
    choice.policy.commit = Span::ZERO;
    let mut bench = Bench::new(choice);
    let unchanged = bench.read(1, BLOCK as u64, BLOCK as u32);
    bench.write(2, 0, &[2; BLOCK], false);
    bench.run_except(Some(JobKind::Log));
    assert_eq!(bench.reply(2), None, "it waits for the log");
    bench.volume.lose_cache(bench.now);
    bench.run();
    assert_eq!(bench.reply(2), Some(&Reply::Error(RequestError::Io)));
    assert!(bench.read(3, BLOCK as u64, BLOCK as u32) == unchanged, "reads go on");
}

#[test]
fn a_durable_write_held_because_the_origin_is_late_is_no_success_once_the_cache_is_lost() {
    let mut bench = Bench::new(lazy(Order::Epoch));
    bench.world.origin.go_away_after(1);
    bench.write(1, 0, &[1; BLOCK], true);
    bench.run();
    assert_eq!(bench.reply(1), Some(&Reply::Done));
    bench.write(2, BLOCK as u64, &[2; BLOCK], true);
    bench.write(3, 2 * BLOCK as u64, &[3; BLOCK], false);
    bench.run_except(Some(JobKind::Log));
    bench.now = bench.now + Span(2 * bench.choice.policy.staleness.0);
    bench.run();
    assert_eq!([bench.reply(2), bench.reply(3)], [None, Some(&Reply::Done)], "D is exceeded");
    bench.volume.lose_cache(bench.now);
    bench.run();
    assert_eq!(bench.reply(2), None);
    bench.world.origin.come_back();
    bench.now = bench.now + Span::from_secs(60);
    bench.run();
    assert_eq!(bench.volume.undecided(), 0);
    bench.volume.tick(bench.now);
    bench.run();
    assert_eq!(bench.reply(2), Some(&Reply::Error(RequestError::Io)));
}
