//! Cache files that are cut, removed or replaced under their server, and shared by two.

use crate::harness::{PATIENCE, Scratch, eventually};
use crate::history::{BLOCK, stamped};
use crate::server::{Launch, Server, SlowDisk, image};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Writes that only the cache has when something happens to its file.
const DIRTY: u64 = 100;

struct Setup {
    scratch: Scratch,
    image: PathBuf,
    launch: Launch,
}

fn setup(policy: &str) -> Setup {
    let scratch = Scratch::new();
    let image = image(&scratch, 4 << 20);
    let launch = Launch::before(&scratch, &image.display().to_string());
    Setup { scratch, image, launch: launch.with(&["--policy", policy, "-D", "1h"]) }
}

impl Setup {
    /// A server whose cache is dirty and whose destaging is paused.
    fn dirty(&self) -> Server {
        let server = self.launch.start();
        server.ask(&["pause"]);
        let client = server.client();
        for block in 0..DIRTY {
            client.write(block * BLOCK as u64, &stamped(block + 1), false).expect("a write");
        }
        client.flush().expect("a flush");
        assert!(!holds(&self.image, 0, 1), "it was sent before anything happened");
        server
    }

    fn everything_arrives(&self, server: &Server) {
        eventually("the loss is noticed", PATIENCE, || server.volume("mode") == "cache-lost");
        eventually("everything is sent", PATIENCE, || server.volume("dirty_writes") == 0);
        for block in 0..DIRTY {
            assert!(holds(&self.image, block, block + 1), "block {block} is not at the origin");
        }
    }
}

fn holds(image: &Path, block: u64, number: u64) -> bool {
    let mut bytes = vec![0; BLOCK];
    let file = File::open(image).expect("the image");
    file.read_exact_at(&mut bytes, block * BLOCK as u64).expect("a block");
    bytes == stamped(number)
}

/// > Once that is noticed, within a second, no FLUSH is ever answered as done, unless the policy writes through.
#[test]
fn a_cache_that_is_cut_under_its_server_is_told_and_sent_to_the_origin() {
    for policy in ["journaled", "ordered", "write-back"] {
        let setup = setup(policy);
        let server = setup.dirty();
        let client = server.client();
        File::options()
            .write(true)
            .open(&setup.launch.cache)
            .and_then(|file| file.set_len(0))
            .expect("it is cut");
        setup.everything_arrives(&server);
        client.write(0, &stamped(9_999), false).expect_err("a write that nothing would keep");
        client.flush().expect_err("a flush that nothing would keep");
        let status = server.status();
        let warned = status["warnings"].to_string();
        assert!(warned.contains("was cut from"), "{policy}: {warned}");
        assert_eq!(status["mode"], "cache-lost", "{policy}");
        let ready = || server.try_ask(&["status", "--ready"]).status.code();
        assert_eq!(ready(), Some(20), "{policy}");
        let mut block = vec![0; BLOCK];
        client.read(0, &mut block).expect("reads go on");
        assert_eq!(block, stamped(1), "{policy}");
        let refused = server.try_ask(&["policy", "ordered"]);
        assert_eq!(refused.status.code(), Some(2), "{policy}: {refused:?}");
        // What needs no cache goes on.
        server.ask(&["policy", "write-through"]);
        eventually("writes go through", PATIENCE, || client.write(0, &stamped(7), true).is_ok());
        assert_eq!(ready(), Some(0), "{policy}");
        assert!(holds(&setup.image, 0, 7));
        client.read(0, &mut block).expect("a read");
        assert_eq!(block, stamped(7), "{policy}");
        assert_eq!(server.stop(), 13);
        // Nothing is left that a new cache would have to be adopted for.
        fs::remove_file(&setup.launch.cache).expect("it is removed");
        assert_eq!(setup.launch.start().stop(), 0, "{policy}");
    }
}

#[test]
fn a_cache_that_is_replaced_by_an_older_copy_under_its_server_is_told_and_refused_later() {
    let setup = setup("journaled");
    let server = setup.launch.start();
    server.client().write(0, &stamped(50), true).expect("a write");
    assert_eq!(server.stop(), 0);
    let copy = setup.scratch.join("copy.img");
    fs::copy(&setup.launch.cache, &copy).expect("a copy");
    let server = setup.dirty();
    fs::rename(&copy, &setup.launch.cache).expect("the copy takes its place");
    setup.everything_arrives(&server);
    let warned = server.status()["warnings"].to_string();
    assert!(warned.contains("was replaced by another file"), "{warned}");
    assert_eq!(server.stop(), 13);
    let (code, said) = setup.launch.refused();
    assert_eq!(code, 14, "{said}");
    assert!(said.contains("older copy of itself"), "{said}");
}

