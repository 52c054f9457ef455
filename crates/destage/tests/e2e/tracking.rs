//! Clients that hold copies of what they have read, and are told when these are old (CLIENT TRACKING).

use crate::harness::{
    Client, Database, Launch, PATIENCE, Redis, Scratch, Server, eventually, output, prepared, shop,
};
use crate::mapped::{every_mapping, every_table, launch};
use std::path::Path;
use std::process::Command;

/// Runs a client program before Redis, which says what the answers are, and before the shop in each database at hand.
fn before_each(program: impl Fn(&str) -> Command) {
    let checked = |port: &str| {
        let said = output(&mut program(port));
        assert!(said.contains("checks"), "{said}");
    };
    let scratch = Scratch::new();
    if let Some(redis) = Redis::start(&scratch) {
        checked(&redis.port());
    }
    for (number, database) in shop::each(&scratch).into_iter().enumerate() {
        let launch = Launch::before(&scratch, &database.url());
        let server = launch.elsewhere(&scratch, &format!("data-{number}")).start();
        checked(&server.port());
    }
}

#[test]
fn redis_py_is_told_in_both_protocols_of_what_it_holds() {
    let Some(python) = prepared("DESTAGE_TEST_PYTHON") else { return };
    let program = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/clients/python/tracking.py");
    before_each(|port| {
        let mut client = Command::new(&python);
        client.args(["-B", program, port]);
        client
    });
}

#[test]
fn rueidis_reads_anew_what_others_have_changed() {
    let Some(program) = prepared("DESTAGE_TEST_GO_CLIENT") else { return };
    before_each(|port| {
        let mut client = Command::new(&program);
        client.args(["tracking", port]);
        client
    });
}

#[test]
fn node_redis_reads_anew_what_others_have_changed() {
    let Some(program) = prepared("DESTAGE_TEST_NODE_CLIENT") else { return };
    let program = Path::new(&program).with_file_name("tracking.mjs");
    before_each(|port| {
        let mut client = Command::new("node");
        client.arg(&program).arg(port);
        client
    });
}

/// A connection that waits for messages, and its number.
pub(crate) fn listener(server: &Server) -> (Client, i64) {
    let mut listener = server.client();
    let id = listener.run("CLIENT ID").int();
    listener.run("SUBSCRIBE __redis__:invalidate");
    (listener, id)
}

/// The keys of the next message.
#[track_caller]
pub(crate) fn told(listener: &mut Client) -> Vec<String> {
    let message = listener.receive().expect("a message comes");
    let mut keys: Vec<String> = message.array()[2].array().iter().map(|key| key.text()).collect();
    keys.sort();
    keys
}

/// Waits until a key is told; others may be told of, too.
#[track_caller]
fn told_of(listener: &mut Client, key: &str) {
    while !told(listener).iter().any(|told| told == key) {}
}

#[test]
fn members_of_sets_mapped_strings_and_plain_keys_are_told() {
    let scratch = Scratch::new();
    let databases = [Some(Database::sqlite(&scratch)), Database::postgres(), Database::mariadb()];
    for (number, database) in databases.into_iter().flatten().enumerate() {
        let database = database.with(&every_table());
        database.execute("INSERT INTO products VALUES (3, 'Desk')");
        let launch = launch(&scratch, &database, &format!("data-{number}"), &every_mapping());
        let server = launch.with(&["--unmapped", "cache"]).start();
        let (mut listener, id) = listener(&server);
        let (mut reader, mut writer) = (server.client(), server.client());
        reader.run(&format!("CLIENT TRACKING ON REDIRECT {id}")).ok();
        for (read, write, key) in [
            ("SMEMBERS tags:3", "SADD tags:3 red", "tags:3"),
            ("SISMEMBER tags:3 red", "SREM tags:3 red", "tags:3"),
            ("SISMEMBER tags:3 blue", "SADD tags:3 blue", "tags:3"),
            ("SCARD tags:3", "DEL tags:3", "tags:3"),
            ("ZSCORE rank:7 ann", "ZADD rank:7 1.5 ann", "rank:7"),
            ("ZRANGE rank:7 0 -1", "ZINCRBY rank:7 1 ann", "rank:7"),
            ("EXISTS p:1", "SET p:1 x", "p:1"),
            ("GET p:1", "EXPIRE p:1 100", "p:1"),
            ("TTL p:1", "DEL p:1", "p:1"),
            ("MGET p:2 p:3", "APPEND p:3 y", "p:3"),
        ] {
            assert!(!reader.run(read).is_error(), "{read}: {:?}", reader.run(read));
            assert!(!writer.run(write).is_error(), "{write}");
            told_of(&mut listener, key);
        }
        // It ends without a command.
        writer.run("SET p:4 x PX 200").ok();
        reader.run("GET p:4");
        told_of(&mut listener, "p:4");
        assert!(writer.run("INFO").text().contains("tracking_clients:1"));
        server.drain();
    }
}

#[test]
fn a_table_that_is_full_has_clients_forget_keys_and_never_hold_old_ones() {
    let scratch = Scratch::new();
    let database = shop::sqlite(&scratch);
    let launch = Launch::before(&scratch, &database.url());
    let server = launch.with(&["--tracking-table-max-keys", "10"]).start();
    let (mut listener, id) = listener(&server);
    let mut reader = server.client();
    reader.run(&format!("CLIENT TRACKING ON REDIRECT {id}")).ok();
    let mut dropped = 0;
    for row in 100..130 {
        reader.run(&format!("HGET customers:{row} name"));
        if row >= 110 {
            dropped += told(&mut listener).len();
        }
    }
    assert_eq!(dropped, 20);
    eventually("the status shows it", PATIENCE, || {
        let tracking = &server.status()["tracking"];
        tracking["items"] == 10 && tracking["dropped_total"] == 20
    });
}
