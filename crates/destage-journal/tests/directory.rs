//! The real directory: private, and held by one process.
#![allow(clippy::unwrap_used, reason = "a test ends where it fails")]

use destage_journal::{
    DirDisk, Disk, DiskFile, ErrorKind, Journal, LocalFile, Options, check, inspect,
};
use destage_testkit::needs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::sync::Arc;

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

fn write_some(path: &Path) -> u64 {
    let disk = Arc::new(DirDisk::open(path).unwrap());
    let (mut journal, _) = Journal::open(disk, Options::default()).unwrap();
    for _ in 0..10 {
        let lsn = journal.last() + 1;
        journal.append(lsn, lsn, 0, &[3; 1_000]);
    }
    journal.close().unwrap()
}

#[test]
fn directory_and_files_are_for_the_owner_only_and_narrowed_if_they_were_not() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal");
    write_some(&path);
    let files = || std::fs::read_dir(&path).unwrap().map(|e| e.unwrap().path());
    assert_eq!(mode(&path), 0o700);
    assert!(files().count() >= 2);
    assert!(files().all(|f| mode(&f) == 0o600));
    let widen = |path: &Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    widen(&path, 0o755);
    files().for_each(|f| widen(&f, 0o644));
    assert_eq!(write_some(&path), 20);
    assert_eq!(mode(&path), 0o700);
    assert!(files().all(|f| mode(&f) == 0o600));
}

#[test]
fn a_file_tells_what_its_disk_has_no_room_for() {
    let folder = tempfile::tempdir().unwrap();
    let disk = DirDisk::open(folder.path().join("journal")).unwrap();
    let file = disk.open("some", true).unwrap();
    assert!(file.has_room(4_096).unwrap());
    assert!(!file.has_room(u64::MAX).unwrap());
    // Asking takes nothing.
    assert_eq!(file.len().unwrap(), 0);
}

#[test]
fn a_second_process_is_refused_while_the_first_runs() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal");
    let first = DirDisk::open(&path).unwrap();
    // The lock belongs to the open file, so a second handle in this process stands for another process.
    let second = DirDisk::open(&path).unwrap_err();
    assert_eq!(second.kind(), ErrorKind::Retry);
    assert!(second.to_string().contains("another process uses the journal"), "{second}");
    drop(first);
    DirDisk::open(&path).unwrap();
}

#[test]
fn a_reader_looks_beside_the_writer_and_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal");
    write_some(&path);
    let writer = DirDisk::open(&path).unwrap();
    let reader = DirDisk::open_read_only(&path).unwrap();
    assert_eq!(check(&reader).unwrap().unwrap().last_lsn, 10);
    assert!(inspect(&reader).unwrap().len() >= 2);
    assert!(reader.remove("lock").is_err() && reader.rename("lock", "other").is_err());
    assert!(reader.open("new-file", true).is_err());
    let file = reader.open("segment-0000000001", false).unwrap();
    assert!(file.write_at(0, b"x").is_err());
    drop(writer);
    let opened = Journal::open(Arc::new(reader), Options::default());
    assert!(opened.is_err(), "a reader cannot take the journal up");
}

#[test]
fn a_link_under_a_segment_name_is_not_followed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal");
    drop(DirDisk::open(&path).unwrap());
    let victim = folder.path().join("victim");
    std::fs::write(&victim, b"untouched").unwrap();
    symlink(&victim, path.join("new")).unwrap();
    let disk = Arc::new(DirDisk::open(&path).unwrap());
    assert!(Journal::open(disk, Options::default()).is_err());
    assert_eq!(std::fs::read(&victim).unwrap(), b"untouched");
}

#[test]
fn a_file_opened_once_more_is_the_same_whatever_has_its_name() {
    let folder = tempfile::tempdir().unwrap();
    let (path, moved) = (folder.path().join("a"), folder.path().join("b"));
    std::fs::write(&path, b"ours").unwrap();
    let file = std::fs::OpenOptions::new().read(true).write(true).open(&path).unwrap();
    let file = LocalFile(file);
    std::fs::rename(&path, &moved).unwrap();
    std::fs::write(&path, b"copy").unwrap();
    let again = file.again().unwrap();
    again.write_at(0, b"mine").unwrap();
    again.sync_data().unwrap();
    assert_eq!(std::fs::read(&moved).unwrap(), b"mine");
    assert_eq!(std::fs::read(&path).unwrap(), b"copy");
}

/// What a killed process has handed to the kernel goes on, although the directory is free: it holds its handle, and nothing else.
#[test]
fn a_start_waits_for_direct_writes_of_a_process_that_was_killed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal");
    let disk = DirDisk::open(&path).unwrap();
    let file = disk.open("segment-0000000001", true).unwrap();
    let Ok(under_way) = file.direct() else {
        return needs::refused("direct writes of the temporary folder's file system");
    };
    drop((file, disk));
    let (opened, wait) = std::sync::mpsc::channel();
    let start = std::thread::spawn(move || {
        let disk = DirDisk::open(path).unwrap();
        opened.send(()).unwrap();
        disk
    });
    let early = wait.recv_timeout(std::time::Duration::from_millis(50));
    assert!(early.is_err(), "a write may still land");
    drop(under_way);
    wait.recv_timeout(std::time::Duration::from_secs(60)).unwrap();
    start.join().unwrap();
}
