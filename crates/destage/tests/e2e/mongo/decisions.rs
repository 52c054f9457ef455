//! Parked writes before MongoDB's protocol, decided on document by document, and ordering domains by collections.

use super::{before, by_id, sorted};
use crate::harness::ferretdb::Ferret;
use crate::harness::{Launch, PATIENCE, Scratch, Server, eventually};
use crate::parking::{arrives, decided, is_parked, named};
use mongodb::bson::oid::ObjectId;
use mongodb::bson::{Document, doc};

fn id(hex: &str) -> ObjectId {
    ObjectId::parse_str(hex).expect("an id")
}

/// The users' ids: one digit each, 24 times.
fn user(digit: u8) -> String {
    digit.to_string().repeat(24)
}

/// Users of whom no two may have the same mail, and the first one, who has a@x.
fn users(ferret: &Ferret) {
    let first = doc! { "_id": id(&user(1)), "mail": "a@x", "logins": 1_i64 };
    let second = doc! { "_id": id(&user(2)), "mail": "b@x", "logins": 1_i64 };
    ferret.insert("users", vec![first, second]);
    let index = doc! { "key": { "mail": 1 }, "name": "mail", "unique": true };
    ferret.command(doc! { "createIndexes": "users", "indexes": [index] });
}

fn set(ferret: &Ferret, collection: &str, filter: Document, change: Document) {
    let update = doc! { "q": filter, "u": change };
    ferret.command(doc! { "update": collection, "updates": [update] });
}

fn mail(ferret: &Ferret, digit: u8) -> Option<String> {
    let document = ferret.document("users", by_id(id(&user(digit))))?;
    document.get_str("mail").ok().map(str::to_owned)
}

#[track_caller]
fn nothing_is_left(server: &Server, ferret: &Ferret) {
    server.drain();
    assert_eq!(ferret.count("destage_parked"), 0);
    let owner = ferret.whole("destage_owner", by_id("owner")).expect("it has an owner");
    assert!(!owner.contains_key("unparking"), "{owner}");
    let status = server.status();
    assert_eq!(status["destage"]["parked_groups"], 0);
    assert_eq!(status["writes"]["pinned_bytes"], 0);
}

#[test]
fn parked_writes_are_decided_on_document_by_document() {
    let scratch = Scratch::new();
    let Some(ferret) = Ferret::start(&scratch) else { return };
    users(&ferret);
    let server = before(&scratch, &ferret).start();
    let client = &mut server.client();
    let (second, third, fourth) = (user(2), user(3), user(4));

    // An update and what builds on it, increments included.
    let first = is_parked(client, &format!("HSET users:{second} mail a@x"));
    let behind = is_parked(client, &format!("HINCRBY users:{second} logins 5"));
    arrives(client, &format!("HSET users:{third} mail c@x"));
    let refused = client.run(&format!("DESTAGE PARKED RETRY {first}"));
    assert!(refused.error().starts_with("REJECTED"), "{refused:?}");
    let early = client.run(&format!("DESTAGE PARKED RETRY {behind}"));
    assert!(early.error().contains("decide on that one first"), "{early:?}");
    assert_eq!(client.run(&format!("HGET users:{second} logins")).int(), 6);
    set(&ferret, "users", by_id(id(&user(1))), doc! { "$set": { "mail": "moved@x" } });
    decided(client, &["RETRY", &first], &[("applied", "2"), ("parked", "0")]);
    assert_eq!(mail(&ferret, 2).as_deref(), Some("a@x"));
    assert_eq!(ferret.number("users", by_id(id(&second)), "logins"), 6);
    arrives(client, &format!("HINCRBY users:{second} logins 1"));
    assert_eq!(ferret.number("users", by_id(id(&second)), "logins"), 7);

    // A new document, edited; and never another one in its place.
    let made = is_parked(client, &format!("HSET users:{fourth} mail a@x"));
    let shown = client.run(&format!("DESTAGE PARKED SHOW {made}"));
    let payload = named(&shown, "payload").text();
    let elsewhere = payload.replace(&fourth, &user(5));
    let refused = client.call(&["DESTAGE", "PARKED", "EDIT", &made, &elsewhere]);
    assert!(refused.error().contains("and no other"), "{refused:?}");
    let mended = payload.replace("a@x", "d@x");
    decided(client, &["EDIT", &made, &mended], &[("applied", "1"), ("parked", "0")]);
    assert_eq!(mail(&ferret, 4).as_deref(), Some("d@x"));
    assert_eq!(client.run(&format!("HGET users:{fourth} mail")).text(), "d@x");

    // Given up; what is parked behind it has nothing to build on.
    let fifth = user(5);
    let made = is_parked(client, &format!("HSET users:{fifth} mail a@x"));
    let behind = is_parked(client, &format!("HINCRBY users:{fifth} logins 2"));
    decided(client, &["SKIP", &made], &[("skipped", "1"), ("parked", "1")]);
    assert_eq!(client.run(&format!("EXISTS users:{fifth}")).int(), 0);
    let refused = client.run(&format!("DESTAGE PARKED RETRY {behind}"));
    assert!(refused.error().starts_with("REJECTED"), "{refused:?}");
    decided(client, &["SKIP", &behind], &[("skipped", "1"), ("parked", "0")]);

    // A rejected update and then a delete: only the end counts.
    let update = is_parked(client, &format!("HSET users:{third} mail a@x"));
    is_parked(client, &format!("DEL users:{third}"));
    decided(client, &["RETRY", &update], &[("applied", "2"), ("parked", "0")]);
    assert_eq!(mail(&ferret, 3), None);
    assert_eq!(client.run(&format!("EXISTS users:{third}")).int(), 0);
    arrives(client, &format!("HSET users:{third} mail again@x"));
    assert_eq!(mail(&ferret, 3).as_deref(), Some("again@x"));
    nothing_is_left(&server, &ferret);
    server.terminate(PATIENCE).says(0, &[]);
}

