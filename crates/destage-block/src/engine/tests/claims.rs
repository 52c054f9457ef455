//! What the volume promises, one by one.

use super::bench::{Bench, lazy};
use super::world::sector_bytes;
use crate::block::BLOCK;
use crate::engine::{JobKind, ReportedLosses, VolumeMode};
use crate::request::{Reply, Request, RequestError};
use destage_core::{Acknowledge, Order, Policy, Span, When};
use destage_engine::Drive;
use std::io;

#[test]
fn bytes_at_any_offset_are_merged_into_their_blocks() {
    let mut bench = Bench::new(lazy(Order::Epoch));
    let mut expected = bench.world.origin.bytes();
    let size = bench.world.size;
    let ranges =
        [(1, 1), (4_095, 2), (5, 4_091), (10_000, 9_999), (size - 7, 7), (size - 5_000, 4_900)];
    for (index, (offset, len)) in ranges.into_iter().enumerate() {
        let data = vec![b'a' + index as u8; len as usize];
        expected[offset as usize..(offset + len) as usize].copy_from_slice(&data);
        bench.write(index as u64, offset, &data, false);
    }
    for (tag, (offset, len)) in
        (10..).zip([(3, 5), (8_000, 9_000), (size - 600, 600), (4_096, 4_096)])
    {
        expected[offset as usize..(offset + len) as usize].fill(0);
        bench.submit(tag, Request::Zero { offset, len, fua: false, punch: tag % 2 == 0 });
    }
    bench.run();
    assert!(bench.read(20, 0, size as u32) == expected);
    bench.wait_decided(21);
    assert!(bench.world.origin.bytes() == expected, "the origin holds the same");
    assert!(bench.read(22, 0, size as u32) == expected);
}

#[test]
fn requests_beyond_the_end_are_invalid() {
    let mut bench = Bench::new(lazy(Order::Any));
    let size = bench.world.size;
    bench.write(1, size - 1, &[1, 2], false);
    bench.submit(2, Request::Read { offset: u64::MAX, len: 1 });
    bench.submit(3, Request::Zero { offset: 0, len: size + 1, fua: false, punch: true });
    bench.submit(4, Request::Read { offset: 0, len: 0 });
    for tag in 1..=4 {
        assert_eq!(bench.reply(tag), Some(&Reply::Error(RequestError::Invalid)), "request {tag}");
    }
}

#[test]
fn a_whole_block_is_acknowledged_and_read_without_the_origin() {
    let mut bench = Bench::new(lazy(Order::Epoch));
    bench.world.origin.go_away_after(1);
    let data = vec![7; 2 * BLOCK];
    bench.write(1, 0, &data, false);
    bench.run();
    assert_eq!(bench.reply(1), Some(&Reply::Done));
    assert!(bench.read(2, 100, 5_000) == data[100..5_100]);
    bench.submit(3, Request::Flush);
    bench.run();
    assert_eq!(bench.reply(3), Some(&Reply::Done), "a flush needs the log only");
}

#[test]
fn a_read_waits_for_an_origin_that_is_away_and_fails_after_its_patience() {
    let mut bench = Bench::new(lazy(Order::Epoch));
    bench.world.origin.go_away_after(1);
    bench.submit(1, Request::Read { offset: 0, len: 512 });
    bench.run();
    assert_eq!(bench.reply(1), None);
    bench.world.origin.come_back();
    bench.now = bench.volume.next_timeout().unwrap();
    bench.run();
    assert!(matches!(bench.reply(1), Some(Reply::Data(_))), "it waited");
    bench.world.origin.go_away_after(1);
    bench.submit(2, Request::Read { offset: 20 * BLOCK as u64, len: 512 });
    let began = bench.now;
    bench.run();
    while bench.reply(2).is_none() {
        bench.now = bench.volume.next_timeout().unwrap();
        assert!(bench.now.since(began) < Span::from_secs(40), "patience ends");
        bench.run();
    }
    assert_eq!(bench.reply(2), Some(&Reply::Error(RequestError::Io)));
    assert!(bench.now.since(began) >= Span::from_secs(30));
}

