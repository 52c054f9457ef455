//! What several tests share: small deterministic journals on the simulated disk.
#![allow(dead_code, reason = "each test file uses its own part")]

use destage_journal::{Error, Journal, Options, Recovery};
use destage_testkit::SimDisk;
use std::sync::Arc;

/// Small segments, no thread, so that every operation happens in a known order.
pub(crate) fn options() -> Options {
    Options {
        segment_bytes: Options::SEGMENT_BYTES_MIN,
        background: false,
        retain: std::time::Duration::ZERO,
        catalog: b"catalog one".to_vec(),
        ..Options::default()
    }
}

/// What a start of these tests needs of a payload: its first bytes.
pub(crate) fn head(payload: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(&payload[..payload.len().min(20)]);
}

/// As [`options`], with summaries.
pub(crate) fn summarising() -> Options {
    Options { summarise: Some(head), ..options() }
}

pub(crate) fn open(disk: &SimDisk) -> Result<(Journal, Recovery), Error> {
    Journal::open(Arc::new(disk.clone()), options())
}

/// Takes, runs and gives back one flush.
pub(crate) fn flush(journal: &mut Journal, sync: bool) -> Result<u64, Error> {
    let mut flush = journal.take();
    let result = flush.run(sync);
    journal.give_back(flush);
    result
}

/// Appends one group, durably.
pub(crate) fn commit(journal: &mut Journal, payload: &[u8]) -> u64 {
    let lsn = journal.last() + 1;
    journal.append(lsn, lsn * 1_000, (lsn % 7) as u16, payload);
    flush(journal, true).unwrap()
}

/// All payloads from `from` on, after checking that the numbers are dense.
pub(crate) fn payloads(recovery: &Recovery, from: u64) -> Vec<Vec<u8>> {
    let mut expected = None;
    let records = recovery.records(from).map(|record| {
        let record = record.unwrap();
        assert_eq!(record.lsn, expected.unwrap_or(record.lsn));
        expected = Some(record.lsn + 1);
        assert_eq!(record.stamp_ns, record.lsn * 1_000);
        assert_eq!(u64::from(record.domain), record.lsn % 7);
        record.payload
    });
    records.collect()
}