#[test]
fn what_has_read_a_parked_write_of_another_document_is_decided_on_after_it() {
    let scratch = Scratch::new();
    let Some(ferret) = Ferret::start(&scratch) else { return };
    users(&ferret);
    let server = before(&scratch, &ferret).start();
    let client = &mut server.client();
    let (first, second) = (user(1), user(2));
    let mail_of = format!("HSET users:{second} mail a@x");
    let rejected = is_parked(client, &mail_of);
    client.run(&format!("WATCH users:{second}")).ok();
    client.run("MULTI").ok();
    client.run(&format!("HINCRBY users:{first} logins 1"));
    assert_eq!(client.run("EXEC").array().len(), 1);
    assert!(client.run("DESTAGE WAIT 60000").error().starts_with("PARKED"));
    let list = client.run("DESTAGE PARKED LIST");
    let reader = named(&list.array()[1], "id").text();
    assert_eq!(named(&list.array()[1], "builds_on").text(), rejected);
    let early = client.run(&format!("DESTAGE PARKED RETRY {reader}"));
    assert!(early.error().contains("decide on that one first"), "{early:?}");
    let behind = is_parked(client, &format!("HINCRBY users:{second} logins 5"));
    assert_ne!(behind, reader);

    set(&ferret, "users", by_id(id(&user(1))), doc! { "$set": { "mail": "moved@x" } });
    // One document at a time: the write and what is behind it of the same document.
    decided(client, &["RETRY", &rejected], &[("applied", "2"), ("parked", "1")]);
    assert_eq!(mail(&ferret, 2).as_deref(), Some("a@x"));
    assert_eq!(ferret.number("users", by_id(id(&user(1))), "logins"), 1);
    decided(client, &["RETRY", "ALL"], &[("applied", "1"), ("parked", "0")]);
    assert_eq!(ferret.number("users", by_id(id(&user(1))), "logins"), 2);
    arrives(client, &format!("HINCRBY users:{first} logins 1"));
    nothing_is_left(&server, &ferret);
    server.terminate(PATIENCE).says(0, &[]);
}

/// A decision that was cut short behind its document, which tells of it or not; the logins that are shown afterwards, and the
/// writes that are parked then.
fn cut_short(is_marked: bool) -> Option<(i64, usize)> {
    let scratch = Scratch::new();
    let ferret = Ferret::start(&scratch)?;
    users(&ferret);
    let launch = before(&scratch, &ferret);
    let server = launch.start();
    let client = &mut server.client();
    let second = user(2);
    let first = is_parked(client, &format!("HSET users:{second} mail a@x"));
    let behind = is_parked(client, &format!("HINCRBY users:{second} logins 5"));
    let seqs: Vec<i64> = [&first, &behind].map(|seq| seq.parse().expect("a number")).into();
    let documents: Vec<Document> = seqs
        .iter()
        .map(|&seq| by_id(doc! { "domain": 0_i64, "seq": seq }))
        .map(|filter| ferret.whole("destage_parked", filter).expect("it is parked"))
        .collect();
    set(&ferret, "users", by_id(id(&user(1))), doc! { "$set": { "mail": "moved@x" } });
    decided(client, &["RETRY", &first], &[("applied", "2"), ("parked", "0")]);
    server.kill();
    // As if it had been killed before it took them out of the parked ones.
    ferret.insert("destage_parked", documents);
    let unparking = doc! {
        "seqs": &seqs, "c": "users", "k": id(&second), "first": seqs[0], "since": 1_i64,
    };
    set(&ferret, "destage_owner", by_id("owner"), doc! { "$set": { "unparking": unparking } });
    if !is_marked {
        let unmark = doc! { "$unset": { "_destage.unparked": "" } };
        set(&ferret, "users", by_id(id(&second)), unmark);
    }
    let server = launch.start();
    let mut client = server.client();
    let logins = client.run(&format!("HGET users:{second} logins")).int();
    let parked = client.run("DESTAGE PARKED LIST").array().len();
    if is_marked {
        arrives(&mut client, &format!("HINCRBY users:{second} logins 1"));
        assert_eq!(ferret.number("users", by_id(id(&second)), "logins"), 7);
        nothing_is_left(&server, &ferret);
    }
    Some((logins, parked))
}

