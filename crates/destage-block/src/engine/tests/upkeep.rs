//! Checkpoints of the index: what they cover, and what the log keeps for them.

use super::bench::{Bench, lazy};
use crate::block::BLOCK;
use crate::engine::JobKind;
use crate::request::Request;
use destage_core::{Lsn, Order, Span};
use destage_engine::Drive;

/// A volume that checkpoints its index a second after it changed, and makes its log durable when asked only.
fn checkpointing() -> Bench {
    let mut choice = lazy(Order::Epoch);
    choice.policy.commit = Span::from_secs(60);
    choice.options.checkpoint_every = Span::from_secs(1);
    Bench::new(choice)
}

/// Lets a checkpoint fall due; the log is not made durable meanwhile.
fn checkpoint(bench: &mut Bench) -> Lsn {
    bench.now = bench.now + Span::from_secs(2);
    bench.volume.tick(bench.now);
    bench.run_except(Some(JobKind::Log));
    bench.volume.upkeep.checkpoint
}

/// The number of a group that a crash takes back is given to another one, which a start must see: a checkpoint that covered
/// that number would have it serve the blocks as they were before.
#[test]
fn a_checkpoint_covers_no_group_that_a_crash_may_take_back() {
    let mut bench = checkpointing();
    let len = BLOCK as u64;
    bench.write(1, 0, &[7; BLOCK], true);
    bench.write(2, 2 * len, &[6; BLOCK], true);
    bench.wait_decided(3);
    assert_eq!(bench.read(4, 0, BLOCK as u32), [7; BLOCK]);
    bench.write(5, len, &[8; BLOCK], false);
    let covered = checkpoint(&mut bench);
    let newest = bench.volume.last();
    assert!(bench.volume.core.committed() < newest, "the newest group is not durable");
    assert!(covered > Lsn::ZERO, "there is a checkpoint");
    bench.world.disk.crash(1);
    bench.reopen();
    assert_eq!(bench.volume.last().next(), newest, "it is lost");
    // Zeros leave the slot as it is, and what is written next has one already.
    bench.submit(6, Request::Zero { offset: 0, len, fua: true, punch: false });
    assert_eq!(bench.volume.last(), newest, "its number is taken again");
    bench.wait_decided(7);
    bench.submit(8, Request::Flush);
    bench.run();
    // A new epoch, before which the one before it is marked as decided.
    bench.write(9, 2 * len, &[9; BLOCK], true);
    bench.wait_decided(10);
    assert!(bench.volume.status().marked >= newest, "{:?}", bench.volume.status().marked);
    bench.world.disk.crash(2);
    bench.reopen();
    assert_eq!(bench.read(11, 0, BLOCK as u32), [0; BLOCK]);
}

/// The log keeps what comes after the checkpoint, since a start cannot use one that the log does not reach back to.
#[test]
fn a_log_that_went_on_after_its_checkpoint_keeps_the_cache_warm() {
    const WARM: u64 = 10;
    let mut bench = checkpointing();
    for block in 0..WARM {
        bench.write(block, block * BLOCK as u64, &[1 + block as u8; BLOCK], true);
    }
    bench.wait_decided(100);
    let covered = checkpoint(&mut bench);
    assert_eq!(covered, bench.volume.last());
    // Several segments, each of which is at the origin and needed by nobody but the checkpoint.
    for round in 0..15 {
        for block in WARM..WARM + 20 {
            let tag = 1_000 + round * 100 + block;
            bench.write(tag, block * BLOCK as u64, &[round as u8; BLOCK], true);
        }
        bench.wait_decided(10_000 + round);
    }
    let log = bench.volume.status().log;
    assert!(log.segments > 3, "{log:?}");
    assert_eq!(bench.volume.upkeep.checkpoint, covered, "there was no other one");
    assert!(bench.volume.upkeep.forgotten > Lsn(covered.0 + 250), "the log is not needed");
    bench.world.disk.kill();
    bench.reopen();
    for block in 0..WARM {
        let found = bench.read(block, block * BLOCK as u64, BLOCK as u32);
        assert_eq!(found, [1 + block as u8; BLOCK]);
    }
    let status = bench.volume.status();
    assert_eq!((status.hit_blocks, status.miss_blocks), (WARM, 0), "the cache is warm");
}
