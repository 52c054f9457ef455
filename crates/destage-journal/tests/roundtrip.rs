//! What goes in comes out, in one process and across restarts.
#![allow(clippy::unwrap_used, reason = "a test ends where it fails")]

mod common;

use common::{commit, flush, open, options, payloads};
use destage_journal::{ErrorKind, Journal};
use destage_testkit::SimDisk;
use std::sync::Arc;

#[test]
fn records_come_back_in_order_after_a_kill() {
    let disk = SimDisk::new();
    let (mut journal, recovery) = open(&disk).unwrap();
    assert!(recovery.created && recovery.clean_shutdown && recovery.last_lsn == 0);
    let uuid = journal.uuid().to_owned();
    for i in 0..100u8 {
        let durable = commit(&mut journal, &vec![i; i as usize * 3]);
        assert_eq!(durable, u64::from(i) + 1);
    }
    disk.kill();
    let (journal, recovery) = open(&disk).unwrap();
    assert_eq!(journal.uuid(), uuid);
    assert_eq!(journal.incarnation(), 2);
    assert_eq!((recovery.first_lsn, recovery.last_lsn), (1, 100));
    assert!(!recovery.clean_shutdown && recovery.torn.is_none());
    let expected: Vec<_> = (0..100u8).map(|i| vec![i; i as usize * 3]).collect();
    assert_eq!(payloads(&recovery, 1), expected);
    assert_eq!(payloads(&recovery, 60), expected[59..]);
}

#[test]
fn a_closed_journal_says_so_once() {
    let disk = SimDisk::new();
    let (mut journal, _) = open(&disk).unwrap();
    journal.append(1, 1_000, 1, b"one");
    assert_eq!(journal.close().unwrap(), 1);
    let (journal, recovery) = open(&disk).unwrap();
    assert!(recovery.clean_shutdown);
    drop(journal);
    assert!(!open(&disk).unwrap().1.clean_shutdown, "the second one was not closed");
}

#[test]
fn unsynced_writes_report_what_is_written_and_an_empty_flush_syncs_them() {
    let disk = SimDisk::new();
    let (mut journal, _) = open(&disk).unwrap();
    journal.append(1, 1_000, 1, b"one");
    assert_eq!(flush(&mut journal, false).unwrap(), 1);
    assert_eq!(journal.status().durable_lsn, 0);
    assert!(journal.mark_due());
    assert_eq!(flush(&mut journal, true).unwrap(), 1);
    assert_eq!(journal.status().durable_lsn, 1);
    assert!(journal.mark_due(), "durable, but no mark says so yet");
    flush(&mut journal, true).unwrap();
    assert!(!journal.mark_due());
    let before = disk.operations(destage_testkit::disk::Count::All);
    flush(&mut journal, true).unwrap();
    assert_eq!(disk.operations(destage_testkit::disk::Count::All), before, "nothing left to do");
}

#[test]
fn appending_goes_on_while_a_flush_is_under_way() {
    let disk = SimDisk::new();
    let (mut journal, _) = open(&disk).unwrap();
    journal.append(1, 1_000, 1, b"one");
    let mut first = journal.take();
    journal.append(2, 2_000, 2, b"two");
    assert_eq!(first.run(true).unwrap(), 1);
    journal.give_back(first);
    assert_eq!(flush(&mut journal, true).unwrap(), 2);
    disk.kill();
    assert_eq!(payloads(&open(&disk).unwrap().1, 1), [b"one", b"two"]);
}

#[test]
fn a_flush_given_back_unrun_is_written_by_the_next() {
    let disk = SimDisk::new();
    let (mut journal, _) = open(&disk).unwrap();
    journal.append(1, 1_000, 1, b"one");
    let unrun = journal.take();
    journal.append(2, 2_000, 2, b"two");
    journal.give_back(unrun);
    journal.append(3, 3_000, 3, b"three");
    assert_eq!(flush(&mut journal, true).unwrap(), 3);
    disk.kill();
    assert_eq!(payloads(&open(&disk).unwrap().1, 1), [&b"one"[..], b"two", b"three"]);
}

#[test]
fn each_record_has_the_catalog_in_force_when_it_was_written() {
    let disk = SimDisk::new();
    let (mut journal, _) = open(&disk).unwrap();
    journal.append(1, 1_000, 1, b"one");
    journal.set_catalog(b"catalog two").unwrap();
    journal.append(2, 2_000, 2, b"two");
    flush(&mut journal, true).unwrap();
    let refused = journal.set_catalog(&vec![0; options().segment_bytes as usize]);
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::Invalid);
    drop(journal);
    // The catalog of the last segment stays in force if the options name none.
    let silent = destage_journal::Options { catalog: Vec::new(), ..options() };
    let (mut journal, recovery) = Journal::open(Arc::new(disk.clone()), silent).unwrap();
    commit(&mut journal, b"three");
    let catalogs: Vec<_> = journal.read(1, 3).map(|r| r.unwrap().catalog.to_vec()).collect();
    assert_eq!(catalogs, [b"catalog one", b"catalog two", b"catalog two"]);
    assert_eq!(payloads(&recovery, 1).len(), 2);
}

#[test]
fn numbering_goes_on_elsewhere_after_a_skip_even_without_a_record() {
    let disk = SimDisk::new();
    let (mut journal, _) = open(&disk).unwrap();
    commit(&mut journal, b"one");
    journal.skip_to(50);
    assert_eq!(journal.last(), 49);
    assert_eq!(flush(&mut journal, true).unwrap(), 49);
    disk.kill();
    let (mut journal, recovery) = open(&disk).unwrap();
    assert_eq!((journal.last(), recovery.last_lsn), (49, 49));
    commit(&mut journal, b"fifty");
    journal.skip_to(90);
    commit(&mut journal, b"ninety");
    disk.kill();
    let (_, recovery) = open(&disk).unwrap();
    let lsns: Vec<_> = recovery.records(1).map(|r| r.unwrap().lsn).collect();
    assert_eq!(lsns, [1, 50, 90]);
}

#[test]
#[should_panic(expected = "without gaps")]
fn a_gap_in_the_numbers_is_a_bug() {
    let (mut journal, _) = open(&SimDisk::new()).unwrap();
    journal.append(2, 0, 0, b"");
}

#[test]
#[should_panic(expected = "one flush at a time")]
fn a_second_flush_is_a_bug() {
    let (mut journal, _) = open(&SimDisk::new()).unwrap();
    let _first = journal.take();
    let _second = journal.take();
}

#[test]
fn large_records_and_large_flushes_cross_segments() {
    let disk = SimDisk::new();
    let (mut journal, _) = open(&disk).unwrap();
    let max = journal.payload_bytes_max();
    let sizes = [0, 1, max, max, 511, max / 3, max, 5_000, 512 - 56 - 14, 4096];
    let mut expected = Vec::new();
    for (i, &size) in sizes.iter().cycle().take(60).enumerate() {
        let payload = vec![i as u8; size];
        let lsn = journal.last() + 1;
        journal.append(lsn, lsn * 1_000, (lsn % 7) as u16, &payload);
        expected.push(payload);
    }
    assert!(journal.buffered_bytes() > expected.iter().map(Vec::len).sum());
    assert_eq!(flush(&mut journal, true).unwrap(), 60);
    let read: Vec<_> = journal.read(11, 30).map(|r| r.unwrap().payload).collect();
    assert_eq!(read, expected[10..30]);
    disk.crash(1);
    let (_, recovery) = open(&disk).unwrap();
    assert!(recovery.segments > 10);
    assert_eq!(payloads(&recovery, 1), expected);
}
