//! Backups and snapshots that bring an older cache or an older origin back, while the other one has gone on.

use crate::harness::Scratch;
use crate::history::{BLOCK, stamped};
use crate::server::{Launch, Server, destage, image, text};
use crc32c::crc32c;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

struct Setup {
    scratch: Scratch,
    image: PathBuf,
    launch: Launch,
}

fn setup(policy: &str) -> Setup {
    let scratch = Scratch::new();
    let image = image(&scratch, 1 << 20);
    let launch = Launch::before(&scratch, &image.display().to_string()).with(&["--policy", policy]);
    Setup { scratch, image, launch }
}

/// One run that writes this to the first block and ends in order.
fn used(launch: &Launch, number: u64) {
    let server = launch.start();
    server.client().write(0, &stamped(number), true).expect("it is written");
    assert_eq!(server.stop(), 0);
}

fn first_block(server: &Server) -> Vec<u8> {
    let mut block = vec![0; BLOCK];
    server.client().read(0, &mut block).expect("it is read");
    block
}

/// As a cache is that never noted its attachments: what a start has to go by without them.
fn forget_attachments(cache: &Path) {
    let file = File::options().read(true).write(true).open(cache).expect("the cache");
    for copy in [0, 32_768] {
        let mut page = vec![0; BLOCK];
        file.read_exact_at(&mut page, copy).expect("the superblock");
        page[2_160..2_176].fill(0);
        let crc = crc32c(&page[16..4_092]);
        page[4_092..].copy_from_slice(&crc.to_le_bytes());
        file.write_all_at(&page, copy).expect("it is written");
    }
}

fn check(setup: &Setup) -> Option<i32> {
    let mut command = destage();
    command.args(["block", "check", "--cache"]).arg(&setup.launch.cache);
    command.arg("--origin").arg(&setup.image);
    command.output().expect("the binary starts").status.code()
}

/// > A cache that is a copy of itself from before its last start is always refused where there is a redo store.
#[test]
fn an_older_copy_of_the_cache_is_refused_under_every_policy() {
    for policy in ["write-through", "write-back", "ordered"] {
        let setup = setup(policy);
        used(&setup.launch, 1);
        let copy = setup.scratch.join("backup.img");
        fs::copy(&setup.launch.cache, &copy).expect("a backup");
        used(&setup.launch, 2);
        fs::rename(&copy, &setup.launch.cache).expect("the backup is brought back");
        let (code, said) = setup.launch.refused();
        assert_eq!(code, 14, "{policy}: {said}");
        assert!(said.contains("attached") && said.contains("older copy of itself"), "{said}");
        let (code, said) = setup.launch.clone().with(&["--adopt"]).refused();
        assert_eq!(code, 14, "{policy}: its writes would go over newer ones: {said}");
        assert_eq!(check(&setup), Some(13), "{policy}");
    }
}

/// The control: without the numbers nothing else tells, and the volume is of two times.
#[test]
fn an_older_copy_without_attachments_would_be_served() {
    let setup = setup("write-through");
    used(&setup.launch, 1);
    let copy = setup.scratch.join("backup.img");
    fs::copy(&setup.launch.cache, &copy).expect("a backup");
    used(&setup.launch, 2);
    fs::rename(&copy, &setup.launch.cache).expect("the backup is brought back");
    forget_attachments(&setup.launch.cache);
    let server = setup.launch.start();
    assert_eq!(first_block(&server), stamped(1), "the old copy is served");
    assert!(fs::read(&setup.image).expect("the image").starts_with(&stamped(2)));
}

/// The storage's side as it was at a moment, with the times of its files.
fn back_up(setup: &Setup) -> impl Fn() {
    let store = PathBuf::from(format!("{}.destage", setup.image.display()));
    let saved = [setup.image.clone(), store].map(|path| {
        let modified = fs::metadata(&path).and_then(|meta| meta.modified()).expect("its time");
        (fs::read(&path).expect("a file"), modified, path)
    });
    move || {
        for (bytes, modified, path) in &saved {
            fs::write(path, bytes).expect("it is brought back");
            let file = File::options().write(true).open(path).expect("a file");
            file.set_modified(*modified).expect("its time is brought back");
        }
    }
}

