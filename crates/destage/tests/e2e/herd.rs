//! Many clients miss the same row at once: the origin is asked once.

use crate::harness::{Client, Database, Launch, PATIENCE, Scratch, eventually, shop};
use std::sync::{Arc, Barrier};
use std::thread;

const CLIENTS: usize = 200;

/// Reads the same row from all clients at the same moment; every answer.
fn herd(address: std::net::SocketAddr, key: &str) -> Vec<String> {
    let barrier = Arc::new(Barrier::new(CLIENTS));
    let clients: Vec<_> = (0..CLIENTS)
        .map(|_| {
            let barrier = barrier.clone();
            let key = key.to_owned();
            thread::spawn(move || {
                let mut client = Client::connect(address);
                barrier.wait();
                client.call(&["HGET", &key, "name"]).text()
            })
        })
        .collect();
    clients.into_iter().map(|client| client.join().expect("a client panicked")).collect()
}

#[test]
fn two_hundred_misses_of_one_row_make_one_query() {
    let scratch = Scratch::new();
    let Some(database) = Database::postgres() else { return };
    // Large enough for the planner to use the key's index: then its scans count the queries. Sessions report their counts
    // when they end, or when told to, else with a delay of some seconds.
    database.execute(
        "CREATE TABLE crowd (id INTEGER PRIMARY KEY, name TEXT NOT NULL); \
         INSERT INTO crowd SELECT n, 'c' || n FROM generate_series(2000, 22000) n; ANALYZE crowd; \
         SELECT pg_stat_force_next_flush()",
    );
    let scans = || {
        database.number(
            "SELECT seq_scan + coalesce(idx_scan, 0) FROM pg_stat_user_tables \
             WHERE relname = 'crowd'",
        )
    };
    let server = Launch::before(&scratch, &database.url()).start();
    let scans_before = scans();
    let answers = herd(server.listen, "crowd:12345");
    assert!(answers.iter().all(|answer| answer == "c12345"));
    assert!(server.metric("destage_cache_misses_total") > 0.0);
    server.terminate(PATIENCE).says(0, &[]);
    eventually("the query is counted", PATIENCE, || scans() > scans_before);
    assert_eq!(scans() - scans_before, 1, "queries for one row");
}

#[test]
fn a_herd_of_writers_on_one_missing_row_counts_every_increment() {
    let scratch = Scratch::new();
    for (number, database) in shop::each(&scratch).into_iter().enumerate() {
        let launch = Launch::before(&scratch, &database.url());
        let server = launch.elsewhere(&scratch, &format!("data-{number}")).start();
        let clients: Vec<_> = (0..50)
            .map(|_| {
                let address = server.listen;
                thread::spawn(move || {
                    Client::connect(address).run("HINCRBY products:1 stock 1").int()
                })
            })
            .collect();
        let mut answers: Vec<i64> =
            clients.into_iter().map(|c| c.join().expect("no panic")).collect();
        answers.sort_unstable();
        assert_eq!(answers, (11..=60).collect::<Vec<_>>());
        server.drain();
        assert_eq!(database.number("SELECT stock FROM products WHERE id = 1"), 60);
    }
}
