//! What is taken away from a journal's newest files: nothing that was acknowledged goes without a word.
#![allow(clippy::unwrap_used, reason = "a test ends where it fails")]

mod common;

use common::{commit, open, options, payloads};
use destage_journal::{Disk, ErrorKind, Journal, Options, check, plan_repair, repair};
use destage_testkit::SimDisk;
use std::sync::Arc;

/// Some segments, the last one with a few groups, and how many were acknowledged. Killed, so no mark says where it ends.
fn killed() -> (SimDisk, u64) {
    let disk = SimDisk::new();
    let (mut journal, _) = open(&disk).unwrap();
    for i in 1..=60u8 {
        commit(&mut journal, &vec![i; 3_900]);
    }
    let last = journal.last();
    drop(journal);
    disk.kill();
    (disk, last)
}

/// The same with the segment behind the last one made ready.
fn killed_with_a_ready_one() -> (SimDisk, u64) {
    let disk = SimDisk::new();
    let own = Options { background: true, ..options() };
    let (mut journal, _) = Journal::open(Arc::new(disk.clone()), own).unwrap();
    for i in 1..=60u8 {
        commit(&mut journal, &vec![i; 3_900]);
    }
    let last = journal.last();
    // Its thread ends what it has begun.
    drop(journal);
    disk.kill();
    (disk, last)
}

fn segments(disk: &SimDisk) -> Vec<String> {
    let mut names: Vec<_> =
        disk.names().into_iter().filter(|name| name.starts_with("segment-")).collect();
    names.sort();
    names
}

/// Either everything that was acknowledged is there, or it is refused as damage; by a check as by a start.
fn is_noticed_or_whole(disk: &SimDisk, last: u64, what: &str) -> bool {
    let checked = check(disk);
    match open(disk) {
        Ok((_, recovery)) => {
            assert_eq!(recovery.last_lsn, last, "{what}: groups are gone without a word");
            assert_eq!(payloads(&recovery, 1).len() as u64, last, "{what}");
            assert_eq!(checked.unwrap().unwrap().last_lsn, last, "{what}");
            false
        }
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{what}: {error}");
            assert_eq!(checked.unwrap_err().kind(), ErrorKind::Corrupt, "{what}");
            true
        }
    }
}

#[test]
fn the_journals_of_these_tests_are_sound_without_a_change() {
    for (disk, last) in [killed(), killed_with_a_ready_one()] {
        assert!(segments(&disk).len() >= 4);
        assert!(!is_noticed_or_whole(&disk, last, "untouched"));
    }
}

#[test]
fn a_last_segment_that_is_cut_at_any_length_is_refused() {
    let (disk, last) = killed();
    let name = segments(&disk).pop().unwrap();
    let whole = disk.bytes(&name).unwrap().len();
    for keep in (0..whole).rev() {
        disk.edit(&name, |b| b.truncate(keep));
        let what = format!("cut to {keep} bytes");
        assert!(is_noticed_or_whole(&disk, last, &what), "{what} went unnoticed");
    }
}

#[test]
fn a_last_segment_that_is_cut_is_no_ready_one_with_another_behind_it() {
    let (disk, last) = killed_with_a_ready_one();
    let names = segments(&disk);
    for name in &names[names.len() - 2..] {
        for keep in [0, 1, 83, 84, 511, 512, 1_000, 4_096, 40_000] {
            let fork = disk.fork();
            fork.edit(name, |b| b.truncate(keep));
            is_noticed_or_whole(&fork, last, &format!("{name} cut to {keep}"));
        }
    }
}

#[test]
fn newest_segments_whose_files_are_removed_are_missed() {
    for (disk, last) in [killed(), killed_with_a_ready_one()] {
        let names = segments(&disk);
        let begun = check(&disk).unwrap().unwrap().segments;
        for kept in 1..names.len() {
            let fork = disk.fork();
            for name in &names[kept..] {
                fork.remove(name).unwrap();
            }
            let noticed = is_noticed_or_whole(&fork, last, &format!("{kept} files are left"));
            assert_eq!(noticed, kept < begun, "{kept} files are left of {begun}");
        }
    }
}

#[test]
fn a_last_segment_whose_header_is_wiped_is_missed() {
    for wiped in [84, 512, 4_096, 65_536] {
        let (disk, last) = killed();
        let name = segments(&disk).pop().unwrap();
        disk.edit(&name, |b| b[..wiped].fill(0));
        assert!(is_noticed_or_whole(&disk, last, &format!("{wiped} bytes wiped")));
    }
}

#[test]
fn bytes_that_are_taken_out_of_the_last_segment_are_missed() {
    let (disk, last) = killed();
    let name = segments(&disk).pop().unwrap();
    let places = [0, 8, 70, 84, 300, 511, 512, 523, 600, 4_095, 4_096, 4_150, 8_191, 20_000];
    for (filled, count) in (1..=16).flat_map(|count| [(false, count), (true, count)]) {
        for at in places {
            let fork = disk.fork();
            fork.edit(&name, |b| {
                b.drain(at..at + count);
                if filled {
                    b.extend(vec![0; count]);
                }
            });
            let what = format!("{count} bytes taken out at {at}, filled up: {filled}");
            // Between batches nothing is lost with them: then what follows must still be read, or missed.
            let noticed = is_noticed_or_whole(&fork, last, &what);
            assert!(noticed || filled, "{what} went unnoticed");
        }
    }
}

#[test]
fn a_journal_whose_newest_files_are_gone_goes_on_after_a_repair() {
    let (disk, _) = killed();
    let names = segments(&disk);
    let (kept, gone) = names.split_at(names.len() - 2);
    for name in gone {
        disk.remove(name).unwrap();
    }
    let cut = check(&disk).unwrap_err().position().unwrap();
    assert_eq!((cut.segment, cut.offset), (kept.len() as u64 + 1, 0));
    assert!(plan_repair(&disk, cut).unwrap().kept_aside.is_empty());
    let elsewhere = destage_journal::Position { segment: cut.segment + 1, ..cut };
    assert_eq!(plan_repair(&disk, elsewhere).unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(repair(&disk, cut, false).unwrap_err().kind(), ErrorKind::Invalid);
    let report = repair(&disk, cut, true).unwrap();
    let (mut journal, recovery) = open(&disk).unwrap();
    assert_eq!(Some(recovery.last_lsn), report.last_lsn);
    for _ in 0..40 {
        commit(&mut journal, &[5; 3_900]);
    }
    drop(journal);
    assert_eq!(open(&disk).unwrap().1.last_lsn, report.last_lsn.unwrap() + 40);
}

/// As a crash leaves it: the file is only named when it is durable.
#[test]
fn a_segment_that_a_crash_left_half_made_is_made_anew() {
    for bytes in [0, 1, 700, 65_000] {
        let (disk, last) = killed();
        disk.open("new", true).unwrap().write_at(0, &vec![0; bytes]).unwrap();
        assert!(!is_noticed_or_whole(&disk, last, &format!("{bytes} bytes were made")));
    }
}
