//! A log without room for all that is written.

use super::bench::{Bench, lazy};
use crate::block::BLOCK;
use crate::engine::JobKind;
use crate::request::Reply;
use destage_core::{Lsn, Order, Span, WaitFor};
use destage_engine::Drive;

const LONG: u64 = 1_000;
const LONG_OFFSET: usize = 10 * BLOCK;
const LONG_BYTES: usize = 24 * BLOCK;

/// A long write behind so many short ones, none of which is let go.
fn filled(short: u64) -> Bench {
    let mut choice = lazy(Order::Epoch);
    choice.log_bytes = 512 << 10;
    let mut bench = Bench::new(choice);
    for tag in 0..short {
        bench.write(tag, tag % 8 * BLOCK as u64, &[1; BLOCK], false);
    }
    bench.write(LONG, LONG_OFFSET as u64, &[9; LONG_BYTES], true);
    bench.run_except(Some(JobKind::Destage));
    bench
}

/// Whether a request goes on behind this group.
fn continues(bench: &Bench, lsn: Lsn) -> bool {
    bench.volume.overlay.get(lsn).is_some_and(|group| group.continues)
}

#[test]
fn a_full_log_commits_no_part_of_a_request() {
    let mut cut = 0;
    for short in 40..100 {
        let mut bench = filled(short);
        let committed = bench.volume.core.committed();
        assert!(!continues(&bench, committed), "{short}: a part is committed, up to {committed:?}");
        if !continues(&bench, Lsn(bench.volume.log.journal.status().durable_lsn)) {
            continue;
        }
        cut += 1;
        assert_eq!(bench.reply(LONG), None, "{short}: only a part is durable");
        // What came before makes room, once it is at the origin.
        let last = bench.volume.last();
        bench.volume.wait(bench.now, LONG + 1, last, WaitFor::Decided);
        for _ in 0..60 {
            bench.now = bench.now + Span::from_secs(1);
            bench.run();
        }
        assert_eq!(bench.reply(LONG), Some(&Reply::Done), "{short}: {:?}", bench.volume.status());
        assert_eq!(bench.reply(LONG + 1), Some(&Reply::Done), "{short}");
        let end = LONG_OFFSET + LONG_BYTES;
        assert!(bench.world.origin.bytes()[LONG_OFFSET..end] == [9; LONG_BYTES]);
    }
    assert!(cut > 0, "the log was never full in the middle of the request");
}