#[test]
fn a_write_that_overtakes_a_fetch_is_not_undone_by_it() {
    let mut bench = Bench::new(lazy(Order::Epoch));
    bench.submit(1, Request::Read { offset: 0, len: 4_096 });
    bench.run_except(Some(JobKind::Fetch));
    bench.write(2, 0, &[9; BLOCK], true);
    bench.run_except(Some(JobKind::Fetch));
    assert_eq!(
        bench.reply(2),
        Some(&Reply::Done),
        "a write of a whole block does not wait for the fetch"
    );
    bench.run();
    assert!(bench.read(3, 0, 4_096) == [9; BLOCK], "what was fetched is older");
}

#[test]
fn a_slot_that_holds_something_else_is_a_miss() {
    let mut bench = Bench::new(lazy(Order::Epoch));
    let expected = bench.read(1, 0, 4_096);
    let unit = bench.volume.slots.find(crate::block::Lba(0)).unwrap();
    bench.context.cache.write_slots(&[(unit.0, &[0xee; BLOCK])]).unwrap();
    assert!(bench.read(2, 0, 4_096) == expected);
    assert_eq!(bench.volume.status().slot_errors, 1);
    assert_eq!(bench.volume.status().fetches, 2);
}

#[test]
fn a_log_that_fails_stops_writes_and_reads_of_what_is_dirty() {
    let mut bench = Bench::new(lazy(Order::Epoch));
    let expected = bench.read(1, 10 * BLOCK as u64, 4_096);
    bench.write(2, 0, &[5; BLOCK], false);
    bench.run();
    bench.submit(3, Request::Flush);
    bench.world.disk.fail_after(destage_testkit::disk::Count::Syncs, 1, io::ErrorKind::Other);
    bench.run();
    assert_eq!(
        bench.reply(3),
        Some(&Reply::Error(RequestError::Io)),
        "nobody knows what is durable"
    );
    assert!(matches!(bench.volume.status().mode, VolumeMode::Stopped(_)));
    bench.write(4, 0, &[6; BLOCK], false);
    bench.submit(5, Request::Read { offset: 0, len: 512 });
    assert_eq!(bench.reply(4), Some(&Reply::Error(RequestError::Io)));
    assert_eq!(
        bench.reply(5),
        Some(&Reply::Error(RequestError::Io)),
        "the newest bytes may be lost"
    );
    assert!(
        bench.read(6, 10 * BLOCK as u64, 4_096) == expected,
        "the origin holds the newest bytes"
    );
}

#[test]
fn writing_through_waits_for_the_origin_and_is_never_outdated_after_a_crash() {
    let mut choice = lazy(Order::Any);
    choice.policy.acknowledge = Acknowledge::Origin;
    let mut bench = Bench::new(choice);
    bench.run();
    bench.read(1, 0, 4_096);
    bench.write(2, 0, &[3; BLOCK], false);
    bench.run_except(Some(JobKind::Through));
    assert_eq!(bench.reply(2), None, "the origin has not answered");
    bench.run();
    assert_eq!(bench.reply(2), Some(&Reply::Done));
    assert!(bench.world.origin.bytes()[..BLOCK] == [3; BLOCK]);
    bench.submit(3, Request::Flush);
    bench.run();
    assert_eq!(bench.reply(3), Some(&Reply::Done));
    for seed in 0..10 {
        bench.world.disk.crash(seed);
        bench.reopen();
        assert!(bench.read(4, 0, 4_096) == [3; BLOCK], "seed {seed}");
    }
}

