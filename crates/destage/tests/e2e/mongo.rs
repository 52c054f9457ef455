//! Destage before MongoDB, which is FerretDB here: single-document updates, no transactions.

mod absent;
mod arrays;
mod away;
mod crash;
mod decisions;
mod numbers;

pub(crate) use crash::{NAME as CRASHES, round};

use crate::harness::ferretdb::Ferret;
use crate::harness::server::binary;
use crate::harness::{Database, Launch, PATIENCE, Reply, Scratch, Server, eventually, output};
use mongodb::bson::oid::ObjectId;
use mongodb::bson::spec::BinarySubtype;
use mongodb::bson::{Binary, Bson, DateTime, Document, doc};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

const SETTINGS: &str = r#"
[table.products]
id = "long"
fields = { name = "string", stock = "int", price = "double" }
required = ["name"]

[table.all]
id = "string"
fields = { s = "string", i = "int", l = "long", d = "double", b = "bool", t = "date", o = "objectId", x = "binData", "at.lat" = "double", "at.label" = "string", "at.marks" = "array", list = "array", tags = "json" }

[table.users]
id = "objectId"
fields = { mail = "string", logins = "long" }

[table.counters]
id = "string"
fields = { n = "long", last = "long" }
"#;

/// A server's settings before a database of its own.
fn before(scratch: &Scratch, ferret: &Ferret) -> Launch {
    let file = scratch.join("destage.toml");
    std::fs::write(&file, SETTINGS).expect("the settings can be written");
    let config = file.display().to_string();
    Launch::before(scratch, &ferret.url()).with(&["--config", &config])
}

fn by_id(id: impl Into<Bson>) -> Document {
    doc! { "_id": id.into() }
}

#[test]
fn the_schema_comes_from_the_settings_and_what_is_not_declared_is_refused() {
    let scratch = Scratch::new();
    let Some(ferret) = Ferret::start(&scratch) else { return };
    ferret.insert("logs", vec![doc! { "_id": 1, "text": "x" }]);
    let server = before(&scratch, &ferret).start();
    let config = scratch.join("destage.toml").display().to_string();
    let mut schema = Command::new(binary());
    schema.args(["schema", "--origin", &ferret.url(), "--config", &config]);
    let shown = output(&mut schema);
    for part in ["products:{_id}", "stock", "at.lat", "logs: nothing says which fields it has"] {
        assert!(shown.contains(part), "{part} in {shown}");
    }
    let mut client = server.client();
    let refused = client.run("HGETALL logs:1");
    assert!(refused.error().contains("[table.logs]"), "{refused:?}");
    let refused = client.run("HSET products:1 stock 5");
    assert!(refused.error().contains("name"), "{refused:?}");
    let refused = client.run("DESTAGE NEXTID products");
    assert!(refused.is_error(), "{refused:?}");
    // Other origins have a catalogue of their own.
    let other = format!("sqlite:{}", scratch.join("none.db").display());
    let other = Launch::before(&scratch.folder("other"), &other).with(&["--config", &config]);
    other.refused().says(2, &["mongodb:// only"]);
    let srv = Launch::before(&scratch.folder("srv"), "mongodb+srv://app:hush@db.example/shop");
    let exit = srv.refused();
    exit.says(2, &["mongodb+srv", "name them"]);
    assert!(!exit.log.contains("hush"), "{}", exit.log);
}

#[test]
fn settings_from_samples_are_printed_alone_and_serve_as_they_are() {
    let scratch = Scratch::new();
    let Some(ferret) = Ferret::start(&scratch) else { return };
    ferret.insert("notes", vec![doc! { "_id": 7_i64, "text": "x", "at": { "line": 3 } }]);
    let suggest = |url: &str| {
        let mut schema = Command::new(binary());
        schema.args(["schema", "--suggest", "--origin", url]).env_remove("DESTAGE_ORIGIN");
        schema.output().expect("the binary starts")
    };
    let printed = suggest(&ferret.url());
    assert_eq!(printed.status.code(), Some(0));
    let file = scratch.join("suggested.toml");
    std::fs::write(&file, printed.stdout).expect("the settings can be written");
    let config = file.display().to_string();
    let server = Launch::before(&scratch, &ferret.url()).with(&["--config", &config]).start();
    let mut client = server.client();
    assert_eq!(client.run("HMGET notes:7 text at.line").array().len(), 2);
    assert_eq!(client.run("HGET notes:7 at.line").text(), "3");
    assert!(!client.run("HSET notes:7 text y").is_error());
    server.drain();
    // A catalogue tells more than samples do.
    let sqlite = Database::sqlite(&scratch).with("CREATE TABLE t (id INTEGER PRIMARY KEY)");
    let refused = suggest(&sqlite.url());
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!((refused.status.code(), refused.stdout.is_empty()), (Some(2), true), "{said}");
    assert!(said.contains("nothing is to be suggested"), "{said}");
}

