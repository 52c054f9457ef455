//! Volumes that grow while they are served, with real clients, real file systems, and kills in between.

use crate::disks::{Folder, Kind, Loop, Mounted, argument, run};
use crate::harness::{Random, Scratch, has, output};
use crate::history::stamped;
use crate::server::{Launch, Server, SlowDisk, connect, image, replay, text};
use destage_block::nbd::client::Client;
use std::fs::{self, File};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

const MIB: u64 = 1 << 20;
const BLOCK: u64 = 4096;
/// Destages nothing by itself.
const LATER: [&str; 4] = ["--when", "pressure", "--staleness", "1h"];

fn launch(scratch: &Scratch, bytes: u64) -> Launch {
    Launch::before(scratch, argument(&image(scratch, bytes)))
}

fn set_len(image: &Path, bytes: u64) {
    File::options().write(true).open(image).and_then(|file| file.set_len(bytes)).expect("a size");
}

/// Tells a server that its origins have grown; what it answers.
fn grow(server: &Server) -> serde_json::Value {
    serde_json::from_str(&server.ask(&["grow"])).expect("it answers in JSON")
}

/// Why it does not.
#[track_caller]
fn refused(server: &Server) -> String {
    let output = server.try_ask(&["grow"]);
    assert_eq!(output.status.code(), Some(20), "{}", text(&output.stdout));
    text(&output.stderr)
}

fn block(client: &Client, offset: u64) -> Vec<u8> {
    let mut bytes = vec![0; BLOCK as usize];
    client.read(offset, &mut bytes).expect("a read");
    bytes
}

/// > A connection keeps the size that it was told; the new one is there for whoever connects after the command.
#[test]
fn a_volume_grows_under_its_clients_and_survives_a_kill_with_and_without_its_cache() {
    let scratch = Scratch::new();
    let launch = launch(&scratch, 8 * MIB).with(&LATER);
    let image = scratch.join("disk.img");
    let server = launch.start();
    let before = server.client();
    before.write(8 * MIB - BLOCK, &stamped(1), false).expect("a write");
    assert!(refused(&server).contains("no origin is larger"));
    set_len(&image, 12 * MIB);
    assert_eq!(server.client().size(), 8 * MIB, "nobody has asked for more");
    let grown = grow(&server);
    assert_eq!((&grown["bytes"], &grown["added"]), (&(12 * MIB).into(), &(4 * MIB).into()));
    assert_eq!(server.volume("size_bytes"), 12 * MIB);
    // Who was there before goes on as before.
    before.write(0, &stamped(2), false).expect("a write");
    before.write(8 * MIB, &stamped(3), false).expect_err("beyond what it was told");
    let after = server.client();
    assert_eq!(after.size(), 12 * MIB);
    assert_eq!(block(&after, 8 * MIB), vec![0; BLOCK as usize]);
    // Across the old end, and at the new one.
    after.write(8 * MIB - BLOCK, &[stamped(4), stamped(5)].concat(), false).expect("a write");
    after.write(12 * MIB - BLOCK, &stamped(6), true).expect("a durable write");
    server.kill();

    let server = launch.start();
    assert_eq!(server.volume("size_bytes"), 12 * MIB);
    let client = server.client();
    for (offset, number) in [(0, 2), (8 * MIB - BLOCK, 4), (8 * MIB, 5), (12 * MIB - BLOCK, 6)] {
        assert_eq!(block(&client, offset), stamped(number), "block at {offset}");
    }
    server.ask(&["drain"]);
    client.write(12 * MIB - BLOCK, &stamped(7), true).expect("a durable write");
    server.kill();

    fs::remove_file(&launch.cache).expect("the cache can be deleted");
    replay(argument(&image), &scratch.join("disk.img.destage"));
    let bytes = fs::read(&image).expect("the image can be read");
    assert!(bytes.ends_with(&stamped(6)), "the last group");
    assert_eq!(bytes[8 * MIB as usize..][..BLOCK as usize], stamped(5));
}

