//! The database stops under load: what is cached goes on until D, then clients see what was chosen; when the database is
//! back everything arrives, in order, once.

use crate::crash::observed::Allowed;
use crate::harness::{
    Database, Launch, Postgres, Proxy, Reply, Scratch, Server, eventually, millis, seconds,
};
use crate::load::{self, Load, Mix, Observed};
use std::thread;
use std::time::{Duration, Instant};

/// Short, so that the tests need not wait long for it.
const STALENESS: Duration = Duration::from_secs(3);
/// Time that a loaded machine may take to carry an acknowledgement to a client and have it noted.
const SLACK: Duration = Duration::from_millis(700);

/// A server before a database of its own that may be stopped.
struct Setup {
    scratch: Scratch,
    postgres: Postgres,
    database: Database,
}

fn setup() -> Option<Setup> {
    let postgres = Postgres::start()?;
    let database = load::tables(Database::in_server(&postgres));
    Some(Setup { scratch: Scratch::new(), postgres, database })
}

impl Setup {
    fn launch(&self, more: &[&str]) -> Launch {
        Launch::before(&self.scratch, &self.database.url()).with(&["--staleness", "3s"]).with(more)
    }
}

/// Takes the database away under load until D is passed, and brings it back.
fn outage(seed: u64, at_limit: &str, away: fn(&mut Postgres), back: fn(&mut Postgres)) {
    let Some(mut setup) = setup() else { return };
    let server = setup.launch(&["--at-limit", at_limit]).start();
    let load = Load::start(server.listen, seed, 4, 2, Mix::Cached);
    eventually("the load runs", seconds(20), || load.acks() > 200);

    away(&mut setup.postgres);
    let gone = Instant::now();
    let before = load.acks();
    thread::sleep(STALENESS / 2);
    assert!(load.acks() > before + 50, "writes stopped before D");
    still_reads(&server);
    thread::sleep(STALENESS / 2 + SLACK * 2);

    let last = load.last_ack();
    assert!(
        last < gone + STALENESS + SLACK,
        "acknowledged {:?} after the database went, D is {STALENESS:?}",
        last - gone
    );
    still_reads(&server);
    assert_eq!(server.status()["mode"], "staleness-exceeded");
    let mut client = server.client();
    client.patience(millis(500));
    match (at_limit, client.try_call(&["HINCRBY", "counters:1", "n", "0"])) {
        ("fail", Ok(Reply::Error(message))) => {
            let message = message.to_lowercase();
            assert!(message.contains("stale") || message.contains(" d "), "{message}");
        }
        ("block", Err(_)) => {}
        (_, other) => panic!("--at-limit {at_limit}: {other:?}"),
    }

    back(&mut setup.postgres);
    let returned = Instant::now();
    eventually("writes go on", seconds(15), || load.last_ack() > returned + millis(300));
    thread::sleep(millis(300));
    let histories = load.stop();
    // What was on its way when D passed is in the journal already: its answer waits under either choice.
    let refused = histories.clients.iter().any(|client| client.refusal.is_some());
    assert!(!refused || at_limit == "fail");
    let read = Observed::by_client(&mut server.client(), &histories);
    read.check(&histories, Allowed::Nothing).expect("nothing is lost or doubled");
    server.drain();
    assert_eq!(Observed::by_database(&setup.database), read);
    assert_eq!(server.status()["destage"]["parked_groups"], 0);
}

/// A cached row is read, and quickly.
#[track_caller]
fn still_reads(server: &Server) {
    let start = Instant::now();
    assert!(server.client().run("HGET counters:0 n").int() > 0);
    assert!(start.elapsed() < seconds(1), "a cached read took {:?}", start.elapsed());
}

#[test]
fn with_the_database_stopped_writes_go_on_until_d_then_fail_and_all_arrives_once() {
    outage(1, "fail", Postgres::stop, Postgres::restart);
}

