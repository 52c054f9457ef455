//! `destage block check` and `resize`, origins that grow, caches that are older copies of themselves, origins behind TLS.

use crate::harness::{Certificates, Random, Scratch};
use crate::history::{BLOCK, BLOCKS, History, read_state, stamped};
use crate::server::{Launch, destage, image, text};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// A volume before a plain file.
struct Setup {
    scratch: Scratch,
    image: PathBuf,
    launch: Launch,
}

fn setup() -> Setup {
    let scratch = Scratch::new();
    let image = image(&scratch, BLOCKS * BLOCK as u64);
    let launch = Launch::before(&scratch, &image.display().to_string());
    Setup { scratch, image, launch }
}

/// Writes and reads some, and ends in order.
fn used(setup: &Setup, seed: u64) -> History {
    let server = setup.launch.start();
    let client = server.client();
    let mut history = History::default();
    history.write(&client, &mut Random::new(seed, 0), |number| number > 400);
    assert_eq!(server.stop(), 0);
    history
}

/// The exit code and the report as JSON; what was said on stderr.
fn check(setup: &Setup, more: &[&str]) -> (i32, serde_json::Value, String) {
    let mut command = destage();
    command.args(["block", "check", "--format", "json", "--cache"]).arg(&setup.launch.cache);
    let output = command.args(more).output().expect("the binary starts");
    let json = serde_json::from_slice(&output.stdout).unwrap_or_default();
    (output.status.code().unwrap_or(-1), json, text(&output.stderr))
}

fn resize(cache: &Path, size: &str, more: &[&str]) -> (i32, String) {
    let mut command = destage();
    command.args(["block", "resize", "--cache-size", size, "--cache"]).arg(cache).args(more);
    let output = command.output().expect("the binary starts");
    let said = format!("{}{}", text(&output.stdout), text(&output.stderr));
    (output.status.code().unwrap_or(-1), said)
}

/// A block of an image.
fn image_block(image: &Path, block: u64) -> Vec<u8> {
    let mut bytes = vec![0; BLOCK];
    let file = File::open(image).expect("a file");
    file.read_exact_at(&mut bytes, block * BLOCK as u64).expect("a block");
    bytes
}

fn flip(path: &Path, offset: u64) {
    let file = File::options().read(true).write(true).open(path).expect("a file");
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset).expect("a byte");
    file.write_all_at(&[byte[0] ^ 0x55], offset).expect("a byte");
}

#[test]
fn a_check_tells_a_sound_cache_from_a_broken_one_and_from_another_ones_origin() {
    let setup = setup();
    used(&setup, 31);
    let origin = setup.image.display().to_string();
    let (code, report, said) = check(&setup, &["--origin", &origin]);
    assert_eq!((code, &report["sound"]), (0, &true.into()), "{report} {said}");
    assert!(report["compared_blocks"].as_u64() > Some(100), "{report}");
    assert_eq!(report["undecided_groups"], 0, "{report}");

    // A block that something else wrote.
    flip(&setup.image, 5 * BLOCK as u64 + 7);
    let (code, report, said) = check(&setup, &["--origin", &origin]);
    assert_eq!(code, 14, "{report} {said}");
    assert_eq!(
        (&report["differing_blocks"], &report["first_differing_block"]),
        (&1.into(), &5.into())
    );
    flip(&setup.image, 5 * BLOCK as u64 + 7);

    // One copy of the superblock is enough, none is not.
    flip(&setup.launch.cache, 100);
    let (code, report, _) = check(&setup, &[]);
    assert_eq!(code, 0, "{report}");
    assert!(report["remarks"][0].as_str().is_some_and(|r| r.contains("superblock")), "{report}");
    flip(&setup.launch.cache, 32_768 + 100);
    let (code, _, said) = check(&setup, &[]);
    assert_eq!(code, 13);
    assert!(said.contains("both copies"), "{said}");
    flip(&setup.launch.cache, 32_768 + 100);

    // The log: a batch in the middle.
    let bytes = fs::read(&setup.launch.cache).expect("the cache can be read");
    // Segments that wait to be used again hold batches too, which nobody reads.
    let oldest = report["log_first"].as_u64().expect("the log's first group");
    let first_group =
        |sector: &[u8]| u64::from_le_bytes(sector[32..40].try_into().expect("eight bytes"));
    let batches = bytes
        .chunks(512)
        .enumerate()
        .filter(|(_, sector)| sector.starts_with(b"DSTB") && first_group(sector) >= oldest);
    let (middle, _) = batches.clone().nth(batches.count() / 2).expect("there are batches");
    flip(&setup.launch.cache, middle as u64 * 512 + 60);
    let (code, report, said) = check(&setup, &[]);
    assert_eq!(code, 13, "{report} {said}");
    assert!(report["faults"][0].as_str().is_some_and(|fault| fault.contains("log")), "{report}");
}

