//! What takes no slots: zeros, long sequential reads and writes; and that reads leave writes their share of the slots.

use super::bench::{Bench, lazy};
use crate::block::BLOCK;
use crate::request::{Reply, Request};
use destage_core::{Acknowledge, Order, When};

const LEN: u32 = BLOCK as u32;

fn trim(offset: u64, len: u64) -> Request {
    Request::Zero { offset, len, fua: false, punch: true }
}

#[test]
fn writes_pass_between_the_fragments_of_a_long_trim_which_takes_no_slots() {
    for order in [Order::Any, Order::Epoch, Order::Domain] {
        let mut choice = lazy(order);
        (choice.blocks, choice.zero_blocks_max) = (160, 8);
        let mut bench = Bench::new(choice);
        bench.submit(1, trim(0, 150 * BLOCK as u64));
        bench.write(2, 140 * BLOCK as u64, &[2; BLOCK], false);
        bench.write(3, 0, &[3; BLOCK], false);
        bench.run();
        let answered: Vec<u64> = bench.replies.iter().map(|&(tag, _)| tag).collect();
        assert_eq!(answered, [2, 3, 1], "others are answered between the fragments");
        let status = bench.volume.status();
        assert_eq!(status.slots_used, 2, "only what was written has slots");
        assert!((148..=150).contains(&status.zeroed_blocks), "{status:?}");
        assert!(status.core.dirty_bytes < 6 * BLOCK as u64, "{:?}", status.core);
        assert!(bench.read(4, BLOCK as u64, LEN) == [0; BLOCK]);
        let first = bench.read(5, 0, LEN);
        assert_eq!(first, [3; BLOCK], "it came after the first fragment");
        let late = bench.read(6, 140 * BLOCK as u64, LEN);
        assert!(late == [0; BLOCK] || late == [2; BLOCK], "the two were under way together");
        let before = bench.read(7, 0, 155 * LEN);
        bench.wait_decided(8);
        assert!(bench.world.origin.bytes()[..before.len()] == before, "{order:?}");
        assert!(bench.read(9, 0, 155 * LEN) == before);
        let status = bench.volume.status();
        assert_eq!((status.zeroed_blocks, status.core.dirty_bytes), (0, 0));
    }
}

#[test]
fn zeros_are_whole_after_a_crash() {
    let mut choice = lazy(Order::Epoch);
    choice.blocks = 160;
    let mut bench = Bench::new(choice);
    bench.read(1, 0, 20 * LEN);
    bench.submit(2, trim(0, 30 * BLOCK as u64));
    bench.write(3, 4 * BLOCK as u64, &[3; BLOCK], true);
    bench.run();
    bench.world.disk.crash(1);
    bench.reopen();
    let mut expected = vec![0; 30 * BLOCK];
    expected[4 * BLOCK..5 * BLOCK].fill(3);
    assert!(bench.read(4, 0, 30 * LEN) == expected);
    bench.wait_decided(5);
    assert!(bench.world.origin.bytes()[..30 * BLOCK] == expected);
}

#[test]
fn a_trim_shrinks_what_is_dirty_and_what_is_cached() {
    let mut bench = Bench::new(lazy(Order::Any));
    bench.read(1, 0, 8 * LEN);
    bench.submit(2, trim(0, 8 * BLOCK as u64));
    bench.run();
    assert_eq!(bench.volume.status().slots_used, 0, "clean copies are of no use any more");
    bench.write(3, 10 * BLOCK as u64, &[3; 20 * BLOCK], false);
    bench.submit(4, trim(10 * BLOCK as u64, 20 * BLOCK as u64));
    bench.run();
    bench.wait_decided(5);
    let status = bench.volume.status();
    assert_eq!(status.sent_blocks, 8 + 20, "what was overwritten by zeros is not sent");
    assert_eq!(status.slots_used, 0);
    assert!(bench.read(6, 10 * BLOCK as u64, LEN) == [0; BLOCK]);
}

