//! Documents that are known not to be there.

use super::{SETTINGS, before, by_id};
use crate::harness::ferretdb::Ferret;
use crate::harness::{Launch, PATIENCE, Reply, Scratch, Server, eventually};
use mongodb::bson::doc;

#[track_caller]
fn are_known(server: &Server) {
    eventually("the keys are known", PATIENCE, || {
        let tables = server.status()["absent"]["tables"].clone();
        let tables = tables.as_array().cloned().unwrap_or_default();
        tables.iter().any(|one| one["name"] == "products" && one["state"] == "ready")
    });
}

#[test]
fn new_documents_are_made_while_the_origin_is_away_and_others_are_not_overwritten() {
    let scratch = Scratch::new();
    let Some(mut ferret) = Ferret::start(&scratch) else { return };
    ferret.insert("products", vec![doc! { "_id": 1_i64, "name": "a", "stock": 1 }]);
    // A collection that nobody has made is none whose keys can be read.
    ferret.insert("counters", vec![doc! { "_id": "a", "n": 1_i64 }]);
    let server = before(&scratch, &ferret).with(&["--absent-filter", "keys"]).start();
    are_known(&server);
    ferret.insert("products", vec![doc! { "_id": 2_i64, "name": "theirs" }]);
    let mut client = server.client();
    client.patience(PATIENCE);
    ferret.kill();
    assert_eq!(client.run("HSET products:3 name c stock 3"), Reply::Int(2));
    assert_eq!(client.run("EXISTS products:4"), Reply::Int(0));
    assert_eq!(client.run("HSET products:2 name ours"), Reply::Int(1));
    assert!(client.run("HGET products:1 name").error().starts_with("UNAVAILABLE"));
    assert_eq!(server.status()["absent"]["answered_total"], 3);
    ferret.restart();
    server.drain();
    assert_eq!(ferret.number("products", by_id(3_i64), "stock"), 3);
    let theirs = ferret.document("products", by_id(2_i64)).expect("it is there");
    assert_eq!(theirs.get_str("name").ok(), Some("theirs"));
    assert_eq!(server.status()["destage"]["parked_groups"], 1);
}

/// > With `new = "upsert"` the columns that were written win, and the others keep what the origin holds.
#[test]
fn a_new_document_is_merged_with_the_one_that_it_meets() {
    let scratch = Scratch::new();
    let Some(ferret) = Ferret::start(&scratch) else { return };
    ferret.insert("products", vec![doc! { "_id": 1_i64, "name": "a", "stock": 1 }]);
    let file = scratch.join("merging.toml");
    let settings = SETTINGS.replace("[table.products]", "[table.products]\nnew = 'upsert'");
    std::fs::write(&file, settings).expect("the settings can be written");
    let config = file.display().to_string();
    let launch = Launch::before(&scratch, &ferret.url()).with(&[
        "--config",
        &config,
        "--absent-filter",
        "keys",
    ]);
    let server = launch.start();
    are_known(&server);
    let theirs = |id: i64| doc! { "_id": id, "name": "theirs", "stock": 7, "more": "kept" };
    ferret.insert("products", [10, 12, 14].map(theirs).to_vec());
    let mut client = server.client();
    client.patience(PATIENCE);
    client.run("DESTAGE PAUSE").ok();
    // New ones and such that are there, in one batch.
    for id in 10..16 {
        assert_eq!(client.run(&format!("HSET products:{id} name ours")), Reply::Int(1));
    }
    assert_eq!(client.run("HINCRBY products:11 stock 4"), Reply::Int(4));
    client.run("DESTAGE RESUME").ok();
    server.drain();
    for id in 10..16_i64 {
        let document = ferret.document("products", by_id(id)).expect("it is there");
        assert_eq!(document.get_str("name").ok(), Some("ours"), "{document}");
        let (stock, more) = (document.get("stock").is_some(), document.get_str("more").ok());
        let was_there = id % 2 == 0 && id < 15;
        assert_eq!(
            (stock, more),
            (was_there || id == 11, was_there.then_some("kept")),
            "{document}"
        );
    }
    assert_eq!(ferret.number("products", by_id(12_i64), "stock"), 7);
    assert_eq!(server.status()["destage"]["parked_groups"], 0);
    eventually("their fields are seen", PATIENCE, || {
        client.run("HGET products:12 stock") == Reply::Bulk(b"7".to_vec())
    });
}
