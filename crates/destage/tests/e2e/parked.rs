//! What becomes of writes that the origin rejected: shown, applied after all, edited, given up; and what parks nothing.

mod shown;

use crate::harness::server::binary;
use crate::harness::{
    Client, Database, Launch, PATIENCE, Proxy, Reply, Scratch, Server, eventually, shop,
};
use crate::parking::named;
use crate::rows::on_each_shop;
use std::process::Command;

const STOCK: &str = "SELECT stock FROM products WHERE id = 1";
const PRICE: &str = "SELECT price_cents FROM products WHERE id = 1";
const PARKED: &str = "SELECT count(*) FROM destage_parked";

/// The parked writes as clients see them: numbers, and what they build on.
#[track_caller]
fn listed(client: &mut Client) -> Vec<(i64, Option<i64>)> {
    let list = client.run("DESTAGE PARKED LIST");
    let ids = list.array().iter().map(|one| {
        let builds_on = named(one, "builds_on");
        (named(one, "id").int(), (*builds_on != Reply::Nil).then(|| builds_on.int()))
    });
    ids.collect()
}

/// A number from the answer to a decision.
#[track_caller]
fn told(reply: &Reply, name: &str) -> i64 {
    let pairs = reply.pairs();
    let found = pairs.iter().find(|(known, _)| known == name);
    found.unwrap_or_else(|| panic!("{name} is not in {pairs:?}")).1.parse().expect("a number")
}

/// Writes that the origin rejects, the second behind the first; their numbers.
#[track_caller]
fn reject(client: &mut Client, commands: &[&str]) -> Vec<i64> {
    let before = listed(client).len();
    for command in commands {
        let reply = client.run(command);
        assert!(!reply.is_error(), "{command}: {reply:?}");
        assert!(client.run("DESTAGE WAIT 60000").error().starts_with("PARKED"), "{command}");
    }
    listed(client)[before..].iter().map(|(id, _)| *id).collect()
}

/// Nothing is parked and nothing pinned any more; the row goes through as any other.
#[track_caller]
fn is_as_before(server: &Server, client: &mut Client, database: &Database, key: &str) {
    assert_eq!(listed(client), []);
    let before = client.run(&format!("HGETALL {key}")).pairs();
    assert!(!client.run(&format!("HSET {key} {} {}", before[1].0, before[1].1)).is_error());
    assert_eq!(client.run("DESTAGE WAIT 60000").int(), 1);
    assert_eq!(client.run(&format!("HGETALL {key}")).pairs(), before);
    assert_eq!(database.number(PARKED), 0);
    let status = server.status();
    assert_eq!(status["destage"]["parked_groups"], 0);
    assert_eq!(status["writes"]["pinned_bytes"], 0);
    assert_eq!(server.metric("destage_parked_groups"), 0.0);
}

#[test]
fn retry_applies_a_parked_write_and_what_builds_on_it_once_the_cause_is_gone() {
    on_each_shop(|server, database| {
        let mut client = server.client();
        let ids =
            reject(&mut client, &["HSET orders:30 customer_id 4711", "HSET orders:30 note b"]);
        assert_eq!(listed(&mut client), [(ids[0], None), (ids[1], Some(ids[0]))]);
        let shown = client.run(&format!("DESTAGE PARKED SHOW {}", ids[0]));
        let reason = named(&shown, "reason").text().to_lowercase();
        assert!(reason.contains("foreign key"), "{reason}");
        // The cause is still there: nothing changes.
        let refused = client.run(&format!("DESTAGE PARKED RETRY {}", ids[0]));
        assert!(refused.error().starts_with("REJECTED"), "{refused:?}");
        // Not before the one that it builds on.
        let early = client.run(&format!("DESTAGE PARKED RETRY {}", ids[1]));
        assert!(early.error().contains("decide on that one first"), "{early:?}");
        assert_eq!(listed(&mut client).len(), 2);
        assert_eq!(client.run("HGET orders:30 note").text(), "b");
        assert_eq!(database.number("SELECT count(*) FROM orders WHERE id = 30"), 0);

        database.execute("INSERT INTO customers (id, name) VALUES (4711, 'found')");
        let reply = client.run(&format!("DESTAGE PARKED RETRY {}", ids[0]));
        assert_eq!((told(&reply, "applied"), told(&reply, "parked")), (2, 0));
        assert_eq!(
            database.rows("SELECT customer_id, note FROM orders WHERE id = 30"),
            [["4711", "b"]]
        );
        assert_eq!(client.run("HGET orders:30 note").text(), "b");
        is_as_before(server, &mut client, database, "orders:30");
    });
}