#[test]
fn a_decision_that_a_crash_cuts_short_behind_its_document_is_done() {
    let Some(found) = cut_short(true) else { return };
    assert_eq!(found, (6, 0));
}

#[test]
fn without_its_mark_in_the_document_a_decision_counts_twice() {
    let Some(found) = cut_short(false) else { return };
    assert_eq!(found, (11, 2));
}

/// The counters apart from all other collections.
fn apart(scratch: &Scratch, ferret: &Ferret) -> Launch {
    let launch = before(scratch, ferret);
    let path = scratch.join("destage.toml");
    let settings = std::fs::read_to_string(&path).expect("the settings can be read");
    let domain = "\n[[domain]]\nname = 'counters'\ntables = ['counters']\n";
    std::fs::write(&path, settings + domain).expect("the settings can be written");
    launch
}

#[test]
fn collections_in_ordering_domains_of_their_own_have_watermarks_of_their_own() {
    let scratch = Scratch::new();
    let Some(ferret) = Ferret::start(&scratch) else { return };
    users(&ferret);
    let launch = apart(&scratch, &ferret);
    let server = launch.start();
    let client = &mut server.client();
    for command in [
        "HSET products:1 name a stock 10",
        "HINCRBY counters:c n 5",
        "HINCRBY products:1 stock 5",
        "HSET counters:d n 1",
        "DEL counters:d",
        "HINCRBY counters:c n 5",
        "HSET products:2 name b",
        "DEL products:2",
    ] {
        arrives(client, command);
    }
    let rejected = is_parked(client, &format!("HSET users:{} mail a@x", user(2)));
    arrives(client, "HINCRBY counters:c n 5");
    let status = server.status();
    let names: Vec<&str> = status["domains"]
        .as_array()
        .expect("there are several domains")
        .iter()
        .map(|domain| domain["name"].as_str().expect("it has a name"))
        .collect();
    assert_eq!(names, ["default", "counters"]);
    assert_eq!(status["domains"][0]["parked_groups"], 1);
    decided(client, &["SKIP", &rejected], &[("skipped", "1")]);
    let watermarks = || {
        let owner = ferret.whole("destage_owner", by_id("owner")).expect("it has an owner");
        let all = owner.get_document("watermarks").expect("it has watermarks");
        ["0", "1", "65535"].map(|domain| all.get_i64(domain).unwrap_or(0))
    };
    eventually("the mark of all domains follows", PATIENCE, || watermarks()[2] == 10);
    assert_eq!(watermarks(), [9, 10, 10]);
    server.terminate(PATIENCE).says(0, &[]);
    // Everything comes again, and changes nothing.
    let zero = doc! { "watermarks.0": 0_i64, "watermarks.1": 0_i64, "watermarks.65535": 0_i64 };
    set(&ferret, "destage_owner", by_id("owner"), doc! { "$set": zero });
    set(&ferret, "users", by_id(id(&user(1))), doc! { "$set": { "mail": "moved@x" } });
    let server = launch.start();
    server.drain();
    assert_eq!(ferret.number("counters", by_id("c"), "n"), 15);
    assert_eq!(ferret.number("products", by_id(1_i64), "stock"), 15);
    assert_eq!(ferret.document("counters", by_id("d")), None);
    assert_eq!(ferret.document("products", by_id(2_i64)), None);
    let expected = doc! { "_id": id(&user(2)), "mail": "a@x", "logins": 1_i64 };
    assert_eq!(sorted(ferret.document("users", by_id(id(&user(2))))), sorted(Some(expected)));
    server.terminate(PATIENCE).says(0, &[]);
}

#[test]
fn a_collection_with_a_unique_index_is_not_divided_by_its_ids() {
    let scratch = Scratch::new();
    let Some(ferret) = Ferret::start(&scratch) else { return };
    users(&ferret);
    let launch = before(&scratch, &ferret);
    let path = scratch.join("destage.toml");
    let settings = std::fs::read_to_string(&path).expect("the settings can be read");
    let domain = "\n[[domain]]\nname = 'users'\ntables = ['users']\ncolumn = '_id'\ncount = 2\n";
    std::fs::write(&path, settings + domain).expect("the settings can be written");
    launch.refused().says(2, &["unique index", "users"]);
}
