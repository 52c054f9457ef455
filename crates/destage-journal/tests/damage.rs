//! Damage to what was known durable is refused with its place; what was not is cut, and stays cut.
#![allow(clippy::unwrap_used, reason = "a test ends where it fails")]

mod common;

use common::{commit, flush, open, options, payloads};
use destage_journal::{
    Disk, Error, ErrorKind, Position, SegmentState, check, export, inspect, plan_repair, repair,
};
use destage_testkit::SimDisk;
use destage_testkit::disk::Random;
use std::sync::Arc;

/// Some segments, closed. Returns the payloads.
fn sample(disk: &SimDisk) -> Vec<Vec<u8>> {
    let (mut journal, _) = open(disk).unwrap();
    let payloads: Vec<_> = (1..=120u8).map(|i| vec![i; 200 + i as usize * 14]).collect();
    for payload in &payloads {
        commit(&mut journal, payload);
    }
    journal.close().unwrap();
    payloads
}

fn refused(disk: &SimDisk) -> Error {
    let Err(error) = open(disk) else { panic!("the damage went unnoticed") };
    error
}

/// The mark that a further segment was begun is read only where that one is missing.
const FOLLOWED: u8 = 4;

/// Every batch of a segment that is read: where it starts and what its checksum covers.
fn batches(bytes: &[u8]) -> Vec<(usize, usize)> {
    let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize;
    let mut out = Vec::new();
    let mut at = (512 + word(72)).next_multiple_of(4096);
    while at < bytes.len() && &bytes[at..at + 4] == b"DSTB" && bytes[at + 48] & FOLLOWED == 0 {
        let end = at + 56 + word(at + 8);
        out.push((at, end));
        at = end.next_multiple_of(512);
    }
    out
}

#[test]
fn a_flip_in_any_durable_batch_is_refused_with_segment_and_offset() {
    let disk = SimDisk::new();
    sample(&disk);
    let mut random = Random(7);
    let segments = check(&disk).unwrap().unwrap().segments as u64;
    assert!(segments >= 3);
    for segment in 1..=segments {
        let name = format!("segment-{segment:010}");
        let found = batches(&disk.bytes(&name).unwrap());
        // The journal's very last batch is the mark that says everything before it is durable.
        let count = found.len() - usize::from(segment == segments);
        for &(start, end) in &found[..count] {
            let places =
                [start, start + 5, start + 9, start + 13, start + 20, start + 30, start + 44];
            let somewhere = start + random.below(end - start);
            for place in places.into_iter().chain([somewhere, end - 1]) {
                let fork = disk.fork();
                fork.edit(&name, |b| b[place] ^= 1 << random.below(8));
                let error = refused(&fork);
                assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
                let at = Position { segment, offset: start as u64 };
                assert_eq!(error.position(), Some(at), "flip at {place}: {error}");
                assert!(error.to_string().contains(&format!("destage journal repair --cut {at}")));
            }
        }
    }
}

#[test]
fn a_flip_in_any_header_or_catalog_is_refused() {
    let disk = SimDisk::new();
    sample(&disk);
    let segments = check(&disk).unwrap().unwrap().segments as u64;
    for segment in 1..=segments {
        for place in (0..84).chain(512..512 + options().catalog.len()) {
            let fork = disk.fork();
            fork.edit(&format!("segment-{segment:010}"), |b| b[place] ^= 0x10);
            let error = refused(&fork);
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{place}: {error}");
            assert_eq!(error.position().unwrap().segment, segment, "{place}: {error}");
        }
    }
}

#[test]
fn a_missing_segment_is_refused_by_its_number() {
    let disk = SimDisk::new();
    sample(&disk);
    disk.remove("segment-0000000002").unwrap();
    let error = refused(&disk);
    assert_eq!(error.position(), Some(Position { segment: 2, offset: 0 }), "{error}");
    assert!(error.to_string().contains("missing"), "{error}");
}

