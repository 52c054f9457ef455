//! Running it: policies, commands, restarts, trouble.

use crate::harness::{PATIENCE, Scratch, eventually};
use crate::history::stamped;
use crate::server::{Launch, destage, image, text};
use std::path::Path;

const MIB: u64 = 1 << 20;

fn launch(scratch: &Scratch) -> Launch {
    let image = image(scratch, 8 * MIB);
    Launch::before(scratch, &format!("file:{}", image.display()))
}

fn first_number(image: &Path) -> u64 {
    let bytes = std::fs::read(image).expect("the image can be read");
    u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes"))
}

/// Destages nothing by itself.
const LATER: [&str; 4] = ["--when", "pressure", "--staleness", "1h"];

/// > A client that has not opened an export in time is disconnected; one that has is not.
#[test]
fn clients_that_never_finish_the_handshake_are_disconnected() {
    let scratch = Scratch::new();
    let server = launch(&scratch).with(&["--handshake-timeout", "5s"]).start();
    let good = server.client();
    let mut idle =
        std::os::unix::net::UnixStream::connect(scratch.join("nbd.sock")).expect("a socket");
    idle.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    let mut greeting = Vec::new();
    // Ends only because the server closes.
    std::io::Read::read_to_end(&mut idle, &mut greeting).expect("the server closes in time");
    assert!(greeting.starts_with(b"NBDMAGIC"));
    good.write(0, &stamped(1), true).expect("a write long after the handshake");
}

/// > Under write-through a write is never acknowledged before the origin has it.
#[test]
fn write_through_acknowledges_after_the_origin() {
    let scratch = Scratch::new();
    let server = launch(&scratch).with(&["--policy", "write-through"]).start();
    let client = server.client();
    for number in 1..20 {
        client.write(0, &stamped(number), false).expect("a write");
        assert_eq!(first_number(&scratch.join("disk.img")), number);
    }
    assert!(server.volume("policy").as_str().expect("text").contains("write-through"));
}

/// > A read always shows the newest acknowledged write, whether the origin has it or not.
#[test]
fn write_back_acknowledges_before_the_origin_and_drain_brings_it_there() {
    let scratch = Scratch::new();
    let server = launch(&scratch).with(&LATER).start();
    let client = server.client();
    client.write(0, &stamped(7), true).expect("a write");
    let mut read = vec![0; 4096];
    client.read(0, &mut read).expect("a read");
    assert_eq!(read, stamped(7));
    assert_eq!(first_number(&scratch.join("disk.img")), 0, "the origin has it already");
    assert_eq!(server.volume("dirty_bytes"), 4096);
    server.ask(&["drain"]);
    assert_eq!(first_number(&scratch.join("disk.img")), 7);
    assert_eq!(server.volume("dirty_bytes"), 0);
}