#[test]
fn real_clients_see_the_new_size_and_use_it() {
    if !has("nbdinfo") || !has("qemu-io") {
        return;
    }
    let scratch = Scratch::new();
    let launch = launch(&scratch, 8 * MIB);
    let server = launch.start();
    let size = || output(Command::new("nbdinfo").args(["--size", &server.uri])).trim().to_owned();
    assert_eq!(size(), (8 * MIB).to_string());
    set_len(&scratch.join("disk.img"), 8 * MIB + 5_000);
    grow(&server);
    assert_eq!(size(), (8 * MIB + 5_000).to_string());
    let said = output(Command::new("qemu-io").args(["-f", "raw"]).args([
        "-c",
        "write -P 0x5a 8388000 5608",
        "-c",
        "read -P 0x5a 8388000 5608",
        "-c",
        "flush",
        &server.uri,
    ]));
    assert!(!said.contains("failed"), "{said}");
    // Its last block is now a part of one, of which the cache knows more than the origin.
    assert!(refused(&server).contains("only a start can take up"));
    assert_eq!(server.stop(), 0);
    let bytes = fs::read(scratch.join("disk.img")).expect("the image can be read");
    assert_eq!(bytes.len() as u64, 8 * MIB + 5_000);
    assert!(bytes[8_388_000..8_388_000 + 5_608].iter().all(|&byte| byte == 0x5a));
}

/// > A volume never shrinks: an origin that was cut is refused at a start, and a running server writes nothing more to it.
#[test]
fn what_cannot_grow_says_why_and_is_served_as_before() {
    let scratch = Scratch::new();
    let launch = launch(&scratch, 8 * MIB).with(&["--policy", "write-through"]);
    let image = scratch.join("disk.img");
    let server = launch.start();
    let client = server.client();
    client.write(0, &stamped(1), false).expect("a write");
    set_len(&image, 4 * MIB);
    assert!(refused(&server).contains("has shrunk from 8388608 to 4194304"));
    assert_eq!(server.client().size(), 8 * MIB);
    client.write(0, &stamped(3), true).expect_err("nothing more is written to it");
    set_len(&image, 8 * MIB);
    client.write(0, &stamped(2), true).expect("it is mended");
    let wrong = server.try_ask(&["grow", "--volume", "none"]);
    assert_eq!(wrong.status.code(), Some(2));
    assert_eq!(server.stop(), 0);
    set_len(&image, 4 * MIB);
    let (code, said) = launch.refused();
    assert_eq!(code, 14, "{said}");
}

/// A kill between the steps: the redo store knows of the new size, the cache does not.
#[test]
fn a_growth_that_a_crash_cut_short_is_taken_up_by_the_next_start() {
    let scratch = Scratch::new();
    let launch = launch(&scratch, 8 * MIB).with(&LATER);
    let image = scratch.join("disk.img");
    let redo = scratch.join("disk.img.destage");
    let server = launch.start();
    server.client().write(0, &stamped(1), true).expect("a durable write");
    let (cache_before, redo_before) = (scratch.join("cache.before"), scratch.join("redo.before"));
    fs::copy(&launch.cache, &cache_before).expect("a copy");
    fs::copy(&redo, &redo_before).expect("a copy");
    set_len(&image, 12 * MIB);
    grow(&server);
    server.kill();
    let redo_after = scratch.join("redo.after");
    fs::copy(&redo, &redo_after).expect("a copy");
    for (from, what) in [(&redo_before, "neither knows"), (&redo_after, "the redo store knows")] {
        fs::copy(&cache_before, &launch.cache).expect("a copy");
        fs::copy(from, &redo).expect("a copy");
        // Where the host is lost as well, what is at the origin is still whole.
        replay(argument(&image), &redo);
        let server = launch.start();
        assert_eq!(server.volume("size_bytes"), 12 * MIB, "{what}");
        let client = server.client();
        assert_eq!(block(&client, 0), stamped(1), "{what}");
        client.write(12 * MIB - BLOCK, &stamped(2), true).expect("a durable write");
        server.kill();
    }
}

