//! A journal that the disk has damaged: refused where something acknowledged is hit, cut where nothing is.

use crate::harness::server::binary;
use crate::harness::{Database, Launch, PATIENCE, Scratch, shop};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A killed server whose journal holds everything that was written.
fn killed_with_full_journal(scratch: &Scratch) -> (Database, Launch, PathBuf) {
    let database = shop::sqlite(scratch);
    let launch =
        Launch::before(scratch, &database.url()).with(&["--when", "pressure", "--staleness", "1h"]);
    let server = launch.start();
    let mut client = server.client();
    for n in 0..200 {
        let written = client.run(&format!("HSET customers:{} name customer-{n}", 1_000 + n));
        assert_eq!(written.int(), 1);
    }
    server.kill();
    let segment = largest_file(launch.data(), scratch.join("origin.db"));
    (database, launch, segment)
}

/// The journal's segment: the largest file under the data folder that holds one of the values.
fn largest_file(folder: &Path, besides: PathBuf) -> PathBuf {
    let mut folders = vec![folder.to_owned()];
    let mut files = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("the data folder is readable").flatten() {
            match entry.path() {
                path if path.is_dir() => folders.push(path),
                path if path == besides => {}
                path => files.push(path),
            }
        }
    }
    let holds = |path: &PathBuf| {
        let bytes = fs::read(path).expect("the file is readable");
        bytes.windows(MIDDLE.len()).any(|window| window == MIDDLE)
    };
    files.into_iter().find(holds).expect("the journal holds the values")
}

/// The offset just after the last byte that is not zero: segments may be longer than what they hold.
fn used_bytes(bytes: &[u8]) -> usize {
    bytes.iter().rposition(|&byte| byte != 0).expect("the segment is not empty") + 1
}

/// Where a value lies in the segment. Between the batches there is padding, which may be anything.
fn place_of(bytes: &[u8], value: &[u8]) -> usize {
    let place = bytes.windows(value.len()).position(|window| window == value);
    place.expect("the segment holds the value")
}

/// The value of the middle one of the writes.
const MIDDLE: &[u8] = b"customer-100";

#[test]
fn damage_in_the_middle_is_refused_with_segment_and_offset() {
    let scratch = Scratch::new();
    let (database, launch, segment) = killed_with_full_journal(&scratch);
    let mut bytes = fs::read(&segment).expect("the segment is readable");
    let middle = place_of(&bytes, MIDDLE);
    bytes[middle] ^= 0x10;
    fs::write(&segment, &bytes).expect("the segment can be written");
    launch.refused().says(13, &["segment 1", "offset", "destage journal repair"]);
    // A refusal leaves everything as it was, and mending the byte mends the journal.
    assert_eq!(fs::read(&segment).expect("the segment is readable"), bytes);
    bytes[middle] ^= 0x10;
    fs::write(&segment, &bytes).expect("the segment can be written");
    let server = launch.start();
    server.drain();
    assert_eq!(database.number("SELECT count(*) FROM customers WHERE id >= 1000"), 200);
}

#[test]
fn a_damaged_journal_is_looked_into_and_repaired_on_request() {
    let scratch = Scratch::new();
    let (database, launch, segment) = killed_with_full_journal(&scratch);
    let mut bytes = fs::read(&segment).expect("the segment is readable");
    let middle = place_of(&bytes, MIDDLE);
    bytes[middle] ^= 0x10;
    fs::write(&segment, &bytes).expect("the segment can be written");
    let data = launch.data().to_str().expect("the path is text").to_owned();
    let journal = |arguments: &[&str]| {
        let mut command = Command::new(binary());
        let output = command.arg("journal").arg(arguments[0]).args(["--data", &data]);
        let output = output.args(&arguments[1..]).output().expect("the binary starts");
        let said = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8_lossy(&said).into_owned())
    };
    let (code, said) = journal(&["check"]);
    assert_eq!(code, Some(13), "{said}");
    let (_, cut) = said.split_once("--cut ").expect("the check names the place");
    let cut = cut.split(|c: char| c.is_whitespace() || "'`".contains(c)).next().unwrap_or_default();
    let (_, exported) = journal(&["export"]);
    let exported = exported.lines().filter(|line| line.starts_with('{')).count();
    assert!((1..200).contains(&exported), "{exported} groups");
    // What would be lost is shown, and nothing happens without a word.
    let (_, shown) = journal(&["repair", "--cut", cut]);
    assert!(shown.contains("--give-up"), "{shown}");
    launch.refused().says(13, &["offset"]);
    let (code, said) = journal(&["repair", "--cut", cut, "--give-up"]);
    assert_eq!(code, Some(0), "{said}");
    let server = launch.start();
    server.drain();
    let kept = database.number("SELECT count(*) FROM customers WHERE id >= 1000");
    assert_eq!(kept, exported as i64, "what could be read is what is left");
}

#[test]
fn a_torn_tail_is_cut_and_said_so() {
    let scratch = Scratch::new();
    let (database, launch, segment) = killed_with_full_journal(&scratch);
    let mut bytes = fs::read(&segment).expect("the segment is readable");
    let used = used_bytes(&bytes);
    // The last write was under way when the power failed: its end never reached the disk.
    bytes[used - 3..used].fill(0);
    fs::write(&segment, &bytes).expect("the segment can be written");
    let server = launch.start();
    let log = server.log();
    assert!(log.contains("torn") || log.contains("cut"), "{log}");
    assert!(server.status()["journal"]["cut_bytes_at_start"].as_u64() > Some(0));
    server.drain();
    let kept = database.number("SELECT count(*) FROM customers WHERE id >= 1000");
    // All of them where an idle journal's mark of the last write was the last thing in it.
    assert!((190..=200).contains(&kept), "{kept} rows");
    let expected = database.number("SELECT count(*) FROM customers WHERE id BETWEEN 1000 AND 1189");
    assert_eq!(expected, 190, "what is missing is a suffix");
}

