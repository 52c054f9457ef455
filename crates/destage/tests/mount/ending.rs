//! The end of a mount: what it says of what is not at the origin, and whether that is so.

use crate::harness::server::signal;
use crate::harness::small_disk::SmallDisk;
use crate::harness::{PATIENCE, Scratch, eventually};
use crate::mounted::{Launch, Mounted};
use crate::origin::{Kind, Origin};
use rustix::process::Signal;
use std::fs;
use std::path::Path;

/// Everything stays in memory for as long as may be, and nothing is waited for at the end.
const LAZY: [&str; 8] =
    ["-d", "60s", "--when", "pressure", "--staleness", "none", "--drain-timeout", "100ms"];
/// More than a segment of the journal.
const FILES: usize = 8;
const FILE: usize = 1 << 20;

/// Files that nobody has made durable.
fn write(folder: &Path) {
    for number in 0..FILES {
        fs::write(folder.join(format!("file{number}")), vec![b'x'; FILE]).expect("it is taken");
    }
}

/// Asks it to end, and waits for that.
fn end(mounted: &mut Mounted) -> Option<i32> {
    signal(mounted.id(), Signal::TERM);
    mounted.ended()
}

#[test]
fn a_journal_that_does_not_take_the_last_changes_is_said_to_lack_them() {
    let scratch = Scratch::new();
    let Some(disk) = SmallDisk::new(&scratch, 12) else { return };
    let origin = Origin::new(Kind::Local, &scratch).expect("a local folder is there");
    let launch = Launch::before(&scratch, &origin).with(&LAZY);
    let mut mounted = launch.journaled_in(disk.join("journal")).start();
    disk.fill();
    write(mounted.folder());
    assert_eq!(end(&mut mounted), Some(13), "{}", mounted.said());
    let said = mounted.said();
    assert!(said.contains("are not in the journal") && !said.contains("takes them up"), "{said}");
}

#[test]
fn what_an_end_leaves_to_the_next_start_is_in_the_journal() {
    let scratch = Scratch::new();
    let Some(disk) = SmallDisk::new(&scratch, 64) else { return };
    let origin = disk.join("origin");
    fs::create_dir(&origin).expect("a folder can be made");
    let launch = Launch::before_folder(&scratch.join(""), &origin).with(&LAZY);
    let mut mounted = launch.start();
    write(mounted.folder());
    // Others take the room at the origin.
    disk.fill();
    assert_eq!(end(&mut mounted), Some(12), "{}", mounted.said());
    disk.free();
    let mounted = launch.start();
    eventually("everything is there", PATIENCE, || {
        (0..FILES).all(|number| {
            let file = fs::read(mounted.folder().join(format!("file{number}")));
            file.is_ok_and(|bytes| bytes == vec![b'x'; FILE])
        })
    });
    mounted.ask(&["drain"]);
    assert_eq!(
        fs::read_dir(&origin).expect("it is there").flatten().filter(is_file).count(),
        FILES
    );
    mounted.stop();
}

fn is_file(entry: &fs::DirEntry) -> bool {
    entry.file_type().is_ok_and(|kind| kind.is_file())
}
