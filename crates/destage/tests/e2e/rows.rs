//! Rows as hashes: what absent, empty and canonical mean, groups, computed columns, rejected rows, scans.

mod asked;
mod by_index;
mod constraints;
mod given;
mod keys;
mod numbers;
mod references;
mod scan;
mod stamped;
mod types;
mod uniques;
mod unsigned;
mod waiting;

use crate::harness::{
    Client, Database, Launch, PATIENCE, Reply, Scratch, Server, eventually, shop,
};

/// Before each kind of database, once.
pub(crate) fn on_each_shop(body: impl Fn(&Server, &Database)) {
    let scratch = Scratch::new();
    for (number, database) in shop::each(&scratch).into_iter().enumerate() {
        let launch = Launch::before(&scratch, &database.url());
        body(&launch.elsewhere(&scratch, &format!("data-{number}")).start(), &database);
    }
}

fn field(client: &mut Client, key: &str, name: &str) -> Option<String> {
    match client.call(&["HGET", key, name]) {
        Reply::Nil => None,
        reply => Some(reply.text()),
    }
}

#[test]
fn null_is_an_absent_field_and_empty_text_is_not() {
    on_each_shop(|server, database| {
        let mut client = server.client();
        assert_eq!(field(&mut client, "customers:2", "email"), None);
        assert_eq!(client.run("HEXISTS customers:2 email").int(), 0);
        assert_eq!(client.call(&["HSET", "customers:2", "email", ""]).int(), 1);
        assert_eq!(field(&mut client, "customers:2", "email").as_deref(), Some(""));
        assert_eq!(client.run("HLEN customers:2").int(), 4);
        assert_eq!(client.run("HDEL customers:1 email balance email").int(), 2);
        assert_eq!(client.run("HDEL customers:1 email").int(), 0);
        assert_eq!(client.run("EXISTS customers:1 customers:2 customers:3").int(), 2);
        assert!(client.run("HDEL customers:1 name").error().contains("name"));
        server.drain();
        let rows = database.rows("SELECT email, balance FROM customers ORDER BY id");
        assert_eq!(rows, [["NULL", "NULL"], ["", "NULL"]]);
        // HDEL of everything that may go leaves the row.
        assert_eq!(client.run("EXISTS customers:1").int(), 1);
    });
}

#[test]
fn a_row_deleted_and_written_again_is_a_new_row() {
    on_each_shop(|server, database| {
        let mut client = server.client();
        client.run("DESTAGE PAUSE").ok();
        assert_eq!(client.run("DEL customers:2").int(), 1);
        assert_eq!(client.run("EXISTS customers:2").int(), 0);
        assert_eq!(client.run("HGETALL customers:2").pairs(), []);
        assert_eq!(client.run("HSET customers:2 name Barbara").int(), 1);
        assert_eq!(field(&mut client, "customers:2", "visits").as_deref(), Some("0"));
        assert_eq!(client.run("DEL customers:2").int(), 1);
        client.run("DESTAGE RESUME").ok();
        server.drain();
        assert_eq!(database.number("SELECT count(*) FROM customers WHERE id = 2"), 0);
        assert_eq!(client.run("EXISTS customers:2").int(), 0);
        assert_eq!(server.status()["destage"]["parked_groups"], 0);
    });
}

#[test]
fn every_spelling_of_a_key_is_the_same_row() {
    on_each_shop(|server, database| {
        let mut client = server.client();
        assert_eq!(client.run("HSET customers:01 visits 8").int(), 0);
        for key in ["customers:1", "customers:0001", "customers:000000000001", "customers:+1"] {
            let reply = client.run(&format!("HGET {key} visits"));
            assert!(
                reply.is_error() && key.contains('+') || reply.text() == "8",
                "{key}: {reply:?}"
            );
        }
        assert_eq!(client.run("HGET customers:001 id").text(), "1");
        assert_eq!(client.run("HINCRBY customers:0001 visits 1").int(), 9);
        assert_eq!(client.run("HSET customers:1 visits 007").int(), 0);
        assert_eq!(client.run("HGET customers:01 visits").text(), "7");
        server.drain();
        assert_eq!(database.number("SELECT visits FROM customers WHERE id = 1"), 7);
    });
}

