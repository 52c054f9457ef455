//! Starts by the summaries of sealed segments: what they tell, that payloads are not read, and that one which is lost, torn
//! or of another life of its file changes nothing.
#![allow(clippy::unwrap_used, reason = "a test ends where it fails")]

mod common;

use common::{commit, options, summarising};
use destage_journal::{Error, ErrorKind, Journal, Options, Recovery};
use destage_testkit::SimDisk;
use std::sync::Arc;

fn open(disk: &SimDisk, options: Options) -> Result<(Journal, Recovery), Error> {
    Journal::open(Arc::new(disk.clone()), options)
}

/// A journal of several segments, and the payload of each of its groups.
fn written() -> (SimDisk, Vec<Vec<u8>>) {
    let disk = SimDisk::new();
    let (mut journal, _) = open(&disk, summarising()).unwrap();
    let payloads: Vec<Vec<u8>> = (0..120u8).map(|k| vec![k; 100 + 37 * usize::from(k)]).collect();
    for payload in &payloads {
        commit(&mut journal, payload);
    }
    assert!(journal.status().segments > 5);
    drop(journal);
    (disk, payloads)
}

fn segment(number: u64) -> String {
    format!("segment-{number:010}")
}

/// Opens by summaries and checks that they are those of these payloads.
fn check(disk: &SimDisk, payloads: &[Vec<u8>]) {
    let (_, recovery) = open(disk, summarising()).unwrap();
    let mut summaries = recovery.summaries(3);
    for (lsn, payload) in (3..).zip(&payloads[2..]) {
        let found = summaries.advance().unwrap().unwrap();
        assert_eq!((found.lsn, found.stamp_ns, found.domain), (lsn, lsn * 1_000, (lsn % 7) as u16));
        assert_eq!(found.payload_bytes as usize, payload.len());
        assert_eq!(found.summary, &payload[..20]);
        let bytes = disk.bytes(&segment(found.at.segment)).unwrap();
        let at = found.at.offset as usize;
        assert_eq!(&bytes[at..at + payload.len()], payload);
    }
    assert_eq!(summaries.advance().unwrap(), None);
}

/// Somewhere in the payloads of a sealed segment.
const IN_A_PAYLOAD: usize = 20_000;

#[test]
fn payloads_of_sealed_segments_are_not_read() {
    let (disk, payloads) = written();
    check(&disk, &payloads);
    disk.edit(&segment(3), |bytes| bytes[IN_A_PAYLOAD] ^= 1);
    let (_, recovery) = open(&disk, summarising()).expect("nobody has looked at the payload");
    assert_eq!(recovery.last_lsn, 120);
    // The control: a start that reads everything finds it.
    assert_eq!(open(&disk, options()).unwrap_err().kind(), ErrorKind::Corrupt);
    assert!(destage_journal::check(&disk).is_err(), "a check reads everything");
}

/// Changes the summary of segment 3 and checks that the segment is read instead: what it tells is the same, and damage to a
/// payload is noticed.
fn read_whole_if(change: impl Fn(&SimDisk)) {
    let (disk, payloads) = written();
    change(&disk);
    check(&disk, &payloads);
    disk.edit(&segment(3), |bytes| bytes[IN_A_PAYLOAD] ^= 1);
    assert_eq!(open(&disk, summarising()).unwrap_err().kind(), ErrorKind::Corrupt);
}

#[test]
fn a_lost_summary_means_that_the_segment_is_read() {
    read_whole_if(|disk| {
        disk.edit(&segment(3), |bytes| {
            let tail = bytes.len() - 4_096;
            bytes[tail..].fill(0);
        });
    });
}

#[test]
fn a_torn_summary_means_that_the_segment_is_read() {
    let (disk, _) = written();
    let bytes = disk.bytes(&segment(3)).unwrap();
    let sectors = (bytes.len() - 4_096..bytes.len()).step_by(512);
    let held: Vec<usize> =
        sectors.filter(|&at| bytes[at..at + 512].iter().any(|&byte| byte != 0)).collect();
    assert!(held.len() > 1, "trailer and body are in several sectors");
    for at in held {
        read_whole_if(|disk| disk.edit(&segment(3), |bytes| bytes[at..at + 512].fill(0)));
    }
}

#[test]
fn a_stale_summary_means_that_the_segment_is_read() {
    // As it stands at the end of a file that was recycled, where the new one did not reach the medium: whole and sound.
    read_whole_if(|disk| {
        let earlier = disk.bytes(&segment(2)).unwrap();
        disk.edit(&segment(3), |bytes| {
            let tail = bytes.len() - 4_096;
            bytes[tail..].copy_from_slice(&earlier[tail..]);
        });
    });
}

#[test]
fn a_segment_that_goes_on_after_a_restart_is_summarised_whole() {
    let disk = SimDisk::new();
    let mut payloads = Vec::new();
    for life in 0..60u8 {
        // Some lives know of no summaries.
        let options = if life % 5 == 4 { options() } else { summarising() };
        let (mut journal, _) = open(&disk, options).unwrap();
        for group in 0..3 {
            payloads.push(vec![life; 1_500 + group]);
            commit(&mut journal, &payloads[payloads.len() - 1]);
        }
    }
    check(&disk, &payloads);
}

#[test]
fn records_larger_than_half_a_segment_with_their_summary_still_fit() {
    let disk = SimDisk::new();
    let all =
        Options { summarise: Some(|payload, out| out.extend_from_slice(payload)), ..options() };
    let (mut journal, _) = open(&disk, all.clone()).unwrap();
    let len = journal.payload_bytes_max();
    for k in 0..6 {
        commit(&mut journal, &vec![k; len]);
        commit(&mut journal, &[k; 3]);
    }
    drop(journal);
    let (_, recovery) = open(&disk, all).unwrap();
    let mut summaries = recovery.summaries(1);
    for k in 0..6u8 {
        assert_eq!(summaries.advance().unwrap().unwrap().summary, vec![k; len]);
        assert_eq!(summaries.advance().unwrap().unwrap().summary, [k; 3]);
    }
}