#[test]
fn a_check_tells_damaged_slots_and_after_a_kill_only_that_they_differ() {
    let setup = setup();
    used(&setup, 33);
    let origin = setup.image.display().to_string();
    // Only slots hold blocks at multiples of their size.
    let held = image_block(&setup.image, 5);
    let bytes = fs::read(&setup.launch.cache).expect("the cache can be read");
    let slot = bytes.chunks(BLOCK).position(|chunk| chunk == held).expect("block 5 is cached");
    flip(&setup.launch.cache, (slot * BLOCK) as u64 + 9);
    let (code, report, said) = check(&setup, &["--origin", &origin]);
    assert_eq!(code, 18, "{report} {said}");
    assert!(said.contains("1 damaged"), "{said}");
    assert_eq!((&report["damaged_slots"], &report["outdated_slots"]), (&1.into(), &0.into()));
    assert_eq!(report["sound"], false);
    // Nobody knows then which of them were being changed.
    setup.launch.start().kill();
    let (code, report, said) = check(&setup, &[]);
    assert_eq!((code, &report["outdated_slots"]), (0, &1.into()), "{report} {said}");
}

#[test]
fn a_check_counts_what_a_killed_server_left() {
    let setup = setup();
    let server = setup.launch.clone().with(&["--when", "pressure", "-D", "1h"]).start();
    let client = server.client();
    for block in 0..10 {
        client.write(block * BLOCK as u64, &stamped(block + 1), true).expect("it is written");
    }
    let busy = check(&setup, &[]);
    assert_eq!(busy.0, 13, "a cache in use: {busy:?}");
    server.kill();
    let (code, report, said) = check(&setup, &["--origin", &setup.image.display().to_string()]);
    assert_eq!(code, 0, "{report} {said}");
    assert_eq!((&report["undecided_groups"], &report["dirty_blocks"]), (&10.into(), &10.into()));
    let (code, said) = resize(&setup.launch.cache, "96M", &[]);
    assert_eq!(code, 12, "{said}");
    assert!(said.contains("10 writes"), "{said}");
}

#[test]
fn a_cache_of_another_size_is_still_warm_and_holds_the_same() {
    let setup = setup();
    used(&setup, 32);
    let held = |setup: &Setup| {
        let server = setup.launch.start();
        let state = read_state(&server.client()).expect("nothing is torn");
        let counted = (server.volume("hit_blocks_total"), server.volume("miss_blocks_total"));
        assert_eq!(server.stop(), 0);
        (state, counted.0.as_u64().unwrap_or(0), counted.1.as_u64().unwrap_or(0))
    };
    let (before, ..) = held(&setup);
    for size in ["96M", "64M"] {
        let (code, said) = resize(&setup.launch.cache, size, &[]);
        assert_eq!(code, 0, "{said}");
        let (after, hits, misses) = held(&setup);
        assert_eq!(after, before);
        assert!(hits > 150 && misses == 0, "{size}: {hits} hits, {misses} misses\n{said}");
        let (code, report, said) = check(&setup, &["--origin", &setup.image.display().to_string()]);
        assert_eq!(code, 0, "{report} {said}");
    }
    // Also if nobody used it in between.
    for size in ["96M", "80M", "64M"] {
        let (code, said) = resize(&setup.launch.cache, size, &[]);
        assert_eq!(code, 0, "{said}");
        assert!(said.contains("; 0 were dropped"), "{said}");
    }
    let (after, hits, misses) = held(&setup);
    assert_eq!(after, before);
    assert!(hits > 150 && misses == 0, "{hits} hits, {misses} misses");
    let aside = setup.scratch.join("other.img");
    let (code, said) = resize(&setup.launch.cache, "80M", &["--to", &aside.display().to_string()]);
    assert_eq!(code, 0, "{said}");
    assert_eq!(fs::metadata(&aside).expect("it is there").len(), 80 << 20);
    let (code, said) = resize(&setup.launch.cache, "80M", &["--to", &aside.display().to_string()]);
    assert_eq!(code, 2, "it is not overwritten: {said}");
}

#[test]
fn a_file_of_somebody_elses_is_not_enlarged_by_a_resize_to_it() {
    let setup = setup();
    used(&setup, 34);
    let letter = setup.scratch.join("letter");
    fs::write(&letter, "dear all").expect("a file");
    let (code, said) = resize(&setup.launch.cache, "80M", &["--to", &letter.display().to_string()]);
    assert!(code == 2 && said.contains("not empty"), "{code} {said}");
    assert_eq!(fs::read(&letter).expect("it is there"), b"dear all");
}

