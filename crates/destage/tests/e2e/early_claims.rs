//! A start that fails leaves the origin to whoever starts next, wherever that is.

use crate::harness::{Launch, PATIENCE, Scratch, shop};
use std::net::TcpListener;

#[test]
fn a_start_that_fails_has_not_claimed_the_origin() {
    let scratch = Scratch::new();
    let taken = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let taken = taken.local_addr().expect("it has one").to_string();
    let nowhere = scratch.join("no/such/folder/recording");
    let nowhere = nowhere.to_str().expect("the path is text");
    for (folder, database) in scratch.apart(shop::each(&scratch)) {
        let launch = Launch::before(&folder, &database.url());
        let failing = [
            (15, launch.clone().listening(&taken)),
            (15, launch.clone().administered(&taken)),
            // What is only found out once the origin is claimed.
            (2, launch.with(&["--record", nowhere])),
        ];
        for (place, (code, failing)) in failing.into_iter().enumerate() {
            failing.refused().says(code, &[]);
            let next = launch.elsewhere(&folder, &format!("next-{place}"));
            // It writes nothing, so that the one after it is as free.
            next.start().terminate(PATIENCE).says(0, &[]);
        }
    }
}

#[test]
fn a_start_that_fails_keeps_the_origin_of_writes_that_it_has() {
    let scratch = Scratch::new();
    let taken = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let taken = taken.local_addr().expect("it has one").to_string();
    for (folder, database) in scratch.apart(shop::each(&scratch)) {
        let launch = Launch::before(&folder, &database.url());
        let server = launch.start();
        server.post("pause", &[]);
        assert_eq!(server.client().run("HINCRBY products:1 stock 5").int(), 15);
        server.kill();
        launch.clone().administered(&taken).refused().says(15, &[&taken]);
        launch.elsewhere(&folder, "thief").refused().says(11, &[]);
        let server = launch.start();
        server.drain();
        assert_eq!(database.number("SELECT stock FROM products WHERE id = 1"), 15);
        server.terminate(PATIENCE).says(0, &[]);
    }
}