/// > A redo store that is an older copy than its cache knows is always refused.
#[test]
fn an_older_redo_store_is_refused_and_adopted_on_demand() {
    let setup = setup("write-back");
    used(&setup.launch, 1);
    let bring_back = back_up(&setup);
    used(&setup.launch, 2);
    bring_back();
    let (code, said) = setup.launch.refused();
    assert_eq!(code, 14, "{said}");
    assert!(said.contains("the redo store is an older copy"), "{said}");
    assert_eq!(check(&setup), Some(14));
    let server = setup.launch.clone().with(&["--adopt"]).start();
    assert_eq!(first_block(&server), stamped(1), "as the origin has it now");
    assert_eq!(server.stop(), 0);
    used(&setup.launch, 3);
    let mut inspect = destage();
    inspect.args(["block", "inspect", "--format", "json", "--cache"]).arg(&setup.launch.cache);
    let shown = text(&inspect.output().expect("the binary starts").stdout);
    assert!(shown.contains("\"attachment\": 4"), "none of the numbers was given twice: {shown}");
}

/// The control.
#[test]
fn an_older_redo_store_without_attachments_would_be_taken() {
    let setup = setup("write-through");
    used(&setup.launch, 1);
    let bring_back = back_up(&setup);
    used(&setup.launch, 2);
    bring_back();
    forget_attachments(&setup.launch.cache);
    let server = setup.launch.start();
    assert_eq!(first_block(&server), stamped(2), "what the origin never had");
}

/// One group of one block.
fn destaged(server: &Server, number: u64) {
    server.client().write(0, &stamped(number), true).expect("it is written");
    server.ask(&["drain"]);
}

/// A redo store from within the last attachment, in the middle of a group that the origin has got past: whether its start is
/// refused or a server starts with it. `groups_after`: how many groups came after that one.
fn store_of_an_earlier_group(groups_after: u64) -> (Setup, Result<Server, (i32, String)>) {
    let setup = setup("journaled");
    let store = PathBuf::from(format!("{}.destage", setup.image.display()));
    let launch = setup.launch.clone().with(&["--when", "pressure", "-D", "1h"]);
    let server = launch.start();
    destaged(&server, 1);
    // Its headers say so much.
    let headers = fs::read(&store).expect("the store")[..2 * BLOCK].to_vec();
    destaged(&server, 2);
    let mut earlier = fs::read(&store).expect("the store");
    earlier[..2 * BLOCK].copy_from_slice(&headers);
    for _ in 0..groups_after {
        // What the block held before that group.
        destaged(&server, 1);
    }
    if groups_after == 0 {
        server.kill();
        fs::write(&store, earlier).expect("it is brought back");
        return (setup, Ok(launch.start()));
    }
    // What is at the origin is noted in the cache now and then, and at the end.
    assert_eq!(server.stop(), 0);
    fs::write(&store, earlier).expect("it is brought back");
    (setup, Err(launch.refused()))
}

/// > Under `journaled` a redo store that would finish a group which its cache knows to be done is always refused.
#[test]
fn a_redo_store_of_an_earlier_group_is_refused() {
    let (setup, started) = store_of_an_earlier_group(3);
    let (code, said) = started.err().expect("it is refused");
    assert_eq!(code, 14, "{said}");
    assert!(said.contains("older copy of itself") && said.contains("finish a group"), "{said}");
    assert!(fs::read(&setup.image).expect("the image").starts_with(&stamped(1)));
}

/// The control: the same group is finished where nothing has come after it, as after a crash in its middle.
#[test]
fn a_redo_store_in_the_middle_of_its_last_group_is_taken() {
    let (setup, started) = store_of_an_earlier_group(0);
    let server = started.expect("it starts");
    assert_eq!(first_block(&server), stamped(2));
    assert_eq!(server.stop(), 0);
    assert!(fs::read(&setup.image).expect("the image").starts_with(&stamped(2)));
}