/// > The new size is durable at the origin, in the redo store and in the cache before a client hears of it, so a write
/// > behind the old end is never outside its volume after a crash.
///
/// Real kills at random moments of the command, with a client that writes.
#[test]
fn a_kill_at_any_moment_of_a_growth_loses_nothing_that_was_flushed() {
    let scratch = Scratch::new();
    let launch = launch(&scratch, 8 * MIB);
    let image = scratch.join("disk.img");
    let mut random = Random::new(71, 0);
    for round in 1..=6 {
        let (old, new) = ((7 + round) * MIB, (8 + round) * MIB);
        let server = launch.start();
        assert_eq!(server.client().size(), old);
        let ends = AtomicBool::new(false);
        let flushed = thread::scope(|scope| {
            let writer = scope.spawn(|| write_at_the_end(&server.uri, round * 1_000_000, &ends));
            set_len(&image, new);
            let asker = scope.spawn(|| server.try_ask(&["grow"]));
            thread::sleep(std::time::Duration::from_micros(random.between(0, 30_000)));
            server.cut();
            ends.store(true, Ordering::Relaxed);
            asker.join().expect("it was asked");
            writer.join().expect("it wrote")
        });
        server.kill();
        let server = launch.start();
        let client = server.client();
        assert_eq!(client.size(), new, "round {round}");
        for (offset, number) in flushed {
            let found = block(&client, offset);
            let found = u64::from_le_bytes(found[..8].try_into().expect("eight bytes"));
            assert!(found >= number, "round {round}: {found} at {offset}, {number} was flushed");
        }
        assert_eq!(server.stop(), 0);
    }
}

/// Writes rising numbers to the last block of the volume, whatever its size is, until the connection breaks; the places, and
/// the last number there that was flushed.
fn write_at_the_end(uri: &str, from: u64, ends: &AtomicBool) -> Vec<(u64, u64)> {
    let mut flushed: Vec<(u64, u64)> = Vec::new();
    for number in from.. {
        let uri = uri.parse().expect("a URI");
        let options = destage_block::nbd::client::ClientOptions::default();
        let Ok(client) = Client::connect(&uri, &options) else { break };
        let offset = client.size() - BLOCK;
        if ends.load(Ordering::Relaxed) || client.write(offset, &stamped(number), true).is_err() {
            break;
        }
        flushed.retain(|&(place, _)| place != offset);
        flushed.push((offset, number));
    }
    flushed
}

#[test]
fn an_export_that_has_grown_is_reached_anew() {
    let scratch = Scratch::new();
    let image = image(&scratch, 8 * MIB);
    let Some(disk) = SlowDisk::start(&scratch, &image, 1) else { return };
    let launch = Launch::before(&scratch, &disk.uri).redo_at(scratch.join("redo"));
    let launch = launch.with(&["--policy", "write-through"]);
    let server = launch.start();
    let client = server.client();
    let ends = AtomicBool::new(false);
    thread::scope(|scope| {
        // No write and no flush fails because connections are exchanged under it.
        scope.spawn(|| {
            for number in 1.. {
                let offset = number * BLOCK % (8 * MIB);
                client.write(offset, &stamped(number), number % 8 == 0).expect("a write");
                if ends.load(Ordering::Relaxed) {
                    return;
                }
            }
        });
        set_len(&image, 12 * MIB);
        grow(&server);
        let after = server.client();
        after.write(12 * MIB - BLOCK, &stamped(9), true).expect("a write behind the old end");
        set_len(&image, 16 * MIB);
        grow(&server);
        ends.store(true, Ordering::Relaxed);
    });
    let after = server.client();
    after.write(16 * MIB - BLOCK, &stamped(10), true).expect("a write behind the old end");
    assert_eq!(server.volume("origin_errors_total"), 0);
    assert_eq!(server.stop(), 0);
    let bytes = fs::read(&image).expect("the image can be read");
    assert_eq!(bytes[(12 * MIB - BLOCK) as usize..][..BLOCK as usize], stamped(9));
    assert!(bytes.ends_with(&stamped(10)));
}

