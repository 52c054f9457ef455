//! Arrays and other values that are set as a whole, through the Redis protocol and by the library.

use super::{before, by_id, set_watermark, sorted, watermark};
use crate::harness::ferretdb::Ferret;
use crate::harness::{Client, PATIENCE, Reply, Scratch, Server};
use crate::parking::named;
use destage_data::settings::{DocumentSettings, TableSettings};
use destage_data::store::{ErrorKind, Options, Store, Value};
use mongodb::bson::oid::ObjectId;
use mongodb::bson::spec::BinarySubtype;
use mongodb::bson::{Binary, Bson, DateTime, doc};
use std::collections::BTreeMap;

#[track_caller]
fn set(client: &mut Client, field: &str, value: &str) {
    let reply = client.call(&["HSET", "all:one", field, value]);
    assert!(!reply.is_error(), "{field} {value}: {reply:?}");
}

#[test]
fn arrays_are_set_as_a_whole_and_kept_through_a_crash() {
    let scratch = Scratch::new();
    let Some(ferret) = Ferret::start(&scratch) else { return };
    let launch = before(&scratch, &ferret);
    let server = launch.start();
    let mut client = server.client();
    set(&mut client, "list", "[]");
    set(&mut client, "at.marks", "[1]");
    server.drain();
    assert_eq!(client.run("HDEL all:one at.marks").int(), 1);
    assert_eq!(client.run("HGET all:one at.marks"), Reply::Nil);
    client.run("DESTAGE PAUSE").ok();
    let written = r#"[ "ä", 1, 2.0, 4294967296, true, null, {"z": 1, "a": {"n": []}},
        {"$oid": "65A0C3D2E1F0A1B2C3D4E5F6"} ]"#;
    let shown = "[\"ä\",1,2.0,4294967296,true,null,{\"z\":1,\"a\":{\"n\":[]}},\
                 {\"$oid\":\"65a0c3d2e1f0a1b2c3d4e5f6\"}]";
    set(&mut client, "list", "[3]");
    set(&mut client, "list", written);
    set(&mut client, "tags", r#"{"b": [1], "a": "x"}"#);
    assert_eq!(client.run("HGET all:one list").text(), shown);
    for (field, wrong) in [
        ("list", "a,b"),
        ("list", "[1"),
        ("list", r#"{"a":1}"#),
        ("list", r#"[{"$numberDecimal":"1"}]"#),
        ("list", "null"),
        ("tags", "null"),
        ("tags", "text"),
    ] {
        let refused = client.call(&["HSET", "all:one", field, wrong]);
        assert!(refused.error().contains("JSON") || refused.error().contains('$'), "{refused:?}");
        assert!(refused.error().contains(field), "{refused:?}");
    }
    let refused = client.run("HINCRBY all:one list 1");
    assert!(refused.error().contains("not a number"), "{refused:?}");
    server.kill();

    let server = launch.start();
    assert_eq!(server.client().run("HGET all:one list").text(), shown);
    server.drain();
    let id = ObjectId::parse_str("65a0c3d2e1f0a1b2c3d4e5f6").expect("an id");
    let nested = doc! { "z": 1, "a": { "n": [] } };
    let list: Vec<Bson> = vec![
        "ä".into(),
        1.into(),
        2.0.into(),
        4_294_967_296_i64.into(),
        true.into(),
        Bson::Null,
        nested.into(),
        id.into(),
    ];
    let expected = doc! { "_id": "one", "at": {}, "list": list, "tags": { "b": [1], "a": "x" } };
    assert_eq!(sorted(ferret.document("all", by_id("one"))), sorted(Some(expected)));
    server.terminate(PATIENCE).says(0, &[]);
}

/// What is shown of a field, from the cache and then as the database has it.
#[track_caller]
fn both(server: &Server, field: &str) -> (String, String) {
    let mut client = server.client();
    let cached = client.call(&["HGET", "all:one", field]).text();
    server.drain();
    client.run("DESTAGE INVALIDATE all:one");
    (cached, client.call(&["HGET", "all:one", field]).text())
}

#[test]
fn what_is_cached_of_an_array_is_what_is_fetched_again() {
    let scratch = Scratch::new();
    let Some(ferret) = Ferret::start(&scratch) else { return };
    let server = before(&scratch, &ferret).start();
    let mut client = server.client();
    let deep = format!("[{}1{}]", r#"{"a":"#.repeat(63), "}".repeat(63));
    for value in [
        deep.as_str(),
        "[-0.0, -0, 0.1, 1e300, 5e-324, 1e20, 123456789.123456789, 2147483648, -9223372036854775808]",
        r#"["", "\u0001\t\"\\", "\ud83e\udd80"]"#,
        r#"[{"b": 1, "_id": 2, "a": {"y": [{"": [1]}], "x": {}}, "b": 3}]"#,
        r#"[{"$date": "2026-01-31T13:37:00.120Z"}, {"$date": {"$numberLong": "-62135596800001"}}]"#,
        r#"[{"$binary": {"base64": "", "subType": "00"}}, {"$binary": {"base64": "/w==", "subType": "80"}}]"#,
        r#"[{"$regularExpression": {"pattern": "^a.b$", "options": "xi"}}]"#,
        r#"[{"$timestamp": {"t": 4294967295, "i": 4294967295}}]"#,
        r#"[{"$uuid": "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"}, {"$numberLong": "7"}]"#,
    ] {
        set(&mut client, "list", value);
        let (cached, fetched) = both(&server, "list");
        assert_eq!(cached, fetched, "{value}");
        assert!(cached.len() > 4, "{value}: {cached}");
        // Whoever writes back what is shown changes nothing.
        set(&mut client, "list", &fetched);
        assert_eq!(both(&server, "list"), (fetched.clone(), fetched), "{value}");
    }
    assert_eq!(ferret.count("destage_parked"), 0);
}

#[test]
fn arrays_of_others_are_shown_and_changed_and_so_is_what_is_no_array() {
    let scratch = Scratch::new();
    let Some(ferret) = Ferret::start(&scratch) else { return };
    let bytes = Bson::Binary(Binary { subtype: BinarySubtype::Generic, bytes: vec![0xff] });
    let list = vec![bytes, Bson::Int64(7), DateTime::from_millis(250).into()];
    ferret.insert("all", vec![doc! { "_id": "one", "list": list, "tags": 5.5 }]);
    ferret.insert("all", vec![doc! { "_id": "two", "list": "[1]" }]);
    ferret.insert("all", vec![doc! { "_id": "three", "list": Bson::Null }]);
    let server = before(&scratch, &ferret).start();
    let mut client = server.client();
    let shown = client.run("HGET all:one list").text();
    let expected =
        r#"[{"$binary":{"base64":"/w==","subType":"00"}},7,{"$date":"1970-01-01T00:00:00.25Z"}]"#;
    assert_eq!(shown, expected);
    assert_eq!(client.run("HGET all:one tags").text(), "5.5");
    assert_eq!(client.run("HGET all:two list").text(), "\"[1]\"");
    assert_eq!(client.run("HGET all:three list"), Reply::Nil);
    for id in ["two", "three"] {
        assert!(!client.run(&format!("HSET all:{id} list [1]")).is_error());
    }
    server.drain();
    for id in ["two", "three"] {
        let document = ferret.document("all", by_id(id)).expect("it is there");
        assert_eq!(document.get_array("list").expect("it is an array"), &[Bson::Int32(1)]);
    }
}

/// An array that the origin rejects; its number.
#[track_caller]
fn is_rejected(client: &mut Client, value: &str) -> String {
    set(client, "list", value);
    assert!(client.run("DESTAGE WAIT 60000").error().starts_with("PARKED"), "{value}");
    let list = client.run("DESTAGE PARKED LIST");
    named(list.array().last().expect("it is listed"), "id").text()
}

#[test]
fn an_array_that_the_origin_does_not_hold_is_parked_and_decided_on() {
    let scratch = Scratch::new();
    let Some(ferret) = Ferret::start(&scratch) else { return };
    let server = before(&scratch, &ferret).start();
    let mut client = server.client();
    // FerretDB has no arrays directly inside of arrays, as a new document and as an update; no names with dots.
    let made = is_rejected(&mut client, "[[1]]");
    let refused = client.run(&format!("DESTAGE PARKED RETRY {made}"));
    assert!(refused.error().starts_with("REJECTED"), "{refused:?}");
    let shown = client.run(&format!("DESTAGE PARKED SHOW {made}"));
    let payload = named(&shown, "payload").text();
    let wrong = payload.replace("[[1]]", "[[1]");
    let refused = client.call(&["DESTAGE", "PARKED", "EDIT", &made, &wrong]);
    assert!(refused.error().contains("list"), "{refused:?}");
    let mended = payload.replace("[[1]]", "[ 1 , {} ]");
    let decided = client.call(&["DESTAGE", "PARKED", "EDIT", &made, &mended]);
    assert!(!decided.is_error(), "{decided:?}");
    assert_eq!(client.run("HGET all:one list").text(), "[1,{}]");
    for value in ["[[2]]", r#"[{"a.b":1}]"#, r#"[{"$a":1}]"#] {
        let update = is_rejected(&mut client, value);
        assert_eq!(client.run("HGET all:one list").text(), value);
        let decided = client.run(&format!("DESTAGE PARKED SKIP {update}"));
        assert!(!decided.is_error(), "{decided:?}");
        assert_eq!(client.run("HGET all:one list").text(), "[1,{}]");
    }
    server.drain();
    let document = ferret.document("all", by_id("one")).expect("it is there");
    let expected = vec![Bson::Int32(1), doc! {}.into()];
    assert_eq!(document.get_array("list").expect("it is an array"), &expected);
    assert_eq!(ferret.count("destage_parked"), 0);
}

/// A store of the library before the collection `posts`.
fn store(scratch: &Scratch, ferret: &Ferret) -> Store {
    let fields = [("tags", "array"), ("title", "string"), ("any", "json")];
    let document = DocumentSettings {
        id: Some("int".to_owned()),
        fields: fields.map(|(name, kind)| (name.to_owned(), kind.to_owned())).into(),
        required: Vec::new(),
    };
    let posts = TableSettings { document: Some(document), ..TableSettings::default() };
    Options::new(ferret.url(), scratch.join("library"))
        .with(|settings| settings.tables = BTreeMap::from([("posts".to_owned(), posts)]))
        .open()
        .expect("the store opens")
}

fn tags(store: &Store, id: i32) -> Option<String> {
    let row = store.read(("posts", id)).expect("it is read").expect("it is there");
    row.get("tags").expect("it is text")
}

#[test]
fn the_library_pushes_pulls_and_adds_to_sets() {
    let scratch = Scratch::new();
    let Some(ferret) = Ferret::start(&scratch) else { return };
    let own = doc! { "z": 1, "a": 0.1 };
    ferret.insert("posts", vec![doc! { "_id": 1, "tags": [own.clone(), "old"] }]);
    ferret.insert("posts", vec![doc! { "_id": 2, "title": "t", "tags": "none" }]);
    let first = store(&scratch, &ferret);
    first.pause().expect("it pauses");
    first
        .session(|s| {
            s.push(("posts", 1), "tags", "a")?;
            s.add_to_set(("posts", 1), "tags", "a")?;
            s.add_to_set(("posts", 1), "tags", 7)?;
            s.pull(("posts", 1), "tags", "old")
        })
        .expect("they are arrays");
    first
        .session(|s| s.set(("posts", 3), [("title", Value::from("new"))]))
        .and_then(|()| {
            first.session(|s| {
                s.push(("posts", 3), "any", serde_json::json!({ "$oid": "1".repeat(24) }))
            })
        })
        .and_then(|()| first.session(|s| s.push(("posts", 3), "tags", 1.5)))
        .expect("nothing counts as the empty array");
    let no_array = first.session(|s| s.push(("posts", 2), "tags", "x")).expect_err("it is text");
    assert!(no_array.to_string().contains("no JSON array"), "{no_array}");
    let decimal = serde_json::json!({ "$numberDecimal": "1" });
    let refused =
        first.session(|s| s.push(("posts", 1), "tags", decimal.clone())).expect_err("a decimal");
    assert_eq!(refused.kind(), ErrorKind::Invalid, "{refused}");
    let shown = r#"[{"z":1,"a":0.1},"a",7]"#;
    assert_eq!(tags(&first, 1).as_deref(), Some(shown));
    drop(first);

    // As after a crash: all of it comes from the journal.
    let again = store(&scratch, &ferret);
    assert_eq!(tags(&again, 1).as_deref(), Some(shown));
    again
        .session(|s| s.pull(("posts", 1), "tags", serde_json::json!({ "a": 0.1, "z": 1 })))
        .expect("it is there");
    again.drain().expect("it drains");
    let held = |id: i32| ferret.document("posts", by_id(id)).expect("it is there");
    assert_eq!(held(1).get_array("tags").expect("an array"), &["a".into(), Bson::Int32(7)]);
    assert_eq!(held(3).get_array("tags").expect("an array"), &[Bson::Double(1.5)]);
    let id = ObjectId::parse_str("1".repeat(24)).expect("an id");
    assert_eq!(held(3).get_array("any").expect("an array"), &[Bson::ObjectId(id)]);
    assert_eq!(held(2).get_str("tags").expect("text"), "none");
    again.close().expect("it closes");

    // From any of them on they come again, and change nothing.
    let state = || [1, 3].map(|id| sorted(ferret.document("posts", by_id(id))));
    let (before, last) = (state(), watermark(&ferret));
    for seq in (0..last).rev() {
        set_watermark(&ferret, seq);
        let again = store(&scratch, &ferret);
        assert_eq!(tags(&again, 1).as_deref(), Some(r#"["a",7]"#), "from {seq}");
        again.drain().expect("it drains");
        again.close().expect("it closes");
        assert_eq!((watermark(&ferret), state()), (last, before.clone()), "from {seq}");
    }
}