#[test]
fn with_the_database_stopped_writes_go_on_until_d_then_wait_and_all_arrives_once() {
    outage(2, "block", Postgres::stop, Postgres::restart);
}

#[test]
fn with_the_database_frozen_writes_go_on_until_d_then_wait_and_all_arrives_once() {
    outage(3, "block", Postgres::freeze, Postgres::thaw);
}

#[test]
fn a_crash_during_an_outage_loses_nothing_and_d_counts_from_before_it() {
    let Some(mut setup) = setup() else { return };
    let launch = setup.launch(&["--at-limit", "fail"]);
    let server = launch.start();
    let load = Load::start(server.listen, 4, 3, 1, Mix::Full);
    eventually("the load runs", seconds(20), || load.acks() > 100);
    setup.postgres.stop();
    thread::sleep(millis(500));
    server.kill();
    let histories = load.finish();
    // Longer than D in all: what waits in the journal is too old for anything to be acknowledged before it is at the origin.
    thread::sleep(STALENESS);
    setup.postgres.restart();
    let server = launch.start();
    let mut client = server.client();
    let read = Observed::by_client(&mut client, &histories);
    read.check(&histories, Allowed::Nothing).expect("nothing is lost or doubled");
    server.drain();
    assert_eq!(Observed::by_database(&setup.database), read);
}

#[test]
fn a_locked_sqlite_file_is_waited_for() {
    let scratch = Scratch::new();
    let database = load::tables(Database::sqlite(&scratch));
    let server = Launch::before(&scratch, &database.url()).start();
    let load = Load::start(server.listen, 5, 3, 4, Mix::Full);
    eventually("the load runs", seconds(20), || load.acks() > 100);
    let lock = database.connect();
    lock.execute_batch("BEGIN IMMEDIATE").expect("the file can be locked");
    let before = load.acks();
    thread::sleep(seconds(3));
    assert!(load.acks() > before + 50, "writes wait for the origin");
    lock.execute_batch("ROLLBACK").expect("the lock goes");
    thread::sleep(millis(200));
    let histories = load.stop();
    let read = Observed::by_client(&mut server.client(), &histories);
    read.check(&histories, Allowed::Nothing).expect("nothing is lost or doubled");
    server.drain();
    assert_eq!(Observed::by_database(&database), read);
}

/// Loses the answers to the commits of batches, again and again under load; what is wrong afterwards.
fn lost_answers(more: &[&str]) -> Option<Result<(), String>> {
    let scratch = Scratch::new();
    let database = load::tables(Database::postgres()?);
    let (proxy, url) = Proxy::before(&database.url());
    let server = Launch::before(&scratch, &url).with(more).start();
    let load = Load::start(server.listen, 6, 4, 2, Mix::Cached);
    for _ in 0..10 {
        let before = load.acks();
        eventually("the load runs", seconds(20), || load.acks() > before + 20);
        proxy.lose_next_commit();
        eventually("a batch is committed", seconds(20), || proxy.has_lost());
        proxy.cut();
    }
    let histories = load.stop();
    let check = || {
        let read = Observed::by_client(&mut server.client(), &histories);
        read.check(&histories, Allowed::Nothing)?;
        server.drain();
        match Observed::by_database(&database) {
            held if held == read => Ok(()),
            held => Err(format!("drained: {held:?}\nread before: {read:?}")),
        }
    };
    Some(check())
}

#[test]
fn a_batch_whose_answer_is_lost_is_not_applied_twice() {
    if let Some(checked) = lost_answers(&[]) {
        checked.expect("nothing is lost or doubled");
    }
}

#[test]
fn without_the_watermark_a_batch_whose_answer_is_lost_is_applied_twice() {
    if let Some(checked) = lost_answers(&["--unsafe-no-watermark"]) {
        let what = checked.expect_err("lost answers did no harm: the test proves nothing");
        assert!(what.contains("drained"), "{what}");
    }
}
