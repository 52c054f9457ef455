//! A log that was damaged after it was written: found where a dirty block is read for the origin.

use super::bench::{Bench, lazy};
use crate::block::BLOCK;
use crate::cache::record::STORED_BLOCK;
use crate::engine::VolumeMode;
use crate::request::{Reply, Request, RequestError};
use destage_core::{Order, StopReason, WaitFor};
use destage_engine::Drive;

/// Writes of one block each: far more than a segment of the log takes, since a start reads the last one whole.
const WRITES: u64 = 32;

fn content(write: u64) -> [u8; BLOCK] {
    [100 + write as u8; BLOCK]
}

/// A volume that was killed with all of this dirty, and started again.
fn killed(order: Order, damaged: Option<u64>) -> Bench {
    let mut bench = Bench::new(lazy(order));
    for write in 0..WRITES {
        bench.write(write, write * BLOCK as u64, &content(write), true);
        bench.run();
        assert_eq!(bench.reply(write), Some(&Reply::Done));
    }
    bench.world.disk.crash(1);
    if let Some(write) = damaged {
        bench.world.disk.edit("cache", |bytes| damage(bytes, write));
    }
    bench.reopen();
    bench
}

/// Changes one byte of a block that the log holds.
fn damage(cache: &mut [u8], write: u64) {
    let block = content(write);
    let at = cache.windows(BLOCK).position(|bytes| bytes == block).expect("the log holds it");
    cache[at + STORED_BLOCK / 2] ^= 1;
}

/// Asks for everything to be at the origin; whether that was answered.
fn is_destaged(bench: &mut Bench) -> bool {
    bench.volume.wait(bench.now, 1_000, bench.volume.last(), WaitFor::Decided);
    bench.run();
    bench.reply(1_000) == Some(&Reply::Done)
}

/// > A dirty block that the log no longer holds as it was written is never sent, nor is anything that must come after it.
#[test]
fn a_volume_stops_where_the_log_of_a_dirty_block_is_damaged() {
    for order in [Order::Any, Order::Epoch, Order::Strict, Order::Domain] {
        let mut bench = killed(order, Some(3));
        assert!(!is_destaged(&mut bench), "{order:?}");
        let status = bench.volume.status();
        assert_eq!(status.mode, VolumeMode::Stopped(StopReason::JournalFailed), "{order:?}");
        let said = status.origin_error;
        assert!(said.contains("block 3 of write 4") && said.contains("damaged"), "{said}");
        let origin = bench.world.origin.bytes();
        let at_origin = |write: u64| origin[write as usize * BLOCK..].starts_with(&content(write));
        assert!(!at_origin(3));
        if order != Order::Any {
            assert!((4..WRITES).all(|write| !at_origin(write)), "{order:?}: the order is kept");
        }
        bench.submit(2_000, Request::Read { offset: 3 * BLOCK as u64, len: 512 });
        bench.run();
        assert_eq!(bench.reply(2_000), Some(&Reply::Error(RequestError::Io)), "never wrong bytes");
    }
}

/// The control: the same without damage.
#[test]
fn a_volume_drains_where_the_log_is_sound() {
    for order in [Order::Any, Order::Epoch, Order::Strict, Order::Domain] {
        let mut bench = killed(order, None);
        assert!(is_destaged(&mut bench), "{order:?}");
        let origin = bench.world.origin.bytes();
        for write in 0..WRITES {
            assert!(origin[write as usize * BLOCK..].starts_with(&content(write)), "{order:?}");
        }
    }
}