#[test]
fn parts_of_composite_keys_may_hold_the_separator_when_escaped() {
    on_each_shop(|server, database| {
        let mut client = server.client();
        for (key, name, kind) in [
            ("labels:plain:x", "plain", "x"),
            ("labels:with%3Acolon:x", "with:colon", "x"),
            ("labels:per%25cent:x", "per%cent", "x"),
            ("labels::", "", ""),
        ] {
            assert_eq!(client.call(&["HSET", key, "note", "here"]).int(), 1, "{key}");
            assert_eq!(client.call(&["HGET", key, "name"]).text(), name);
            assert_eq!(client.call(&["HGET", key, "kind"]).text(), kind);
        }
        assert!(client.call(&["HGET", "labels:a:b:c", "note"]).is_error());
        assert!(client.call(&["HGET", "labels:a", "note"]).error().contains("kind"));
        server.drain();
        let names = database.rows("SELECT name FROM labels ORDER BY length(name)");
        assert_eq!(names, [[""], ["plain"], ["per%cent"], ["with:colon"]]);
        // Scanned keys can be used as they are.
        let keys = scan::scan(&mut client, "labels:*", 2);
        assert_eq!(keys.len(), 4);
        for key in keys {
            assert_eq!(client.call(&["HGET", &key, "note"]).text(), "here", "{key}");
        }
    });
}

#[test]
fn a_new_row_without_its_mandatory_columns_is_refused_with_their_names() {
    on_each_shop(|server, database| {
        let mut client = server.client();
        let reply = client.run("HSET products:9 stock 4");
        assert!(
            reply.error().contains("name") && reply.error().contains("price_cents"),
            "{reply:?}"
        );
        assert_eq!(client.run("EXISTS products:9").int(), 0);
        // Together in one group they are complete.
        client.run("MULTI").ok();
        client.run("HSET products:9 stock 4");
        client.run("HSET products:9 name Table price_cents 100");
        let replies = client.run("EXEC");
        assert!(replies.array().iter().all(|reply| !reply.is_error()), "{replies:?}");
        server.drain();
        assert_eq!(database.value("SELECT name FROM products WHERE id = 9"), "Table");
    });
}

#[test]
fn exec_applies_parent_and_child_as_one_transaction() {
    on_each_shop(|server, database| {
        let mut client = server.client();
        client.run("MULTI").ok();
        for command in [
            "HSET orders:70 customer_id 2 status paid",
            "HSET order_lines:70:1 quantity 1",
            "HSET order_lines:70:2 quantity 2",
            "HINCRBY products:1 stock -1",
            "HGET products:1 stock",
        ] {
            assert_eq!(client.run(command).text(), "QUEUED");
        }
        let replies = client.run("EXEC");
        let numbers: Vec<i64> = replies.array().iter().map(Reply::int).collect();
        assert_eq!(numbers, [2, 1, 1, 9, 9]);
        assert_eq!(server.status()["writes"]["groups_total"], 1, "one group");
        server.drain();
        let joined = "SELECT count(*) FROM orders o JOIN order_lines l ON l.order_id = o.id \
                      JOIN customers c ON c.id = o.customer_id WHERE o.id = 70";
        assert_eq!(database.number(joined), 2);
    });
}

#[test]
fn exec_does_all_or_nothing() {
    on_each_shop(|server, database| {
        let mut client = server.client();
        // An error while queueing.
        client.run("MULTI").ok();
        assert_eq!(client.run("HINCRBY products:1 stock 1").text(), "QUEUED");
        assert!(client.run("LPUSH products:1 x").is_error());
        assert!(client.run("EXEC").error().starts_with("EXECABORT"));
        // An error that only shows when it is executed.
        client.run("MULTI").ok();
        assert_eq!(client.run("HINCRBY products:1 stock 1").text(), "QUEUED");
        client.run("HINCRBY products:1 name 1");
        assert!(client.run("EXEC").error().starts_with("EXECABORT"));
        client.run("MULTI").ok();
        assert!(client.run("MULTI").is_error());
        client.run("DISCARD").ok();
        assert!(client.run("EXEC").is_error());
        assert_eq!(client.run("HGET products:1 stock").int(), 10);
        client.run("MULTI").ok();
        assert_eq!(client.run("EXEC"), Reply::Array(vec![]));
        server.drain();
        assert_eq!(database.number("SELECT stock FROM products WHERE id = 1"), 10);
    });
}

