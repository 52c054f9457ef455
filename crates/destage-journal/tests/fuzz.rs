//! Whatever the files hold, reading them ends in records or an error, never in a panic.
#![allow(clippy::unwrap_used, reason = "a test ends where it fails")]

mod common;

use common::{commit, open};
use destage_journal::{Disk, check, export, inspect, plan_repair, repair};
use destage_testkit::SimDisk;
use proptest::prelude::*;
use std::sync::Arc;

fn read_everything(disk: &SimDisk) {
    let _ = inspect(disk);
    let shared: Arc<dyn Disk> = Arc::new(disk.clone());
    if let Ok((records, _)) = export(&shared, 0) {
        assert!(records.take(100_000).count() < 100_000, "reading ends");
    }
    if let Err(error) = check(disk)
        && let Some(cut) = error.position()
    {
        let _ = plan_repair(disk, cut);
        // A repair at the place that the refusal names always ends the refusal, unless there is more damage before.
        if repair(disk, cut, true).is_ok() {
            let again = check(disk).err().and_then(|e| e.position());
            assert!(again.is_none_or(|p| p.segment <= cut.segment), "{again:?} after {cut}");
        }
    }
    if let Ok((mut journal, recovery)) = open(disk) {
        let count = recovery.records(0).take(100_000).filter(Result::is_ok).count();
        assert!(count < 100_000);
        if journal.last() < u64::MAX - 10 {
            commit(&mut journal, b"goes on");
        }
    }
}

fn journal_image() -> SimDisk {
    let disk = SimDisk::new();
    let (mut journal, _) = open(&disk).unwrap();
    for i in 0..60u8 {
        commit(&mut journal, &[i; 2_500]);
    }
    disk
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_files_never_panic(
        files in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..9_000), 1..4),
        magic in any::<bool>(),
    ) {
        let disk = SimDisk::new();
        for (i, bytes) in files.iter().enumerate() {
            disk.edit(&format!("segment-{:010}", i + 1), |b| {
                b.clone_from(bytes);
                if magic && b.len() > 4_200 {
                    b[..8].copy_from_slice(b"DESTAGEJ");
                    b[4_096..4_100].copy_from_slice(b"DSTB");
                }
            });
        }
        read_everything(&disk);
    }

    #[test]
    fn mutated_journals_never_panic(
        edits in prop::collection::vec((1..5u64, 0..65_536usize, any::<u8>(), 1..600usize), 1..12),
        cut in prop::option::of((1..5u64, 0..65_536usize)),
        swap in prop::option::of((1..5u64, 1..5u64)),
    ) {
        let disk = journal_image();
        for &(segment, at, byte, len) in &edits {
            disk.edit(&format!("segment-{segment:010}"), |b| {
                let end = (at + len).min(b.len());
                b.get_mut(at..end).into_iter().flatten().for_each(|b| *b ^= byte);
            });
        }
        if let Some((segment, len)) = cut {
            disk.edit(&format!("segment-{segment:010}"), |b| b.truncate(len));
        }
        if let Some((a, b)) = swap {
            let _ = disk.rename(&format!("segment-{a:010}"), &format!("segment-{b:010}"));
        }
        read_everything(&disk);
    }
}
