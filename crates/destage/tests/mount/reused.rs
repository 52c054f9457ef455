//! Files that are gone before they are due: the origin is not asked for another one for each that follows.

use crate::harness::Scratch;
use crate::mounted::{Launch, Unmounting};
use crate::origin::{Kind, Origin};
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

/// The highest number of a file made in advance.
fn highest(origin: &Path) -> u64 {
    let mut dirs = vec![origin.join(".destage/pool")];
    let mut highest = 0;
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir).expect("it is there").flatten() {
            let name = entry.file_name().into_string().unwrap_or_default();
            // What is removed meanwhile is no folder.
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                dirs.push(entry.path());
            }
            if let (16, Ok(number)) = (name.len(), u64::from_str_radix(&name, 16)) {
                highest = highest.max(number);
            }
        }
    }
    highest
}

/// > A new file that is deleted before it is due is never sent. Its inode number is soon another file's.
#[test]
fn files_that_were_gone_before_they_were_due_are_given_out_again() {
    let scratch = Scratch::new();
    let origin = Origin::new(Kind::Local, &scratch).expect("a folder is always there");
    let launch = Launch::before(&scratch, &origin).with(&["--when", "interval:10m,1s"]);
    let mounted = launch.start();
    let _unmounting = Unmounting(mounted.folder().to_owned());
    let dir = mounted.folder().to_owned();
    let content = |number: usize| format!("this is {number}, and {}", "x".repeat(number % 5_000));
    let path = |number: usize| dir.join(format!("file {number}"));
    let mut kept: Vec<usize> = Vec::new();
    for round in 0..ROUNDS {
        let numbers = round * EACH..(round + 1) * EACH;
        for number in numbers.clone() {
            let mut file = File::create_new(path(number)).expect("it can be made");
            assert_eq!(file.metadata().expect("it is there").len(), 0, "{number} is empty");
            file.write_all(content(number).as_bytes()).expect("it can be written");
        }
        for number in numbers {
            let found = fs::read_to_string(path(number)).expect("it can be read");
            assert_eq!(found, content(number), "{number}");
            if number % 50 == 7 {
                kept.push(number);
            } else {
                fs::remove_file(path(number)).expect("it can be removed");
            }
        }
        File::open(&dir).and_then(|dir| dir.sync_all()).expect("it is durable");
    }
    let made = highest(origin.folder());
    let all = ROUNDS * EACH;
    assert!(made < all as u64 / 3, "{made} files were made in advance for {all}");
    let names = |dir: &Path| -> Vec<PathBuf> {
        let entries = fs::read_dir(dir).expect("it can be read").flatten();
        let mut names: Vec<PathBuf> = entries.map(|entry| entry.file_name().into()).collect();
        names.retain(|name| *name != *".destage");
        names.sort();
        names
    };
    assert_eq!(names(origin.folder()), Vec::<PathBuf>::new(), "nothing was due");
    let before = names(&dir);
    assert_eq!(before.len(), kept.len());
    mounted.kill();
    let mounted = launch.start();
    assert_eq!(names(&dir), before, "after the kill");
    for &number in &kept {
        assert_eq!(fs::read_to_string(path(number)).expect("it is there"), content(number));
    }
    mounted.stop();
    assert_eq!(names(origin.folder()), before, "at the origin");
    for &number in &kept {
        let there = fs::read_to_string(origin.folder().join(format!("file {number}")));
        assert_eq!(there.expect("it is there"), content(number));
    }
}

const ROUNDS: usize = 30;
const EACH: usize = 100;