#[test]
fn zeros_written_through_leave_no_outdated_copy() {
    let mut choice = lazy(Order::Any);
    choice.policy.acknowledge = Acknowledge::Origin;
    let mut bench = Bench::new(choice);
    bench.run();
    bench.read(1, 0, 8 * LEN);
    bench.submit(2, trim(0, 4 * BLOCK as u64));
    // This one looks at the origin before the zeros arrive there.
    bench.submit(3, Request::Read { offset: 0, len: LEN });
    bench.run_except(Some(crate::engine::JobKind::Through));
    bench.run();
    assert_eq!(bench.reply(2), Some(&Reply::Done));
    assert!(bench.read(4, 0, 4 * LEN) == [0; 4 * BLOCK]);
    assert!(bench.world.origin.bytes()[..4 * BLOCK] == [0; 4 * BLOCK]);
}

#[test]
fn reads_that_wait_for_an_origin_leave_slots_for_writes() {
    let mut choice = lazy(Order::Epoch);
    (choice.blocks, choice.slots) = (300, 100);
    let mut bench = Bench::new(choice);
    bench.world.origin.go_away_after(1);
    for tag in 0..200 {
        bench.submit(tag, Request::Read { offset: tag * BLOCK as u64, len: LEN });
    }
    bench.run();
    bench.write(1_000, 250 * BLOCK as u64, &[1; 2 * BLOCK], false);
    bench.run();
    assert_eq!(bench.reply(1_000), Some(&Reply::Done), "{:?}", bench.volume.status());
    bench.world.origin.come_back();
    while bench.replies.len() < 201 {
        bench.now = bench.volume.next_timeout().expect("reads are asked again");
        bench.run();
    }
    let is_data = |(_, reply): &&(u64, Reply)| matches!(reply, Reply::Data(_));
    assert_eq!(bench.replies.iter().filter(is_data).count(), 200);
}

#[test]
fn long_sequential_reads_pass_the_cache_by() {
    let mut choice = lazy(Order::Epoch);
    choice.blocks = 200;
    choice.policy.limits.sequential_bytes_max = 16 << 12;
    let mut bench = Bench::new(choice);
    let expected = bench.world.origin.bytes();
    bench.write(1_000, 100 * BLOCK as u64, &[7; BLOCK], false);
    bench.run();
    for block in 0..150 {
        let found = bench.read(block, block * BLOCK as u64, LEN);
        let at = block as usize * BLOCK;
        match block {
            100 => assert!(found == [7; BLOCK], "the newest bytes are those of the cache"),
            _ => assert!(found == expected[at..at + BLOCK], "block {block}"),
        }
    }
    let status = bench.volume.status();
    assert_eq!(status.slots_used, 16 + 1, "the first blocks, and what was written");
    assert_eq!(status.passed_blocks, 150 - 17);
    bench.read(200, 10 * BLOCK as u64, LEN);
    bench.read(201, 140 * BLOCK as u64, LEN);
    assert_eq!(bench.volume.status().slots_used, 18, "other reads are kept");
    // An origin out of reach is waited for as long as by any read.
    bench.read(202, 141 * BLOCK as u64, 16 * LEN);
    bench.world.origin.go_away_after(1);
    bench.submit(203, Request::Read { offset: 157 * BLOCK as u64, len: LEN });
    bench.run();
    assert_eq!(bench.reply(203), None);
    bench.world.origin.come_back();
    bench.now = bench.volume.next_timeout().unwrap();
    bench.run();
    assert!(matches!(bench.reply(203), Some(Reply::Data(_))));
}