#[test]
fn writing_through_is_never_outdated_even_if_an_index_checkpoint_is_damaged() {
    for area in [0, 1] {
        let mut choice = lazy(Order::Epoch);
        choice.options.checkpoint_every = Span::from_millis(1);
        let mut bench = Bench::new(choice);
        // Cached clean, and listed by a checkpoint.
        bench.read(1, 0, 4_096);
        bench.now = bench.now + Span::from_secs(10);
        bench.run();
        let through = Policy { acknowledge: Acknowledge::Origin, ..bench.choice.policy.clone() };
        bench.volume.set_policy(bench.now, &through).unwrap();
        bench.write(2, 0, &[3; BLOCK], false);
        bench.run();
        bench.submit(3, Request::Flush);
        bench.run();
        assert_eq!(bench.reply(3), Some(&Reply::Done));
        // The slot that is written beside the origin is lost, as a slot may be at any time.
        bench.world.disk.kill();
        let at = bench.context.cache.geometry().checkpoint(area).start as usize;
        let slots = bench.context.cache.geometry().slot(0) as usize;
        bench.world.disk.edit("cache", |bytes| {
            bytes[at..at + 32].fill(0);
            // Whatever the index of then says of its slots is so again.
            for (slot, block) in bytes[slots..].chunks_mut(BLOCK).enumerate() {
                if slot < 400 && block[..] == [3; BLOCK] {
                    for sector in 0..8 {
                        let was = sector_bytes(sector as u32 + 1, sector);
                        block[sector * 512..][..512].copy_from_slice(&was);
                    }
                }
            }
        });
        bench.choice.policy = through;
        bench.reopen();
        assert!(bench.read(4, 0, 4_096) == [3; BLOCK], "area {area}");
    }
}

#[test]
fn a_policy_that_writes_through_waits_until_everything_is_at_the_origin() {
    let mut bench = Bench::new(lazy(Order::Epoch));
    bench.write(1, 0, &[1; BLOCK], false);
    bench.run();
    let through = Policy { acknowledge: Acknowledge::Origin, ..bench.choice.policy.clone() };
    bench.volume.set_policy(bench.now, &through).unwrap();
    assert_eq!(bench.volume.status().mode, VolumeMode::ChangingPolicy);
    bench.write(2, BLOCK as u64, &[2; BLOCK], false);
    bench.run_except(Some(JobKind::Destage));
    assert_eq!(bench.reply(2), None);
    bench.run();
    assert_eq!(bench.reply(2), Some(&Reply::Done));
    assert_eq!(bench.volume.undecided(), 0);
    assert!(bench.world.origin.bytes()[..BLOCK] == [1; BLOCK]);
    bench.volume.set_policy(bench.now, &bench.choice.policy.clone()).unwrap();
    bench.write(3, 0, &[4; BLOCK], false);
    bench.run();
    assert_eq!(bench.volume.undecided(), 1, "back to writing back, at once");
}

#[test]
fn a_frozen_volume_begins_no_write_until_it_is_thawed() {
    let mut bench = Bench::new(lazy(Order::Epoch));
    bench.volume.freeze(bench.now, 1);
    bench.run();
    assert_eq!(bench.reply(1), Some(&Reply::Done));
    bench.write(2, 0, &[1; BLOCK], false);
    bench.read(3, 0, 512);
    assert_eq!(bench.reply(2), None);
    bench.volume.thaw(bench.now);
    bench.run();
    assert_eq!(bench.reply(2), Some(&Reply::Done));
}

/// The states in which a crash in the middle of the destaging of two writes can leave a journaled origin.
fn states_between(is_marked: bool) -> Vec<(u8, u8)> {
    let mut states = Vec::new();
    for operations in 1..40 {
        let mut choice = lazy(Order::Domain);
        choice.policy.limits.batch_groups_max = 100;
        let mut bench = Bench::new(choice);
        bench.world.origin.edit(|bytes| bytes[..2 * BLOCK].fill(0));
        bench.write(1, 0, &[1; BLOCK], false);
        if is_marked {
            bench.volume.mark(bench.now);
        }
        bench.write(2, BLOCK as u64, &[2; BLOCK], true);
        bench.run();
        bench.volume.hurry(bench.now);
        bench.world.disk.power_off_after(operations);
        bench.run();
        bench.world.disk.crash(operations);
        bench.world.open_redo(true);
        let bytes = bench.world.origin.bytes();
        states.push((bytes[0], bytes[BLOCK]));
    }
    states.sort_unstable();
    states.dedup();
    states
}

