//! What PostgreSQL tells, beside ordering domains, writes that the origin rejected, and copies that expire.

use super::notifications::{installed, notified, number};
use crate::harness::{Client, Database, PATIENCE, Scratch, Server, eventually};
use crate::parking::ok;

const SALE: &str = "
CREATE TABLE customers (id INTEGER PRIMARY KEY, name TEXT);
CREATE TABLE orders (
    id INTEGER PRIMARY KEY, customer INTEGER NOT NULL REFERENCES customers (id),
    paid BIGINT NOT NULL DEFAULT 0, note TEXT
);
CREATE TABLE stock (warehouse INTEGER, item INTEGER, n BIGINT NOT NULL, PRIMARY KEY (warehouse, item));
CREATE TABLE visits (id INTEGER PRIMARY KEY, n BIGINT NOT NULL);
INSERT INTO customers (id) VALUES (1);
INSERT INTO orders (id, customer) VALUES (1, 1);
INSERT INTO stock (warehouse, item, n) VALUES (1, 1, 10), (2, 1, 10), (3, 1, 10);
INSERT INTO visits (id, n) VALUES (1, 0);
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

fn started(scratch: &Scratch, database: &Database, config: &str) -> (Server, Client) {
    let server = crate::mapped::launch(scratch, database, "data", config).start();
    let client = server.client();
    (server, client)
}

#[track_caller]
fn shows(client: &mut Client, read: &str, expected: &str) {
    eventually(&format!("{read} shows {expected}"), PATIENCE, || {
        client.run(read).text() == expected
    });
}

/// A session across three domains, and a write in one of them.
fn sell(client: &mut Client) {
    for command in [
        "MULTI",
        "HINCRBY stock:1:1 n -1",
        "HINCRBY stock:2:1 n -1",
        "HINCRBY visits:1 n 1",
        "EXEC",
        "HINCRBY stock:3:1 n -1",
    ] {
        ok(client, command);
    }
}

#[test]
fn destages_of_no_domain_are_told_of_and_changes_of_others_reach_the_rows_of_all() {
    let Some(database) = installed(SALE) else { return };
    let scratch = Scratch::new();
    let (server, mut client) = started(&scratch, &database, APART);
    for _ in 0..20 {
        sell(&mut client);
    }
    server.drain();
    assert_eq!(database.number("SELECT sum(n) FROM stock"), -30);
    // Notifications come in the order of the commits, so an echo would have come before this one.
    database.execute("UPDATE stock SET n = 100");
    notified(&server, 1);
    ok(&mut client, "DESTAGE PAUSE");
    sell(&mut client);
    assert_eq!(client.run("HGET stock:3:1 n").text(), "99");
    database.execute("UPDATE stock SET n = n + 1000");
    database.execute("UPDATE visits SET n = 5000");
    notified(&server, 3);
    for (read, expected) in [
        ("HGET stock:1:1 n", "1099"),
        ("HGET stock:2:1 n", "1099"),
        ("HGET stock:3:1 n", "1099"),
        ("HGET visits:1 n", "5001"),
    ] {
        shows(&mut client, read, expected);
    }
    sell(&mut client);
    ok(&mut client, "DESTAGE RESUME");
    server.drain();
    assert_eq!(database.number("SELECT sum(n) FROM stock"), 3 * 1098);
    assert_eq!(database.number("SELECT n FROM visits"), 5002);
    database.execute("UPDATE visits SET n = 7");
    notified(&server, 4);
    assert_eq!(client.run("HGET visits:1 n").text(), "7");
}

