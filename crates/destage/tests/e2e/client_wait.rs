//! Clients that wait, and clients that do not wait any more: what nobody waits for is not done, and who waits is told in time
//! what has become of it.

use crate::harness::small_disk::SmallDisk;
use crate::harness::{
    Client, Database, Launch, PATIENCE, Reply, Scratch, Server, eventually, millis, output,
    prepared, seconds, shop,
};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

/// Longer than a client here waits before it goes.
const GOES_AFTER: Duration = millis(300);
/// What a loaded machine may take beyond a bound.
const SLACK: Duration = seconds(3);
const STOCK: &str = "SELECT stock FROM products WHERE id = 1";

/// A server before a SQLite file, which a lock takes away.
struct Setup {
    database: Database,
    server: Server,
    _scratch: Scratch,
}

impl Setup {
    fn new(arguments: &[&str]) -> Self {
        let scratch = Scratch::new();
        let database = shop::sqlite(&scratch);
        Self::before(scratch, database, arguments)
    }

    fn before(scratch: Scratch, database: Database, arguments: &[&str]) -> Self {
        let server = Launch::before(&scratch, &database.url()).with(arguments).start();
        Self { database, server, _scratch: scratch }
    }

    /// One whose origin is away for longer than D; until the lock goes. One unit of stock is acknowledged.
    fn past_d(arguments: &[&str]) -> (Self, rusqlite::Connection) {
        let bounds = ["--staleness", "1s", "--at-limit", "block"];
        let setup = Self::new(&[&bounds, arguments].concat());
        let mut client = setup.server.client();
        assert_eq!(client.run("HGET products:1 stock").int_text(), 10);
        let lock = setup.locked("IMMEDIATE");
        assert_eq!(client.run("HINCRBY products:1 stock 1").int(), 11);
        eventually("D is exceeded", PATIENCE, || {
            setup.server.status()["mode"] == "staleness-exceeded"
        });
        (setup, lock)
    }

    fn locked(&self, how: &str) -> rusqlite::Connection {
        let lock = self.database.connect();
        lock.execute_batch(&format!("BEGIN {how}")).expect("the file can be locked");
        lock
    }

    /// The stock in the end.
    #[track_caller]
    fn ends_with(self, lock: &rusqlite::Connection) -> i64 {
        lock.execute_batch("ROLLBACK").expect("the lock goes");
        self.server.drain();
        // One more: what waited for its turn was before it.
        self.server.client().run("HINCRBY products:1 stock 100");
        self.server.drain();
        self.database.number(STOCK) - 100
    }
}

/// Connections that send this and go while it waits.
fn left(server: &Server, count: usize, sends: &[&str]) {
    let clients: Vec<Client> = (0..count)
        .map(|_| {
            let mut client = server.client();
            for command in sends {
                let words: Vec<&str> = command.split_whitespace().collect();
                client.send(&words).expect("the server takes it");
            }
            client
        })
        .collect();
    eventually("they wait", PATIENCE, || {
        server.status()["clients"]["waiting"].as_u64() >= Some(count as u64)
    });
    thread::sleep(GOES_AFTER);
    drop(clients);
    eventually("nothing of theirs waits", PATIENCE, || {
        server.status()["clients"]["waiting"].as_u64() == Some(0)
    });
}

impl Reply {
    /// A number that is a field's value.
    fn int_text(&self) -> i64 {
        self.text().parse().expect("a number")
    }
}

/// Longer than the tests: nothing is given up by time.
const LONG: [&str; 2] = ["--client-wait", "10m"];

/// > What waits and is not in the journal is never done once its connection is closed.
#[test]
fn what_waits_past_d_is_not_done_once_its_connection_is_closed() {
    for sends in [
        &["HINCRBY products:1 stock 1"][..],
        &["MULTI", "HINCRBY products:1 stock 1", "EXEC"],
        &["HINCRBY products:1 stock 1", "HINCRBY products:1 stock 1", "HGET products:1 stock"],
        &["HGET products:1 stock", "HINCRBY products:1 stock 1", "MULTI", "DEL products:1", "EXEC"],
    ] {
        let (setup, lock) = Setup::past_d(&LONG);
        left(&setup.server, 5, sends);
        assert_eq!(setup.ends_with(&lock), 11, "{sends:?}");
    }
}

