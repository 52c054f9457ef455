//! Increments of fields that are no whole numbers.

use super::{before, by_id};
use crate::harness::ferretdb::Ferret;
use crate::harness::{PATIENCE, Scratch};

#[test]
fn fields_of_type_double_are_incremented_and_kept_exactly_once() {
    let scratch = Scratch::new();
    let Some(ferret) = Ferret::start(&scratch) else { return };
    let launch = before(&scratch, &ferret);
    let server = launch.start();
    let mut client = server.client();
    assert_eq!(client.run("HSET products:1 name x price 1.5").int(), 2);
    assert_eq!(client.run("HINCRBYFLOAT products:1 price 1.25").text(), "2.75");
    assert_eq!(client.run("HINCRBY products:1 price 2").text(), "4.75");
    let refused = client.run("HINCRBYFLOAT products:1 name 1");
    assert!(refused.error().contains("is not a number and cannot be incremented"), "{refused:?}");
    server.drain();
    let price = |ferret: &Ferret| {
        let document = ferret.document("products", by_id(1_i64)).expect("it is there");
        document.get_f64("price").expect("it is a double")
    };
    assert_eq!(price(&ferret), 4.75);
    // Increments that a crash leaves to be sent again.
    client.run("DESTAGE PAUSE").ok();
    for _ in 0..3 {
        client.run("HINCRBYFLOAT products:1 price 0.25").text();
    }
    server.kill();
    let server = launch.start();
    assert_eq!(server.client().run("HGET products:1 price").text(), "5.5");
    server.drain();
    assert_eq!(price(&ferret), 5.5);
    server.terminate(PATIENCE).says(0, &[]);
}

#[test]
fn an_increment_that_is_sent_again_by_a_token_is_done_once_by_every_policy() {
    let scratch = Scratch::new();
    let Some(ferret) = Ferret::start(&scratch) else { return };
    for (id, policy) in [(1_i64, "write-back"), (2, "write-through"), (3, "write-around")] {
        let launch = before(&scratch, &ferret).with(&["--policy", policy]);
        let server = launch.start();
        let mut client = server.client();
        let once = |command: &str| format!("DESTAGE ONCE {policy}-{command}");
        let make = once(&format!("a HSET products:{id} name x price 1.5"));
        let raise = once(&format!("b HINCRBY products:{id} price 2"));
        // Changes nothing, and is told of by a group of its own.
        let nothing = once(&format!("c HSETNX products:{id} name y"));
        for _ in 0..2 {
            assert_eq!(client.run(&make).int(), 2, "{policy}");
            assert_eq!(client.run(&raise).text(), "3.5", "{policy}");
            assert_eq!(client.run(&nothing).int(), 0, "{policy}");
        }
        server.drain();
        server.kill();
        let server = launch.start();
        let mut client = server.client();
        assert_eq!(client.run(&raise).text(), "3.5", "{policy}");
        assert_eq!(client.run(&nothing).int(), 0, "{policy}");
        server.drain();
        let document = ferret.document("products", by_id(id)).expect("it is there");
        assert_eq!(document.get_f64("price").expect("it is a double"), 3.5, "{policy}");
        server.terminate(PATIENCE).says(0, &[]);
    }
}