#[test]
fn parked_changes_stay_on_top_of_what_others_change_until_they_are_decided() {
    for config in ["", APART] {
        let Some(database) = installed(SALE) else { return };
        let scratch = Scratch::new();
        let (server, mut client) = started(&scratch, &database, config);
        // Nobody has the number 77; what builds on the order goes with it.
        ok(&mut client, "HSET orders:1 customer 77");
        ok(&mut client, "HINCRBY orders:1 paid 5");
        server.drain();
        assert_eq!(database.number("SELECT count(*) FROM destage_parked"), 2);
        database.execute("UPDATE orders SET note = 'theirs', paid = 100");
        notified(&server, 1);
        assert_eq!(client.run("HGET orders:1 note").text(), "theirs");
        assert_eq!(client.run("HGET orders:1 customer").text(), "77");
        assert_eq!(client.run("HGET orders:1 paid").text(), "105");
        // The same where an undecided one comes on top of them.
        ok(&mut client, "DESTAGE PAUSE");
        ok(&mut client, "HINCRBY orders:1 paid 1");
        database.execute("UPDATE orders SET note = 'again', paid = 200");
        notified(&server, 2);
        shows(&mut client, "HGET orders:1 note", "again");
        assert_eq!(client.run("HGET orders:1 paid").text(), "206");
        ok(&mut client, "DESTAGE RESUME");
        server.drain();
        assert_eq!(database.number("SELECT count(*) FROM destage_parked"), 3);
        database.execute("INSERT INTO customers VALUES (77, 'late')");
        notified(&server, 3);
        ok(&mut client, "DESTAGE PARKED RETRY ALL");
        assert_eq!(database.rows("SELECT * FROM orders"), [["1", "77", "206", "again"]]);
        assert_eq!(client.run("HGET orders:1 paid").text(), "206");
        // What was applied late is not told of either.
        database.execute("UPDATE orders SET paid = 7");
        notified(&server, 4);
        assert_eq!(client.run("HGET orders:1 paid").text(), "7");
    }
}

const ACCOUNTS: &str = "
CREATE TABLE accounts (id INTEGER PRIMARY KEY, n BIGINT NOT NULL);
INSERT INTO accounts VALUES (1, 10), (2, 20);
";

const EXPIRING: &str = "
unmapped = 'cache'

[table.accounts]
ttl = 'cached-copy'
";

#[test]
fn copies_that_expire_are_told_of_and_plain_keys_are_left_alone() {
    let Some(database) = installed(ACCOUNTS) else { return };
    let scratch = Scratch::new();
    let (server, mut client) = started(&scratch, &database, EXPIRING);
    ok(&mut client, "SET plain x");
    assert_eq!(client.run("HGET accounts:1 n").text(), "10");
    assert_eq!(client.run("EXPIRE accounts:1 100000").int(), 1);
    database.execute("UPDATE accounts SET n = 11 WHERE id = 1");
    notified(&server, 1);
    assert_eq!(client.run("HGET accounts:1 n").text(), "11");
    assert_eq!(client.run("TTL accounts:1").int(), -1, "the new copy has no time");
    // Of a copy that has expired there is nothing left to be dropped.
    assert_eq!(client.run("HGET accounts:2 n").text(), "20");
    assert_eq!(client.run("PEXPIRE accounts:2 1").int(), 1);
    eventually("it expires", PATIENCE, || client.run("TTL accounts:2").int() == -1);
    database.execute("UPDATE accounts SET n = 21 WHERE id = 2");
    notified(&server, 2);
    assert_eq!(client.run("HGET accounts:2 n").text(), "21");
    // One with undecided changes is fetched again, whether its time has come or not.
    ok(&mut client, "DESTAGE PAUSE");
    for (expire, theirs, both) in
        [("EXPIRE accounts:1 100000", 1000, "1005"), ("PEXPIRE accounts:1 1", 2000, "2005")]
    {
        if theirs == 1000 {
            assert_eq!(client.run("HINCRBY accounts:1 n 5").int(), 16);
        }
        assert_eq!(client.run(expire).int(), 1);
        database.execute(&format!("UPDATE accounts SET n = {theirs} WHERE id = 1"));
        shows(&mut client, "HGET accounts:1 n", both);
        assert_eq!(client.run("TTL accounts:1").int(), -1);
    }
    notified(&server, 4);
    ok(&mut client, "DESTAGE RESUME");
    server.drain();
    assert_eq!(database.number("SELECT n FROM accounts WHERE id = 1"), 2005);
    // The table is no table of plain keys.
    let dropped = number(&server, "dropped_total");
    database.execute("TRUNCATE accounts");
    notified(&server, 5);
    assert!(number(&server, "dropped_total") > dropped);
    assert_eq!(client.run("EXISTS accounts:1 accounts:2 plain").int(), 1);
    assert_eq!(client.run("DESTAGE INVALIDATE plain *").int(), 2);
    assert_eq!(client.run("GET plain").text(), "x");
}
