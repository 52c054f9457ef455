//! `new = "upsert"`: new rows that meet a row at the origin are merged with it.

use crate::harness::{Database, Launch, PATIENCE, Reply, Scratch, Server, eventually, shop};

const CARTS: &str = "
CREATE TABLE carts (
    owner NAME NOT NULL PRIMARY KEY,
    code NAME UNIQUE,
    items INTEGER NOT NULL DEFAULT 0,
    note NAME ,
    gift NAME DEFAULT 'none'
);
";

fn tables(scratch: &Scratch) -> Vec<Database> {
    shop::each(scratch).into_iter().map(|database| database.with(CARTS)).collect()
}

/// A server that keeps the keys, and merges new carts and orders.
fn merging(scratch: &Scratch, database: &Database) -> Launch {
    let file = scratch.join("destage.toml");
    let settings = "[table.carts]\nnew = 'upsert'\n[table.orders]\nnew = 'upsert'\n\
                    [table.labels]\nnew = 'upsert'\n";
    std::fs::write(&file, settings).expect("it can be written");
    let config = file.display().to_string();
    Launch::before(scratch, &database.url()).with(&["--config", &config, "--absent-filter", "keys"])
}

#[track_caller]
fn are_known(server: &Server) {
    eventually("the keys are known", PATIENCE, || server.status()["absent"]["filling"] == 0);
    assert_eq!(server.status()["absent"]["off"], 0);
}

fn carts(database: &Database) -> Vec<String> {
    let rows = database.rows("SELECT owner, code, items, note, gift FROM carts ORDER BY owner");
    rows.iter().map(|row| row.join(" ")).collect()
}

/// > With `new = "upsert"` the columns that were written win, and the others keep what the origin holds.
#[test]
fn a_new_row_is_merged_with_the_one_that_it_meets() {
    let scratch = Scratch::new();
    for (scratch, database) in scratch.apart(tables(&scratch)) {
        let server = merging(&scratch, &database).start();
        are_known(&server);
        database.execute(
            "INSERT INTO carts VALUES ('a', 'c1', 5, 'theirs', 'ribbon'), ('b', 'c2', 1, 'theirs', NULL);
             INSERT INTO labels VALUES ('l', 'k', 'theirs')",
        );
        let mut client = server.client();
        assert_eq!(client.run("HSET carts:a note ours"), Reply::Int(1));
        assert_eq!(client.run("HGET carts:a items").text(), "0", "as of a new row");
        assert_eq!(client.run("HSET carts:c items 3"), Reply::Int(1));
        assert_eq!(client.run("HINCRBY carts:c items 4"), Reply::Int(7));
        assert_eq!(client.run("HSET labels:l:k note ours"), Reply::Int(1));
        assert_eq!(client.run("DESTAGE WAIT 60000"), Reply::Int(1));
        let merged = ["a c1 5 ours ribbon", "b c2 1 theirs NULL", "c NULL 7 NULL none"];
        assert_eq!(carts(&database), merged);
        assert_eq!(database.value("SELECT note FROM labels"), "ours");
        assert_eq!(database.number("SELECT count(*) FROM destage_parked"), 0);
        // What is cached of it is read again.
        eventually("their columns are seen", PATIENCE, || {
            client.run("HGET carts:a items") == Reply::Bulk(b"5".to_vec())
        });
        assert_eq!(client.run("HGET carts:c gift").text(), "none");
    }
}

/// > A violation of another unique index is parked as ever.
#[test]
fn another_unique_index_rejects_a_new_row_as_ever() {
    let scratch = Scratch::new();
    for (scratch, database) in scratch.apart(tables(&scratch)) {
        let server = merging(&scratch, &database).start();
        are_known(&server);
        database.execute("INSERT INTO carts VALUES ('b', 'c2', 1, 'theirs', 'g')");
        let mut client = server.client();
        assert_eq!(client.run("HSET carts:e note ours"), Reply::Int(1));
        assert_eq!(client.run("HSET carts:d code c2 note ours"), Reply::Int(2));
        assert!(client.run("DESTAGE WAIT 60000").error().starts_with("PARKED"));
        server.drain();
        assert_eq!(carts(&database), ["b c2 1 theirs g", "e NULL 0 ours none"]);
        assert_eq!(database.number("SELECT count(*) FROM destage_parked"), 1);
    }
}

/// > A column that is NOT NULL and has no default must be given, also where a row is there that has one.
#[test]
fn a_new_row_needs_what_an_insert_needs() {
    let scratch = Scratch::new();
    for (scratch, database) in scratch.apart(tables(&scratch)) {
        let server = merging(&scratch, &database).start();
        are_known(&server);
        database.execute("INSERT INTO orders (id, customer_id) VALUES (70, 1)");
        let refused = server.client().run("HSET orders:70 note ours");
        assert!(refused.error().contains("customer_id"), "{refused:?}");
    }
}

/// > It is done once, whatever crashes.
#[test]
fn new_rows_are_merged_once_whatever_is_killed() {
    let scratch = Scratch::new();
    for (scratch, database) in scratch.apart(tables(&scratch)) {
        let launch = merging(&scratch, &database);
        for round in 0..4_i64 {
            let server = launch.start();
            are_known(&server);
            let theirs =
                format!("INSERT INTO carts (owner, items, note) VALUES ('k{round}', 100, 't')");
            database.execute(&theirs);
            let mut client = server.client();
            assert_eq!(client.run(&format!("HSET carts:k{round} items 1")), Reply::Int(1));
            for count in 2..=50 {
                let sum = client.run(&format!("HINCRBY carts:k{round} items 1"));
                assert_eq!(sum, Reply::Int(count), "round {round}");
            }
            server.kill();
        }
        let server = launch.start();
        server.drain();
        let expected = ["k0", "k1", "k2", "k3"].map(|owner| format!("{owner} NULL 50 t none"));
        assert_eq!(carts(&database), expected);
    }
}
