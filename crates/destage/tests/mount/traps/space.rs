//! Traps about space.

use super::{Trap, sh};
use crate::harness::{Scratch, has, millis, output, seconds};
use crate::mounted::Launch;
use crate::origin::{Kind, Origin};
use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Instant;

/// A small ext4 of its own, in a file; unmounted when dropped.
pub(crate) struct Disk(pub(crate) PathBuf);

impl Disk {
    pub(crate) fn new(scratch: &Scratch, mib: u64) -> Self {
        let (image, folder) = (scratch.join("disk.img"), scratch.join("disk"));
        File::create(&image).and_then(|file| file.set_len(mib << 20)).expect("a file");
        fs::create_dir(&folder).expect("a folder can be made");
        output(Command::new("mkfs.ext4").args(["-q", "-m", "0"]).arg(&image));
        output(Command::new("mount").args(["-o", "loop"]).arg(&image).arg(&folder));
        Self(folder)
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let done = Command::new("umount").arg("--lazy").arg(&self.0).status();
        if !done.as_ref().is_ok_and(std::process::ExitStatus::success) {
            eprintln!("{} stays mounted: {done:?}", self.0.display());
        }
    }
}

const FILE: usize = 1 << 20;

/// Writes durable files until there is no room; so many were made.
fn fill(trap: &Trap) -> usize {
    for number in 0.. {
        let written = File::create(trap.join(&format!("file{number}"))).and_then(|mut file| {
            file.write_all(&vec![number as u8 | 1; FILE])?;
            file.sync_all()
        });
        if let Err(error) = written {
            assert_eq!(error.kind(), ErrorKind::StorageFull, "{error}");
            return number;
        }
        assert!(number < 200, "there is no end of room");
    }
    unreachable!("it ends by itself")
}

/// What was acknowledged is never dropped for want of room at the origin: it is refused before.
#[test]
fn trap_11_a_full_origin_refuses_before_it_acknowledges() {
    let scratch = Scratch::new();
    let disk = Disk::new(&scratch, 48);
    let origin = Origin::at(disk.0.join("origin"));
    let trap = Trap::before(scratch, origin, &[]);
    let made = fill(&trap);
    assert!(made >= 20, "{made} MiB of 48");
    let wanted = made * FILE;
    let count =
        format!("for i in $(seq 0 {}); do cat file$i; done | tr -d '\\000' | wc -c", made - 1);
    assert_eq!(trap.at_the_origin(&count), format!("{wanted}\n"));
    drop(disk);
}

/// The same for what a CephFS allows, which `statfs` does not tell.
#[test]
fn trap_11_a_quota_that_is_used_up_refuses_before_it_acknowledges() {
    if !has("setfattr") {
        return;
    }
    let scratch = Scratch::for_at_most(seconds(480));
    let Some(origin) = Origin::new(Kind::Ceph, &scratch) else { return };
    sh(origin.folder(), "mkdir within; setfattr -n ceph.quota.max_bytes -v 33554432 .");
    let within = Origin::at(origin.folder().join("within/origin"));
    let trap = Trap::before(scratch, within, &[]);
    let made = fill(&trap);
    assert!((20..=32).contains(&made), "{made} MiB of 32");
    let wanted = made * FILE;
    assert_eq!(trap.at_the_origin("cat file* | tr -d '\\000' | wc -c"), format!("{wanted}\n"));
    drop(origin);
}

/// The room is taken by others after the acknowledgement: it waits, and arrives when there is room again.
#[test]
fn trap_11_what_has_no_room_any_more_waits_for_it() {
    let scratch = Scratch::new();
    let disk = Disk::new(&scratch, 48);
    let origin = Origin::at(disk.0.join("origin"));
    let mut trap = Trap::before(scratch, origin, &[]);
    for number in 0..8 {
        let mut file = File::create(trap.join(&format!("file{number}"))).expect("it is made");
        file.write_all(&vec![b'x'; FILE]).and_then(|()| file.sync_all()).expect("there is room");
    }
    sh(&disk.0, "dd if=/dev/zero of=foreign bs=1M 2>/dev/null || true");
    trap.crash();
    let all = "cat file? | tr -d '\\000' | wc -c";
    assert_eq!(trap.sh(all), format!("{}\n", 8 * FILE), "nothing is lost while there is no room");
    sh(&disk.0, "rm foreign");
    assert_eq!(trap.at_the_origin(all), format!("{}\n", 8 * FILE));
    drop(disk);
}

