//! The journal that `docs/FORMAT.md` shows opens in this build and every later one.
#![allow(clippy::unwrap_used, reason = "a test ends where it fails")]

mod common;

use common::{commit, options};
use destage_journal::Journal;
use destage_testkit::SimDisk;
use std::sync::Arc;

fn documented_image() -> Vec<u8> {
    let document = include_str!("../../../docs/FORMAT.md");
    let shown = document.split("```hexdump\n").nth(1).unwrap().split("```").next().unwrap();
    let mut image = vec![0; 65_536];
    for line in shown.lines() {
        let mut words = line.split_whitespace();
        let offset = usize::from_str_radix(words.next().unwrap(), 16).unwrap();
        for (i, byte) in words.enumerate() {
            image[offset + i] = u8::from_str_radix(byte, 16).unwrap();
        }
    }
    image
}

#[test]
fn the_documented_journal_opens_and_goes_on() {
    let disk = SimDisk::new();
    disk.edit("segment-0000000001", |b| *b = documented_image());
    let open = || {
        let own = destage_journal::Options { catalog: Vec::new(), ..options() };
        Journal::open(Arc::new(disk.clone()), own).unwrap()
    };
    let (mut journal, recovery) = open();
    assert_eq!(journal.uuid(), "00010203-0405-4607-8809-0a0b0c0d0e0f");
    assert!(recovery.clean_shutdown && journal.incarnation() == 2);
    let records: Vec<_> = recovery.records(1).map(Result::unwrap).collect();
    assert_eq!(records.len(), 2);
    assert_eq!(
        (records[0].lsn, records[0].domain, &records[0].payload[..]),
        (1, 0, &b"first group"[..])
    );
    assert_eq!((records[1].lsn, records[1].domain, records[1].payload.len()), (2, 7, 0));
    assert_eq!(records[1].stamp_ns, records[0].stamp_ns + 1_000);
    assert_eq!(*records[0].catalog, *b"example catalog");
    assert_eq!(commit(&mut journal, b"more"), 3);
    drop(journal);
    assert_eq!(open().1.last_lsn, 3);
}
