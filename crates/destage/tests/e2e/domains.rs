//! Ordering domains: what a settings file may divide, that divided writes do not wait for one another, and that a partition
//! changes only when nothing is on its way. Crashes with several domains are among the rounds of `crash`.

use crate::harness::{Database, Kind, Launch, OwnServer, PATIENCE, Scratch, Server, eventually};
use crate::parking::ok;
use std::path::Path;
use std::process::{Child, Command, Stdio};

const TABLES: &str = "
CREATE TABLE customers (id INTEGER PRIMARY KEY, name TEXT);
CREATE TABLE orders (
    id INTEGER PRIMARY KEY,
    customer INTEGER NOT NULL CONSTRAINT orders_customer REFERENCES customers (id),
    paid BIGINT NOT NULL DEFAULT 0
);
CREATE TABLE stock (warehouse INTEGER, item INTEGER, n BIGINT NOT NULL, PRIMARY KEY (warehouse, item));
CREATE TABLE visits (id INTEGER PRIMARY KEY, n BIGINT NOT NULL DEFAULT 0);
INSERT INTO customers (id) VALUES (1), (2);
INSERT INTO stock (warehouse, item, n) VALUES (1, 1, 10), (2, 1, 10), (3, 1, 10), (4, 1, 10);
INSERT INTO visits (id) VALUES (1), (2);
";

/// The sale and its visits apart, the stock by warehouse.
const APART: &str = "
[[domain]]
name = 'visits'
tables = ['visits']

[[domain]]
name = 'stock'
column = 'warehouse'
count = 4
";

/// A database of every kind that is there.
fn each(scratch: &Scratch) -> Vec<Database> {
    let all = [Some(Database::sqlite(scratch)), Database::postgres(), Database::mariadb()];
    all.into_iter().flatten().map(|database| database.with(TABLES)).collect()
}

fn config(scratch: &Scratch, name: &str, text: &str) -> String {
    let path = scratch.join(name);
    std::fs::write(&path, text).expect("the test's folder can be written");
    let path: &Path = &path;
    path.to_str().expect("the test's folder has a plain name").to_owned()
}

/// Undecided writes of a domain, and its parked ones.
fn seen(server: &Server, domain: &str) -> (i64, i64) {
    let status = server.status();
    let domains = status["domains"].as_array().expect("there are several domains");
    let found = domains.iter().find(|found| found["name"] == domain).expect("the domain is there");
    let number = |field: &str| found[field].as_i64().expect("a number");
    (number("dirty_groups"), number("parked_groups"))
}

#[test]
fn a_foreign_key_across_domains_is_refused_at_the_start_unless_assumed_independent() {
    let scratch = Scratch::new();
    for (folder, database) in scratch.apart(each(&scratch)) {
        let orders = "[[domain]]\nname = 'orders'\ntables = ['orders']\n";
        let path = config(&folder, "crossing.toml", orders);
        let launch = Launch::before(&folder, &database.url());
        let exit = launch.with(&["--config", &path]).refused();
        exit.says(2, &["orders (customer) to customers (id)", "assume_independent"]);
        if !database.url().starts_with("sqlite") {
            exit.says(2, &["orders_customer"]);
        }
        let path =
            config(&folder, "taken-on.toml", &format!("{orders}assume_independent = true\n"));
        let server = launch.with(&["--config", &path]).start();
        let mut client = server.client();
        ok(&mut client, "HSET orders:1 customer 1");
        server.drain();
        assert_eq!(database.number("SELECT count(*) FROM orders"), 1);
    }
}

#[test]
fn a_session_across_domains_is_one_transaction_and_drain_waits_for_all_domains() {
    let scratch = Scratch::new();
    for (folder, database) in scratch.apart(each(&scratch)) {
        let path = config(&folder, "apart.toml", APART);
        let server = Launch::before(&folder, &database.url()).with(&["--config", &path]).start();
        let mut client = server.client();
        for round in 1..=20 {
            ok(&mut client, "MULTI");
            ok(&mut client, &format!("HINCRBY stock:{}:1 n -1", 1 + round % 4));
            ok(&mut client, &format!("HINCRBY stock:{}:1 n 1", 1 + (round + 1) % 4));
            ok(&mut client, "HINCRBY visits:1 n 1");
            ok(&mut client, "EXEC");
            ok(&mut client, "HINCRBY visits:2 n 1");
        }
        server.drain();
        assert_eq!(database.number("SELECT sum(n) FROM stock"), 40);
        assert_eq!(database.number("SELECT n FROM visits WHERE id = 1"), 20);
        assert_eq!(database.number("SELECT n FROM visits WHERE id = 2"), 20);
        let table = client.run("DESTAGE STATUS").text();
        assert!(table.contains("stock.3"), "{table}");
        let metrics = server.get("/metrics");
        assert!(metrics.contains("destage_domain_dirty_groups{domain=\"visits\"} 0"), "{metrics}");
    }
}