#[test]
fn nobody_sees_half_of_a_group() {
    on_each_shop(|server, _| {
        let stop = std::sync::atomic::AtomicBool::new(false);
        let stopped = || stop.load(std::sync::atomic::Ordering::Relaxed);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut client = server.client();
                for _ in 0..300 {
                    let moved = client.pipeline(&[
                        "MULTI".into(),
                        "HINCRBY products:1 stock -1".into(),
                        "HINCRBY products:2 stock 1".into(),
                        "EXEC".into(),
                    ]);
                    assert_eq!(moved[3].array().len(), 2);
                }
                stop.store(true, std::sync::atomic::Ordering::Relaxed);
            });
            let mut client = server.client();
            while !stopped() {
                let read = client.pipeline(&[
                    "MULTI".into(),
                    "HGET products:1 stock".into(),
                    "HGET products:2 stock".into(),
                    "EXEC".into(),
                ]);
                let sum: i64 = read[3].array().iter().map(Reply::int).sum();
                assert_eq!(sum, 14);
            }
        });
    });
}

#[test]
fn a_transaction_whose_watched_row_has_changed_reaches_neither_cache_nor_origin() {
    on_each_shop(|server, database| {
        let (mut client, mut other) = (server.client(), server.client());
        for (meanwhile, done) in [("HINCRBY products:1 stock 1", false), ("PING", true)] {
            client.run("WATCH products:1").ok();
            let stock = client.run("HGET products:1 stock").int();
            other.run(meanwhile);
            client.run("MULTI").ok();
            client.run(&format!("HSET products:1 stock {}", stock - 1));
            client.run("HSET orders:70 customer_id 1");
            assert_eq!(client.run("EXEC") == Reply::Nil, !done, "{meanwhile}");
            server.drain();
            let left = database.number("SELECT stock FROM products WHERE id = 1");
            assert_eq!(left, if done { stock - 1 } else { stock + 1 });
            assert_eq!(
                database.number("SELECT count(*) FROM orders WHERE id = 70"),
                i64::from(done)
            );
        }
    });
}

/// A batch takes 4 MiB; what belongs together is more.
#[test]
fn a_transaction_larger_than_a_batch_reaches_the_origin_whole() {
    on_each_shop(|server, database| {
        let note = "n".repeat(60_000);
        let mut commands = vec!["MULTI".to_owned()];
        commands.extend((100..200).map(|id| format!("HSET customers:{id} name N note {note}")));
        commands.push("EXEC".to_owned());
        let replies = server.client().pipeline(&commands);
        assert_eq!(replies[101].array(), vec![Reply::Int(2); 100]);
        assert_eq!(server.status()["writes"]["groups_total"], 1);
        server.drain();
        let whole = "SELECT count(*) FROM customers WHERE length(note) = 60000";
        assert_eq!(database.number(whole), 100);
    });
}

#[test]
fn keys_made_by_the_database_are_handed_out_without_repeats() {
    on_each_shop(|server, database| {
        let mut seen = std::collections::BTreeSet::new();
        let mut client = server.client();
        for _ in 0..5 {
            assert!(seen.insert(client.run("DESTAGE NEXTID customers").int()));
        }
        for id in client.run("DESTAGE NEXTID customers 20").array() {
            assert!(seen.insert(id.int()), "{id:?} twice");
        }
        for id in &seen {
            assert_eq!(client.run(&format!("EXISTS customers:{id}")).int(), 0);
            assert_eq!(client.run(&format!("HSET customers:{id} name new")).int(), 1);
        }
        assert!(client.run("DESTAGE NEXTID order_lines").is_error());
        server.drain();
        // The database goes on after them by itself.
        database.execute("INSERT INTO customers (name) VALUES ('direct')");
        assert_eq!(database.number("SELECT count(*) FROM customers"), 28);
    });
}

#[test]
fn a_rejected_row_is_parked_while_its_neighbours_go_on() {
    on_each_shop(|server, database| {
        let mut good = server.client();
        let mut bad = server.client();
        good.run("DESTAGE PAUSE").ok();
        assert_eq!(good.run("HSET customers:30 name before").int(), 1);
        // The customer does not exist: only the origin can tell.
        assert_eq!(bad.run("HSET orders:30 customer_id 4711").int(), 1);
        assert_eq!(good.run("HSET customers:31 name after").int(), 1);
        // Depends on the rejected row.
        assert_eq!(good.run("HSET order_lines:30:1 quantity 1").int(), 1);
        assert_eq!(good.run("HINCRBY products:2 stock 3").int(), 7);
        good.run("DESTAGE RESUME").ok();
        let told = bad.run("DESTAGE WAIT 30000");
        assert!(told.error().to_lowercase().contains("parked"), "{told:?}");
        assert!(!good.run("DESTAGE WAIT 30000").is_error());
        server.drain();
        let names = database.rows("SELECT name FROM customers WHERE id IN (30, 31) ORDER BY id");
        assert_eq!(names, [["before"], ["after"]]);
        assert_eq!(database.number("SELECT stock FROM products WHERE id = 2"), 7);
        assert_eq!(database.number("SELECT count(*) FROM orders WHERE id = 30"), 0);
        assert_eq!(database.number("SELECT count(*) FROM order_lines WHERE order_id = 30"), 0);
        assert_eq!(server.status()["destage"]["parked_groups"], 2);
        assert_eq!(database.number("SELECT count(*) FROM destage_parked"), 2);
        assert!(server.metric("destage_rejected_groups_total") >= 1.0);
    });
}

