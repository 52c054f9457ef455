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