#[test]
fn a_cut_file_is_refused() {
    let disk = SimDisk::new();
    sample(&disk);
    for (segment, keep) in [(1, 9_000), (2, 4_000), (3, 40_000)] {
        let fork = disk.fork();
        fork.edit(&format!("segment-{segment:010}"), |b| b.truncate(keep));
        assert_eq!(refused(&fork).kind(), ErrorKind::Corrupt);
    }
}

#[test]
fn another_format_version_is_refused_as_such() {
    let disk = SimDisk::new();
    sample(&disk);
    disk.edit("segment-0000000001", |b| {
        b[8] = 2;
        let crc = crc32c::crc32c(&b[..12]);
        b[12..16].copy_from_slice(&crc.to_le_bytes());
    });
    let error = refused(&disk);
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("journal format 2"), "{error}");
}

#[test]
fn a_torn_tail_is_cut_and_stays_cut() {
    let disk = SimDisk::new();
    let (mut journal, _) = open(&disk).unwrap();
    commit(&mut journal, b"durable");
    let end = inspect_end(&disk);
    // More than the first write of the next start covers.
    for payload in [&[2; 5000][..], &[3; 5000], &[4; 5000]] {
        let lsn = journal.last() + 1;
        journal.append(lsn, lsn * 1_000, lsn as u16, payload);
        flush(&mut journal, false).unwrap();
    }
    drop(journal);
    disk.kill();
    // The second of four batches is torn; the third and fourth reached the medium whole.
    disk.edit("segment-0000000001", |b| b[end + 600] ^= 0xFF);
    let whole = disk.bytes("segment-0000000001").unwrap();
    let checked = check(&disk).unwrap().unwrap();
    assert_eq!(checked.torn.map(|t| t.at), Some(Position { segment: 1, offset: end as u64 }));

    let (mut journal, recovery) = open(&disk).unwrap();
    let torn = recovery.torn.unwrap();
    assert_eq!(torn.at.offset, end as u64);
    assert!(torn.bytes > 15_000, "what was discarded is told: {torn:?}");
    assert_eq!(payloads(&recovery, 1), [b"durable"]);
    // Whatever the cut left must not follow what is written now, batch for batch as before.
    let now = disk.bytes("segment-0000000001").unwrap();
    let survived =
        (end + 512..whole.len()).filter(|&i| whole[i] != 0 && now[i] == whole[i]).count();
    assert_eq!(survived, 0, "the cut bytes are overwritten");
    commit(&mut journal, &[9; 700]);
    for _ in 0..3 {
        drop(journal);
        let (again, recovery) = open(&disk).unwrap();
        assert_eq!(recovery.torn, None);
        assert_eq!(payloads(&recovery, 1), [b"durable".to_vec(), vec![9; 700]]);
        journal = again;
    }
}

fn inspect_end(disk: &SimDisk) -> usize {
    let reports = inspect(disk).unwrap();
    let ends = reports.iter().filter_map(|r| match r.state {
        SegmentState::Begun { end, .. } => Some(end as usize),
        _ => None,
    });
    ends.max().unwrap()
}

