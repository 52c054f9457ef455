//! The promises of docs/SEMANTICS.md, each quoted above the test that would fail without it.
//!
//! `tests/docs.rs` checks that no sentence with "always" or "never" of that page lacks its quotation. Everything here runs
//! the real binary before SQLite; the end-to-end tests go deeper and before PostgreSQL too.

#[path = "e2e/harness/mod.rs"]
#[allow(dead_code, unused_imports, reason = "the end-to-end tests use the rest")]
mod harness;

use harness::{
    Client, Database, Launch, PATIENCE, Reply, Scratch, Server, eventually, millis, shop,
};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

/// The shop behind a server with these arguments.
fn shop_with(scratch: &Scratch, arguments: &[&str]) -> (Database, Launch) {
    let database = shop::sqlite(scratch);
    let launch = Launch::before(scratch, &database.url()).with(arguments);
    (database, launch)
}

/// As [`shop_with`], running.
fn running(scratch: &Scratch, arguments: &[&str]) -> (Database, Server) {
    let (database, launch) = shop_with(scratch, arguments);
    (database, launch.start())
}

/// Destages nothing by itself.
const LATER: [&str; 4] = ["--when", "pressure", "--staleness", "1h"];

const VISITS: &str = "SELECT visits FROM customers WHERE id = 1";

fn get(client: &mut Client, key: &str, field: &str) -> i64 {
    client.call(&["HGET", key, field]).int()
}

/// Increments one after the other until the connection ends; the last value that was acknowledged.
fn count_until_killed(mut client: Client) -> thread::JoinHandle<i64> {
    thread::spawn(move || {
        let mut last = 3;
        while let Ok(reply) = client.try_call(&["HINCRBY", "customers:1", "visits", "1"]) {
            last = reply.int();
        }
        last
    })
}

/// > With d = 0, a write that was acknowledged is never lost by a crash: the first read after the restart sees it, and it
/// > reaches the origin exactly once.
#[test]
fn acknowledged_writes_survive_a_crash_and_arrive_exactly_once() {
    let scratch = Scratch::new();
    let (database, launch) = shop_with(&scratch, &[]);
    let mut expected = 3;
    for round in 0..4 {
        let server = launch.start();
        let first = get(&mut server.client(), "customers:1", "visits");
        assert!(first == expected || first == expected + 1, "{first}, not {expected}");
        let counter = count_until_killed(server.client());
        thread::sleep(millis(60 + 50 * round));
        server.kill();
        // One more may have been on its way without an answer.
        expected = counter.join().expect("the counter ends").max(first);
    }
    let server = launch.start();
    let last = get(&mut server.client(), "customers:1", "visits");
    assert!(last == expected || last == expected + 1, "{last}, not {expected}");
    server.drain();
    assert_eq!(database.number(VISITS), last);
}

/// > A value that a client has read under d = 0 is never taken back by a crash.
#[test]
fn values_that_were_read_survive_a_crash() {
    let scratch = Scratch::new();
    let (_database, launch) = shop_with(&scratch, &LATER);
    for round in 0..3 {
        let server = launch.start();
        let counter = count_until_killed(server.client());
        let mut reader = server.client();
        let seen = thread::spawn(move || {
            let mut seen = 0;
            while let Ok(reply) = reader.try_call(&["HGET", "customers:1", "visits"]) {
                seen = reply.int();
            }
            seen
        });
        thread::sleep(millis(80 + 40 * round));
        server.kill();
        let (seen, _) = (seen.join().expect("the reader ends"), counter.join());
        let server = launch.start();
        let found = get(&mut server.client(), "customers:1", "visits");
        assert!(found >= seen, "a client has read {seen}, the restart shows {found}");
        server.kill();
    }
}

