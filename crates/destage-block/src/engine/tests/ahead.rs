//! Writing the log ahead, and syncs that are shared.

use super::bench::{Bench, lazy};
use crate::block::BLOCK;
use crate::engine::JobKind;
use crate::request::{Reply, Request};
use destage_core::{Order, Span};

fn write(block: u64) -> Request {
    let block = block % 40;
    let data = vec![1 + block as u8; BLOCK];
    Request::Write { offset: block * BLOCK as u64, data, fua: false }
}

#[test]
fn requests_that_come_together_share_one_sync() {
    let mut choice = lazy(Order::Epoch);
    choice.policy.commit = Span::ZERO;
    let mut bench = Bench::new(choice);
    for tag in 0..4 {
        bench.volume.submit(bench.now, tag, write(tag));
    }
    bench.volume.tick(bench.now);
    for tag in 4..8 {
        bench.volume.submit(bench.now, tag, write(tag));
    }
    let job = bench.volume.poll_job().expect("a sync is due");
    assert_eq!(job.kind(), JobKind::Log);
    assert!(bench.volume.poll_job().is_none(), "one is under way");
    let done = bench.run_job(job);
    bench.volume.finished(bench.now, done);
    bench.run();
    for tag in 0..8 {
        assert_eq!(bench.reply(tag), Some(&Reply::Done), "request {tag}");
    }
    assert_eq!(bench.volume.status().core.syncs, 1);
}

#[test]
fn what_comes_during_a_sync_is_written_beside_it_and_durable_by_the_next_one() {
    let mut bench = Bench::new(lazy(Order::Epoch));
    let end = |bench: &mut Bench, job| {
        let done = bench.run_job(job);
        bench.volume.finished(bench.now, done);
        bench.volume.tick(bench.now);
        bench.take_replies();
    };
    for tag in 0..80 {
        bench.submit(tag, write(tag));
    }
    let job = bench.volume.poll_ahead(false).expect("what waits is much, and written");
    end(&mut bench, job);
    bench.volume.submit(bench.now, 100, Request::Flush);
    bench.volume.tick(bench.now);
    let sync = bench.volume.poll_job().expect("and made durable");
    assert_eq!(sync.kind(), JobKind::Log);
    (80..90).for_each(|tag| bench.volume.submit(bench.now, tag, write(tag)));
    let job = bench.volume.poll_ahead(false).expect("more is written meanwhile");
    end(&mut bench, job);
    bench.volume.submit(bench.now, 101, Request::Flush);
    bench.volume.tick(bench.now);
    assert!(bench.volume.poll_job().is_none(), "one sync at a time");
    end(&mut bench, sync);
    assert_eq!(bench.reply(100), Some(&Reply::Done));
    assert_eq!(bench.reply(101), None, "written is not durable");
    let sync = bench.volume.poll_job().expect("the rest is made durable");
    assert!(bench.volume.poll_ahead(false).is_none(), "nothing is left to be written");
    end(&mut bench, sync);
    assert_eq!(bench.reply(101), Some(&Reply::Done));
}

#[test]
fn the_log_is_written_ahead_of_a_flush_that_usually_comes_and_not_otherwise() {
    let mut bench = Bench::new(lazy(Order::Epoch));
    bench.submit(1, write(0));
    assert!(bench.volume.poll_ahead(true).is_none(), "nobody has flushed before");
    bench.submit(2, Request::Flush);
    bench.run();
    bench.submit(3, write(1));
    assert!(bench.volume.poll_ahead(false).is_none(), "others wait for something");
    let job = bench.volume.poll_ahead(true).expect("the flush is foreseen");
    assert!(bench.volume.poll_ahead(true).is_none(), "one is under way");
    // The flush comes before the write has ended, and waits for it.
    bench.volume.submit(bench.now, 4, Request::Flush);
    assert!(bench.volume.poll_job().is_none(), "the log is busy");
    let done = bench.run_job(job);
    bench.volume.finished(bench.now, done);
    assert_eq!(bench.reply(4), None, "written is not durable");
    bench.run();
    assert_eq!(bench.reply(4), Some(&Reply::Done));
    bench.submit(5, write(2));
    bench.submit(6, write(3));
    assert!(bench.volume.poll_ahead(true).is_none(), "this client does something else now");
}

#[test]
fn a_lot_of_the_log_is_written_although_nobody_flushes() {
    let mut bench = Bench::new(lazy(Order::Epoch));
    for tag in 0..100 {
        bench.submit(tag, write(tag % 40));
        if let Some(job) = bench.volume.poll_ahead(false) {
            assert!(!job.is_short());
            let done = bench.run_job(job);
            bench.volume.finished(bench.now, done);
        }
    }
    let status = bench.volume.status();
    let left = status.log.buffered_bytes;
    assert!(left < 512 << 10, "{left} bytes of 100 writes are not written");
    assert_eq!(status.core.syncs, 0);
}

/// Short batches waste room, which must not be lacking where the log is all that a commit waits for.
#[test]
fn the_log_is_not_written_ahead_where_it_is_short_of_room() {
    let mut choice = lazy(Order::Epoch);
    choice.log_bytes = 512 << 10;
    let mut bench = Bench::new(choice);
    let mut is_refused = false;
    for tag in 0..60 {
        bench.volume.submit(bench.now, tag, write(tag % 40));
        if bench.volume.status().log.buffered_bytes == 0 {
            continue;
        }
        match bench.volume.write_ahead(true) {
            Some(job) => {
                assert!(!is_refused, "it is still short of room");
                let done = bench.run_job(job);
                bench.volume.finished(bench.now, done);
            }
            None => is_refused = true,
        }
    }
    assert!(is_refused);
    assert_eq!(bench.volume.status().log_full, 0);
}
