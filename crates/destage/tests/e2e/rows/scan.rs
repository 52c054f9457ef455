//! SCAN over a table: pages merge what the origin holds with what is still buffered.

use super::on_each_shop;
use crate::harness::{Client, Database, Launch, Scratch};
use std::collections::BTreeSet;

/// Every key that a whole scan returns, in order.
#[track_caller]
pub(super) fn scan(client: &mut Client, pattern: &str, count: usize) -> Vec<String> {
    let mut keys = Vec::new();
    let mut cursor = "0".to_owned();
    for _ in 0..10_000 {
        let count = count.to_string();
        let page = client.call(&["SCAN", &cursor, "MATCH", pattern, "COUNT", &count]);
        let page = page.array();
        keys.extend(page[1].array().iter().map(|key| key.text()));
        cursor = page[0].text();
        if cursor == "0" {
            return keys;
        }
    }
    panic!("the scan of {pattern} does not end");
}

#[test]
fn scan_merges_buffered_inserts_and_deletes_with_the_origin() {
    on_each_shop(|server, database| {
        let insert = "INSERT INTO customers (id, name) VALUES ";
        let rows: Vec<_> = (100..200).map(|id| format!("({id}, 'c')")).collect();
        database.execute(&format!("{insert}{}", rows.join(", ")));
        let mut client = server.client();
        client.run("DESTAGE PAUSE").ok();
        let mut expected: BTreeSet<i64> = (100..200).chain([1, 2]).collect();
        for id in [50, 99, 150_000, 201, 300] {
            assert_eq!(client.run(&format!("HSET customers:{id} name new")).int(), 1);
            expected.insert(id);
        }
        for id in [2, 100, 150, 199, 300] {
            assert_eq!(client.run(&format!("DEL customers:{id}")).int(), 1);
            expected.remove(&id);
        }
        // Changed, not new: once in the scan.
        client.run("HSET customers:120 name changed");
        for (paused, count) in [(true, 1), (true, 7), (true, 1_000), (false, 10)] {
            if !paused {
                client.run("DESTAGE RESUME").ok();
                server.drain();
            }
            let keys = scan(&mut client, "customers:*", count);
            let found: BTreeSet<i64> = keys.iter().map(|key| id(key)).collect();
            assert_eq!(found, expected, "count {count}, paused {paused}");
            assert_eq!(keys.len(), found.len(), "a key came twice");
        }
    });
}

fn id(key: &str) -> i64 {
    let (_, id) = key.split_once(':').expect("the key has a part after the table");
    id.parse().expect("the part is a number")
}

#[test]
fn scans_and_writes_at_the_same_time_miss_nothing_that_stays() {
    on_each_shop(|server, database| {
        let insert = "INSERT INTO customers (id, name) VALUES ";
        let rows: Vec<_> = (1_000..1_500).map(|id| format!("({id}, 'c')")).collect();
        database.execute(&format!("{insert}{}", rows.join(", ")));
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                let mut client = server.client();
                for n in 0..200 {
                    client.run(&format!("HSET customers:{} name w", 2_000 + n));
                    client.run(&format!("DEL customers:{}", 2_000 + n / 2));
                    client.run(&format!("HSET customers:{} name touched", 1_000 + n));
                }
            });
            let mut client = server.client();
            while !writer.is_finished() {
                let keys = scan(&mut client, "customers:*", 37);
                let found: BTreeSet<i64> = keys.iter().map(|key| id(key)).collect();
                assert!((1_000..1_500).all(|id| found.contains(&id)), "a key is missing");
            }
        });
    });
}

#[test]
fn text_keys_are_scanned_in_full_and_patterns_select() {
    on_each_shop(|server, _| {
        let mut client = server.client();
        for name in ["apple", "avocado", "banana", "Äpfel", "zebra"] {
            assert_eq!(client.run(&format!("HSET labels:{name}:fruit note x")).int(), 1);
        }
        assert_eq!(scan(&mut client, "labels:*", 1).len(), 5);
        let mut selected = scan(&mut client, "labels:a*", 2);
        selected.sort();
        assert_eq!(selected, ["labels:apple:fruit", "labels:avocado:fruit"]);
        server.drain();
        assert_eq!(scan(&mut client, "labels:*", 2).len(), 5);
        assert!(client.run("SCAN 0 MATCH nosuch:*").error().contains("nosuch"));
        assert!(client.run("SCAN 12345678 MATCH labels:*").is_error());
    });
}

#[test]
fn scan_takes_the_names_of_tables_as_keys_have_them() {
    let scratch = Scratch::new();
    let database = Database::sqlite(&scratch);
    let database = database.with("CREATE TABLE \"odd:100%25\" (id INTEGER PRIMARY KEY, note TEXT)");
    let server = Launch::before(&scratch, &database.url()).start();
    let mut client = server.client();
    assert_eq!(client.run("HSET odd%3A100%2525:1 note x").int(), 1);
    let keys = scan(&mut client, "odd%3A100%2525:*", 10);
    assert_eq!(keys, ["odd%3A100%2525:1"]);
    let message = client.run("HGET nothing:1 note").error().to_owned();
    assert!(message.contains("odd%3A100%2525"), "{message}");
}