/// > With d = T, what a crash takes away is always a suffix: if a write is missing, every later one is missing too.
#[test]
fn what_a_crash_takes_away_under_an_interval_is_a_suffix() {
    let scratch = Scratch::new();
    let arguments = [&LATER[..], &["--commit", "300ms"]].concat();
    let (_database, launch) = shop_with(&scratch, &arguments);
    let server = launch.start();
    let mut client = server.client();
    client.run("HGET labels:0:n note");
    let writer = thread::spawn(move || {
        let mut written = 0;
        let write =
            |n: i64| ["HSET".to_owned(), format!("labels:{n}:n"), "note".into(), "x".into()];
        while client.try_call(&write(written)).is_ok_and(|reply| !reply.is_error()) {
            written += 1;
        }
        written
    });
    let committed = || server.status()["writes"]["committed_lsn"].as_u64();
    eventually("some writes are committed, and some are not yet", PATIENCE, || {
        committed() > Some(0) && server.status()["writes"]["last_lsn"].as_u64() > committed()
    });
    server.kill();
    let written = writer.join().expect("the writer ends");
    let server = launch.start();
    let mut client = server.client();
    let mut exists = |n: i64| client.run(&format!("EXISTS labels:{n}:n")).int() == 1;
    let survived = (0..written).take_while(|&n| exists(n)).count() as i64;
    assert!(survived > 0, "none of {written} writes was committed");
    assert!((survived..written + 2).all(|n| !exists(n)), "a hole after {survived} of {written}");
}

/// > A write is never acknowledged while the oldest undecided one is older than D.
#[test]
fn nothing_is_acknowledged_past_the_staleness_bound() {
    for (at_limit, waits) in [("fail", false), ("block", true)] {
        let scratch = Scratch::new();
        let (_database, server) = running(&scratch, &["--staleness", "3s", "--at-limit", at_limit]);
        let mut client = server.client();
        client.run("DESTAGE PAUSE").ok();
        // Whose reply waits too, where the journal takes longer than D to hold it.
        let mut early = server.client();
        early.send(&["HINCRBY", "customers:1", "visits", "1"]).expect("it is sent");
        eventually("D is exceeded", PATIENCE, || server.status()["mode"] == "staleness-exceeded");
        assert_eq!(get(&mut client, "customers:1", "visits"), 4, "reads go on");
        if !waits {
            let reply = client.run("HINCRBY customers:1 visits 1");
            assert!(reply.error().starts_with("STALE "), "{reply:?}");
            server.client().run("DESTAGE RESUME").ok();
            assert_eq!(early.receive().expect("it is in the journal").int(), 4);
            continue;
        }
        client.patience(millis(500));
        assert!(client.try_call(&["HINCRBY", "customers:1", "visits", "1"]).is_err());
        server.client().run("DESTAGE RESUME").ok();
        assert_eq!(early.receive().expect("it is in the journal").int(), 4);
        client.patience(PATIENCE);
        assert_eq!(client.receive().expect("the write goes on").int(), 5);
    }
}

/// > Write-through never acknowledges a write before the origin has committed it.
#[test]
fn write_through_waits_for_the_origin() {
    let scratch = Scratch::new();
    let (database, server) = running(&scratch, &["--policy", "write-through"]);
    let mut client = server.client();
    for n in 4..14 {
        assert_eq!(client.run("HINCRBY customers:1 visits 1").int(), n);
        assert_eq!(database.number(VISITS), n);
    }
}

/// > What the origin shows is always a state that Destage had, as of one write, minus writes that the origin rejected.
#[test]
fn the_origin_shows_a_prefix_of_the_writes() {
    let scratch = Scratch::new();
    let (database, launch) = shop_with(&scratch, &["--linger", "0"]);
    shows_a_prefix_of_the_customers(&database, &launch);
}

