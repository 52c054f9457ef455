//! A log that is damaged behind the back of its server: what was to be sent is found broken, and nothing wrong is sent.

use crate::harness::{PATIENCE, Scratch, eventually};
use crate::history::{BLOCK, stamped};
use crate::server::{Launch, Server, connect, destage, text};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Dirty blocks: more than the log's first segment of 4 MiB takes, since a start reads the last one whole.
const BLOCKS: u64 = 1_500;
/// The one that is damaged.
const DAMAGED: u64 = 700;

/// Two volumes in one process.
struct Setup {
    scratch: Scratch,
    image: PathBuf,
    other: PathBuf,
    launch: Launch,
}

fn setup(policy: &str) -> Setup {
    let scratch = Scratch::new();
    let [image, other] = ["disk.img", "other.img"].map(|name| {
        let path = scratch.join(name);
        File::create(&path).and_then(|file| file.set_len(16 << 20)).expect("a file");
        path
    });
    let file = scratch.join("destage.toml");
    let settings = format!(
        "[volume.other]\norigin = '{}'\ncache = '{}'\ncache-size = '64M'\n",
        other.display(),
        scratch.join("other-cache.img").display(),
    );
    fs::write(&file, settings).expect("the settings can be written");
    let launch = Launch::before(&scratch, &image.display().to_string());
    let launch = launch.with(&["--policy", policy, "--dirty-limit", "16M", "-D", "1h"]);
    let launch = launch.with(&["--config", &file.display().to_string()]);
    Setup { scratch, image, other, launch }
}

impl Setup {
    /// Leaves a dirty volume behind.
    fn killed(&self) {
        let server = self.launch.start();
        server.ask(&["pause"]);
        let client = server.client();
        for block in 0..BLOCKS {
            client.write(block * BLOCK as u64, &stamped(block + 1), false).expect("a write");
        }
        client.flush().expect("a flush");
        server.kill();
    }

    fn check(&self) -> (Option<i32>, String) {
        let mut command = destage();
        command.args(["block", "check", "--cache"]).arg(&self.launch.cache);
        let output = command.output().expect("the binary starts");
        (output.status.code(), format!("{}{}", text(&output.stdout), text(&output.stderr)))
    }

    fn holds(&self, block: u64) -> bool {
        image_block(&self.image, block) == stamped(block + 1)
    }
}

fn image_block(image: &Path, block: u64) -> Vec<u8> {
    let mut bytes = vec![0; BLOCK];
    let file = File::open(image).expect("a file");
    file.read_exact_at(&mut bytes, block * BLOCK as u64).expect("a block");
    bytes
}

/// Changes one byte of a block that the log holds.
fn damage(cache: &Path, number: u64) {
    let bytes = fs::read(cache).expect("the cache can be read");
    let block = stamped(number);
    let at = bytes.windows(BLOCK).position(|window| window == block).expect("the log holds it");
    let file = File::options().write(true).open(cache).expect("the cache");
    file.write_all_at(&[!block[100]], at as u64 + 100).expect("it is written");
}

fn wait_for_mode(server: &Server, mode: &str) {
    eventually("the volume has that mode", PATIENCE, || server.volume("mode") == mode);
}

fn stops(policy: &str) {
    let setup = setup(policy);
    setup.killed();
    damage(&setup.launch.cache, DAMAGED + 1);
    let (code, said) = setup.check();
    assert_eq!(code, Some(13), "{said}");
    let server = setup.launch.start();
    wait_for_mode(&server, "stopped");
    let why = server.volume("origin_last_error");
    let why = why.as_str().expect("a text");
    assert!(why.contains(&format!("block {DAMAGED} ")) && why.contains("damaged"), "{why}");
    assert!(server.client().write(0, &stamped(1), false).is_err(), "no write is taken");
    let drained = server.try_ask(&["drain", "--volume", ""]);
    let said = text(&drained.stderr);
    assert_eq!(drained.status.code(), Some(20), "{said}");
    assert!(said.contains("block check --cache"), "{said}");
    // The other one goes on.
    let other = connect(&server.uri.replace(":///?", ":///other?"));
    other.write(0, &stamped(7), true).expect("the other volume takes writes");
    server.ask(&["drain", "--volume", "other"]);
    assert_eq!(image_block(&setup.other, 0), stamped(7));
    drop(other);
    assert_eq!(server.stop(), 13);
    let log = fs::read_to_string(setup.scratch.join("block.log")).expect("a log");
    assert!(log.contains("volume '' has stopped: the log in its cache"), "{log}");
    assert!(!setup.holds(DAMAGED));
    assert!((DAMAGED..BLOCKS).all(|block| !setup.holds(block)), "nothing overtook it");
}

#[test]
fn a_damaged_log_stops_its_volume_under_ordered() {
    stops("ordered");
}

#[test]
fn a_damaged_log_stops_its_volume_under_journaled() {
    stops("journaled");
}

/// The control: without damage all of it arrives.
#[test]
fn a_sound_log_is_destaged_after_a_kill() {
    let setup = setup("ordered");
    setup.killed();
    let (code, said) = setup.check();
    assert_eq!(code, Some(0), "{said}");
    let server = setup.launch.start();
    server.ask(&["drain"]);
    assert!((0..BLOCKS).all(|block| setup.holds(block)));
    assert_eq!(server.stop(), 0);
}