/// The overwriting after a cut is one guard, the incarnation in each batch the other: here the old bytes are put back.
#[test]
fn what_a_cut_discarded_is_not_taken_for_new_even_if_its_bytes_return() {
    for forge in [false, true] {
        let disk = SimDisk::new();
        let (mut journal, _) = open(&disk).unwrap();
        let end = inspect_end(&disk);
        journal.append(1, 1_000, 1, b"to be torn");
        flush(&mut journal, false).unwrap();
        journal.append(2, 2_000, 2, b"to be discarded");
        flush(&mut journal, false).unwrap();
        drop(journal);
        let discarded = disk.bytes("segment-0000000001").unwrap()[end + 512..end + 1024].to_vec();
        disk.edit("segment-0000000001", |b| b[end + 60] ^= 1);
        let (journal, recovery) = open(&disk).unwrap();
        assert_eq!(recovery.last_lsn, 0);
        let uuid: Vec<u8> = hex(&journal.uuid().replace('-', ""));
        drop(journal);
        // The new incarnation's mark took the torn batch's place and sequence; the old batch fits behind it but for its
        // incarnation (and its number, which the forgery makes fit as well).
        let mut old = discarded;
        old[32..40].copy_from_slice(&1u64.to_le_bytes());
        old[40..48].copy_from_slice(&0u64.to_le_bytes());
        if forge {
            old[16..24].copy_from_slice(&2u64.to_le_bytes());
        }
        let len = u32::from_le_bytes(old[8..12].try_into().unwrap()) as usize;
        let crc = crc32c::crc32c_append(crc32c::crc32c(&uuid), &old[8..56 + len]);
        old[4..8].copy_from_slice(&crc.to_le_bytes());
        disk.edit("segment-0000000001", |b| b[end + 512..end + 1024].copy_from_slice(&old));
        let (_, recovery) = open(&disk).unwrap();
        let expected = if forge { 1 } else { 0 };
        assert_eq!(recovery.last_lsn, expected, "only the incarnation keeps it out");
    }
}

fn hex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|i| u8::from_str_radix(&text[i..i + 2], 16).unwrap()).collect()
}

/// A journal just before its second segment is begun, and how that segment would start then: header and catalog.
fn before_a_roll() -> (SimDisk, Vec<u8>) {
    let disk = SimDisk::new();
    let (mut journal, _) = open(&disk).unwrap();
    loop {
        let before = disk.fork();
        commit(&mut journal, &[7; 7_000]);
        if check(&disk).unwrap().unwrap().segments == 2 {
            return (before, disk.bytes(SECOND).unwrap()[..1024].to_vec());
        }
    }
}

const SECOND: &str = "segment-0000000002";

#[test]
fn a_header_without_its_catalog_does_not_come_back_with_a_later_catalog() {
    let (disk, start) = before_a_roll();
    // The file is ready, and only the header got there.
    disk.edit(SECOND, |b| {
        *b = vec![0; options().segment_bytes as usize];
        b[..512].copy_from_slice(&start[..512]);
    });
    let (mut journal, _) = open(&disk).unwrap();
    let lsn = commit(&mut journal, b"acknowledged");
    drop(journal);
    assert_eq!(check(&disk).unwrap().unwrap().segments, 1, "it lies in the first segment");
    // The next beginning has the same catalog. It gets there, and the new header does not.
    disk.edit(SECOND, |b| b[512..1024].copy_from_slice(&start[512..]));
    let (_, recovery) = open(&disk).unwrap();
    assert_eq!(recovery.last_lsn, lsn);
    assert_eq!(payloads(&recovery, lsn), [b"acknowledged"]);
}

#[test]
fn a_header_from_before_the_end_of_the_segment_before_it_is_refused() {
    let (disk, start) = before_a_roll();
    let (mut journal, _) = open(&disk).unwrap();
    let lsn = commit(&mut journal, b"acknowledged");
    drop(journal);
    disk.edit(SECOND, |b| {
        *b = vec![0; options().segment_bytes as usize];
        b[..1024].copy_from_slice(&start);
    });
    let cut = refused(&disk).position().unwrap();
    assert_eq!(cut, Position { segment: 2, offset: 0 });
    repair(&disk, cut, true).unwrap();
    let (_, recovery) = open(&disk).unwrap();
    assert_eq!(payloads(&recovery, lsn), [b"acknowledged"]);
}