#[test]
fn the_policy_changes_while_it_runs_and_leaving_write_back_drains() {
    let scratch = Scratch::new();
    let server = launch(&scratch).with(&LATER).start();
    let client = server.client();
    client.write(0, &stamped(1), false).expect("a write");
    assert!(server.ask(&["policy", "write-through"]).contains("write-through"));
    client.write(4096, &stamped(2), false).expect("a write");
    assert_eq!(first_number(&scratch.join("disk.img")), 1, "what was dirty went first");
    assert!(server.ask(&["policy", "ordered", "order=strict"]).contains("order=strict"));
    let refused = server.try_ask(&["policy", "lazy"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(text(&refused.stderr).contains("write-through, write-back, ordered or journaled"));
}

#[test]
fn what_is_cached_is_used_again_after_a_restart() {
    let scratch = Scratch::new();
    let launch = launch(&scratch);
    std::fs::write(scratch.join("disk.img"), stamped(9).repeat(2048)).expect("a file");
    let server = launch.start();
    let mut read = vec![0; 1 << 20];
    server.client().read(0, &mut read).expect("a read");
    assert_eq!(server.volume("miss_blocks_total"), 256);
    assert_eq!(server.stop(), 0);
    let server = launch.start();
    server.client().read(0, &mut read).expect("a read");
    assert_eq!(read, stamped(9).repeat(256));
    assert_eq!(server.volume("miss_blocks_total"), 0, "the origin was read again");
    assert_eq!(server.volume("hit_blocks_total"), 256);
}

/// > A long sequential write is never kept in the cache, and keeps its place in the order of writes.
#[test]
fn a_long_sequential_write_leaves_what_is_cached_and_survives_a_crash_as_any_other() {
    for policy in ["journaled", "ordered", "write-back", "write-through"] {
        let scratch = Scratch::new();
        let launch = launch(&scratch).with(&["--policy", policy, "--bypass-sequential", "64K"]);
        let server = launch.start();
        let client = server.client();
        let mut read = vec![0; 4096];
        client.read(6 * MIB, &mut read).expect("a read");
        let number_of = |block: u64| stamped(1 + block);
        for block in 0..256 {
            client.write(block * 4096, &number_of(block), false).expect("a write");
        }
        client.write(255 * 4096, &stamped(1_000), false).expect("a write that is no stream");
        client.flush().expect("a flush");
        server.kill();
        let server = launch.start();
        let client = server.client();
        for block in 0..255 {
            client.read(block * 4096, &mut read).expect("a read");
            assert_eq!(read, number_of(block), "{policy}: block {block} after a crash");
        }
        for block in 256..768 {
            client.write(block * 4096, &number_of(block), false).expect("a write");
        }
        server.ask(&["drain"]);
        let origin = std::fs::read(scratch.join("disk.img")).expect("the image can be read");
        assert_eq!(origin[255 * 4096..256 * 4096], stamped(1_000), "{policy}");
        for block in 256..768 {
            assert_eq!(origin[block * 4096..][..4096], number_of(block as u64), "{policy}");
        }
        let bypassed = server.volume("bypassed_blocks_total").as_u64().expect("a number");
        let clean = server.volume("clean_blocks").as_u64().expect("a number");
        // Of the reads as well as of the writes only the first 64 KiB are kept, and what the crash left undecided.
        assert!(bypassed >= 512 - 16, "{policy}: {bypassed} passed the cache by");
        assert!(clean < 256 + 40, "{policy}: {clean} are kept");
    }
}

/// Beyond what its log and its dirty blocks take.
#[test]
fn clean_blocks_may_take_all_of_a_large_cache() {
    let scratch = Scratch::new();
    let arguments = ["--cache-size", "2560M", "--log-size", "64M", "--dirty-limit", "32M"];
    let server = launch(&scratch).with(&arguments).start();
    let status = server.status();
    let bytes = status.pointer("/policy/cache_bytes_max").and_then(serde_json::Value::as_u64);
    let bytes = bytes.expect("a number");
    assert!(bytes > 2000 * MIB, "only {} MiB of 2,560 are used for clean blocks", bytes / MIB);
}

#[test]
fn a_changed_origin_is_noticed_at_the_start() {
    let scratch = Scratch::new();
    let launch = launch(&scratch);
    let server = launch.start();
    server.client().write(0, &stamped(1), true).expect("a write");
    assert_eq!(server.stop(), 0);
    std::fs::write(scratch.join("disk.img"), stamped(5).repeat(2048)).expect("a file");
    let (code, said) = launch.refused();
    assert_eq!(code, 14, "{said}");
    assert!(said.contains("something else changed") && said.contains("--adopt"), "{said}");
    let server = launch.with(&["--adopt"]).start();
    let mut read = vec![0; 4096];
    server.client().read(0, &mut read).expect("a read");
    assert_eq!(read, stamped(5), "an outdated copy was served");
}

#[test]
fn a_cache_that_another_one_has_overtaken_is_refused_and_adopted_only_without_its_copies() {
    let scratch = Scratch::new();
    let first = launch(&scratch);
    let mut second = first.clone();
    second.cache = scratch.join("second.img");
    for (launch, number) in [(&first, 1), (&second, 2)] {
        let server = launch.start();
        server.client().write(0, &stamped(number), true).expect("a write");
        assert_eq!(server.stop(), 0);
    }
    let (code, said) = first.refused();
    assert_eq!(code, 11, "{said}");
    assert!(said.contains("another cache has served"), "{said}");
    let server = first.clone().with(&["--adopt"]).start();
    let mut read = vec![0; 4096];
    server.client().read(0, &mut read).expect("a read");
    assert_eq!(read, stamped(2), "an outdated copy was served");
    server.kill();
    // What was dropped stays dropped, also after a crash.
    let server = first.start();
    server.client().read(0, &mut read).expect("a read");
    assert_eq!(read, stamped(2), "an outdated copy came back");
}

#[test]
fn another_policy_at_the_next_start_is_no_foreign_write() {
    let scratch = Scratch::new();
    let launch = launch(&scratch);
    for (number, policy) in
        [(1, "journaled"), (2, "ordered"), (3, "write-through"), (4, "journaled")]
    {
        let server = launch.clone().with(&["--policy", policy]).start();
        server.client().write(0, &stamped(number), true).expect("a write");
        assert_eq!(server.stop(), 0);
        assert_eq!(first_number(&scratch.join("disk.img")), number);
    }
}

#[test]
fn a_client_that_waited_for_room_is_taken_up_again() {
    let scratch = Scratch::new();
    let image = image(&scratch, 256 * MIB);
    let launch = Launch::before(&scratch, &format!("file:{}", image.display()));
    let server = launch.start();
    server.ask(&["freeze"]);
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..6)
            .map(|index| {
                let client = server.client();
                let at = index * 24 * MIB;
                scope.spawn(move || client.write(at, &vec![7; 24 * MIB as usize], false))
            })
            .collect();
        let idle = server.client();
        eventually("the writes have arrived", PATIENCE, || {
            server.status()["clients"]["commands_total"].as_u64() >= Some(6)
        });
        let reader = scope.spawn(move || {
            let mut read = vec![0; 4096];
            idle.read(200 * MIB, &mut read).map(|()| read)
        });
        std::thread::sleep(std::time::Duration::from_millis(300));
        server.ask(&["thaw"]);
        for writer in writers {
            writer.join().expect("no panic").expect("a write");
        }
        assert_eq!(reader.join().expect("no panic").expect("a read"), vec![0; 4096]);
    });
}