#[test]
fn a_journaled_origin_stops_exactly_where_a_mark_was_set() {
    assert_eq!(states_between(false), [(0, 0), (1, 2)], "one group, whole or not at all");
    assert_eq!(states_between(true), [(0, 0), (1, 0), (1, 2)]);
}

/// The states in which a crash in the middle of the destaging of one long write can leave a journaled origin: the bytes of
/// its first and its last block.
fn states_within(is_one: bool) -> Vec<(u8, u8)> {
    let mut states = Vec::new();
    for operations in 1..60 {
        let mut choice = lazy(Order::Domain);
        choice.policy.limits.batch_groups_max = 1;
        let mut bench = Bench::new(choice);
        let blocks = bench.volume.shape.fragment_blocks_max as usize * 2 + 1;
        bench.world.origin.edit(|bytes| bytes[..blocks * BLOCK].fill(0));
        if is_one {
            bench.write(1, 0, &vec![1; blocks * BLOCK], true)
        } else {
            (0..blocks as u64).for_each(|block| {
                bench.write(block, block * BLOCK as u64, &[1; BLOCK], true);
            })
        }
        bench.run();
        bench.volume.hurry(bench.now);
        bench.world.disk.power_off_after(operations);
        bench.run();
        bench.world.disk.crash(operations);
        bench.world.open_redo(true);
        let bytes = bench.world.origin.bytes();
        states.push((bytes[0], bytes[(blocks - 1) * BLOCK]));
    }
    states.sort_unstable();
    states.dedup();
    states
}

/// > A group may end between any two writes, never inside one.
#[test]
fn a_journaled_origin_never_stops_inside_a_request() {
    assert_eq!(states_within(true), [(0, 0), (1, 1)]);
    assert!(states_within(false).contains(&(1, 0)), "several requests may be parted");
}

#[test]
fn a_foreign_write_to_what_was_destaged_last_is_found_after_a_crash() {
    for is_foreign in [false, true] {
        let mut choice = lazy(Order::Epoch);
        choice.has_redo = true;
        let mut bench = Bench::new(choice);
        bench.write(1, 0, &[1; 3 * BLOCK], false);
        bench.wait_decided(2);
        bench.write(3, BLOCK as u64, &[3; BLOCK], true);
        bench.run();
        bench.world.disk.crash(1);
        // What the log still has to send may be there already, and proves nothing.
        bench.world.origin.edit(|bytes| bytes[BLOCK..2 * BLOCK].fill(3));
        if is_foreign {
            bench.world.origin.edit(|bytes| bytes[7] = 9);
        }
        let opened = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| bench.reopen()));
        assert_eq!(opened.is_err(), is_foreign);
    }
}

#[test]
fn a_closed_volume_starts_warm() {
    let mut bench = Bench::new(lazy(Order::Epoch));
    bench.read(1, 0, 8 * 4_096);
    bench.write(2, 0, &[8; BLOCK], false);
    bench.run();
    bench.volume.close(bench.now);
    bench.run();
    assert!(bench.volume.is_closed());
    bench.submit(3, Request::Flush);
    assert_eq!(bench.reply(3), Some(&Reply::Error(RequestError::Stopping)));
    bench.reopen();
    bench.world.origin.go_away_after(1);
    assert!(bench.read(4, 0, 4_096) == [8; BLOCK], "what is dirty is in the log");
    bench.read(5, 4_096, 7 * 4_096);
    assert_eq!(bench.volume.status().hit_ratio(), Some(1.0));
}

/// A volume that writes through.
fn through() -> Bench {
    let mut choice = lazy(Order::Any);
    choice.policy.acknowledge = Acknowledge::Origin;
    let mut bench = Bench::new(choice);
    bench.run();
    bench
}