#[test]
fn what_waits_past_d_for_a_client_that_is_there_is_done() {
    let (setup, lock) = Setup::past_d(&LONG);
    let mut clients: Vec<Client> = (0..5).map(|_| setup.server.client()).collect();
    for client in &mut clients {
        client.send(&["HINCRBY", "products:1", "stock", "1"]).expect("the server takes it");
    }
    thread::sleep(GOES_AFTER);
    assert_eq!(setup.ends_with(&lock), 16);
}

#[test]
fn an_increment_that_waits_for_its_row_is_not_done_once_its_connection_is_closed() {
    let setup = Setup::new(&LONG);
    let lock = setup.locked("EXCLUSIVE");
    let mut client = setup.server.client();
    client.send(&["HINCRBY", "products:1", "stock", "1"]).expect("the server takes it");
    thread::sleep(GOES_AFTER);
    drop(client);
    thread::sleep(GOES_AFTER);
    assert_eq!(setup.ends_with(&lock), 10);
}

#[test]
fn what_is_read_for_a_client_that_has_sent_everything_is_still_answered() {
    let setup = Setup::new(&LONG);
    let lock = setup.locked("EXCLUSIVE");
    let mut client = setup.server.client();
    client.send(&["HGET", "products:1", "stock"]).expect("the server takes it");
    client.send(&["HINCRBY", "products:1", "stock", "1"]).expect("the server takes it");
    client.sends_no_more();
    thread::sleep(GOES_AFTER);
    lock.execute_batch("ROLLBACK").expect("the lock goes");
    assert_eq!(client.receive().expect("an answer").int_text(), 10);
    let refused = client.receive().expect("an answer");
    assert!(refused.error().contains("nothing was done"), "{refused:?}");
    setup.server.drain();
    assert_eq!(setup.database.number(STOCK), 10);
}

/// > A write that was answered with `UNAVAILABLE` is never done.
#[test]
fn past_d_a_client_is_told_within_its_wait_that_nothing_was_done() {
    let (setup, lock) = Setup::past_d(&["--client-wait", "500ms"]);
    let mut client = setup.server.client();
    let began = Instant::now();
    let told = client.run("HINCRBY products:1 stock 1");
    assert!(began.elapsed() >= millis(500) && began.elapsed() < millis(500) + SLACK);
    let told = told.error();
    assert!(told.starts_with("UNAVAILABLE the oldest write has waited for"), "{told}");
    assert!(told.contains("(--client-wait), and nothing was done"), "{told}");
    // All of a pipeline have waited for as long as the first.
    let began = Instant::now();
    let commands = vec!["HINCRBY products:1 stock 1".to_owned(); 50];
    for told in client.pipeline(&commands) {
        assert!(told.error().contains("nothing was done"), "{told:?}");
    }
    assert!(began.elapsed() < millis(500) + SLACK, "{:?}", began.elapsed());
    client.run("MULTI");
    client.run("HINCRBY products:1 stock 1");
    assert!(client.run("EXEC").error().contains("nothing was done"));
    let info = client.run("INFO destage").text();
    assert!(info.contains("requests_given_up:52\r\n"), "{info}");
    assert_eq!(client.run("HGET products:1 stock").int_text(), 11);
    assert_eq!(setup.ends_with(&lock), 11);
}

#[test]
fn a_write_that_the_origin_does_not_answer_is_told_to_be_in_the_journal_and_is_done_once() {
    let setup = Setup::new(&["--policy", "write-through", "--client-wait", "500ms"]);
    let mut client = setup.server.client();
    assert_eq!(client.run("HINCRBY products:1 stock 1").int(), 11);
    let lock = setup.locked("IMMEDIATE");
    let told = client.run("HINCRBY products:1 stock 1");
    assert!(told.error().starts_with("PENDING write 2 is in the journal"), "{told:?}");
    assert!(told.error().contains("do not repeat it"), "{told:?}");
    // Nobody is shown it before the origin has it.
    let told = client.run("HGET products:1 stock");
    assert!(told.error().starts_with("UNAVAILABLE "), "{told:?}");
    assert_eq!(setup.ends_with(&lock), 12);
}

