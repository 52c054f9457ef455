//! What is noted of the origin's blocks, where a start sends writes again that were there before the crash.

use super::bench::{Bench, lazy};
use crate::block::BLOCK;
use crate::request::Request;
use destage_core::{Order, WaitFor};
use destage_engine::Drive;

/// A killed server whose two writes to the same block are at the origin, and are sent again one by one.
fn sent_and_killed(order: Order) -> Bench {
    let mut choice = lazy(order);
    choice.has_redo = true;
    choice.policy.limits.batch_groups_max = 1;
    let mut bench = Bench::new(choice);
    bench.submit(1, Request::Zero { offset: 0, len: BLOCK as u64, fua: false, punch: false });
    bench.write(2, 0, &[2; BLOCK], false);
    bench.wait_decided(3);
    bench.world.disk.kill();
    bench.reopen();
    assert_eq!(bench.volume.undecided(), 2, "nothing was marked as decided");
    bench
}

/// A start compares the origin with what was noted of it, and fails where that differs: see `World::examine`. The block is
/// older for a while than what was noted of it before the first crash.
#[test]
fn blocks_that_are_sent_again_are_no_foreign_writes_after_another_crash() {
    for order in [Order::Any, Order::Epoch] {
        let mut crashes = 0;
        loop {
            crashes += 1;
            let mut bench = sent_and_killed(order);
            bench.world.disk.power_off_after(crashes);
            let last = bench.volume.last();
            bench.volume.wait(bench.now, 4, last, WaitFor::Decided);
            bench.run();
            let is_off = bench.world.disk.is_powered_off();
            bench.world.disk.kill();
            bench.reopen();
            if !is_off {
                break;
            }
        }
        assert!(crashes > 5, "{order:?}: {crashes} crashes");
    }
}