/// > The writes of one domain always reach the origin in the order in which they entered the journal, exactly once, whatever
/// > happens to other domains.
#[test]
fn the_origin_shows_a_prefix_of_the_writes_of_each_domain() {
    let scratch = Scratch::new();
    let file = scratch.join("destage.toml");
    let apart =
        "[[domain]]\nname = 'customers'\ntables = ['customers']\nassume_independent = true\n";
    std::fs::write(&file, apart).expect("the test's folder can be written");
    let file = file.to_str().expect("the test's folder has a plain name");
    let (database, launch) = shop_with(&scratch, &["--linger", "0", "--config", file]);
    let server = launch.start();
    let mut client = server.client();
    let stock = database.number("SELECT stock FROM products WHERE id = 1");
    // The other domain has something on its way all the while, and again after a crash.
    for _ in 0..50 {
        client.run("HINCRBY products:1 stock 1");
    }
    server.kill();
    shows_a_prefix_of_the_customers(&database, &launch);
    assert_eq!(database.number("SELECT stock FROM products WHERE id = 1"), stock + 50);
}

/// Two customers are written in turn: at the origin the first one leads by at most one, in many states.
fn shows_a_prefix_of_the_customers(database: &Database, launch: &Launch) {
    // Looking at it does not wait for a moment without a transaction.
    database.execute("PRAGMA journal_mode = WAL");
    let server = launch.start();
    let done = AtomicBool::new(false);
    let seen = AtomicUsize::new(0);
    let mut client = server.client();
    client.run("HSET customers:1 visits 0");
    client.run("HSET customers:2 visits 0");
    server.drain();
    let both =
        "SELECT a.visits, b.visits FROM customers a, customers b WHERE a.id = 1 AND b.id = 2";
    thread::scope(|scope| {
        let origin = scope.spawn(|| {
            let mut states = BTreeSet::new();
            while !done.load(Ordering::Relaxed) {
                let row = &database.rows(both)[0];
                let [first, second] = [0, 1].map(|i| row[i].parse::<i64>().expect("a number"));
                assert!((0..=1).contains(&(first - second)), "{first} and {second}");
                states.insert(first);
                seen.store(states.len(), Ordering::Relaxed);
            }
        });
        let deadline = Instant::now() + PATIENCE;
        let enough = || seen.load(Ordering::Relaxed) >= 20;
        while !enough() && !origin.is_finished() && Instant::now() < deadline {
            // The first row leads by one, in each state that ever existed.
            client.pipeline(&[1, 2].map(|id| format!("HINCRBY customers:{id} visits 1")));
        }
        done.store(true, Ordering::Relaxed);
        origin.join().expect("every state had existed");
        assert!(enough(), "only {seen:?} states were seen");
    });
    server.drain();
}

/// > The commands of one `MULTI ... EXEC` always reach the origin in one transaction, or not at all.
#[test]
fn a_transaction_reaches_the_origin_whole_or_not_at_all() {
    let scratch = Scratch::new();
    let (database, server) = running(&scratch, &[]);
    let mut client = server.client();
    for (order, customer) in [(70, 2), (71, 4711)] {
        client.run("MULTI").ok();
        client.run(&format!("HINCRBY products:{} stock -1", order - 69));
        client.run(&format!("HSET orders:{order} customer_id {customer}"));
        let replies = client.run("EXEC");
        assert!(replies.array().iter().all(|reply| !reply.is_error()), "{replies:?}");
    }
    server.drain();
    let stock = database.rows("SELECT stock FROM products ORDER BY id");
    assert_eq!(stock, [["9"], ["4"]], "the order without a customer took its stock along");
    assert_eq!(database.number("SELECT count(*) FROM orders WHERE id IN (70, 71)"), 1);
    assert_eq!(database.number("SELECT count(*) FROM destage_parked"), 1);
}