#[test]
fn a_read_of_what_only_the_origin_computes_is_answered_within_its_wait() {
    let scratch = Scratch::new();
    let database = Database::sqlite(&scratch).with(
        "CREATE TABLE notes (id INTEGER PRIMARY KEY, body TEXT, at TEXT DEFAULT CURRENT_TIMESTAMP)",
    );
    let setup = Setup::before(scratch, database, &["--client-wait", "500ms"]);
    let mut client = setup.server.client();
    client.run("HGETALL notes:1");
    let lock = setup.locked("IMMEDIATE");
    assert_eq!(client.run("HSET notes:1 body text").int(), 1);
    let began = Instant::now();
    let told = client.run("HGET notes:1 at");
    assert!(told.error().starts_with("UNAVAILABLE "), "{told:?}");
    assert!(began.elapsed() < millis(500) + SLACK, "{:?}", began.elapsed());
    assert_eq!(client.run("HGET notes:1 body").text(), "text");
    lock.execute_batch("ROLLBACK").expect("the lock goes");
    setup.server.drain();
    assert!(!client.run("HGET notes:1 at").text().is_empty());
}

#[test]
fn with_the_journals_disk_full_what_waits_is_answered_and_not_done_later() {
    let scratch = Scratch::new();
    let Some(disk) = SmallDisk::new(&scratch, 3) else { return };
    let database = shop::sqlite(&scratch);
    let server = Launch::before(&scratch, &database.url())
        .at(disk.join("data"))
        .with(&["--journal-size", "4M", "--staleness", "10m", "--client-wait", "1s"])
        .start();
    let mut client = server.client();
    client.run("DESTAGE PAUSE").ok();
    disk.fill();
    // Fills what the journal has set aside.
    let long = "x".repeat(100_000);
    let refused = (0..).find_map(|n| {
        let note = format!("{n} {long}");
        let told = client.call(&["HSET", "customers:1", "note", &note]);
        told.is_error().then_some((note, told))
    });
    let (note, told) = refused.expect("the disk is full");
    assert!(told.error().starts_with("PENDING its answer has to wait"), "{told:?}");
    assert_eq!(server.status()["mode"], "disk-full");
    let told = client.run("HINCRBY products:1 stock 1");
    assert!(told.error().starts_with("UNAVAILABLE the journal's disk is full"), "{told:?}");
    // It tells of the write that is not durable.
    let told = client.run("HGET customers:1 note");
    assert!(told.error().starts_with("UNAVAILABLE it tells of a write"), "{told:?}");
    assert_eq!(client.run("HGET products:1 name").text(), "Lamp");
    disk.free();
    eventually("there is space", PATIENCE, || server.status()["journal"]["disk_full"] == false);
    assert_eq!(client.run("HGET customers:1 note").text(), note);
    assert_eq!(client.run("HINCRBY products:1 stock 1").int(), 11);
    client.run("DESTAGE RESUME").ok();
    server.drain();
    assert_eq!(database.number(STOCK), 11);
}

/// Increments once, by a client with its defaults.
const INCREMENT: &str = "
import sys, redis
try:
    print(redis.Redis(port=int(sys.argv[1])).hincrby('products:1', 'stock', 1))
except redis.exceptions.ResponseError as error:
    print(error)
";

#[test]
fn redis_py_with_its_defaults_does_nothing_twice_past_d() {
    let Some(python) = prepared("DESTAGE_TEST_PYTHON") else { return };
    let (setup, lock) = Setup::past_d(&[]);
    let port = setup.server.port();
    let said = output(Command::new(python).args(["-c", INCREMENT, &port]));
    assert!(said.contains("nothing was done"), "{said}");
    assert_eq!(setup.ends_with(&lock), 11);
}