#[test]
fn a_write_that_is_rejected_in_one_domain_is_parked_there_and_does_not_stop_the_others() {
    let scratch = Scratch::new();
    for (folder, database) in scratch.apart(each(&scratch)) {
        let path = config(&folder, "apart.toml", APART);
        let server = Launch::before(&folder, &database.url()).with(&["--config", &path]).start();
        let mut client = server.client();
        // Nobody has the number 77; what builds on the order goes with it.
        ok(&mut client, "HSET orders:9 customer 77");
        ok(&mut client, "HINCRBY orders:9 paid 5");
        ok(&mut client, "HINCRBY visits:1 n 1");
        ok(&mut client, "HSET customers:2 name b");
        server.drain();
        assert_eq!(seen(&server, "default"), (0, 2));
        assert_eq!(seen(&server, "visits"), (0, 0));
        assert_eq!(database.number("SELECT n FROM visits WHERE id = 1"), 1);
        assert_eq!(database.value("SELECT name FROM customers WHERE id = 2"), "b");
        assert_eq!(database.number("SELECT count(*) FROM destage_parked"), 2);
    }
}

#[test]
fn what_is_parked_in_several_domains_is_applied_with_what_builds_on_it() {
    let scratch = Scratch::new();
    for (folder, database) in scratch.apart(each(&scratch)) {
        let path = config(&folder, "apart.toml", APART);
        let launch = Launch::before(&folder, &database.url()).with(&["--config", &path]);
        let server = launch.start();
        let mut client = server.client();
        ok(&mut client, "MULTI");
        ok(&mut client, "HSET orders:9 customer 77");
        ok(&mut client, "HINCRBY stock:3:1 n -1");
        ok(&mut client, "EXEC");
        // Behind it by the stock, in a domain of its own.
        ok(&mut client, "HINCRBY stock:3:1 n -1");
        ok(&mut client, "HINCRBY visits:1 n 1");
        server.drain();
        let parked = || ["default", "stock.3", "visits"].map(|domain| seen(&server, domain));
        assert_eq!(parked(), [(0, 1), (0, 2), (0, 0)]);
        let early = client.run("DESTAGE PARKED RETRY ALL");
        assert!(!early.is_error() && parked()[1] == (0, 2), "{early:?}");
        database.execute("INSERT INTO customers (id) VALUES (77)");
        let reply = client.run("DESTAGE PARKED RETRY 1");
        assert!(!reply.is_error(), "{reply:?}");
        assert_eq!(parked(), [(0, 0); 3]);
        let stock = "SELECT n FROM stock WHERE warehouse = 3";
        assert_eq!((database.number(stock), client.run("HGET stock:3:1 n").int()), (8, 8));
        ok(&mut client, "HINCRBY stock:3:1 n -1");
        ok(&mut client, "HINCRBY orders:9 paid 5");
        server.drain();
        assert_eq!(database.number(stock), 7);
        assert_eq!(database.number("SELECT paid FROM orders WHERE id = 9"), 5);
        assert_eq!(database.number("SELECT count(*) FROM destage_parked"), 0);
        server.terminate(PATIENCE).says(0, &[]);
        let server = launch.start();
        assert_eq!(server.client().run("HGET stock:3:1 n").int(), 7);
    }
}

/// A lock of a whole table, held by a session of its own until it is dropped.
struct Locked(Child);