/// > A transaction never takes effect if a row that it watches was written after `WATCH`, whoever wrote it, the connection
/// > itself included, and whether or not the row was cached all the while.
#[test]
fn a_transaction_whose_watched_row_was_written_does_nothing() {
    for cache in [&[][..], &["--cache-size", "0"]] {
        let scratch = Scratch::new();
        let (database, server) = running(&scratch, cache);
        let (mut client, mut other) = (server.client(), server.client());
        let mut exec = |own: bool, write: bool| {
            client.run("WATCH customers:1 customers:4711").ok();
            client.run("HGET customers:1 visits");
            // Meanwhile it is evicted, where nothing is kept.
            other.run("HINCRBY customers:2 visits 1");
            let writer = if own { &mut client } else { &mut other };
            if write {
                writer.run("HSET customers:1 name Ada");
            }
            client.run("MULTI").ok();
            client.run("HINCRBY customers:1 visits 10");
            client.run("EXEC")
        };
        assert_eq!(exec(false, true), Reply::Nil);
        assert_eq!(exec(true, true), Reply::Nil);
        assert_eq!(exec(false, false), Reply::Array(vec![Reply::Int(13)]), "nothing was written");
        server.drain();
        assert_eq!(database.number("SELECT visits FROM customers WHERE id = 1"), 13);
    }
}

/// > A session whose time is up never takes effect.
#[test]
fn a_session_whose_time_is_up_does_nothing() {
    let scratch = Scratch::new();
    let (database, server) = running(&scratch, &[]);
    let (mut client, mut other) = (server.client(), server.client());
    client.run("DESTAGE BEGIN 3000").ok();
    assert_eq!(client.run("HINCRBY customers:1 visits 100").int(), 103);
    assert_eq!(get(&mut other, "customers:1", "visits"), 3, "nobody else sees it");
    // It waits until the time is up, which is sooner than it may wait for.
    assert_eq!(other.run("HINCRBY customers:1 visits 1").int(), 4);
    assert!(client.run("HGET customers:1 visits").error().starts_with("RETRY "));
    assert_eq!(client.run("EXEC"), Reply::Nil);
    client.run("DESTAGE BEGIN 60000").ok();
    assert_eq!(client.run("HINCRBY customers:1 visits 100").int(), 104);
    assert_eq!(client.run("EXEC"), Reply::Array(vec![Reply::Int(104)]));
    server.drain();
    assert_eq!(database.number(VISITS), 104);
}

/// > A session in which a command was refused never does a part of its work.
#[test]
fn a_session_with_a_refused_command_does_nothing() {
    let scratch = Scratch::new();
    let (database, server) = running(&scratch, &[]);
    let mut client = server.client();
    for refused in ["HSET customers:2 nothing x", "HINCRBY customers:2 name 1", "NOTHING"] {
        client.run("DESTAGE BEGIN 60000").ok();
        assert_eq!(client.run("HINCRBY customers:1 visits 1").int(), 4);
        assert!(client.run(refused).is_error(), "{refused}");
        let reply = client.run("EXEC");
        assert!(reply.error().starts_with("EXECABORT "), "{refused}: {reply:?}");
    }
    client.run("DESTAGE BEGIN 60000").ok();
    assert_eq!(client.run("HINCRBY customers:1 visits 1").int(), 4);
    assert_eq!(
        client.run("EXEC"),
        Reply::Array(vec![Reply::Int(4)]),
        "what was not refused is done"
    );
    server.drain();
    assert_eq!(database.number(VISITS), 4);
}

/// > A command that is refused never does a part of its work.
#[test]
fn a_refused_command_does_nothing() {
    let scratch = Scratch::new();
    let (database, server) = running(&scratch, &[]);
    let mut client = server.client();
    assert!(client.run("HSET customers:1 name Eve visits many").is_error());
    assert!(client.run("HDEL customers:1 email name").is_error());
    assert!(client.run("DEL customers:1 nothing:1").is_error());
    client.run("MULTI").ok();
    client.run("HSET customers:1 name Eve");
    client.run("HINCRBY customers:2 visits 9223372036854775807");
    client.run("HINCRBY customers:2 visits 9223372036854775807");
    let reply = client.run("EXEC");
    assert!(reply.error().starts_with("EXECABORT "), "{reply:?}");
    server.drain();
    let rows = database.rows("SELECT name, email, visits FROM customers ORDER BY id");
    assert_eq!(rows, [["Ada", "ada@example.org", "3"], ["Grace", "NULL", "0"]]);
    assert_eq!(server.status()["writes"]["groups_total"], 0);
}

