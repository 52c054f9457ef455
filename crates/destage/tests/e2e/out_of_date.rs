//! What was known of an origin and is out of date: constraints that are dropped, types that change, and whether it may be
//! written to.

use crate::harness::{
    Client, Database, Kind, Launch, OwnServer, PATIENCE, Scratch, eventually, shop,
};
use crate::parking::named;

const DEFERRED: &str = "
CREATE TABLE owners (id INTEGER PRIMARY KEY);
CREATE TABLE things (
    id INTEGER PRIMARY KEY,
    owner INTEGER CONSTRAINT has_owner REFERENCES owners (id) DEFERRABLE INITIALLY DEFERRED,
    n INTEGER NOT NULL DEFAULT 0
);
INSERT INTO things (id) VALUES (1);
";

/// The write that the origin rejects for its owner; its number.
#[track_caller]
fn park(client: &mut Client) -> String {
    assert_eq!(client.run("HSET things:7 owner 9").int(), 1);
    assert!(client.run("DESTAGE WAIT 60000").error().starts_with("PARKED"));
    let list = client.run("DESTAGE PARKED LIST");
    named(&list.array()[0], "id").int().to_string()
}

#[test]
fn a_parked_write_can_be_retried_once_the_constraint_is_dropped() {
    let Some(database) = Database::postgres() else { return };
    let database = database.with(DEFERRED);
    let scratch = Scratch::new();
    let server = Launch::before(&scratch, &database.url()).start();
    let mut client = server.client();
    let id = park(&mut client);
    let refused = client.run(&format!("DESTAGE PARKED RETRY {id}"));
    assert!(refused.error().contains("has_owner"), "{refused:?}");
    database.execute("ALTER TABLE things DROP CONSTRAINT has_owner");
    let answer = client.run(&format!("DESTAGE PARKED RETRY {id}"));
    assert!(!answer.is_error(), "{answer:?}");
    assert_eq!(database.number("SELECT owner FROM things WHERE id = 7"), 9);
    // Nor does the next batch fail for it.
    assert!(!client.run("HINCRBY things:1 n 1").is_error());
    assert_eq!(client.run("DESTAGE WAIT 60000").int(), 1);
    assert_eq!(server.status()["origin"]["retries_total"], 0, "{}", server.log());
}

#[test]
fn a_batch_does_not_fail_for_a_constraint_that_was_dropped() {
    let Some(database) = Database::postgres() else { return };
    let database = database.with(DEFERRED);
    let scratch = Scratch::new();
    let server = Launch::before(&scratch, &database.url()).start();
    let mut client = server.client();
    assert_eq!(client.run("HSET things:2 n 5").int(), 1);
    server.drain();
    database.execute("ALTER TABLE things DROP CONSTRAINT has_owner");
    assert_eq!(client.run("HSET things:3 owner 9").int(), 1);
    assert_eq!(client.run("DESTAGE WAIT 60000").int(), 1);
    assert_eq!(database.number("SELECT owner FROM things WHERE id = 3"), 9);
    let status = server.status();
    assert_eq!(status["origin"]["retries_total"], 0, "{}", server.log());
    assert_eq!(status["destage"]["parked_groups"], 0);
}

#[test]
fn a_read_does_not_fail_for_a_type_that_was_changed() {
    let Some(database) = shop::postgres() else { return };
    let scratch = Scratch::new();
    let server = Launch::before(&scratch, &database.url()).start();
    let mut client = server.client();
    assert_eq!(client.run("HGET customers:1 name").text(), "Ada");
    database.execute("ALTER TABLE customers ALTER COLUMN name TYPE VARCHAR(50)");
    for _ in 0..10 {
        client.run("DESTAGE INVALIDATE customers:*");
        assert_eq!(client.run("HGET customers:2 name").text(), "Grace");
    }
}

#[test]
fn a_postgres_that_is_set_read_only_is_not_written_without_a_word() {
    let Some(database) = shop::postgres() else { return };
    let url = database.url();
    let name = url.rsplit('/').next().expect("the URL names a database").to_owned();
    let own = format!("{url}?options=-cdefault_transaction_read_only%3Doff");
    // Whoever sets it is not kept from it.
    let administrator = Database::Postgres(own.clone());
    let set = |change: &str| administrator.execute(&format!("ALTER DATABASE \"{name}\" {change}"));
    let on = "SET default_transaction_read_only = on";
    let reset = "RESET default_transaction_read_only";
    let scratch = Scratch::new();
    let launch = Launch::before(&scratch, &url);
    set(on);
    launch.refused().says(10, &["read-only", "default_transaction_read_only"]);
    let made = "SELECT count(*) FROM pg_class WHERE relname LIKE 'destage%'";
    assert_eq!(database.number(made), 0, "nothing was made there");
    // Whoever says so writes.
    let server = Launch::before(&scratch, &own).start();
    assert_eq!(server.client().run("HINCRBY products:1 stock 1").int(), 11);
    server.drain();
    server.terminate(PATIENCE).says(0, &[]);

    // While it runs, new connections find out; nothing is lost meanwhile.
    set(reset);
    let server = launch.start();
    let mut client = server.client();
    assert_eq!(client.run("HINCRBY products:1 stock 1").int(), 12);
    server.drain();
    set(on);
    database.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
         WHERE datname = current_database() AND pid <> pg_backend_pid()",
    );
    assert_eq!(client.run("HINCRBY products:1 stock 1").int(), 13);
    eventually("the status says why", PATIENCE, || {
        server.status()["origin"]["last_error"].as_str().is_some_and(|e| e.contains("read-only"))
    });
    assert_eq!(database.number("SELECT stock FROM products WHERE id = 1"), 12);
    set(reset);
    server.drain();
    assert_eq!(database.number("SELECT stock FROM products WHERE id = 1"), 13);
}

#[test]
fn a_mariadb_that_is_set_read_only_is_not_written_without_a_word() {
    let Some(origin) = OwnServer::start(Kind::Mariadb) else { return };
    let database = shop::filled(origin.database());
    let scratch = Scratch::new();
    let launch = Launch::before(&scratch, &database.url());
    database.execute("SET GLOBAL tx_read_only = 1");
    launch.refused().says(10, &["read-only", "tx_read_only"]);
    database.execute("SET GLOBAL tx_read_only = 0");
    let server = launch.start();
    assert_eq!(server.client().run("HINCRBY products:1 stock 1").int(), 11);
    server.drain();
}