#[test]
fn a_file_of_the_name_that_a_resize_uses_meanwhile_stays_as_it_is() {
    let setup = setup();
    used(&setup, 35);
    let beside = PathBuf::from(format!("{}.resized", setup.launch.cache.display()));
    fs::write(&beside, "dear all").expect("a file");
    let (code, said) = resize(&setup.launch.cache, "80M", &[]);
    assert!(
        code == 2 && said.contains("cache.img.resized") && said.contains("--to"),
        "{code} {said}"
    );
    assert_eq!(fs::read(&beside).expect("it is there"), b"dear all");
    fs::remove_file(&beside).expect("it goes");
    let (code, said) = resize(&setup.launch.cache, "80M", &[]);
    assert_eq!(code, 0, "{said}");
    assert!(!beside.exists());
}

#[test]
fn an_origin_that_has_grown_is_taken_up_with_its_new_size() {
    let setup = setup();
    used(&setup, 33);
    let (old, new) = (BLOCKS * BLOCK as u64, (BLOCKS + 100) * BLOCK as u64);
    File::options().write(true).open(&setup.image).and_then(|f| f.set_len(new)).expect("it grows");
    let server = setup.launch.start();
    assert_eq!(server.volume("size_bytes"), new);
    let client = server.client();
    client.write(new - BLOCK as u64, &stamped(7), true).expect("the new end can be written");
    let mut block = vec![0; BLOCK];
    client.read(old, &mut block).expect("the new part can be read");
    assert!(block.iter().all(|&byte| byte == 0));
    assert_eq!(server.stop(), 0);
    let bytes = fs::read(&setup.image).expect("the image can be read");
    assert!(bytes.ends_with(&stamped(7)));
    // Smaller than before is no size to go on with.
    File::options()
        .write(true)
        .open(&setup.image)
        .and_then(|f| f.set_len(old))
        .expect("it shrinks");
    let (code, said) = setup.launch.refused();
    assert_eq!(code, 14, "{said}");
    assert!(said.contains("size: was"), "{said}");
}

/// > Under `journaled` a cache that is an older copy of itself is always refused if the origin holds writes that its log
/// > lacks.
#[test]
fn a_cache_from_a_snapshot_is_refused() {
    let setup = setup();
    used(&setup, 34);
    let copy = setup.scratch.join("snapshot.img");
    fs::copy(&setup.launch.cache, &copy).expect("a snapshot");
    used(&setup, 35);
    fs::rename(&copy, &setup.launch.cache).expect("the snapshot is brought back");
    let (code, said) = setup.launch.refused();
    assert_eq!(code, 14, "{said}");
    assert!(said.contains("older copy of itself"), "{said}");
    let (code, report, _) = check(&setup, &["--origin", &setup.image.display().to_string()]);
    assert_eq!(code, 13, "{report}");
}

#[test]
fn an_origin_and_its_redo_store_are_reached_by_tls() {
    let storage = setup();
    let redo = storage.scratch.join("redo.img");
    File::create(&redo).and_then(|file| file.set_len(32 << 20)).expect("a file");
    let tls = Certificates::make(storage.scratch.join("tls"));
    let pem = |name: &str| tls.file(name);
    let exports = storage.scratch.join("exports.toml");
    let section = format!(
        "[volume.redo]\norigin = '{}'\ncache = '{}'\ncache-size = '64M'\n",
        redo.display(),
        storage.scratch.join("redo-cache.img").display()
    );
    fs::write(&exports, section).expect("it can be written");
    let server = storage
        .launch
        .clone()
        .with(&["--tls-certificate", &pem("server.pem"), "--tls-key", &pem("server.key")])
        .with(&["--tls-client-ca", &pem("ca.pem"), "--config", &exports.display().to_string()])
        .start();
    let by_name = |export: &str| {
        server.uri.replace(":///?", &format!(":///{export}?")) + "&tls-hostname=localhost"
    };
    let scratch = Scratch::new();
    let launch = Launch::before(&scratch, &by_name("")).redo_at(by_name("redo").into());
    let (code, said) = launch.refused();
    assert_eq!(code, 10, "{said}");
    assert!(said.contains("--origin-tls-ca"), "{said}");
    let (code, said) = launch.clone().with(&["--origin-tls-ca", &pem("ca.pem")]).refused();
    assert_eq!(code, 10, "the server asks who this is: {said}");
    let flags = [
        "--origin-tls-ca",
        &pem("ca.pem"),
        "--origin-tls-certificate",
        &pem("client.pem"),
        "--origin-tls-key",
        &pem("client.key"),
    ];
    let front = launch.with(&flags).start();
    front.client().write(0, &stamped(9), true).expect("it is written");
    assert_eq!(front.stop(), 0);
    let mut replay = destage();
    replay.args(["block", "replay", "--origin", &by_name(""), "--redo", &by_name("redo")]);
    let output = replay.args(flags).output().expect("the binary starts");
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(server.stop(), 0);
    assert!(fs::read(&storage.image).expect("the image can be read").starts_with(&stamped(9)));
}