/// > A loss is told to each connection once: its next FLUSH or FUA write fails.
#[test]
fn a_loss_at_the_origin_is_told_to_each_client_once() {
    let mut bench = through();
    let mut told = ReportedLosses::default();
    let (mut first, mut second) = (told.known(), told.known());
    bench.write(1, 0, &[3; BLOCK], false);
    bench.run();
    bench.world.origin.lose();
    bench.submit(2, Request::Flush);
    bench.run();
    let mut flush = |bench: &mut Bench, tag: u64, known: &mut u64| {
        bench.submit(tag, Request::Flush);
        bench.run();
        let reply = bench.reply(tag).unwrap().clone();
        told.answer(known, bench.volume.losses_found(), reply)
    };
    assert_eq!(bench.reply(2), Some(&Reply::Error(RequestError::Io)));
    assert_eq!(flush(&mut bench, 3, &mut first), Reply::Error(RequestError::Io));
    assert_eq!(flush(&mut bench, 4, &mut second), Reply::Error(RequestError::Io));
    assert_eq!(flush(&mut bench, 5, &mut first), Reply::Done);
    assert_eq!(flush(&mut bench, 6, &mut second), Reply::Done);
    assert_eq!(told.known(), 1, "who connects later wrote nothing that was lost");
}

#[test]
fn a_volume_whose_last_flush_fails_says_so_and_flushes_after_the_next_start() {
    for fails in [false, true] {
        let mut bench = through();
        bench.write(1, 0, &[3; BLOCK], false);
        bench.run();
        if fails {
            bench.world.origin.go_away_after(1);
        }
        bench.volume.close(bench.now);
        bench.run();
        assert!(bench.volume.is_closed());
        assert_eq!(bench.volume.is_origin_unflushed(), fails);
        bench.world.origin.come_back();
        bench.reopen();
        bench.run();
        let calls = bench.world.origin.calls();
        bench.submit(2, Request::Flush);
        bench.run();
        assert_eq!(bench.reply(2), Some(&Reply::Done));
        assert_eq!(bench.world.origin.calls() > calls, fails, "the flush reached the origin");
    }
}

/// > While destaging is paused, a change to `write-through` is refused if anything is dirty; a pause during such a change
/// > begins when the change is done.
#[test]
fn a_change_to_write_through_never_waits_for_a_paused_destager() {
    let mut bench = Bench::new(lazy(Order::Epoch));
    let through = Policy { acknowledge: Acknowledge::Origin, ..bench.choice.policy.clone() };
    bench.write(1, 0, &[1; BLOCK], false);
    bench.run();
    bench.volume.pause(bench.now);
    let refused = bench.volume.set_policy(bench.now, &through).unwrap_err();
    assert!(refused.contains("resume first"), "{refused}");
    bench.write(2, 0, &[2; BLOCK], false);
    bench.run();
    assert_eq!(bench.reply(2), Some(&Reply::Done), "writes go on as before");
    bench.volume.resume(bench.now);
    bench.volume.set_policy(bench.now, &through).unwrap();
    bench.volume.pause(bench.now);
    bench.write(3, 0, &[3; BLOCK], false);
    bench.run();
    assert_eq!(bench.reply(3), Some(&Reply::Done));
    let status = bench.volume.status();
    assert!(status.core.paused && bench.volume.undecided() == 0, "{status:?}");
}

/// How many blocks of atomic groups were known from the cache before, and how many were read from the origin.
fn before(bench: &Bench) -> (u64, u64) {
    let status = bench.volume.status();
    (status.before_cached_blocks, status.before_fetched_blocks)
}

