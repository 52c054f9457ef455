//! Servers that are away, and collections that are.

use super::{before, by_id};
use crate::harness::ferretdb::Ferret;
use crate::harness::{PATIENCE, Reply, Scratch, Server, eventually};
use mongodb::bson::doc;
use std::time::{Duration, Instant};

#[test]
fn reads_are_told_at_once_that_the_origin_is_away_and_served_when_it_is_back() {
    // The driver alone looks for a server for a minute, each time.
    const LIMIT: Duration = Duration::from_secs(60);
    const READS: u32 = 30;
    let scratch = Scratch::new();
    let Some(mut ferret) = Ferret::start(&scratch) else { return };
    ferret.insert("products", vec![doc! { "_id": 1_i64, "name": "a", "stock": 1 }]);
    let server = before(&scratch, &ferret).with(&["--origin-timeout", "60s"]).start();
    let mut client = server.client();
    client.patience(LIMIT * 2);
    assert_eq!(client.run("HGET products:1 stock").text(), "1");
    ferret.kill();
    let began = Instant::now();
    for number in 0..READS {
        let reply = client.run(&format!("HGET products:{} stock", number + 2));
        assert!(reply.error().starts_with("UNAVAILABLE"), "{reply:?}");
    }
    let took = began.elapsed();
    assert!(took < LIMIT, "{READS} reads took {took:?}");
    assert_eq!(server.status()["origin"]["down"], true);
    assert_eq!(client.run("HGET products:1 stock").text(), "1", "it is cached");
    ferret.restart();
    eventually("the origin is found again", PATIENCE, || {
        client.run("HGET products:2 stock") == Reply::Nil
    });
    assert_eq!(server.status()["origin"]["down"], false);
}

/// The destager tries again since the collection is gone.
#[track_caller]
fn is_retried(server: &Server) {
    eventually("the destager says that the collection is gone", PATIENCE, || {
        server.log().contains("the collection products is gone")
    });
    let status = server.status();
    assert_eq!(status["destage"]["parked_groups"], 0, "{status}");
}

#[test]
fn a_collection_that_is_gone_for_a_while_parks_nothing_and_is_not_made_anew() {
    let scratch = Scratch::new();
    let Some(ferret) = Ferret::start(&scratch) else { return };
    let document = |id: i64| doc! { "_id": id, "name": "a", "stock": 1 };
    ferret.insert("products", (1..=3).map(document).collect());
    let launch = before(&scratch, &ferret);
    for write in ["HINCRBY products:1 stock 1", "DEL products:2", "HSET products:4 name b stock 4"]
    {
        let server = launch.start();
        let mut client = server.client();
        // What is known of the documents before.
        client.run("HGETALL products:1").array();
        client.run("DESTAGE PAUSE").ok();
        assert!(!client.run(write).is_error(), "{write}");
        ferret.rename("products", "elsewhere");
        client.run("DESTAGE RESUME").ok();
        is_retried(&server);
        // Neither is what was not read before taken for absent.
        let reply = client.run("HGET products:3 stock");
        assert!(reply.error().contains("the collection products is gone"), "{write}: {reply:?}");
        let reply = client.run("HSET products:9 name c");
        assert!(reply.error().contains("the collection products is gone"), "{write}: {reply:?}");
        assert!(client.run("SCAN 0 MATCH products:*").is_error(), "{write}");
        // The new name is free: nothing has made the collection again.
        ferret.rename("elsewhere", "products");
        server.drain();
        assert_eq!(client.run("HGET products:3 stock").int(), 1, "{write}");
        assert_eq!(server.status()["destage"]["parked_groups"], 0, "{write}");
        server.terminate(PATIENCE).says(0, &[]);
    }
    // What a start finds undecided waits, too.
    let server = launch.start();
    server.client().run("DESTAGE PAUSE").ok();
    assert_eq!(server.client().run("HINCRBY products:1 stock 1").int(), 3);
    server.kill();
    ferret.rename("products", "elsewhere");
    let server = launch.start();
    is_retried(&server);
    ferret.rename("elsewhere", "products");
    server.drain();
    let stocks = [1_i64, 2, 3, 4].map(|id| ferret.number("products", by_id(id), "stock"));
    assert_eq!((stocks, ferret.count("destage_parked")), ([3, 0, 1, 4], 0));
}

#[test]
fn a_parked_write_whose_collection_is_gone_stays_as_it_is() {
    let scratch = Scratch::new();
    let Some(ferret) = Ferret::start(&scratch) else { return };
    ferret.insert("products", vec![doc! { "_id": 1_i64, "name": "a", "stock": 1 }]);
    let server = before(&scratch, &ferret).start();
    let mut client = server.client();
    client.run("HGETALL products:1").array();
    // A foreign program deletes what is updated here.
    ferret.command(doc! { "delete": "products", "deletes": [{ "q": { "_id": 1 }, "limit": 1 }] });
    let parked = crate::parking::is_parked(&mut client, "HINCRBY products:1 stock 1");
    ferret.insert("products", vec![doc! { "_id": 1_i64, "name": "a", "stock": 1 }]);
    ferret.rename("products", "elsewhere");
    let refused = client.run(&format!("DESTAGE PARKED RETRY {parked}"));
    assert!(refused.error().contains("the collection products is gone"), "{refused:?}");
    ferret.rename("elsewhere", "products");
    let decided = client.run(&format!("DESTAGE PARKED RETRY {parked}"));
    assert!(!decided.is_error(), "{decided:?}");
    server.drain();
    assert_eq!(ferret.number("products", by_id(1), "stock"), 2);
    assert_eq!(ferret.count("destage_parked"), 0);
}