#[test]
fn retry_all_applies_what_the_origin_takes_and_leaves_the_rest() {
    on_each_shop(|server, database| {
        let mut client = server.client();
        reject(
            &mut client,
            &["HSET orders:30 customer_id 4711", "HSET orders:31 customer_id 4712"],
        );
        reject(&mut client, &["HSET order_lines:30:1 quantity 1"]);
        database.execute("INSERT INTO customers (id, name) VALUES (4711, 'found')");
        let reply = client.run("DESTAGE PARKED RETRY ALL");
        let pairs = reply.pairs();
        assert!(pairs.iter().any(|(name, why)| name == "refused" && why.contains("REJECTED")));
        assert_eq!((told(&reply, "applied"), told(&reply, "parked")), (2, 1));
        assert_eq!(database.number("SELECT count(*) FROM order_lines WHERE order_id = 30"), 1);
        assert_eq!(database.number("SELECT count(*) FROM orders WHERE id = 31"), 0);
        assert_eq!(server.status()["destage"]["parked_groups"], 1);
    });
}

#[test]
fn more_parked_writes_than_their_limit_end_a_start_and_none_is_lost() {
    let scratch = Scratch::new();
    for (number, database) in shop::each(&scratch).into_iter().enumerate() {
        let launch = Launch::before(&scratch, &database.url());
        let launch = launch.elsewhere(&scratch, &format!("data-{number}"));
        let server = launch.start();
        let mut client = server.client();
        let note = "n".repeat(60_000);
        for order in 30..55 {
            let key = format!("orders:{order}");
            let made = client.call(&["HSET", &key, "customer_id", "4711", "note", &note]);
            assert!(!made.is_error(), "{made:?}");
        }
        assert!(client.run("DESTAGE WAIT 60000").error().starts_with("PARKED"));
        eventually("everything is parked", PATIENCE, || database.number(PARKED) == 25);
        server.terminate(PATIENCE);
        let exit = launch.with(&["--parked-limit", "1M"]).refused();
        exit.says(10, &["--parked-limit", "parked"]);
        let server = launch.with(&["--parked-limit", "2M"]).start();
        assert_eq!(listed(&mut server.client()).len(), 25);
    }
}

#[test]
fn edit_applies_other_changes_in_the_place_of_a_parked_write() {
    on_each_shop(|server, database| {
        let mut client = server.client();
        let ids =
            reject(&mut client, &["HSET orders:30 customer_id 4711", "HSET orders:30 note b"]);
        let broken = client.call(&["DESTAGE", "PARKED", "EDIT", &ids[0].to_string(), "{\"x\":1}"]);
        assert!(broken.is_error(), "{broken:?}");
        let shown = client.run(&format!("DESTAGE PARKED SHOW {}", ids[0]));
        let payload = named(&shown, "payload").text();
        let mended = payload.replace("4711", "2");
        let reply = client.call(&["DESTAGE", "PARKED", "EDIT", &ids[0].to_string(), &mended]);
        assert_eq!((told(&reply, "applied"), told(&reply, "parked")), (2, 0));
        assert_eq!(
            database.rows("SELECT customer_id, note FROM orders WHERE id = 30"),
            [["2", "b"]]
        );
        assert_eq!(client.run("HGET orders:30 customer_id").int(), 2);
        is_as_before(server, &mut client, database, "orders:30");
    });
}