/// > The file of a volume has its new size at once, also for a loop device that is told to look (`losetup -c`)
#[test]
fn a_mounted_file_system_grows_with_its_volume() {
    if !Kind::Btrfs.is_known() {
        return;
    }
    let scratch = Scratch::new();
    let folder = Folder::new(&scratch);
    let launch =
        launch(&scratch, Kind::Btrfs.disk_bytes()).with(&folder.flags()).with(&["--linger", "0"]);
    let server = launch.start();
    let device = Loop::on(&folder.file(), Kind::Btrfs);
    Kind::Btrfs.make(device.path());
    let mounted = Mounted::new(&scratch, device.path(), "noatime").expect("it mounts");
    let room = || rustix::fs::statvfs(mounted.path()).expect("it is mounted").f_blocks * BLOCK;
    fs::write(mounted.path().join("file"), vec![7; 4 << 20]).expect("a file");
    let small = room();
    let ends = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0.. {
                fs::write(mounted.path().join("busy"), vec![number as u8; 1 << 16])
                    .expect("a file");
                run("sync", &[argument(mounted.path())]).expect("it is flushed");
                if ends.load(Ordering::Relaxed) {
                    return;
                }
            }
        });
        set_len(&scratch.join("disk.img"), 256 * MIB);
        grow(&server);
        run("losetup", &["-c", argument(device.path())]).expect("it looks");
        ends.store(true, Ordering::Relaxed);
    });
    let seen = run("blockdev", &["--getsize64", argument(device.path())]).expect("a size");
    assert_eq!(seen.trim(), (256 * MIB).to_string());
    let resize = ["filesystem", "resize", "max", argument(mounted.path())];
    run("btrfs", &resize).expect("it grows while it is mounted");
    assert!(room() > small + 100 * MIB, "{} after {small}", room());
    fs::write(mounted.path().join("more"), vec![8; 20 << 20]).expect("there is room");
    let checked = mounted.path().join("file");
    assert!(fs::read(checked).expect("the file") == vec![7; 4 << 20]);
    mounted.unmount().expect("it unmounts");
    Kind::Btrfs.check(device.path()).expect("it is sound");
    drop(device);
    assert_eq!(server.stop(), 0);
    Kind::Btrfs.check(&scratch.join("disk.img")).expect("the origin is the same");
}

/// Volumes of a group grow each for itself.
#[test]
fn a_volume_of_a_consistency_group_grows_beside_the_others() {
    let scratch = Scratch::new();
    let other = scratch.folder("other");
    let second = image(&other, 4 * MIB);
    let config = scratch.join("destage.toml");
    let section = format!(
        "[volume.log]\norigin = '{}'\ncache = '{}'\ncache-size = '64M'\ngroup = 'shop'\n",
        second.display(),
        other.join("cache.img").display()
    );
    fs::write(&config, section).expect("the settings can be written");
    let launch = launch(&scratch, 8 * MIB).with(&["--group", "shop", "--coordinator"]);
    let launch = launch.with(&["--config", argument(&config)]);
    let server = launch.start();
    let database = server.client();
    database.write(0, &stamped(1), false).expect("a write");
    set_len(&second, 6 * MIB);
    let grown = grow(&server);
    assert_eq!((&grown[""]["added"], &grown["log"]["added"]), (&0.into(), &(2 * MIB).into()));
    let log = connect(&server.uri.replace(":///?", ":///log?"));
    log.write(6 * MIB - BLOCK, &stamped(2), false).expect("a write behind the old end");
    database.write(BLOCK, &stamped(3), false).expect("a write");
    server.ask(&["checkpoint", "--wait"]);
    server.kill();
    let server = launch.start();
    assert_eq!(server.client().size(), 8 * MIB);
    assert_eq!(server.stop(), 0);
    assert!(fs::read(&second).expect("the image").ends_with(&stamped(2)));
    let first = fs::read(scratch.join("disk.img")).expect("the image");
    assert!(first.starts_with(&[stamped(1), stamped(3)].concat()));
}