/// > A connection's replies always come in the order of its commands, also where some of them wait for a row, the journal or
/// > the origin.
#[test]
fn replies_come_in_the_order_of_the_commands() {
    let scratch = Scratch::new();
    let (_database, server) = running(&scratch, &[]);
    let mut commands = Vec::new();
    for n in 0..40 {
        commands.push(format!("ECHO {n}"));
        commands.push(format!("HGET customers:{} visits", 1 + n % 3));
        commands.push("HINCRBY customers:1 visits 1".to_owned());
        commands.push("WAITAOF 1 0 30000".to_owned());
        commands.push("DESTAGE WAIT 30000".to_owned());
        commands.push("SCAN 0 MATCH customers:*".to_owned());
    }
    let replies = server.client().pipeline(&commands);
    for (n, six) in replies.chunks(6).enumerate() {
        assert_eq!(six[0].text(), n.to_string());
        assert_eq!(six[2], Reply::Int(4 + n as i64));
        assert_eq!(six[3].array()[0], Reply::Int(1));
        assert_eq!(six[4], Reply::Int(1));
        assert_eq!(six[5].array().len(), 2);
    }
}

/// > A read always sees every write that was acknowledged before it was sent, from any client, whether the origin has it or
/// > not, and whether the row is cached or was evicted.
#[test]
fn reads_see_what_was_acknowledged() {
    for when in ["async", "pressure"] {
        let scratch = Scratch::new();
        let arguments = ["--when", when, "--cache-size", "0", "--staleness", "1h"];
        let (_database, launch) = shop_with(&scratch, &arguments);
        let server = launch.start();
        let mut clients = [server.client(), server.client()];
        for n in 0..300 {
            let key = format!("customers:{}", 1 + n % 2);
            let [writer, reader] = &mut clients;
            let written = writer.run(&format!("HINCRBY {key} visits 1")).int();
            assert_eq!(get(reader, &key, "visits"), written, "{when}, write {n}");
            clients.reverse();
        }
        // Nothing is cached after a restart: the origin's rows are overlaid with what it lacks.
        server.kill();
        let server = launch.start();
        for (key, visits) in [("customers:1", 153), ("customers:2", 150)] {
            assert_eq!(get(&mut server.client(), key, "visits"), visits, "{when}");
        }
    }
}

/// > Spellings of one key are always the same row: `customers:1` and `customers:01`, a UUID in either case.
///
/// UUID columns exist in PostgreSQL only: `uuid_keys_in_any_case_are_one_row` in the end-to-end tests.
#[test]
fn spellings_of_a_key_are_one_row() {
    let scratch = Scratch::new();
    let (_database, server) = running(&scratch, &LATER);
    let mut client = server.client();
    let spellings = ["customers:1", "customers:01", "customers:000000000001"];
    for (n, key) in spellings.into_iter().enumerate() {
        let visits = client.call(&["HINCRBY", key, "visits", "1"]).int();
        assert_eq!(visits, 4 + n as i64, "{key}");
    }
}

/// > An empty string is never turned into NULL.
///
/// > `HDEL` sets columns to NULL and never deletes the row; on a NOT NULL column it is refused.
#[test]
fn empty_is_not_null_and_hdel_keeps_the_row() {
    let scratch = Scratch::new();
    let (database, server) = running(&scratch, &["--cache-size", "0"]);
    let mut client = server.client();
    assert_eq!(client.call(&["HSET", "customers:1", "note", ""]).int(), 1);
    assert_eq!(client.run("HGET customers:1 note"), Reply::Bulk(Vec::new()));
    assert_eq!(client.run("HDEL customers:1 email balance").int(), 2);
    assert!(client.run("HDEL customers:1 name").error().contains("NOT NULL"));
    server.drain();
    assert_eq!(client.run("HGET customers:1 note"), Reply::Bulk(Vec::new()));
    assert_eq!(client.run("HGET customers:1 email"), Reply::Nil);
    assert_eq!(client.run("EXISTS customers:1").int(), 1);
    let row = database.rows("SELECT note, email, balance FROM customers WHERE id = 1");
    assert_eq!(row, [["", "NULL", "NULL"]]);
}