/// Blocks that are read again and again, then a long sequential write; the share of the former that is still cached, and how
/// many blocks the write left in the cache.
fn after_a_stream(order: Order, acknowledge: Acknowledge, bytes_max: u64) -> (f64, u32) {
    let mut choice = lazy(order);
    (choice.blocks, choice.slots) = (400, 200);
    choice.policy.acknowledge = acknowledge;
    choice.policy.when = When::Async;
    choice.policy.limits.sequential_bytes_max = bytes_max;
    let mut bench = Bench::new(choice);
    bench.run();
    // No two of them are neighbours, or they would be a stream themselves.
    let hot = |step: u64| step * 7 % 20 * 2 * BLOCK as u64;
    (0..80).for_each(|step| drop(bench.read(step, hot(step), LEN)));
    let before = bench.volume.status();
    for block in 0..300 {
        let tag = 1_000 + block;
        bench.write(tag, (50 + block) * BLOCK as u64, &[block as u8; BLOCK], false);
        bench.run();
        if block % 10 == 9 {
            bench.wait_decided(2_000 + block);
        }
        assert_eq!(bench.reply(tag), Some(&Reply::Done));
    }
    bench.wait_decided(3_000);
    let left = bench.volume.status().slots_used;
    (0..20).for_each(|step| drop(bench.read(4_000 + step, hot(step), LEN)));
    let after = bench.volume.status();
    for block in (0..300_u64).rev() {
        let found = bench.read(5_000 + block, (50 + block) * BLOCK as u64, LEN);
        assert!(found == [block as u8; BLOCK], "block {block}");
    }
    let kept = after.hit_blocks - before.hit_blocks;
    if bytes_max < u64::MAX {
        assert_eq!(after.bypassed_blocks, 300 - bytes_max / BLOCK as u64);
    }
    (kept as f64 / 20.0, left.saturating_sub(20))
}

#[test]
fn long_sequential_writes_leave_what_is_cached_whatever_the_policy() {
    let ways = [
        (Order::Any, Acknowledge::Journal),
        (Order::Epoch, Acknowledge::Journal),
        (Order::Strict, Acknowledge::Journal),
        (Order::Domain, Acknowledge::Journal),
        (Order::Any, Acknowledge::Origin),
    ];
    for (order, acknowledge) in ways {
        let (kept, left) = after_a_stream(order, acknowledge, 16 * BLOCK as u64);
        assert!(kept >= 1.0 && left == 16, "{order:?} {acknowledge:?}: {kept} kept, {left} left");
        // The control: without the bypass the stream fills the cache.
        let (_, left) = after_a_stream(order, acknowledge, u64::MAX);
        assert!(left > 30, "{order:?} {acknowledge:?}: {left} left");
    }
}

#[test]
fn what_a_stream_overwrites_is_never_read_again_after_a_crash() {
    for acknowledge in [Acknowledge::Journal, Acknowledge::Origin] {
        let mut choice = lazy(Order::Epoch);
        choice.policy.acknowledge = acknowledge;
        choice.policy.limits.sequential_bytes_max = 0;
        choice.options.checkpoint_every = destage_core::Span::from_millis(1);
        let mut bench = Bench::new(choice);
        // Cached clean, and under write-back listed by a checkpoint.
        bench.read(1, 0, 4 * LEN);
        bench.now = bench.now + destage_core::Span::from_secs(10);
        bench.run();
        bench.write(2, 0, &[3; 4 * BLOCK], false);
        bench.submit(3, Request::Flush);
        bench.run();
        assert_eq!(bench.reply(3), Some(&Reply::Done));
        for seed in 0..10 {
            bench.world.disk.crash(seed);
            bench.reopen();
            assert!(bench.read(4, 0, 4 * LEN) == [3; 4 * BLOCK], "{acknowledge:?}, seed {seed}");
        }
        bench.wait_decided(5);
        assert!(bench.world.origin.bytes()[..4 * BLOCK] == [3; 4 * BLOCK]);
    }
}

#[test]
fn a_block_that_is_written_again_after_a_stream_is_kept() {
    for order in [Order::Any, Order::Epoch, Order::Domain] {
        let mut choice = lazy(order);
        choice.policy.limits.sequential_bytes_max = 4 * BLOCK as u64;
        let mut bench = Bench::new(choice);
        bench.write(1, 0, &[1; 8 * BLOCK], false);
        bench.write(2, 3 * BLOCK as u64, &[2; BLOCK], true);
        bench.run();
        bench.wait_decided(3);
        assert_eq!(bench.volume.status().slots_used, 1, "{order:?}");
        bench.world.origin.go_away_after(1);
        assert!(bench.read(4, 3 * BLOCK as u64, LEN) == [2; BLOCK]);
    }
}