#[test]
fn a_frozen_or_paused_server_still_shuts_down_and_destages() {
    let scratch = Scratch::new();
    let server = launch(&scratch).with(&LATER).with(&["--drain-timeout", "none"]).start();
    server.client().write(0, &stamped(8), true).expect("a write");
    server.ask(&["freeze"]);
    server.ask(&["pause"]);
    assert_eq!(server.stop(), 0);
    assert_eq!(first_number(&scratch.join("disk.img")), 8);
}

#[test]
fn a_cache_of_another_origin_and_a_second_process_are_refused() {
    let scratch = Scratch::new();
    let launch = launch(&scratch);
    let server = launch.start();
    let elsewhere = format!("unix:{}", scratch.join("second.sock").display());
    let (code, said) = launch.clone().listening(&elsewhere).refused();
    assert_eq!(code, 13, "{said}");
    assert_eq!(server.stop(), 0);
    let other = scratch.folder("other");
    let image = image(&other, 8 * MIB);
    let mut foreign = Launch::before(&other, &format!("file:{}", image.display()));
    foreign.cache.clone_from(&launch.cache);
    let (code, said) = foreign.refused();
    assert_eq!(code, 13, "{said}");
    assert!(said.contains("belongs to the origin"), "{said}");
}

#[test]
fn what_is_no_cache_or_no_origin_is_left_alone_with_a_reason() {
    let scratch = Scratch::new();
    let launch = launch(&scratch);
    let precious = stamped(42).repeat(16_384);
    std::fs::write(&launch.cache, &precious).expect("a file");
    let (code, said) = launch.refused();
    assert_eq!(code, 13, "{said}");
    assert!(said.contains("not empty"), "{said}");
    assert!(std::fs::read(&launch.cache).expect("a file") == precious, "it was written to");
    let absent = Launch::before(&scratch.folder("b"), "file:/nowhere/disk.img");
    let (code, said) = absent.refused();
    assert_eq!(code, 10, "{said}");
    assert!(said.contains("/nowhere/disk.img"), "{said}");
}