impl Locked {
    fn take(url: &str, table: &str) -> Self {
        let mut psql = Command::new("psql");
        psql.args(["-X", "-q", "-A", "-t", "-d", url]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut psql = psql.spawn().expect("psql starts");
        let input = psql.stdin.as_mut().expect("the input is piped");
        let lock = format!("BEGIN; LOCK TABLE {table}; SELECT 'held';\n");
        std::io::Write::write_all(input, lock.as_bytes()).expect("psql reads");
        let mut line = String::new();
        let output = psql.stdout.as_mut().expect("the output is piped");
        std::io::BufRead::read_line(&mut std::io::BufReader::new(output), &mut line)
            .expect("psql answers");
        assert_eq!(line.trim(), "held");
        Self(psql)
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

/// Writes the stock, which is locked at the origin, then the visits, which are not.
fn behind_a_lock(more: &[&str]) -> Option<(Scratch, Database, Server, Locked, OwnServer)> {
    let postgres = OwnServer::start(Kind::Postgres)?;
    let database = postgres.database().with(TABLES);
    let scratch = Scratch::new();
    let server = Launch::before(&scratch, &database.url()).with(more).start();
    let mut client = server.client();
    for key in ["stock:1:1", "visits:1"] {
        ok(&mut client, &format!("HGETALL {key}"));
    }
    let locked = Locked::take(&database.url(), "stock");
    ok(&mut client, "HINCRBY stock:1:1 n 1");
    eventually("the write that is locked out is on its way", PATIENCE, || {
        database.number("SELECT count(*) FROM pg_locks WHERE NOT granted") > 0
    });
    ok(&mut client, "HINCRBY visits:1 n 1");
    Some((scratch, database, server, locked, postgres))
}

#[test]
fn a_domain_whose_table_is_locked_does_not_hold_the_others_back() {
    let folder = Scratch::new();
    let path = config(&folder, "apart.toml", APART);
    let Some((_scratch, database, server, locked, _postgres)) = behind_a_lock(&["--config", &path])
    else {
        return;
    };
    eventually("the visits pass the locked stock", PATIENCE, || {
        database.number("SELECT n FROM visits WHERE id = 1") == 1
    });
    drop(locked);
    server.drain();
    assert_eq!(database.number("SELECT n FROM stock WHERE warehouse = 1"), 11);
}

#[test]
fn a_derived_key_waits_for_the_domains_of_its_tables_only() {
    let folder = Scratch::new();
    let query = "[[query]]\nkey = 'visited'\nsql = 'SELECT sum(n) AS n FROM visits'\ndepends_on = ['visits']\ndeadline = '60s'\n";
    let path = config(&folder, "queried.toml", &format!("{APART}{query}"));
    let Some((_scratch, database, server, locked, _postgres)) = behind_a_lock(&["--config", &path])
    else {
        return;
    };
    let mut client = server.client();
    for visits in 1..=3 {
        let told = client.run("GET visited").text();
        assert_eq!(told, format!("[{{\"n\":{visits}}}]"), "the stock is still locked");
        ok(&mut client, "HINCRBY visits:2 n 1");
    }
    assert_eq!(seen(&server, "stock.1").0, 1);
    drop(locked);
    server.drain();
    assert_eq!(database.number("SELECT n FROM stock WHERE warehouse = 1"), 11);
}

/// The control of `a_domain_whose_table_is_locked_does_not_hold_the_others_back`: in one domain the later write stays behind
/// the earlier one.
#[test]
fn in_one_domain_a_locked_table_holds_back_what_was_written_after() {
    let Some((_scratch, database, server, locked, _postgres)) = behind_a_lock(&[]) else { return };
    eventually("the second write is in the journal", PATIENCE, || {
        server.status()["writes"]["committed_lsn"] == 2
    });
    assert_eq!(database.number("SELECT n FROM visits WHERE id = 1"), 0);
    drop(locked);
    server.drain();
    assert_eq!(database.number("SELECT n FROM visits WHERE id = 1"), 1);
}

#[test]
fn a_partition_changes_only_when_nothing_is_undecided() {
    let scratch = Scratch::new();
    for (folder, database) in scratch.apart(each(&scratch)) {
        let apart = config(&folder, "apart.toml", APART);
        let other = config(&folder, "other.toml", &APART.replace("count = 4", "count = 2"));
        let one = Launch::before(&folder, &database.url());
        let (apart, other) = (one.with(&["--config", &apart]), one.with(&["--config", &other]));
        let mut counted = 0;
        let mut count = |server: &Server, decided: bool| {
            let mut client = server.client();
            if !decided {
                ok(&mut client, "DESTAGE PAUSE");
            }
            for key in ["visits:1", "stock:1:1", "stock:2:1", "stock:3:1"] {
                ok(&mut client, &format!("HINCRBY {key} n 1"));
            }
            counted += 1;
            let told = client.run("HGET visits:1 n").int();
            assert_eq!(told, counted);
        };
        // From one domain to several, to others, and back, each time with writes that stay in the journal first.
        // Other databases than SQLite need not repeat what is decided before they are asked.
        let changes = [(&one, &apart), (&apart, &other), (&other, &one)];
        let is_sqlite = matches!(database, Database::Sqlite(_));
        let changes = if is_sqlite { &changes[..] } else { &changes[..1] };
        for (before, after) in changes {
            let server = before.start();
            count(&server, false);
            server.kill();
            after.refused().says(2, &["ordering domains have changed", "drain"]);
            let server = before.start();
            count(&server, true);
            server.terminate(PATIENCE).says(0, &[]);
            let server = after.start();
            count(&server, true);
            server.terminate(PATIENCE).says(0, &[]);
        }
        assert_eq!(database.number("SELECT n FROM visits WHERE id = 1"), counted);
        assert_eq!(database.number("SELECT sum(n) FROM stock"), 40 + 3 * counted);
    }
}