#[test]
fn recycled_segments_never_show_old_records() {
    let disk = SimDisk::new();
    let (mut journal, _) = open(&disk).unwrap();
    for round in 0..400u64 {
        let lsn = commit(&mut journal, &[round as u8; 3_000]);
        journal.reclaim(lsn.saturating_sub(5), u64::MAX);
        if round % 10 == 0 {
            let fork = disk.fork();
            let (again, recovery) = open(&fork).unwrap();
            assert_eq!(recovery.last_lsn, lsn);
            for record in recovery.records(1) {
                let record = record.unwrap();
                assert_eq!(record.payload, [(record.lsn - 1) as u8; 3_000]);
            }
            drop(again);
        }
    }
    let names = disk.names();
    assert!(names.len() <= 5, "recycled, not piled up: {names:?}");
    assert!(names.iter().any(|n| n.as_str() > "segment-0000000018"), "{names:?}");
    // The bytes of old records are there, in the part of a recycled segment that is not overwritten yet.
    let status = journal.status();
    assert!(status.bytes <= 5 * options().segment_bytes, "{status:?}");
}

#[test]
fn a_damaged_journal_is_exported_up_to_the_damage() {
    let disk = SimDisk::new();
    let expected = sample(&disk);
    let name = "segment-0000000002";
    let (start, _) = batches(&disk.bytes(name).unwrap())[4];
    disk.edit(name, |b| b[start + 70] ^= 1);
    let shared: Arc<dyn Disk> = Arc::new(disk);
    let (records, damage) = export(&shared, 3).unwrap();
    let read: Vec<_> = records.map(|r| r.unwrap()).collect();
    assert_eq!(damage.unwrap().position(), Some(Position { segment: 2, offset: start as u64 }));
    assert_eq!(read[0].lsn, 3);
    assert!(read.len() > 20 && read.len() < 117);
    assert!(read.iter().all(|r| r.payload == expected[r.lsn as usize - 1]));
}

#[test]
fn repair_refuses_without_consent_then_cuts_and_keeps_the_damaged_files() {
    let disk = SimDisk::new();
    let expected = sample(&disk);
    let name = "segment-0000000002";
    let (start, _) = batches(&disk.bytes(name).unwrap())[4];
    disk.edit(name, |b| b[start + 70] ^= 1);
    let damaged = disk.bytes(name).unwrap();
    let cut = refused(&disk).position().unwrap();

    let unwilling = repair(&disk, cut, false).unwrap_err();
    assert_eq!(unwilling.kind(), ErrorKind::Invalid);
    assert!(unwilling.to_string().contains("seen up to 120"), "{unwilling}");
    assert_eq!(disk.bytes(name).unwrap(), damaged);
    let nowhere = plan_repair(&disk, Position { offset: cut.offset + 512, ..cut }).unwrap_err();
    assert_eq!(nowhere.kind(), ErrorKind::Invalid);

    let report = repair(&disk, cut, true).unwrap();
    let last = report.last_lsn.unwrap();
    assert_eq!(report.lost_to_lsn, 120);
    assert_eq!(report.kept_aside[0], "segment-0000000002.damaged");
    assert_eq!(disk.bytes("segment-0000000002.damaged").unwrap(), damaged);
    let (mut journal, recovery) = open(&disk).unwrap();
    assert_eq!(recovery.last_lsn, last);
    assert_eq!(payloads(&recovery, 1), expected[..last as usize]);
    for _ in 0..80 {
        commit(&mut journal, &[5; 2_000]);
    }
    drop(journal);
    assert_eq!(open(&disk).unwrap().1.last_lsn, last + 80);
}

#[test]
fn repair_of_a_missing_or_headless_segment_keeps_what_is_before_it() {
    for missing in [true, false] {
        let disk = SimDisk::new();
        let expected = sample(&disk);
        if missing {
            disk.remove("segment-0000000002").unwrap();
        } else {
            disk.edit("segment-0000000002", |b| b[20] ^= 1);
        }
        let cut = refused(&disk).position().unwrap();
        let report = repair(&disk, cut, true).unwrap();
        let (_, recovery) = open(&disk).unwrap();
        assert_eq!(Some(recovery.last_lsn), report.last_lsn);
        assert_eq!(payloads(&recovery, 1), expected[..recovery.last_lsn as usize]);
    }
}