#[test]
fn parked_rows_are_still_known_after_a_crash() {
    let scratch = Scratch::new();
    let database = shop::sqlite(&scratch);
    let launch = Launch::before(&scratch, &database.url());
    let server = launch.start();
    let mut client = server.client();
    client.run("HSET orders:30 customer_id 4711");
    assert!(client.run("DESTAGE WAIT 30000").is_error());
    server.kill();
    let server = launch.start();
    assert_eq!(server.status()["destage"]["parked_groups"], 1);
    assert_eq!(server.client().run("HINCRBY products:1 stock 1").int(), 11);
    server.drain();
    assert_eq!(database.number("SELECT stock FROM products WHERE id = 1"), 11);
    assert_eq!(database.number("SELECT count(*) FROM destage_parked"), 1);
}

#[test]
fn a_check_constraint_rejects_one_row_of_a_batch_and_no_other() {
    on_each_shop(|server, database| {
        let mut client = server.client();
        client.run("DESTAGE PAUSE").ok();
        for n in 0..50 {
            let price = if n == 25 { -1 } else { n };
            let command = format!("HSET products:{} name p{n} price_cents {price}", 100 + n);
            // Some checks may be known beforehand: then the refusal is immediate.
            let reply = client.run(&command);
            assert!(reply == Reply::Int(2) || n == 25, "{reply:?}");
        }
        client.run("DESTAGE RESUME").ok();
        server.drain();
        assert_eq!(database.number("SELECT count(*) FROM products WHERE id >= 100"), 49);
        assert_eq!(database.number("SELECT count(*) FROM products WHERE id = 125"), 0);
    });
}

#[test]
fn invalidate_shows_what_others_wrote_at_the_origin() {
    on_each_shop(|server, database| {
        let mut client = server.client();
        assert_eq!(client.run("HGET customers:1 name").text(), "Ada");
        database.execute("UPDATE customers SET name = 'Lady Lovelace' WHERE id = 1");
        assert!(!client.run("DESTAGE INVALIDATE customers:1").is_error());
        eventually("the new name is read", PATIENCE, || {
            client.run("HGET customers:1 name").text() == "Lady Lovelace"
        });
    });
}

#[test]
fn waitaof_and_wait_tell_journal_and_origin_apart() {
    let scratch = Scratch::new();
    let database = shop::sqlite(&scratch);
    let held_back = ["--when", "pressure", "--staleness", "1h", "--commit", "500ms"];
    let server = Launch::before(&scratch, &database.url()).with(&held_back).start();
    let mut client = server.client();
    client.run("HINCRBY products:1 stock 1");
    assert_eq!(client.run("WAITAOF 1 0 30000").array()[0].int(), 1);
    assert_eq!(database.number("SELECT stock FROM products WHERE id = 1"), 10);
    assert!(!client.run("DESTAGE WAIT 30000").is_error());
    assert_eq!(database.number("SELECT stock FROM products WHERE id = 1"), 11);
    assert!(!client.run("DESTAGE DRAIN").is_error());
}

#[test]
fn whole_numbers_are_incremented_by_what_clients_with_floats_send() {
    on_each_shop(|server, _| {
        let mut client = server.client();
        let stock = client.run("HGET products:1 stock").int();
        assert_eq!(client.run("HINCRBYFLOAT products:1 stock 2.0").int(), stock + 2);
        assert_eq!(client.run("HINCRBYFLOAT products:1 stock -1.00").int(), stock + 1);
        let message = client.run("HINCRBYFLOAT products:1 stock 1.50").error().to_owned();
        assert!(message.contains("whole numbers"), "{message}");
        assert_eq!(client.run("HGET products:1 stock").int(), stock + 1);
    });
}