/// > A computed column is never served from a row with undecided changes: the read has them destaged first and fetches the
/// > row again, so it takes a round trip to the origin and waits while that is away.
#[test]
fn computed_columns_come_from_the_origin() {
    let scratch = Scratch::new();
    let database = Database::sqlite(&scratch).with(
        "CREATE TABLE lines (id INTEGER PRIMARY KEY, n INTEGER, price INTEGER, \
         total INTEGER GENERATED ALWAYS AS (n * price)); INSERT INTO lines VALUES (1, 2, 10);",
    );
    let server = Launch::before(&scratch, &database.url()).with(&LATER).start();
    let mut client = server.client();
    assert_eq!(get(&mut client, "lines:1", "total"), 20);
    for n in 3..9 {
        client.run(&format!("HSET lines:1 n {n}"));
        assert_eq!(database.number("SELECT n FROM lines"), n - 1, "not destaged by itself");
        assert_eq!(get(&mut client, "lines:1", "total"), n * 10);
        assert_eq!(database.number("SELECT n FROM lines"), n);
    }
}

/// > A key that was handed out is never handed out again, not after a crash either.
#[test]
fn keys_are_handed_out_once() {
    let scratch = Scratch::new();
    let (_database, launch) = shop_with(&scratch, &LATER);
    let mut handed = BTreeSet::new();
    for round in 0..3 {
        let server = launch.start();
        let mut client = server.client();
        for n in 1..4 {
            let keys = client.run(&format!("DESTAGE NEXTID customers {n}"));
            let keys: Vec<i64> = match &keys {
                Reply::Array(keys) => keys.iter().map(Reply::int).collect(),
                key => vec![key.int()],
            };
            assert_eq!(keys.len(), n);
            for key in keys {
                assert!(key > 2 && handed.insert(key), "{key} again in round {round}");
                if key % 2 == 0 {
                    assert_eq!(client.run(&format!("HSET customers:{key} name new")).int(), 1);
                }
            }
        }
        server.kill();
    }
}

/// > A row that exists from the start of a scan to its end is always returned, exactly once, buffered or not; rows that come
/// > and go meanwhile may be.
#[test]
fn a_scan_returns_each_row_that_stays_once() {
    let scratch = Scratch::new();
    let (_database, server) = running(&scratch, &LATER);
    let mut client = server.client();
    for n in 10..60 {
        client.run(&format!("HSET customers:{n} name stays"));
    }
    client.run("DESTAGE DRAIN").ok();
    for n in 60..90 {
        client.run(&format!("HSET customers:{n} name buffered"));
    }
    client.run("DEL customers:2");
    let mut found = Vec::new();
    let mut cursor = "0".to_owned();
    for n in 0_i64.. {
        let page = client.call(&["SCAN", &cursor, "MATCH", "customers:*", "COUNT", "7"]);
        found.extend(page.array()[1].array().iter().map(Reply::text));
        cursor = page.array()[0].text();
        if cursor == "0" {
            break;
        }
        client.run(&format!("HSET customers:{} name comes", 1_000 - n));
        client.run(&format!("HINCRBY customers:{} visits 1", 10 + 7 * n));
        client.run("DESTAGE DRAIN").ok();
    }
    for n in (10..90).chain([1]) {
        let times = found.iter().filter(|key| **key == format!("customers:{n}")).count();
        assert_eq!(times, 1, "customers:{n} in {found:?}");
    }
    assert!(!found.contains(&"customers:2".to_owned()));
}