#[test]
fn derived_keys_are_refused_at_start() {
    let scratch = Scratch::new();
    let Some(ferret) = Ferret::start(&scratch) else { return };
    let launch = before(&scratch, &ferret);
    let path = scratch.join("destage.toml");
    let settings = std::fs::read_to_string(&path).expect("the settings can be read");
    let query = "\n[[query]]\nkey = 'top'\nsql = 'SELECT 1'\ndepends_on = ['products']\n";
    std::fs::write(&path, settings.clone() + query).expect("the settings can be written");
    launch.refused().says(2, &["takes no SQL", "derived keys"]);
    // Without them the same settings serve.
    std::fs::write(&path, settings).expect("the settings can be written");
    launch.start().terminate(PATIENCE).says(0, &[]);
}

#[test]
fn values_of_every_type_come_back_as_they_were_written() {
    let scratch = Scratch::new();
    let Some(ferret) = Ferret::start(&scratch) else { return };
    let launch = before(&scratch, &ferret);
    let server = launch.start();
    let mut client = server.client();
    let values: [(&str, &[u8], &[u8]); 10] = [
        ("s", "\u{e4}\u{1f980}".as_bytes(), "\u{e4}\u{1f980}".as_bytes()),
        ("i", b"-2147483648", b"-2147483648"),
        ("l", b"+09223372036854775807", b"9223372036854775807"),
        ("d", b"0.10", b"0.1"),
        ("b", b"true", b"t"),
        ("t", b"2026-01-31 13:37:00.250+02", b"2026-01-31 11:37:00.25+00"),
        ("o", b"65A0C3D2E1F0A1B2C3D4E5F6", b"65a0c3d2e1f0a1b2c3d4e5f6"),
        ("x", b"\0\xff", b"\0\xff"),
        ("at.lat", b"52.5", b"52.5"),
        ("at.label", b"Berlin", b"Berlin"),
    ];
    for (field, value, _) in values {
        let reply = client.call(&[b"HSET", b"all:one" as &[u8], field.as_bytes(), value]);
        assert_eq!(reply, Reply::Int(1), "{field}");
    }
    for (field, wrong) in [("i", "2147483648"), ("b", "perhaps"), ("o", "65a0"), ("list", "1")] {
        let refused = client.call(&["HSET", "all:one", field, wrong]);
        assert!(refused.is_error(), "{field}: {refused:?}");
    }
    server.drain();
    let bytes = vec![0, 0xff];
    let expected = doc! {
        "_id": "one", "s": "\u{e4}\u{1f980}", "i": i32::MIN, "l": i64::MAX, "d": 0.1, "b": true,
        "t": DateTime::parse_rfc3339_str("2026-01-31T11:37:00.25Z").expect("an instant"),
        "o": ObjectId::parse_str("65a0c3d2e1f0a1b2c3d4e5f6").expect("an id"),
        "x": Binary { subtype: BinarySubtype::Generic, bytes },
        "at": { "lat": 52.5, "label": "Berlin" },
    };
    assert_eq!(sorted(ferret.document("all", by_id("one"))), sorted(Some(expected)));
    let read = |server: &Server| {
        let mut client = server.client();
        for (field, _, canonical) in values {
            let reply = client.call(&["HGET", "all:one", field]);
            assert_eq!(reply, Reply::Bulk(canonical.to_vec()), "{field}");
        }
    };
    read(&server);
    server.terminate(PATIENCE).says(0, &[]);
    read(&launch.start());
}

/// Fields in the order of their names.
fn sorted(document: Option<Document>) -> Vec<(String, Bson)> {
    let mut fields: Vec<_> = document.into_iter().flatten().collect();
    fields.sort_by(|left, right| left.0.cmp(&right.0));
    fields
}

