//! Writes that an origin loses before it is flushed, where somebody else's flush is told of it.

use super::bench::{Bench, lazy};
use crate::block::BLOCK;
use crate::origin::{Identity, Origin, OriginIoError};
use crate::request::Reply;
use crate::testing::SimOrigin;
use destage_core::{Order, Span, WaitFor};
use destage_engine::Drive;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// An origin that loses a write. Before the flush of whoever wrote it, another flush fails: so his own succeeds.
#[derive(Debug)]
struct Forgetful {
    origin: SimOrigin,
    /// Writes that it is still to lose.
    left: AtomicU64,
}

impl Origin for Forgetful {
    fn size(&self) -> u64 {
        self.origin.size()
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<(), OriginIoError> {
        self.origin.read(offset, buf)
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), OriginIoError> {
        let left =
            self.left.fetch_update(Ordering::AcqRel, Ordering::Acquire, |n| n.checked_sub(1));
        if left.is_err() {
            return self.origin.write(offset, bytes);
        }
        self.origin.lose();
        self.origin.flush().expect_err("somebody is told of the loss");
        Ok(())
    }

    fn zero(&self, offset: u64, len: u64, punch: bool) -> Result<(), OriginIoError> {
        self.origin.zero(offset, len, punch)
    }

    fn flush(&self) -> Result<(), OriginIoError> {
        self.origin.flush()
    }

    fn losses(&self) -> u64 {
        self.origin.losses()
    }

    fn parallelism(&self) -> usize {
        1
    }

    fn identity(&self) -> Result<Identity, OriginIoError> {
        self.origin.identity()
    }
}

/// > What was destaged is durable at the origin: a batch counts once a flush covered all of it.
#[test]
fn a_batch_of_which_a_part_was_lost_is_sent_again_although_its_flush_succeeded() {
    const WRITES: u64 = 4;
    for order in [Order::Any, Order::Epoch, Order::Strict, Order::Domain] {
        let mut bench = Bench::new(lazy(order));
        let origin = bench.world.origin.clone();
        let forgetful = Arc::new(Forgetful { origin, left: AtomicU64::new(1) });
        bench.context.origin = forgetful.clone();
        for write in 0..WRITES {
            // No neighbours: each is a request of its own.
            bench.write(write, 2 * write * BLOCK as u64, &[1 + write as u8; BLOCK], true);
        }
        let last = bench.volume.last();
        bench.volume.wait(bench.now, 100, last, WaitFor::Decided);
        bench.run();
        assert_eq!(forgetful.left.load(Ordering::Acquire), 0, "{order:?}: nothing was lost");
        assert_eq!(bench.reply(100), None, "{order:?}: what was lost counts");
        for _ in 0..60 {
            bench.now = bench.now + Span::from_secs(1);
            bench.run();
        }
        assert_eq!(bench.reply(100), Some(&Reply::Done), "{order:?}");
        let found = bench.world.origin.bytes();
        for write in 0..WRITES {
            let at = 2 * write as usize * BLOCK;
            assert!(found[at..at + BLOCK] == [1 + write as u8; BLOCK], "{order:?}: write {write}");
        }
    }
}
