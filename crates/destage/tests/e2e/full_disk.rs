//! A disk has no space left under load, that of the journal or that of the origin: nothing that was acknowledged is lost, what
//! needs no space goes on, and with space everything does, by itself.

use crate::crash::observed::Allowed;
use crate::harness::small_disk::SmallDisk;
use crate::harness::{
    Database, Held, Launch, PATIENCE, Scratch, Server, eventually, millis, seconds,
};
use crate::load::{self, Histories, Load, Mix, Observed};
use std::thread;
use std::time::Instant;

/// The disk has room for some of the journal's segments, of an eighth of its size each, and not for all.
const ROOM_MIB: u32 = 3;
const JOURNAL: &str = "4M";
/// Bytes of the journal when others take the rest: several segments, of which the origin can make one again.
const BEGUN: u64 = 3 << 19;
/// Longer than a disk may be full here.
const STALENESS: [&str; 4] = ["--staleness", "10m", "--client-wait", "10m"];

/// A server whose journal is on a small disk and whose origin is on another.
struct Setup {
    launch: Launch,
    database: Database,
    disk: SmallDisk,
    _scratch: Scratch,
}

impl Setup {
    fn new(commit: &str) -> Option<Self> {
        let scratch = Scratch::new();
        let disk = SmallDisk::new(&scratch, ROOM_MIB)?;
        let database = load::tables(Database::sqlite(&scratch));
        let launch = Launch::before(&scratch, &database.url())
            .at(disk.join("data"))
            .with(&STALENESS)
            .with(&["--journal-size", JOURNAL, "--commit", commit]);
        Some(Self { launch, database, disk, _scratch: scratch })
    }

    /// A load, until the journal has no space for it.
    fn fills(&self, server: &Server, seed: u64) -> Load {
        let load = Load::start(server.listen, seed, 4, 8, Mix::Full);
        // Otherwise the origin makes space in the journal.
        server.client().run("DESTAGE PAUSE").ok();
        eventually("the journal grows", PATIENCE, || {
            server.status()["journal"]["bytes"].as_u64() > Some(BEGUN)
        });
        self.disk.fill();
        eventually("the disk is full", PATIENCE, || server.status()["mode"] == "disk-full");
        load
    }

    /// Everything acknowledged is there, and reaches the origin once.
    fn check(&self, server: &Server, histories: &Histories) {
        let arrived = Observed::all_arrives(server, &self.database, histories);
        arrived.expect("nothing is lost or doubled");
    }
}

/// Fills the disk of the journal under load, and makes space again.
fn journal_full(commit: &str, seed: u64) {
    let Some(setup) = Setup::new(commit) else { return };
    let server = setup.launch.start();
    let load = setup.fills(&server, seed);

    let status = server.status();
    assert_eq!(status["journal"]["disk_full"], true, "{status}");
    assert!(server.metric("destage_journal_disk_full") > 0.0);
    let mut client = server.client();
    let info = client.run("INFO persistence").text();
    assert!(info.contains("aof_last_write_status:err"), "{info}");
    assert!(!server.is_ready(), "it takes no writes");
    // Answers that were on their way when the mode changed.
    thread::sleep(millis(200));
    let before = load.acks();
    let full = Instant::now();
    while full.elapsed() < seconds(2) {
        // Of a row without a write that waits.
        assert_eq!(client.run("HGET registers:15 seq").int(), -1, "reads go on");
        thread::sleep(millis(50));
    }
    assert_eq!(load.acks(), before, "a write was acknowledged that the journal has no space for");
    client.patience(millis(300));
    let waits = client.try_call(&["HINCRBY", "counters:1", "n", "0"]);
    assert!(waits.is_err(), "a write without space: {waits:?}");

    setup.disk.free();
    let freed = Instant::now();
    eventually("writes go on", PATIENCE, || load.last_ack() > freed + millis(200));
    server.client().run("DESTAGE RESUME").ok();
    let histories = load.stop();
    assert_eq!(server.status()["journal"]["disk_full"], false);
    assert!(server.is_ready());
    setup.check(&server, &histories);
    let log = server.log();
    for said in ["the journal's disk is full", "the journal's disk has space again"] {
        assert!(log.contains(said), "the log lacks {said:?}:\n{log}");
    }
}

#[test]
fn with_the_journals_disk_full_no_write_is_acknowledged_until_there_is_space_and_none_is_lost() {
    journal_full("0", 1);
}

#[test]
fn with_the_journals_disk_full_writes_that_are_durable_later_wait_for_space_too_and_none_is_lost() {
    journal_full("100ms", 2);
}

/// Kills a server whose disk is full.
fn killed(setup: &Setup, seed: u64) -> Histories {
    let server = setup.launch.start();
    let load = setup.fills(&server, seed);
    server.kill();
    load.finish()
}