#[test]
fn a_removed_cache_is_told_and_its_killed_servers_writes_are_not_forgotten_silently() {
    let setup = setup("journaled");
    let server = setup.dirty();
    fs::remove_file(&setup.launch.cache).expect("it is removed");
    setup.everything_arrives(&server);
    server.kill();
    // Nobody detached, so a new cache must be wanted.
    let (code, said) = setup.launch.refused();
    assert_eq!(code, 11, "{said}");
    assert_eq!(setup.launch.clone().with(&["--adopt"]).start().stop(), 0);
}

#[test]
fn two_servers_never_share_a_cache_or_an_origin() {
    let setup = setup("journaled");
    let server = setup.dirty();
    let socket = format!("unix:{}", setup.scratch.join("second.sock").display());
    let (code, said) = setup.launch.clone().listening(&socket).refused();
    assert_eq!(code, 13, "{said}");
    assert!(said.contains("in use by another process"), "{said}");
    let mut other = setup.launch.clone().listening(&socket);
    other.cache = setup.scratch.join("other.img");
    for launch in [other.clone(), other.with(&["--adopt"])] {
        let (code, said) = launch.refused();
        assert_eq!(code, 10, "{said}");
        assert!(said.contains("locked by another process"), "{said}");
    }
    server.ask(&["resume"]);
    server.ask(&["drain"]);
    assert_eq!(server.stop(), 0);
}

/// Two hosts at one origin: the second is refused until it is told to take over; then the first sends nothing more and says so.
#[test]
fn a_server_whose_origin_is_taken_over_sends_nothing_more_and_ends_as_fenced() {
    let (first, second) = (Scratch::new(), Scratch::new());
    let (origin, store) = (image(&first, 4 << 20), image(&second, 32 << 20));
    let Some(disk) = SlowDisk::start(&first, &origin, 0) else { return };
    let redo = SlowDisk::start(&second, &store, 0).expect("nbdkit was there a moment ago");
    let launch = |scratch| Launch::before(scratch, &disk.uri).redo_at(redo.uri.clone().into());
    let server = launch(&first).start();
    server.ask(&["pause"]);
    let client = server.client();
    client.write(0, &stamped(1), true).expect("a write");
    let (code, said) = launch(&second).refused();
    assert_eq!(code, 11, "{said}");
    assert!(said.contains("--adopt"), "{said}");
    let other = launch(&second).with(&["--adopt"]).start();
    other.client().write(BLOCK as u64, &stamped(2), true).expect("a write");
    other.ask(&["drain"]);
    server.ask(&["resume"]);
    eventually("the first notices", PATIENCE, || server.volume("mode") == "stopped");
    client.write(0, &stamped(3), true).expect_err("it takes no writes");
    assert_eq!(server.stop(), 11);
    assert!(
        !holds(&origin, 0, 1),
        "a write of the first host came after the second had taken over"
    );
    assert!(holds(&origin, 1, 2));
    let (code, said) = launch(&first).with(&["--adopt"]).refused();
    assert_eq!(code, 11, "its writes would go over newer ones: {said}");
    assert_eq!(other.stop(), 0);
}

/// The log's disk is full: nothing can be told, and everything goes on.
#[test]
fn a_log_that_cannot_be_written_ends_no_server_and_changes_no_exit_code() {
    let scratch = Scratch::new();
    let image = image(&scratch, 4 << 20);
    let launch = Launch::before(&scratch, &image.display().to_string());
    let server = launch.clone().logging_to("/dev/full".into()).start();
    server.client().write(0, &stamped(5), true).expect("a write");
    fs::remove_file(&launch.cache).expect("it is removed");
    // That is told, to nobody.
    eventually("the loss is noticed", PATIENCE, || server.volume("mode") == "cache-lost");
    eventually("everything is sent", PATIENCE, || server.volume("dirty_writes") == 0);
    assert!(holds(&image, 0, 5));
    assert_eq!(server.stop(), 13);
}