#[test]
fn trap_24_the_room_that_is_shown_is_less_what_waits() {
    let scratch = Scratch::new();
    let disk = Disk::new(&scratch, 64);
    let origin = Origin::at(disk.0.join("origin"));
    let trap = Trap::before(scratch, origin, &[]);
    let free = |trap: &Trap| -> u64 {
        let said = trap.sh("stat -f -c '%a %S' .");
        said.split_whitespace().map(|word| word.parse::<u64>().expect("a number")).product()
    };
    let before = free(&trap);
    fs::write(trap.join("file"), vec![1; 8 * FILE]).expect("there is room");
    let after = free(&trap);
    assert!(before > 20 << 20 && before - after >= 7 * FILE as u64, "{before} and then {after}");
    drop(trap);
    drop(disk);
}

/// Others fill the journal's disk. What is written then waits until the origin has taken older changes, and needs nobody's help.
#[test]
fn trap_29_a_full_disk_of_the_journal_frees_itself() {
    let scratch = Scratch::new();
    let disk = Disk::new(&scratch, 64);
    let origin = Origin::at(scratch.join("origin"));
    let launch = Launch::before(&scratch, &origin).journaled_in(disk.0.join("journal"));
    let mounted = launch.with(&["--journal-size", "64M", "--commit", "5s"]).start();
    sh(mounted.folder(), "echo first > first; sync first");
    sh(&disk.0, "dd if=/dev/zero of=foreign bs=64K 2>/dev/null || true");
    // More than the disk has.
    let write =
        "timeout 60 dd if=/dev/zero bs=256K count=400 2>/dev/null | tr '\\000' x > file; sync file";
    sh(mounted.folder(), write);
    let report = mounted.ask(&["status"]);
    assert!(report.status.success(), "{report:?}");
    mounted.stop();
    assert_eq!(sh(origin.folder(), "tr -d x < file | wc -c; wc -c < file"), "0\n104857600\n");
    drop(disk);
}

/// The log is a ring of what is not at the origin, and keeps nothing of the past.
#[test]
fn trap_29_the_journal_does_not_outgrow_its_size() {
    let trap = Trap::with(&["--journal-size", "64M", "--when", "interval:1s,200ms"]);
    for round in 0..40_u8 {
        let mut file = File::create(trap.join(&format!("file{}", round % 3))).expect("it is made");
        file.write_all(&vec![round | 1; 6 << 20]).expect("it waits for room, if it must");
    }
    let size: u64 =
        sh(&trap.scratch.join("journal"), "du -sm . | cut -f1").trim().parse().expect("a number");
    assert!(size <= 80, "the journal takes {size} MiB");
    assert_eq!(
        trap.at_the_origin("cat file? | wc -c; cat file? | tr -d '\\000' | wc -c"),
        format!("{0}\n{0}\n", 18 << 20)
    );
}

/// An origin that hangs holds up who needs it, and nobody else: what is fsynced is in the journal.
#[test]
fn trap_28_an_origin_that_hangs_holds_up_no_fsync() {
    let scratch = Scratch::for_at_most(seconds(120));
    let disk = Disk::new(&scratch, 64);
    let origin = Origin::at(disk.0.join("origin"));
    let trap = Trap::before(scratch, origin, &["--when", "interval:200ms,50ms"]);
    let mut file = File::create(trap.join("file")).expect("it is made");
    file.write_all(b"before").and_then(|()| file.sync_all()).expect("there is room");
    let frozen = Frozen::new(&disk.0);
    for round in 0..50 {
        let start = Instant::now();
        file.write_all(b"meanwhile").and_then(|()| file.sync_all()).expect("the journal takes it");
        assert!(start.elapsed() < seconds(5), "fsync {round} took {:?}", start.elapsed());
        // Batches that hang are under way by now.
        thread::sleep(millis(20));
    }
    drop(frozen);
    assert_eq!(trap.at_the_origin("wc -c < file"), format!("{}\n", 6 + 50 * 9));
    drop(disk);
}

/// A file system on which nothing can be written; it can again when dropped.
struct Frozen<'a>(&'a Path);

impl<'a> Frozen<'a> {
    fn new(folder: &'a Path) -> Self {
        output(Command::new("fsfreeze").arg("--freeze").arg(folder));
        Self(folder)
    }
}

impl Drop for Frozen<'_> {
    fn drop(&mut self) {
        output(Command::new("fsfreeze").arg("--unfreeze").arg(self.0));
    }
}