#[test]
fn garbage_after_the_tail_does_not_come_back_as_writes() {
    let scratch = Scratch::new();
    let (database, launch, segment) = killed_with_full_journal(&scratch);
    let mut bytes = fs::read(&segment).expect("the segment is readable");
    let used = used_bytes(&bytes);
    // A copy of old records behind the end, as a reused segment would hold.
    let old = bytes[used / 4..used / 2].to_vec();
    bytes.truncate(used);
    bytes.extend_from_slice(&old);
    fs::write(&segment, &bytes).expect("the segment can be written");
    match launch.try_start(PATIENCE) {
        Ok(server) => {
            server.drain();
            assert_eq!(database.number("SELECT count(*) FROM customers WHERE id >= 1000"), 200);
        }
        Err(exit) => exit.says(13, &["offset"]),
    }
}

#[test]
fn journal_files_are_readable_by_their_owner_only() {
    use std::os::unix::fs::PermissionsExt;
    let scratch = Scratch::new();
    let (_, launch, segment) = killed_with_full_journal(&scratch);
    let mode =
        |path: &Path| fs::metadata(path).expect("the path is there").permissions().mode() & 0o777;
    assert_eq!(mode(launch.data()), 0o700);
    assert_eq!(mode(&segment), 0o600);
    for entry in fs::read_dir(segment.parent().expect("it lies in a folder")).expect("readable") {
        let path = entry.expect("readable").path();
        assert_eq!(mode(&path) & 0o077, 0, "{}", path.display());
    }
}

/// A killed server whose journal has several segments, oldest first, none of whose writes are at the origin.
fn killed_with_segments(scratch: &Scratch) -> (Database, Launch, Vec<PathBuf>) {
    let database = shop::sqlite(scratch);
    let lazy = ["--when", "pressure", "--staleness", "1h", "--journal-size", "2M"];
    let launch = Launch::before(scratch, &database.url()).with(&lazy);
    let server = launch.start();
    let mut client = server.client();
    let name = "x".repeat(8_000);
    for n in 0..100 {
        let written = client.run(&format!("HSET customers:{} name {n}-{name}", 1_000 + n));
        assert_eq!(written.int(), 1);
    }
    server.kill();
    let entries = fs::read_dir(launch.data().join("journal")).expect("it is there").flatten();
    let is_segment = |path: &PathBuf| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("segment-"))
    };
    let mut segments: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(is_segment).collect();
    segments.sort();
    (database, launch, segments)
}

/// How many segments hold writes: one may be ready behind them.
fn begun(segments: &[PathBuf]) -> usize {
    let holds = |path: &&PathBuf| fs::read(path).is_ok_and(|bytes| bytes.starts_with(b"DESTAGEJ"));
    segments.iter().filter(holds).count()
}

fn checked(launch: &Launch) -> Option<i32> {
    let mut command = Command::new(binary());
    command.args(["journal", "check", "--data"]).arg(launch.data());
    command.output().expect("it runs").status.code()
}

/// Says it by `journal check` and by the start, and changes nothing.
fn is_damage(launch: &Launch) {
    assert_eq!(checked(launch), Some(13));
    launch.refused().says(13, &["damaged in segment", "destage journal repair"]);
}

#[test]
fn a_journal_of_several_segments_that_nobody_touched_is_whole() {
    let scratch = Scratch::new();
    let (database, launch, segments) = killed_with_segments(&scratch);
    assert!(begun(&segments) >= 3, "{segments:?}");
    assert_eq!(checked(&launch), Some(0));
    launch.start().drain();
    assert_eq!(database.number("SELECT count(*) FROM customers WHERE id >= 1000"), 100);
}

#[test]
fn a_last_segment_that_was_cut_or_shifted_is_damage_and_not_an_end() {
    let scratch = Scratch::new();
    let (database, launch, segments) = killed_with_segments(&scratch);
    let last = &segments[begun(&segments) - 1];
    let whole = fs::read(last).expect("it can be read");
    for keep in [0, 1, 83, 84, 511, 512, 1_000, 4_096, 100_000] {
        fs::write(last, &whole[..keep]).expect("it can be written");
        is_damage(&launch);
    }
    for (at, count) in [(0, 1), (20, 3), (100, 16), (520, 2), (4_000, 5), (5_000, 7)] {
        let mut shifted = whole.clone();
        shifted.drain(at..at + count);
        fs::write(last, &shifted).expect("it can be written");
        is_damage(&launch);
    }
    fs::write(last, &whole).expect("it can be written");
    launch.start().drain();
    assert_eq!(database.number("SELECT count(*) FROM customers WHERE id >= 1000"), 100);
}

#[test]
fn newest_segments_whose_files_are_gone_are_missed() {
    let scratch = Scratch::new();
    let (database, launch, segments) = killed_with_segments(&scratch);
    let begun = begun(&segments);
    for kept in (1..begun).rev() {
        for path in &segments[kept..] {
            let away =
                scratch.join(path.file_name().expect("it has a name").to_str().expect("text"));
            if path.exists() {
                fs::rename(path, away).expect("it can be moved");
            }
        }
        is_damage(&launch);
    }
    for path in &segments[1..] {
        let away = scratch.join(path.file_name().expect("it has a name").to_str().expect("text"));
        fs::rename(away, path).expect("it can be moved");
    }
    launch.start().drain();
    assert_eq!(database.number("SELECT count(*) FROM customers WHERE id >= 1000"), 100);
}