/// > So a cached row never shows an `updated_at` from before a write that was acknowledged.
#[test]
fn columns_that_triggers_set_are_read_from_the_origin() {
    let scratch = Scratch::new();
    let database = Database::sqlite(&scratch).with(
        "CREATE TABLE notes (id INTEGER PRIMARY KEY, n INTEGER, updated_at TEXT); \
         INSERT INTO notes VALUES (1, 0, 'long ago'); \
         CREATE TRIGGER touched AFTER UPDATE ON notes BEGIN \
         UPDATE notes SET updated_at = datetime('now') WHERE id = NEW.id; END;",
    );
    let server = Launch::before(&scratch, &database.url()).with(&LATER).start();
    let mut client = server.client();
    assert_eq!(client.run("HGET notes:1 updated_at").text(), "long ago");
    assert_eq!(client.run("HINCRBY notes:1 n 1").int(), 1);
    assert_eq!(database.number("SELECT n FROM notes"), 0, "it is buffered");
    let shown = client.run("HGET notes:1 updated_at").text();
    assert_eq!(database.rows("SELECT n, updated_at FROM notes"), [["1".to_owned(), shown]]);
    assert_eq!(database.number("SELECT count(*) FROM notes WHERE updated_at = 'long ago'"), 0);
}

/// > A trigger that does anything more is never taken for one of these.
///
/// > A write to a table with other triggers is always acknowledged after the origin, and its cached row is dropped.
#[test]
fn tables_with_triggers_are_written_through() {
    let scratch = Scratch::new();
    let database = Database::sqlite(&scratch).with(
        "CREATE TABLE counters (id INTEGER PRIMARY KEY, n INTEGER, changes INTEGER DEFAULT 0); \
         INSERT INTO counters VALUES (1, 0, 0); \
         CREATE TRIGGER counted AFTER UPDATE OF n ON counters BEGIN \
         UPDATE counters SET changes = changes + 1 WHERE id = NEW.id; END;",
    );
    let server = Launch::before(&scratch, &database.url()).with(&LATER).start();
    let mut client = server.client();
    for n in 1..6 {
        assert_eq!(client.run("HINCRBY counters:1 n 1").int(), n);
        assert_eq!(database.number("SELECT n FROM counters"), n);
        assert_eq!(get(&mut client, "counters:1", "changes"), n);
    }
}

/// > Unless its domain is to [halt](#domains-that-halt), a rejected write never holds up the writes that do not build on it.
///
/// > Destage never deletes a parked write.
#[test]
fn rejected_writes_are_kept_and_their_neighbours_go_on() {
    let scratch = Scratch::new();
    let (database, launch) = shop_with(&scratch, &LATER);
    let server = launch.start();
    let mut client = server.client();
    for n in 1..=9 {
        // The fifth has no such customer.
        let customer = if n == 5 { 4711 } else { 1 };
        client.run(&format!("HSET orders:{} customer_id {customer}", 100 + n));
    }
    assert_eq!(client.run("HSET orders:105 status paid").int(), 0);
    server.drain();
    assert_eq!(database.number("SELECT count(*) FROM orders WHERE id > 100"), 8);
    let parked = "SELECT depends_on IS NULL, reason FROM destage_parked ORDER BY seq";
    let rows = database.rows(parked);
    assert_eq!([&rows[0][0], &rows[1][0]], ["1", "0"], "{rows:?}");
    assert!(rows[1][1].contains("builds on the rejected write"), "{rows:?}");
    server.kill();
    let server = launch.start();
    let mut client = server.client();
    assert_eq!(client.run("HGET orders:105 status").text(), "paid");
    client.run("HSET orders:110 customer_id 2");
    server.drain();
    assert_eq!(database.rows(parked), rows);
    assert_eq!(server.status()["destage"]["parked_groups"], 2);
}
