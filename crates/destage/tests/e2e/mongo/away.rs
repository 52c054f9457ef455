//! Reads while the servers are away.

use super::before;
use crate::harness::ferretdb::Ferret;
use crate::harness::{PATIENCE, Reply, Scratch, eventually};
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