#[test]
fn an_atomic_group_reads_from_the_origin_only_what_the_cache_did_not_hold() {
    let mut bench = Bench::new(lazy(Order::Domain));
    bench.read(1, 0, 8 * 4_096);
    bench.write(2, 0, &[1; 4 * BLOCK], true);
    bench.write(3, 20 * BLOCK as u64, &[2; BLOCK], true);
    bench.wait_decided(4);
    assert_eq!(before(&bench), (4, 1));
    // What was destaged is cached, so it is known from now on; what is written twice before is read once.
    bench.write(5, 20 * BLOCK as u64, &[3; BLOCK], true);
    bench.write(6, 20 * BLOCK as u64, &[4; BLOCK], true);
    bench.wait_decided(7);
    assert_eq!(before(&bench), (5, 1));
    // A mark parts them: what the first of two groups has changed, the second one asks the origin for.
    bench.write(8, 20 * BLOCK as u64, &[5; BLOCK], true);
    bench.volume.mark(bench.now);
    bench.write(9, 20 * BLOCK as u64, &[6; BLOCK], true);
    bench.wait_decided(10);
    assert_eq!(before(&bench), (6, 2));
    // A slot that holds something else is no evidence.
    let unit = bench.volume.slots.find(crate::block::Lba(0)).unwrap();
    bench.context.cache.write_slots(&[(unit.0, &[0xee; BLOCK])]).unwrap();
    bench.write(11, 0, &[7; BLOCK], true);
    bench.wait_decided(12);
    assert_eq!(before(&bench), (6, 3));
    // Nor is one whose block was zeroed meanwhile.
    bench.write(13, 0, &[8; BLOCK], true);
    bench.submit(14, Request::Zero { offset: 0, len: 4_096, fua: true, punch: true });
    bench.run();
    bench.volume.mark(bench.now);
    bench.write(15, 0, &[9; BLOCK], true);
    bench.wait_decided(16);
    assert_eq!(before(&bench), (6, 4));
    assert!(bench.world.origin.bytes()[..BLOCK] == [9; BLOCK]);
}

#[test]
fn as_many_bytes_may_be_dirty_as_the_limit_says() {
    let mut choice = lazy(Order::Epoch);
    (choice.policy.limits.dirty_bytes_max, choice.policy.limits.dirty_bytes_low) =
        (16 * BLOCK as u64, 8 * BLOCK as u64);
    let mut bench = Bench::new(choice);
    bench.volume.pause(bench.now);
    for block in 0..20 {
        bench.write(block, block * BLOCK as u64, &[1; BLOCK], false);
        bench.run();
        assert_eq!(bench.reply(block).is_some(), block < 16, "write {block}");
    }
    assert_eq!(bench.volume.status().core.dirty_units, 16);
    bench.volume.resume(bench.now);
    // What the log holds durably is destaged.
    bench.now = bench.now + Span::from_secs(2);
    bench.run();
    bench.volume.tick(bench.now);
    bench.run();
    assert_eq!(bench.reply(19), Some(&Reply::Done), "{:?}", bench.volume.status());
}

#[test]
fn destaging_yields_to_a_read_at_the_origin_also_where_each_write_is_durable_at_once() {
    let ways = [When::Async, When::Adaptive, When::Periodic { every: Span::from_millis(50) }];
    for when in ways {
        for yields in [true, false] {
            let mut choice = lazy(Order::Epoch);
            (choice.policy.when, choice.policy.commit) = (when, Span::ZERO);
            (choice.policy.staleness, choice.policy.read_priority) = (Span::from_secs(30), yields);
            let mut bench = Bench::new(choice);
            let origin = bench.world.origin.bytes();
            bench.write(1, 0, &[1; BLOCK], false);
            if yields {
                bench.submit(2, Request::Read { offset: 20 * BLOCK as u64, len: 4_096 });
            }
            for _ in 0..20 {
                bench.now = bench.now + Span::from_millis(100);
                bench.run_except(Some(JobKind::Fetch));
            }
            assert_eq!(bench.reply(1), Some(&Reply::Done), "{when:?}");
            // Two seconds are less than half of D, up to which even the adaptive rate yields by itself.
            let is_sent = bench.world.origin.bytes() != origin;
            assert!(!(is_sent && yields), "{when:?}: it was sent beside the read");
            assert!(is_sent || yields || when == When::Adaptive, "{when:?}: nothing was sent");
            // The read ends, and what waited for it goes on.
            for _ in 0..300 {
                bench.now = bench.now + Span::from_millis(100);
                bench.run();
            }
            assert!(bench.world.origin.bytes()[..BLOCK] == [1; BLOCK], "{when:?}");
        }
    }
}
