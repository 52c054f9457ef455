//! Segments leave when their groups are decided and old enough, and not before.
#![allow(clippy::unwrap_used, reason = "a test ends where it fails")]

mod common;

use common::{commit, open, options};
use destage_journal::{ErrorKind, Journal, Options};
use destage_testkit::SimDisk;
use std::sync::Arc;
use std::time::Duration;

#[test]
fn undecided_groups_are_never_reclaimed_whatever_they_take() {
    let disk = SimDisk::new();
    let small = Options { journal_bytes_max: 1 << 20, ..options() };
    let (mut journal, _) = Journal::open(Arc::new(disk), small).unwrap();
    for _ in 0..800 {
        commit(&mut journal, &[1; 3_000]);
        journal.reclaim(0, u64::MAX);
    }
    let status = journal.status();
    assert_eq!((status.oldest_lsn, status.oldest_needed_lsn), (1, 1));
    assert!(status.pinned_bytes > status.journal_bytes_max, "and that is shown: {status:?}");
    assert_eq!(journal.read(1, 800).count(), 800);
}

#[test]
fn decided_groups_stay_readable_for_the_retention() {
    let disk = SimDisk::new();
    let retaining = Options { retain: Duration::from_nanos(200_000), ..options() };
    let disk = Arc::new(disk);
    let (mut journal, _) = Journal::open(disk.clone(), retaining.clone()).unwrap();
    assert_eq!(journal.status().oldest_stamp_ns, None);
    // Group n carries the stamp n * 1,000 ns.
    for _ in 0..400 {
        commit(&mut journal, &[1; 3_000]);
    }
    journal.reclaim(400, 400_000);
    let oldest = journal.status().oldest_lsn;
    assert!((180..=201).contains(&oldest), "{oldest}");
    assert_eq!(journal.read(201, 400).count(), 200);
    // A clock that went back makes nothing older.
    journal.reclaim(400, 1);
    let status = journal.status();
    assert_eq!((status.oldest_lsn, status.oldest_stamp_ns), (oldest, Some(oldest * 1_000)));
    journal.close().unwrap();
    let (mut journal, _) = Journal::open(disk, retaining).unwrap();
    let status = journal.status();
    assert_eq!((status.oldest_lsn, status.oldest_stamp_ns), (oldest, Some(oldest * 1_000)));
    journal.reclaim(400, u64::MAX);
    assert_eq!(journal.status().segments, 1, "the one being written stays");
}

#[test]
fn the_size_limit_ends_the_retention_of_decided_groups_early() {
    let disk = SimDisk::new();
    let journal_bytes_max = 1 << 20;
    let limited = Options { retain: Duration::from_secs(600), journal_bytes_max, ..options() };
    let (mut journal, _) = Journal::open(Arc::new(disk), limited).unwrap();
    for lsn in 1..=1_000 {
        commit(&mut journal, &[1; 3_000]);
        journal.reclaim(lsn, 0);
        assert!(journal.status().bytes <= journal_bytes_max + options().segment_bytes);
    }
    assert!(journal.status().oldest_lsn > 600);
}

#[test]
fn reading_a_reclaimed_segment_says_so() {
    let disk = SimDisk::new();
    let (mut journal, _) = open(&disk).unwrap();
    for _ in 0..200 {
        commit(&mut journal, &[1; 3_000]);
    }
    let mut records = journal.read(1, 200);
    assert_eq!(records.next().unwrap().unwrap().lsn, 1);
    journal.reclaim(200, u64::MAX);
    let error = records.find_map(Result::err).unwrap();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("reclaimed"), "{error}");
    assert!(records.next().is_none());
}

#[test]
fn the_background_thread_prepares_and_recycles() {
    let disk = SimDisk::new();
    let threaded = Options { background: true, ..options() };
    let (mut journal, _) = Journal::open(Arc::new(disk.clone()), threaded.clone()).unwrap();
    for i in 0..2_000u64 {
        let lsn = commit(&mut journal, &[i as u8; 3_000]);
        journal.reclaim(lsn.saturating_sub(20), u64::MAX);
    }
    assert_eq!(journal.close().unwrap(), 2_000);
    let (_, recovery) = Journal::open(Arc::new(disk.clone()), threaded).unwrap();
    assert_eq!(recovery.last_lsn, 2_000);
    for record in recovery.records(1) {
        let record = record.unwrap();
        assert_eq!(record.payload, [(record.lsn - 1) as u8; 3_000]);
    }
    assert!(disk.names().len() < 12, "{:?}", disk.names());
}

#[test]
fn a_full_disk_ends_the_retention_segment_by_segment_but_takes_nothing_undecided() {
    let disk = SimDisk::new();
    let retaining = Options { retain: Duration::from_secs(600), ..options() };
    let (mut journal, _) = Journal::open(Arc::new(disk), retaining).unwrap();
    for _ in 0..400 {
        commit(&mut journal, &[1; 3_000]);
    }
    journal.reclaim(200, 0);
    assert_eq!(journal.status().oldest_lsn, 1, "all of it is young");
    let mut oldest = 1;
    while journal.reclaim_oldest() {
        let now = journal.status().oldest_lsn;
        assert!(oldest < now && now <= 201, "{oldest} to {now}");
        oldest = now;
    }
    assert!(oldest > 100, "{oldest}");
    assert_eq!(journal.read(201, 400).count(), 200);
    journal.reclaim(400, 0);
    while journal.reclaim_oldest() {}
    assert_eq!(journal.status().segments, 1, "the one being written stays");
}

#[test]
fn what_is_due_is_what_would_go_first_and_stays_if_it_is_still_needed() {
    let retaining = Options { retain: Duration::from_nanos(200_000), ..options() };
    let (mut journal, _) = Journal::open(Arc::new(SimDisk::new()), retaining).unwrap();
    for _ in 0..400 {
        commit(&mut journal, &[1; 3_000]);
    }
    assert_eq!(journal.due(0, u64::MAX), None, "nothing is decided");
    assert_eq!(journal.due(400, 0), None, "nothing is old enough");
    let due = journal.due(400, 400_000).unwrap();
    assert!((2..40).contains(&due), "{due}");
    // Whoever needs something of it says so by what is decided.
    journal.reclaim(due - 1, 400_000);
    assert_eq!((journal.status().oldest_lsn, journal.due(400, 400_000)), (1, Some(due)));
    journal.reclaim(due, 400_000);
    assert_eq!(journal.status().oldest_lsn, due + 1);
    while let Some(due) = journal.due(400, u64::MAX) {
        journal.reclaim(due, u64::MAX);
    }
    assert_eq!(journal.status().segments, 1, "the one being written stays");
}
