//! One payload can be read later without scanning, and a start finds it at the same place.
#![allow(clippy::unwrap_used, reason = "a test ends where it fails")]

mod common;

use common::{flush, open};
use destage_journal::{ErrorKind, Journal, Position};
use destage_testkit::SimDisk;
use std::collections::BTreeMap;

fn payload(lsn: u64) -> Vec<u8> {
    lsn.to_le_bytes().repeat(1 + (lsn * 37 % 400) as usize)
}

fn append(journal: &mut Journal, offsets: &mut BTreeMap<u64, u32>) {
    let lsn = journal.last() + 1;
    let offset = journal.append(lsn, lsn * 1_000, (lsn % 7) as u16, &payload(lsn));
    offsets.insert(lsn, offset);
}

/// Resolves the offsets of what the last flush has written.
fn resolve(
    journal: &Journal,
    offsets: &mut BTreeMap<u64, u32>,
    places: &mut BTreeMap<u64, Position>,
) {
    for batch in journal.written_batches() {
        for lsn in batch.first_lsn..batch.first_lsn + u64::from(batch.records) {
            places.insert(lsn, batch.payload(offsets.remove(&lsn).unwrap()));
        }
    }
}

fn read(journal: &mut Journal, at: Position, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    let reader = journal.segment_reader(at.segment).unwrap();
    assert_eq!(reader.read_at(at.offset, &mut bytes).unwrap(), len);
    bytes
}

#[test]
fn payloads_lie_where_the_journal_says_before_and_after_a_restart() {
    let disk = SimDisk::new();
    let (mut journal, _) = open(&disk).unwrap();
    let (mut offsets, mut places) = (BTreeMap::new(), BTreeMap::new());
    for round in 0..60 {
        for _ in 0..round % 5 {
            append(&mut journal, &mut offsets);
        }
        let taken = journal.take();
        // What is appended while a flush is out belongs to the next one.
        append(&mut journal, &mut offsets);
        let mut taken = taken;
        if round % 7 > 0 {
            taken.run(round % 2 == 0).unwrap();
        }
        journal.give_back(taken);
        resolve(&journal, &mut offsets, &mut places);
    }
    flush(&mut journal, true).unwrap();
    resolve(&journal, &mut offsets, &mut places);
    assert!(offsets.is_empty());
    assert_eq!(places.len() as u64, journal.last());
    assert!(places.last_key_value().unwrap().1.segment > 1, "the journal has rolled");
    for (&lsn, &at) in &places {
        assert_eq!(read(&mut journal, at, payload(lsn).len()), payload(lsn), "{lsn}");
    }
    drop(journal);
    let (mut journal, recovery) = open(&disk).unwrap();
    let recovered: BTreeMap<u64, Position> =
        recovery.records(1).map(|record| record.map(|r| (r.lsn, r.at)).unwrap()).collect();
    assert_eq!(recovered, places);
    assert_eq!(read(&mut journal, places[&1], payload(1).len()), payload(1));
}

#[test]
fn an_empty_flush_has_written_nothing() {
    let disk = SimDisk::new();
    let (mut journal, _) = open(&disk).unwrap();
    append(&mut journal, &mut BTreeMap::new());
    flush(&mut journal, true).unwrap();
    assert_eq!(journal.written_batches().len(), 1);
    flush(&mut journal, true).unwrap();
    assert!(journal.written_batches().is_empty());
}

#[test]
fn a_reclaimed_segment_has_no_reader() {
    let disk = SimDisk::new();
    let (mut journal, _) = open(&disk).unwrap();
    while journal.status().segments < 3 {
        append(&mut journal, &mut BTreeMap::new());
        flush(&mut journal, true).unwrap();
    }
    journal.segment_reader(1).unwrap();
    journal.reclaim(journal.last(), 0);
    let gone = journal.segment_reader(1).unwrap_err();
    assert_eq!(gone.kind(), ErrorKind::Invalid);
    assert!(gone.to_string().contains("reclaimed"), "{gone}");
    journal.segment_reader(3).unwrap();
}