#[test]
fn freeze_holds_writes_until_thaw_and_marks_a_point() {
    let scratch = Scratch::new();
    let server = launch(&scratch).with(&LATER).start();
    let client = server.client();
    client.write(0, &stamped(1), false).expect("a write");
    server.ask(&["freeze"]);
    assert_eq!(server.volume("mode"), "frozen");
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| client.write(0, &stamped(2), false));
        let mut read = vec![0; 4096];
        server.client().read(0, &mut read).expect("reads go on");
        assert_eq!(read, stamped(1));
        assert!(!writer.is_finished(), "a write passed a frozen volume");
        server.ask(&["thaw"]);
        writer.join().expect("no panic").expect("the write goes on");
    });
    server.ask(&["checkpoint", "--wait"]);
    assert_eq!(first_number(&scratch.join("disk.img")), 2);
}

#[test]
fn detach_destages_and_ends_and_inspect_shows_the_cache() {
    let scratch = Scratch::new();
    let launch = launch(&scratch).with(&LATER);
    let mut server = launch.start();
    server.client().write(0, &stamped(3), false).expect("a write");
    server.ask(&["detach"]);
    assert_eq!(server.wait(), 0);
    assert_eq!(first_number(&scratch.join("disk.img")), 3);
    let inspected = destage()
        .args(["block", "inspect", "--format", "json", "--cache"])
        .arg(&launch.cache)
        .output()
        .expect("the binary starts");
    let json: serde_json::Value = serde_json::from_slice(&inspected.stdout).expect("JSON");
    assert_eq!(json["volume_bytes"], 8 * MIB);
    assert_eq!(json["origin"], scratch.join("disk.img").display().to_string());
}

#[test]
fn an_origin_that_is_away_is_waited_for_and_everything_arrives() {
    let scratch = Scratch::new();
    let image = image(&scratch, 8 * MIB);
    let Some(disk) = crate::server::SlowDisk::start(&scratch, &image, 0) else { return };
    let launch = Launch::before(&scratch, &disk.uri).redo_at(scratch.join("redo"));
    let server = launch.with(&["--linger", "0", "-D", "1h", "-d", "0"]).start();
    let client = server.client();
    client.write(0, &stamped(1), true).expect("a write");
    drop(disk);
    for number in 2..50 {
        client.write(0, &stamped(number), true).expect("writes go on");
    }
    let mut read = vec![0; 4096];
    client.read(0, &mut read).expect("hits go on");
    assert_eq!(read, stamped(49));
    eventually("the trouble shows", PATIENCE, || server.volume("origin_errors_total") != 0);
    let _disk = crate::server::SlowDisk::start(&scratch, &image, 0).expect("nbdkit is there");
    eventually("everything arrives", PATIENCE, || first_number(&image) == 49);
    eventually("nothing is left", PATIENCE, || server.volume("dirty_writes") == 0);
}

#[test]
fn run_starts_a_command_with_the_uri_and_ends_with_it() {
    let scratch = Scratch::new();
    let launch = launch(&scratch).with(&["--run", "test -n \"$uri\" && exit 7"]);
    let (code, said) = launch.refused();
    assert_eq!(code, 7, "{said}");
    assert!(said.contains("the command ended with 7"), "{said}");
}

#[test]
fn metrics_name_the_volume() {
    let scratch = Scratch::new();
    let server = launch(&scratch).start();
    server.client().write(0, &stamped(1), true).expect("a write");
    let metrics = ureq::get(format!("http://{}/metrics", server.admin)).call().expect("an answer");
    let text = metrics.into_body().read_to_string().expect("text");
    assert!(text.contains("destage_volume_dirty_bytes{volume=\"\"}"), "{text}");
}

#[test]
fn the_log_may_be_a_share_of_the_cache() {
    let scratch = Scratch::new();
    let launch = launch(&scratch).with(&["--cache-size", "128MB", "--log-size", "50%"]);
    launch.start().stop();
    let mut inspect = destage();
    inspect.args(["block", "inspect", "--format", "json", "--cache"]).arg(&launch.cache);
    let shown = inspect.output().expect("the binary starts").stdout;
    let shown: serde_json::Value = serde_json::from_slice(&shown).expect("it is JSON");
    assert_eq!(
        (&shown["total_bytes"], &shown["log_bytes"]),
        (&(128 * MIB).into(), &(64 * MIB).into()),
        "{shown}"
    );
}