#[test]
fn edit_refuses_amounts_that_are_none_and_changes_that_change_nothing() {
    on_each_shop(|server, database| {
        let mut client = server.client();
        let id = reject(&mut client, &["HSET orders:30 customer_id 4711"])[0].to_string();
        let stock = database.number(STOCK);
        let update = |columns: &str| {
            let key = r#"{"table":"products","op":"update","key":{"id":"1"},"columns":"#;
            format!(r#"{{"changes":[{key}[{columns}]}}]}}"#)
        };
        let add = |column: &str, amount: &str| {
            update(&format!(r#"{{"name":"{column}","add":"{amount}"}}"#))
        };
        let amounts = ["abc", "", "1 WHERE 1 = 1", "1.5", "NaN", "inf", "5x"];
        let wrong = amounts.map(|amount| add("stock", amount)).into_iter();
        let none = ["{\"changes\":[]}".to_owned(), update(""), add("name", "5")];
        for changes in wrong.chain(none) {
            let refused = client.call(&["DESTAGE", "PARKED", "EDIT", &id, &changes]);
            let message = refused.error();
            assert!(message.contains("the given changes cannot be read"), "{changes}: {message}");
        }
        assert_eq!(listed(&mut client).len(), 1);
        assert_eq!(database.number(STOCK), stock);
        let reply = client.call(&["DESTAGE", "PARKED", "EDIT", &id, &add("stock", "-2")]);
        assert_eq!((told(&reply, "applied"), told(&reply, "parked")), (1, 0));
        assert_eq!(database.number(STOCK), stock - 2);
        assert_eq!(client.run("HGET products:1 stock").int(), stock - 2);
    });
}

/// A transaction that changes one row after it has read another one.
#[track_caller]
fn transfer(client: &mut Client, watched: Option<&str>, change: &str) {
    if let Some(key) = watched {
        client.run(&format!("WATCH {key}")).ok();
        assert!(!client.run(&format!("HGETALL {key}")).pairs().is_empty());
    }
    client.run("MULTI").ok();
    assert!(!client.run(change).is_error());
    assert_eq!(client.run("EXEC").array().len(), 1);
}

#[test]
fn a_transaction_that_watched_a_rejected_write_is_parked_behind_it() {
    on_each_shop(|server, database| {
        let (mut client, mut other) = (server.client(), server.client());
        client.run("DESTAGE PAUSE").ok();
        client.run("HSET orders:30 customer_id 4711");
        transfer(&mut client, Some("orders:30"), "HINCRBY products:2 stock -1");
        // Who has not looked at it goes on.
        transfer(&mut other, None, "HINCRBY products:1 stock -1");
        transfer(&mut other, Some("orders:1"), "HINCRBY customers:1 visits 1");
        client.run("DESTAGE RESUME").ok();
        assert!(client.run("DESTAGE WAIT 60000").error().starts_with("PARKED"));
        assert_eq!(other.run("DESTAGE WAIT 60000").int(), 1);
        transfer(&mut client, Some("products:2"), "HSET customers:2 visits 7");
        client.run("HSET order_lines:30:1 quantity 1");
        server.drain();
        let all = listed(&mut client);
        let behind: Vec<Option<i64>> = all.iter().map(|(_, behind)| *behind).collect();
        assert_eq!(behind, [None, Some(all[0].0), Some(all[1].0), Some(all[0].0)], "{all:?}");
        assert_eq!(database.number("SELECT stock FROM products WHERE id = 2"), 4);
        assert_eq!(database.number(STOCK), 9);

        database.execute("INSERT INTO customers (id, name) VALUES (4711, 'found')");
        let reply = client.run("DESTAGE PARKED RETRY ALL");
        assert_eq!((told(&reply, "applied"), told(&reply, "parked")), (4, 0));
        assert_eq!(database.number("SELECT stock FROM products WHERE id = 2"), 3);
        assert_eq!(database.number("SELECT visits FROM customers WHERE id = 2"), 7);
        assert_eq!(database.number("SELECT count(*) FROM order_lines WHERE order_id = 30"), 1);
        is_as_before(server, &mut client, database, "products:2");
    });
}

#[test]
fn what_a_transaction_watched_is_known_after_a_crash() {
    let scratch = Scratch::new();
    for (number, database) in shop::each(&scratch).into_iter().enumerate() {
        let launch = Launch::before(&scratch, &database.url());
        let launch = launch.elsewhere(&scratch, &format!("data-{number}"));
        let server = launch.start();
        let mut client = server.client();
        client.run("DESTAGE PAUSE").ok();
        client.run("HSET products:1 price_cents -5");
        transfer(&mut client, Some("products:1"), "HINCRBY products:2 stock -1");
        transfer(&mut client, Some("products:2"), "HINCRBY customers:1 visits 1");
        // Undecided when the process is killed, then parked when it is.
        server.kill();
        let server = launch.start();
        server.drain();
        let before = listed(&mut server.client());
        assert_eq!(before.len(), 3, "{before:?}");
        server.kill();
        let server = launch.start();
        let mut client = server.client();
        assert_eq!(listed(&mut client), before);
        let early = client.run(&format!("DESTAGE PARKED RETRY {}", before[2].0));
        let why = format!("builds on the rejected write {}: decide on that one first", before[1].0);
        assert!(early.error().contains(&why), "{early:?}");
        // Given up, it is in nobody's way.
        client.run(&format!("DESTAGE PARKED SKIP {}", before[0].0));
        let reply = client.run(&format!("DESTAGE PARKED RETRY {}", before[1].0));
        assert_eq!((told(&reply, "applied"), told(&reply, "parked")), (2, 0));
        assert_eq!(database.number("SELECT stock FROM products WHERE id = 2"), 3);
        is_as_before(&server, &mut client, &database, "products:2");
    }
}

#[test]
fn skip_takes_a_parked_write_back_and_keeps_what_came_after_it() {
    on_each_shop(|server, database| {
        let mut client = server.client();
        let ids =
            reject(&mut client, &["HSET products:1 price_cents -5", "HINCRBY products:1 stock 7"]);
        // A watched row changes when what was shown is taken back.
        let mut watcher = server.client();
        watcher.run("WATCH products:1").ok();
        assert_eq!(client.run("HMGET products:1 price_cents stock").array()[0].int(), -5);
        // Behind the two there is a third, undecided, when the first one goes.
        client.run("DESTAGE PAUSE").ok();
        assert_eq!(client.run("HINCRBY products:1 stock 1").int(), 18);
        let reply = client.run(&format!("DESTAGE PARKED SKIP {}", ids[0]));
        assert_eq!((told(&reply, "skipped"), told(&reply, "parked")), (1, 1));
        let read = client.run("HMGET products:1 price_cents stock").array().to_vec();
        assert_eq!((read[0].int(), read[1].int()), (1990, 18));
        watcher.run("MULTI").ok();
        watcher.run("HSET products:1 name never");
        assert_eq!(watcher.run("EXEC"), Reply::Nil);

        let reply = client.run(&format!("DESTAGE PARKED RETRY {}", ids[1]));
        assert_eq!((told(&reply, "applied"), told(&reply, "parked")), (1, 0));
        assert_eq!(database.number(STOCK), 17);
        assert_eq!(client.run("HGET products:1 stock").int(), 18);
        client.run("DESTAGE RESUME").ok();
        server.drain();
        assert_eq!((database.number(STOCK), database.number(PRICE)), (18, 1990));
        is_as_before(server, &mut client, database, "products:1");
    });
}

#[test]
fn a_rejected_insert_that_is_skipped_is_gone_from_reads_and_scans() {
    on_each_shop(|server, database| {
        let mut client = server.client();
        let ids = reject(&mut client, &["HSET orders:30 customer_id 4711"]);
        let scanned = |client: &mut Client| {
            client.run("SCAN 0 MATCH orders:* COUNT 100").array()[1].array().len()
        };
        assert_eq!(scanned(&mut client), 2);
        client.run(&format!("DESTAGE PARKED SKIP {}", ids[0]));
        assert_eq!(client.run("EXISTS orders:30").int(), 0);
        assert_eq!(scanned(&mut client), 1);
        assert_eq!(client.run("HSET orders:30 customer_id 1").int(), 1);
        assert_eq!(client.run("DESTAGE WAIT 60000").int(), 1);
        assert_eq!(database.number("SELECT customer_id FROM orders WHERE id = 30"), 1);
    });
}

/// What the subcommand prints.
#[track_caller]
fn parked(server: &Server, command: &str, more: &[&str]) -> (Option<i32>, String) {
    let admin = server.admin.to_string();
    let mut run = Command::new(binary());
    run.args(["parked", command, "--admin", &admin]).args(more);
    let output = run.output().expect("the binary starts");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout) + &text(&output.stderr))
}

#[test]
fn the_command_line_decides_after_a_crash_too() {
    let scratch = Scratch::new();
    let database = shop::sqlite(&scratch);
    let launch = Launch::before(&scratch, &database.url());
    let server = launch.start();
    assert_eq!(parked(&server, "list", &[]), (Some(0), "nothing is parked\n".to_owned()));
    let orders = ["HSET orders:30 customer_id 4711", "HSET orders:31 customer_id 4712"];
    let ids = reject(&mut server.client(), &orders);
    server.kill();
    let server = launch.start();
    let (code, said) = parked(&server, "list", &[]);
    assert_eq!(code, Some(0), "{said}");
    for part in [&ids[0].to_string(), "orders", "constraint"] {
        assert!(said.to_lowercase().contains(part), "{part}: {said}");
    }
    let id = ids[0].to_string();
    let (code, said) = parked(&server, "show", &[&id]);
    assert_eq!(code, Some(0), "{said}");
    let shown: serde_json::Value = serde_json::from_str(&said).expect("it is JSON");
    let file = scratch.join("changes.json");
    std::fs::write(&file, shown["payload"].to_string().replace("4711", "1"))
        .expect("it is written");
    let (code, said) = parked(&server, "retry", &[&id]);
    assert_eq!(code, Some(20), "{said}");
    assert!(said.contains("REJECTED"), "{said}");
    let (code, said) = parked(&server, "edit", &[&id, file.to_str().expect("it is text")]);
    assert_eq!(code, Some(0), "{said}");
    let (code, said) = parked(&server, "retry", &["--all"]);
    assert!(code == Some(20) && said.contains("refused"), "{said}");
    let (code, said) = parked(&server, "skip", &[&ids[1].to_string()]);
    assert_eq!(code, Some(0), "{said}");
    let (code, said) = parked(&server, "skip", &[&ids[1].to_string()]);
    assert!(code == Some(20) && said.contains("is not parked"), "{said}");
    assert_eq!(
        database.rows("SELECT id, customer_id FROM orders ORDER BY id"),
        [["1", "1"], ["30", "1"]]
    );
    is_as_before(&server, &mut server.client(), &database, "orders:30");
}

#[test]
fn a_parked_write_that_the_schema_has_outgrown_can_be_edited_or_skipped() {
    let scratch = Scratch::new();
    let database = shop::sqlite(&scratch);
    let launch = Launch::before(&scratch, &database.url());
    let server = launch.start();
    let orders =
        ["HSET orders:30 customer_id 4711 note a", "HSET orders:31 customer_id 4712 note b"];
    let ids = reject(&mut server.client(), &orders);
    server.terminate(PATIENCE).says(0, &[]);
    database.execute("ALTER TABLE orders DROP COLUMN note");
    let server = launch.start();
    assert_eq!(server.status()["destage"]["parked_groups"], 2);
    let mut client = server.client();
    assert_eq!(client.run("EXISTS orders:30").int(), 0, "it cannot be read");
    let refused = client.run(&format!("DESTAGE PARKED RETRY {}", ids[0]));
    assert!(refused.error().contains("note"), "{refused:?}");
    let changes = "{\"changes\":[{\"table\":\"orders\",\"op\":\"insert\",\"key\":{\"id\":\"30\"},\
                   \"columns\":[{\"name\":\"customer_id\",\"value\":\"1\"}]}]}";
    let reply = client.call(&["DESTAGE", "PARKED", "EDIT", &ids[0].to_string(), changes]);
    assert_eq!(told(&reply, "applied"), 1);
    assert_eq!(client.run("HGET orders:30 customer_id").int(), 1);
    assert_eq!(told(&client.run(&format!("DESTAGE PARKED SKIP {}", ids[1])), "parked"), 0);
    assert_eq!(database.number("SELECT count(*) FROM orders"), 2);
}

#[test]
fn a_retry_whose_answer_is_lost_is_applied_once() {
    for database in [shop::postgres(), shop::mariadb()].into_iter().flatten() {
        retried_without_an_answer(&database);
    }
}

#[track_caller]
fn retried_without_an_answer(database: &Database) {
    let scratch = Scratch::new();
    let (proxy, url) = Proxy::before(&database.url());
    let server = Launch::before(&scratch, &url).start();
    let mut client = server.client();
    let writes = ["HSET products:1 price_cents -5", "HINCRBY products:1 stock 7"];
    let ids = reject(&mut client, &writes);
    database.execute(match database {
        Database::Mariadb(_) => "ALTER TABLE products MODIFY price_cents INTEGER NOT NULL",
        _ => "ALTER TABLE products DROP CONSTRAINT products_price_cents_check",
    });
    proxy.lose_next_commit();
    client.send(&["DESTAGE", "PARKED", "RETRY", &ids[0].to_string()]).expect("it is sent");
    eventually("it is committed", PATIENCE, || proxy.has_lost());
    // Until the server knows, the row is read as it was.
    let mut reader = server.client();
    assert_eq!(reader.run("HGET products:1 stock").int(), 17);
    proxy.cut();
    let reply = client.receive().expect("the server finds out");
    assert_eq!((told(&reply, "applied"), told(&reply, "parked")), (2, 0));
    assert_eq!(reader.run("HINCRBY products:1 stock 1").int(), 18);
    server.drain();
    assert_eq!((database.number(STOCK), database.number(PRICE)), (18, -5));
}

/// Takes something away from the origin, writes, and gives it back once the write has been tried in vain.
#[track_caller]
fn parks_nothing(server: &Server, database: &Database, away: &str, back: &str) {
    let mut client = server.client();
    let stock = client.run("HGET products:1 stock").int();
    let retries = || server.status()["origin"]["retries_total"].as_u64().expect("a number");
    let before = retries();
    database.execute(away);
    assert_eq!(client.run("HINCRBY products:1 stock 1").int(), stock + 1);
    eventually("the origin refuses again and again", PATIENCE, || retries() > before + 1);
    let status = server.status();
    assert_eq!(status["destage"]["parked_groups"], 0, "{away}");
    assert_eq!(status["origin"]["down"], true, "{away}");
    database.execute(back);
    client.run("DESTAGE RESUME").ok();
    assert_eq!(client.run("DESTAGE WAIT 60000").int(), 1, "{back}");
    assert_eq!(database.number(STOCK), stock + 1);
    assert_eq!(database.number(PARKED), 0);
}

#[test]
fn a_revoked_grant_and_a_table_altered_for_a_while_park_nothing_before_postgres() {
    let Some(database) = shop::postgres() else { return };
    let url = database.url();
    let (_, address) = url.split_once('@').expect("the URL has a user");
    let user = format!("app_{}", address.rsplit('/').next().expect("the URL names a database"));
    database.execute(&format!(
        "CREATE ROLE {user} LOGIN PASSWORD 'pw'; GRANT CREATE, USAGE ON SCHEMA public TO {user}; \
         GRANT ALL ON ALL TABLES IN SCHEMA public TO {user}"
    ));
    let scratch = Scratch::new();
    let server = Launch::before(&scratch, &format!("postgres://{user}:pw@{address}")).start();
    let (revoke, grant) = (
        format!("REVOKE UPDATE ON products FROM {user}"),
        format!("GRANT UPDATE ON products TO {user}"),
    );
    parks_nothing(&server, &database, &revoke, &grant);
    let rename = "ALTER TABLE products RENAME COLUMN stock TO held";
    parks_nothing(&server, &database, rename, "ALTER TABLE products RENAME COLUMN held TO stock");
    let rename = "ALTER TABLE products RENAME TO away";
    parks_nothing(&server, &database, rename, "ALTER TABLE away RENAME TO products");
}

#[test]
fn a_revoked_grant_and_a_table_altered_for_a_while_park_nothing_before_mariadb() {
    let Some(database) = shop::mariadb() else { return };
    let url = database.url();
    let (_, address) = url.split_once('@').expect("the URL has a user");
    let name = address.rsplit('/').next().expect("the URL names a database");
    let user = format!("app_{name}");
    let tables = ["customers", "orders", "order_lines", "labels", "log_lines", "products"];
    let grants: Vec<String> = tables
        .iter()
        .map(|table| format!("GRANT ALL ON {name}.{table} TO '{user}'@'%';"))
        .collect();
    let own: Vec<String> = ["owner", "watermark", "parked"]
        .iter()
        .map(|table| format!("GRANT ALL ON {name}.destage_{table} TO '{user}'@'%';"))
        .collect();
    database.execute(&format!(
        "CREATE USER '{user}'@'%' IDENTIFIED BY 'pw'; {} {}",
        grants.join(" "),
        own.join(" ")
    ));
    let scratch = Scratch::new();
    let server = Launch::before(&scratch, &format!("mysql://{user}:pw@{address}")).start();
    let (revoke, grant) = (
        format!("REVOKE UPDATE ON {name}.products FROM '{user}'@'%'"),
        format!("GRANT UPDATE ON {name}.products TO '{user}'@'%'"),
    );
    parks_nothing(&server, &database, &revoke, &grant);
    let rename = "ALTER TABLE products RENAME COLUMN stock TO held";
    parks_nothing(&server, &database, rename, "ALTER TABLE products RENAME COLUMN held TO stock");
    let rename = "RENAME TABLE products TO away";
    parks_nothing(&server, &database, rename, "RENAME TABLE away TO products");
}

#[test]
fn a_parked_write_of_many_megabytes_is_shown_and_edited_by_the_command_line() {
    let scratch = Scratch::new();
    let database = shop::sqlite(&scratch);
    let server = Launch::before(&scratch, &database.url()).start();
    let mut client = server.client();
    // Each of these characters is six in JSON.
    let note = "\u{1}".repeat(12 << 20);
    let made = client.call(&["HSET", "orders:30", "customer_id", "4711", "note", &note]);
    assert!(!made.is_error(), "{made:?}");
    assert!(client.run("DESTAGE WAIT 60000").error().starts_with("PARKED"));
    let id = listed(&mut client)[0].0.to_string();
    let admin = server.admin.to_string();
    let parked = |words: &[&str]| {
        let command = ["parked", words[0], "--admin", &admin];
        let output = Command::new(binary()).args(command).args(&words[1..]).output();
        let output = output.expect("the binary starts");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{said}");
        output.stdout
    };
    let shown = String::from_utf8(parked(&["show", &id])).expect("it is text");
    let file = scratch.join("edited.json");
    std::fs::write(&file, shown.replace("4711", "2")).expect("the file can be written");
    parked(&["edit", &id, file.to_str().expect("the path is text")]);
    let held = "SELECT customer_id || ' ' || length(note) FROM orders WHERE id = 30";
    assert_eq!(database.value(held), format!("2 {}", 12 << 20));
    // The log does not repeat it.
    assert!(server.log().len() < 100_000);
}