#[test]
fn a_crash_on_a_full_disk_loses_nothing_and_the_next_start_needs_no_space() {
    let Some(setup) = Setup::new("0") else { return };
    let histories = killed(&setup, 3);
    let server = setup.launch.start();
    setup.check(&server, &histories);
    // What is at the origin makes space for more.
    assert!(!server.client().run("HINCRBY counters:1 n 0").is_error());
}

#[test]
fn a_start_on_a_disk_that_is_full_since_an_end_in_order_needs_no_space() {
    let Some(setup) = Setup::new("0") else { return };
    let server = setup.launch.start();
    assert_eq!(server.client().run("HINCRBY counters:1 n 5").int(), 5);
    server.terminate(PATIENCE).says(0, &[]);
    setup.disk.fill();
    let server = setup.launch.start();
    assert_eq!(server.client().run("HGET counters:1 n").text(), "5");
    // Killed, it still knows how far its origin is, and starts again.
    server.kill();
    let server = setup.launch.start();
    setup.disk.free();
    assert_eq!(server.client().run("HINCRBY counters:1 n 1").int(), 6);
    server.terminate(PATIENCE).says(0, &[]);
}

#[test]
fn an_end_in_order_needs_no_space() {
    let Some(setup) = Setup::new("0") else { return };
    let server = setup.launch.start();
    assert_eq!(server.client().run("HINCRBY counters:1 n 5").int(), 5);
    server.drain();
    setup.disk.fill();
    server.terminate(PATIENCE).says(0, &[]);
    let noted = std::fs::read(setup.launch.data().join("origin")).expect("it is there");
    assert!(String::from_utf8_lossy(&noted).contains("\"decided\":1,"));
    setup.disk.free();
    // Nor where the second file is lost: how far the origin is, is not known then.
    let server = setup.launch.start();
    assert_eq!(server.client().run("HINCRBY counters:1 n 1").int(), 6);
    server.drain();
    std::fs::remove_file(setup.launch.data().join("origin.new")).expect("it is there");
    setup.disk.fill();
    server.terminate(PATIENCE).says(0, &["--change-origin will be refused"]);
}

#[test]
fn a_start_on_a_disk_that_is_full_since_an_end_with_writes_left_needs_no_space() {
    let Some(setup) = Setup::new("0") else { return };
    let server = setup.launch.with(&["--drain-timeout", "1s"]).start();
    assert!(!server.client().run("HINCRBY counters:1 n 0").is_error());
    server.drain();
    let locked = Held::begin(&setup.database, "UPDATE counters SET n = n");
    assert_eq!(server.client().run("HINCRBY counters:1 n 5").int(), 5);
    server.terminate(PATIENCE).says(12, &["stopped with 1 writes"]);
    setup.disk.fill();
    locked.commit();
    let server = setup.launch.start();
    server.drain();
    assert_eq!(setup.database.number("SELECT n FROM counters WHERE id = 1"), 5);
    server.terminate(PATIENCE).says(0, &[]);
}

#[test]
fn a_crash_on_a_full_disk_that_loses_what_was_acknowledged_from_memory_is_noticed() {
    let Some(setup) = Setup::new("1m") else { return };
    let histories = killed(&setup, 5);
    let read = Observed::by_client(&mut setup.launch.start().client(), &histories);
    read.check(&histories, Allowed::AnySuffix).expect("it is a suffix that is lost");
    let checked = read.check(&histories, Allowed::Nothing);
    checked.expect_err("nothing was lost: the check proves nothing");
}

#[test]
fn an_origin_whose_disk_is_full_is_tried_again_until_it_has_space_and_nothing_is_parked() {
    let scratch = Scratch::new();
    let Some(disk) = SmallDisk::new(&scratch, 4) else { return };
    let database = load::tables(Database::Sqlite(disk.join("origin.db")));
    let server = Launch::before(&scratch, &database.url()).with(&STALENESS).start();
    let load = Load::start(server.listen, 4, 4, 4, Mix::Full);
    eventually("the load runs", PATIENCE, || load.acks() > 200);
    disk.fill();
    eventually("the origin is tried in vain", PATIENCE, || {
        server.status()["origin"]["retries_total"].as_u64() > Some(2)
    });
    let before = load.acks();
    eventually("writes do not wait for it", PATIENCE, || load.acks() > before + 50);
    disk.free();
    let freed = Instant::now();
    eventually("the load goes on", PATIENCE, || load.last_ack() > freed + millis(200));
    let histories = load.stop();
    let arrived = Observed::all_arrives(&server, &database, &histories);
    arrived.expect("nothing is lost or doubled");
}
