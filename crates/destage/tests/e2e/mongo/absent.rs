//! Documents that are known not to be there.

use super::{before, by_id};
use crate::harness::ferretdb::Ferret;
use crate::harness::{PATIENCE, Reply, Scratch, eventually};
use mongodb::bson::doc;

#[test]
fn new_documents_are_made_while_the_origin_is_away_and_others_are_not_overwritten() {
    let scratch = Scratch::new();
    let Some(mut ferret) = Ferret::start(&scratch) else { return };
    ferret.insert("products", vec![doc! { "_id": 1_i64, "name": "a", "stock": 1 }]);
    // A collection that nobody has made is none whose keys can be read.
    ferret.insert("counters", vec![doc! { "_id": "a", "n": 1_i64 }]);
    let server = before(&scratch, &ferret).with(&["--absent-filter", "keys"]).start();
    eventually("the keys are known", PATIENCE, || {
        let tables = server.status()["absent"]["tables"].clone();
        let tables = tables.as_array().cloned().unwrap_or_default();
        tables.iter().any(|one| one["name"] == "products" && one["state"] == "ready")
    });
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