#[test]
fn documents_of_others_are_served_and_what_fits_no_field_is_shown_as_json() {
    let scratch = Scratch::new();
    let Some(ferret) = Ferret::start(&scratch) else { return };
    let nested = doc! { "_id": "two", "tags": ["a", 1], "i": 7_i64, "d": 5, "s": { "deep": true }, "own": 1 };
    ferret.insert("all", vec![nested]);
    let others = vec![
        doc! { "_id": 1, "name": "a", "stock": "many" },
        doc! { "_id": 2.5, "name": "b" },
        doc! { "_id": 3_i64, "name": "c", "stock": Bson::Null },
    ];
    ferret.insert("products", others);
    let server = before(&scratch, &ferret).start();
    let mut client = server.client();
    let all = client.run("HGETALL all:two").pairs();
    let shown =
        |field: &str| all.iter().find(|(name, _)| name == field).map(|(_, value)| value.as_str());
    assert_eq!(shown("tags"), Some(r#"["a",1]"#));
    assert_eq!((shown("i"), shown("d"), shown("own")), (Some("7"), Some("5"), None));
    assert_eq!(shown("s"), Some(r#"{"deep":true}"#));
    assert_eq!(client.run("HGET products:1 stock").text(), "\"many\"");
    assert!(client.run("HINCRBY products:1 stock 1").is_error());
    assert_eq!(client.run("HGET products:3 stock"), Reply::Nil);
    assert_eq!(client.run("HINCRBY products:3 stock 4").int(), 4);
    assert_eq!(client.run("HINCRBY all:two i 1").int(), 8);
    assert_eq!(client.run("HDEL all:two s").int(), 1);
    assert_eq!(client.run("HSET products:1 stock 5").int(), 0);
    // A fraction is nobody's key.
    let page = client.run("SCAN 0 MATCH products:* COUNT 100");
    let mut keys: Vec<String> = page.array()[1].array().iter().map(Reply::text).collect();
    keys.sort();
    assert_eq!(keys, ["products:1", "products:3"]);
    server.drain();
    // What is not declared stays as it is.
    let expected = doc! { "_id": "two", "tags": ["a", 1], "i": 8_i64, "d": 5, "own": 1 };
    assert_eq!(sorted(ferret.document("all", by_id("two"))), sorted(Some(expected)));
    assert_eq!(ferret.number("products", by_id(1), "stock"), 5);
    assert_eq!(ferret.number("products", by_id(3), "stock"), 4);
}

#[test]
fn several_documents_at_once_are_refused_and_one_may_change_as_often_as_it_likes() {
    let scratch = Scratch::new();
    let Some(ferret) = Ferret::start(&scratch) else { return };
    let server = before(&scratch, &ferret).start();
    let mut client = server.client();
    for id in 1..=2 {
        assert_eq!(client.run(&format!("HSET products:{id} name a stock 1")).int(), 2);
    }
    client.run("MULTI").ok();
    client.run("HINCRBY products:1 stock 1");
    client.run("HINCRBY products:2 stock 1");
    let refused = client.run("EXEC");
    assert!(refused.error().contains("one at a time"), "{refused:?}");
    let refused = client.run("DEL products:1 products:2");
    assert!(refused.error().contains("one at a time"), "{refused:?}");
    client.run("MULTI").ok();
    client.run("HINCRBY products:1 stock 5");
    client.run("DEL products:1");
    client.run("HSET products:1 name new stock 7");
    client.run("HINCRBY products:1 stock 2");
    assert_eq!(client.run("EXEC").array().len(), 4);
    server.drain();
    let expected = doc! { "_id": 1_i64, "name": "new", "stock": 9 };
    assert_eq!(sorted(ferret.document("products", by_id(1))), sorted(Some(expected)));
    assert_eq!(ferret.number("products", by_id(2), "stock"), 1);
}

/// Sets the origin's watermark, as if what came later had been applied and the watermark not moved yet.
fn set_watermark(ferret: &Ferret, seq: i64) {
    let update = doc! { "q": { "_id": "owner" }, "u": { "$set": { "watermarks.0": seq } } };
    ferret.command(doc! { "update": "destage_owner", "updates": [update] });
}

fn watermark(ferret: &Ferret) -> i64 {
    let owner = ferret.whole("destage_owner", by_id("owner")).expect("the origin has an owner");
    let watermarks = owner.get_document("watermarks").expect("it has watermarks");
    watermarks.get_i64("0").expect("of the only domain")
}

#[test]
fn writes_that_come_again_from_any_point_on_change_nothing() {
    let scratch = Scratch::new();
    let Some(ferret) = Ferret::start(&scratch) else { return };
    let launch = before(&scratch, &ferret);
    let server = launch.start();
    let mut client = server.client();
    for command in [
        "HSET products:1 name a stock 10",
        "HINCRBY products:1 stock 5",
        "HSET products:2 name b stock 1",
        "HINCRBY products:1 stock 5",
        "DEL products:2",
        "HSET products:3 name c",
        "DEL products:3",
        "HSET products:3 name d stock 7",
        "HDEL products:1 price",
        "HINCRBY products:3 stock 1",
        "HINCRBY products:3 stock 1",
    ] {
        assert!(!client.run(command).is_error(), "{command}");
        // Each by itself, except for the last ones, which become one update.
        if !command.starts_with("HINCRBY products:3") {
            assert!(!client.run("DESTAGE WAIT 60000").is_error());
        }
    }
    server.terminate(PATIENCE).says(0, &[]);
    let state = || {
        let ids = 1_i64..=3;
        ids.map(|id| sorted(ferret.document("products", by_id(id)))).collect::<Vec<_>>()
    };
    let (before, last) = (state(), watermark(&ferret));
    assert_eq!(ferret.number("products", by_id(1), "stock"), 20);
    assert_eq!(ferret.number("products", by_id(3), "stock"), 9);
    assert_eq!(ferret.document("products", by_id(2)), None);
    for seq in (0..last).rev() {
        set_watermark(&ferret, seq);
        let server = launch.start();
        // Reads see what is there already.
        assert_eq!(server.client().run("HGET products:1 stock").int(), 20, "from {seq}");
        assert_eq!(server.client().run("EXISTS products:2").int(), 0, "from {seq}");
        server.drain();
        server.terminate(PATIENCE).says(0, &[]);
        assert_eq!(watermark(&ferret), last, "from {seq}");
        assert_eq!(state(), before, "from {seq}");
    }
    assert_eq!(ferret.count("destage_parked"), 0);
}

/// Three increments by 5 that are delivered twice.
fn delivered_twice(more: &[&str]) -> Option<i64> {
    let scratch = Scratch::new();
    let ferret = Ferret::start(&scratch)?;
    ferret.insert("counters", vec![doc! { "_id": "c", "n": 0_i64 }]);
    let launch = before(&scratch, &ferret);
    let server = launch.start();
    for _ in 0..3 {
        server.client().run("HINCRBY counters:c n 5").int();
    }
    server.drain();
    server.terminate(PATIENCE).says(0, &[]);
    set_watermark(&ferret, 0);
    let server = launch.with(more).start();
    server.drain();
    Some(ferret.number("counters", by_id("c"), "n"))
}

#[test]
fn increments_that_come_again_count_once() {
    let Some(n) = delivered_twice(&[]) else { return };
    assert_eq!(n, 15);
}

#[test]
fn without_the_guards_increments_that_come_again_count_twice() {
    let Some(n) = delivered_twice(&["--unsafe-no-watermark"]) else { return };
    assert_eq!(n, 30);
}

/// The number up to which all of these writes are there and none behind it, writes going to the documents in turn; `None`
/// where there is no such number.
fn prefix(lasts: &[i64]) -> Option<i64> {
    let documents = lasts.len() as i64;
    let newest = lasts.iter().copied().max()?;
    let expected = |document: i64| {
        let behind = (newest - document).rem_euclid(documents);
        (newest - behind).max(0)
    };
    let fits = lasts.iter().enumerate().all(|(document, last)| *last == expected(document as i64));
    fits.then_some(newest)
}

#[test]
fn what_the_origin_holds_when_the_journal_is_lost_is_a_prefix_of_the_writes() {
    const DOCUMENTS: i64 = 7;
    let scratch = Scratch::new();
    let Some(mut ferret) = Ferret::start(&scratch) else { return };
    let empty = (0..DOCUMENTS).map(|id| doc! { "_id": id.to_string(), "last": 0_i64 });
    ferret.insert("counters", empty.collect());
    let launch = before(&scratch, &ferret).with(&["--linger", "0", "--batch", "40"]);
    let server = launch.start();
    let mut client = server.client();
    let commands: Vec<String> =
        (1..=600).map(|n| format!("HSET counters:{} last {n}", n % DOCUMENTS)).collect();
    for reply in client.pipeline(&commands) {
        assert!(!reply.is_error(), "{reply:?}");
    }
    eventually("something is at the origin", PATIENCE, || {
        ferret.number("counters", by_id("1"), "last") > 0
    });
    server.kill();
    // What had been sent is still being applied, until this.
    ferret.kill();
    ferret.restart();
    let lasts: Vec<i64> =
        (0..DOCUMENTS).map(|id| ferret.number("counters", by_id(id.to_string()), "last")).collect();
    assert!(prefix(&lasts).is_some(), "{lasts:?}");
    // The check sees what is no prefix.
    assert_eq!(prefix(&[7, 8, 9, 10, 11, 5, 6]), Some(11));
    assert_eq!(prefix(&[7, 8, 2, 10, 11, 5, 6]), None);
    assert_eq!(prefix(&[7, 8, 9, 10, 11, 12, 6]), Some(12));
    assert_eq!(prefix(&[14, 8, 9, 10, 11, 5, 6]), None);
}

#[test]
fn what_the_origin_rejects_is_parked_once_and_the_rest_goes_on() {
    let scratch = Scratch::new();
    let Some(ferret) = Ferret::start(&scratch) else { return };
    let [first, second, third] = ["1", "2", "3"].map(|n| n.repeat(24));
    let id = |hex: &str| ObjectId::parse_str(hex).expect("an id");
    ferret.insert("users", vec![doc! { "_id": id(&first), "mail": "a@x", "logins": 0_i64 }]);
    let index = doc! { "key": { "mail": 1 }, "name": "mail", "unique": true };
    ferret.command(doc! { "createIndexes": "users", "indexes": [index] });
    let launch = before(&scratch, &ferret);
    let server = launch.start();
    let mut client = server.client();
    client.run("DESTAGE PAUSE").ok();
    assert_eq!(client.run(&format!("HINCRBY users:{first} logins 1")).int(), 1);
    assert_eq!(client.run(&format!("HSET users:{second} mail a@x")).int(), 1);
    // This one depends on it.
    assert_eq!(client.run(&format!("HSET users:{second} logins 5")).int(), 1);
    assert_eq!(client.run(&format!("HSET users:{third} mail b@x")).int(), 1);
    assert_eq!(client.run(&format!("HINCRBY users:{first} logins 1")).int(), 2);
    client.run("DESTAGE RESUME").ok();
    server.drain();
    let check = |server: &Server| {
        assert_eq!(ferret.count("destage_parked"), 2);
        assert_eq!(ferret.document("users", by_id(id(&second))), None);
        assert_eq!(ferret.number("users", by_id(id(&first)), "logins"), 2);
        let third = ferret.document("users", by_id(id(&third))).expect("it went on");
        assert_eq!(third.get_str("mail").ok(), Some("b@x"));
        // Readers still see what was acknowledged.
        assert_eq!(server.client().run(&format!("HGET users:{second} mail")).text(), "a@x");
        assert_eq!(server.client().run(&format!("HGET users:{second} logins")).int(), 5);
    };
    check(&server);
    server.kill();
    // And once more, as if the watermark had not moved.
    let server = launch.start();
    check(&server);
}

#[test]
fn writes_are_acknowledged_while_the_origin_is_away_and_arrive_when_it_is_back() {
    let scratch = Scratch::new();
    let Some(mut ferret) = Ferret::start(&scratch) else { return };
    let launch = before(&scratch, &ferret).with(&["--origin-timeout", "5s", "--staleness", "1h"]);
    let server = launch.start();
    let mut client = server.client();
    assert_eq!(client.run("HSET products:1 name a stock 1").int(), 2);
    server.drain();
    ferret.kill();
    for n in 2..=50 {
        assert_eq!(client.run("HINCRBY products:1 stock 1").int(), n);
    }
    eventually("the outage is noticed", PATIENCE, || {
        server.metric("destage_origin_failing_seconds") > 0.0
    });
    ferret.restart();
    server.drain();
    assert_eq!(ferret.number("products", by_id(1), "stock"), 50);
    assert!(!client.run("HGET products:2 stock").is_error());
}

#[test]
fn a_burst_of_updates_of_many_documents_reaches_the_origin() {
    const DOCUMENTS: i64 = 250;
    let scratch = Scratch::new();
    let Some(ferret) = Ferret::start(&scratch) else { return };
    let server = before(&scratch, &ferret).with(&["--staleness", "1h"]).start();
    let mut client = server.client();
    for update in ["HSET products:{} name a stock 1", "HINCRBY products:{} stock 1"] {
        client.run("DESTAGE PAUSE").ok();
        for id in 1..=DOCUMENTS {
            assert_eq!(client.run(&update.replace("{}", &id.to_string())).int(), 2);
        }
        client.run("DESTAGE RESUME").ok();
        server.drain();
    }
    let stocks = (1..=DOCUMENTS).map(|id| ferret.number("products", by_id(id as i32), "stock"));
    assert!(stocks.into_iter().all(|stock| stock == 2));
}

#[test]
fn take_over_fences_a_process_that_was_away_and_none_of_its_writes_arrive() {
    let scratch = Scratch::new();
    let Some(ferret) = Ferret::start(&scratch) else { return };
    let launch = before(&scratch, &ferret);
    let first = launch.start();
    let mut client = first.client();
    assert_eq!(client.run("HSET products:1 name a stock 1").int(), 2);
    assert_eq!(client.run("HSET products:2 name b stock 1").int(), 2);
    first.drain();
    launch.elsewhere(&scratch, "second").refused().says(11, &["--take-over"]);
    first.signal(rustix::process::Signal::STOP);
    let second = launch.elsewhere(&scratch, "second").with(&["--take-over"]).start();
    assert_eq!(second.client().run("HINCRBY products:1 stock 1").int(), 2);
    second.drain();
    first.signal(rustix::process::Signal::CONT);
    eventually("the first process stops acknowledging", PATIENCE, || {
        let reply = client.try_call(&["HINCRBY", "products:2", "stock", "1"]);
        !matches!(reply, Ok(Reply::Int(_)))
    });
    first.ends(PATIENCE).says(11, &["took over"]);
    assert_eq!(second.client().run("HINCRBY products:1 stock 1").int(), 3);
    second.drain();
    assert_eq!(ferret.number("products", by_id(1), "stock"), 3);
    assert_eq!(ferret.number("products", by_id(2), "stock"), 1);
}

/// Starts `launch`, and brings the owner before back once the origin is claimed: as a change by that one does which was under
/// way, since FerretDB reads a document and writes it back whole. `None` if that came too late for such a change.
fn undone_once(launch: &Launch, ferret: &Ferret) -> Option<Server> {
    let owner = || ferret.whole("destage_owner", by_id("owner")).expect("the origin has an owner");
    let before = owner();
    thread::scope(|scope| {
        let starting = scope.spawn(|| launch.try_start(PATIENCE));
        let mut asked = Instant::now();
        eventually("the origin is claimed", PATIENCE, || {
            let now = Instant::now();
            let is_claimed = owner().get("epoch") != before.get("epoch");
            if !is_claimed {
                asked = now;
            }
            is_claimed
        });
        let update = doc! { "q": { "_id": "owner" }, "u": before.clone() };
        ferret.command(doc! { "update": "destage_owner", "updates": [update] });
        let is_in_time = asked.elapsed() < Duration::from_millis(400);
        let started = starting.join().expect("the thread ends");
        is_in_time.then(|| match started {
            Ok(server) => server,
            Err(exit) => panic!("exit code {:?}\n{}", exit.code, exit.log),
        })
    })
}

#[test]
fn a_take_over_that_a_change_under_way_undoes_is_made_again() {
    let scratch = Scratch::new();
    let Some(ferret) = Ferret::start(&scratch) else { return };
    let launch = before(&scratch, &ferret);
    let first = launch.start();
    assert_eq!(first.client().run("HSET products:1 name a stock 1").int(), 2);
    first.drain();
    // What it does meanwhile is done for it.
    first.signal(rustix::process::Signal::STOP);
    let second = (0..5).find_map(|attempt| {
        let folder = scratch.folder(&format!("second-{attempt}"));
        undone_once(&launch.elsewhere(&folder, "data").with(&["--take-over"]), &ferret)
    });
    let second = second.expect("the owner before is brought back in time");
    assert_eq!(second.client().run("HINCRBY products:1 stock 1").int(), 2);
    second.drain();
    first.signal(rustix::process::Signal::CONT);
    first.ends(PATIENCE).says(11, &["took over"]);
    assert_eq!(second.client().run("HINCRBY products:1 stock 1").int(), 3);
    second.terminate(PATIENCE).says(0, &[]);
    assert_eq!(ferret.number("products", by_id(1), "stock"), 3);
}

#[test]
fn an_origin_that_was_set_back_is_noticed_while_nobody_writes() {
    let scratch = Scratch::new();
    let Some(ferret) = Ferret::start(&scratch) else { return };
    let server = before(&scratch, &ferret).start();
    assert_eq!(server.client().run("HSET products:1 name a stock 1").int(), 2);
    server.drain();
    set_watermark(&ferret, 0);
    server.ends(PATIENCE).says(14, &["restored"]);
}
