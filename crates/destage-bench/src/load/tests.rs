use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener};

use super::*;

/// Answers each inline RESP command of four arguments with `reply`.
fn server(reply: &'static str) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("bound");
    thread::spawn(move || {
        for stream in listener.incoming() {
            let stream = stream.expect("accepted");
            thread::spawn(move || {
                let mut output = stream.try_clone().expect("cloned");
                let mut lines = BufReader::new(stream).lines();
                while let Some(Ok(head)) = lines.next() {
                    assert_eq!(head, "*4");
                    for _ in 0..8 {
                        lines.next().expect("a whole command").expect("readable");
                    }
                    if output.write_all(reply.as_bytes()).is_err() {
                        return;
                    }
                }
            });
        }
    });
    address
}

fn load(address: SocketAddr) -> Load {
    let command = ["HSET", "t:__rand_int__", "f0", "__data__"];
    let mut load = Load::resp(address, &command, 20).expect("a command");
    load.connections = 7;
    load.pipeline = 4;
    load.threads = 2;
    load.key_space = 1000;
    load
}

#[test]
fn count_bound_is_exact_and_each_covers_the_space() {
    let mut load = load(server(":0\r\n"));
    load.bound = Bound::Requests(1003);
    load.shape = Shape::Each;
    let outcome = load.run().expect("runs").without_errors().expect("no errors");
    assert_eq!(outcome.requests, 1003);
    assert_eq!(outcome.latency.len(), 1003);
    assert_eq!(outcome.distinct_keys, 1000);
}

#[test]
fn time_bound_ends_in_time() {
    let mut load = load(server(":0\r\n"));
    load.bound = Bound::Time(Duration::from_millis(200));
    let outcome = load.run().expect("runs");
    assert!(outcome.requests > 0);
    // It would go on for ever.
    assert!(outcome.elapsed < Duration::from_secs(60), "{:?}", outcome.elapsed);
}

#[test]
fn error_replies_are_counted_and_kept() {
    let mut load = load(server("-ERR full\r\n"));
    load.bound = Bound::Requests(100);
    let outcome = load.run().expect("runs");
    assert_eq!((outcome.requests, outcome.errors), (100, 100));
    let error = outcome.without_errors().expect_err("all failed").to_string();
    assert!(error.contains("100 of 100") && error.contains("ERR full"), "{error}");
}

#[test]
fn a_silent_server_is_a_stall() {
    let mut load = load(server(""));
    load.stall_timeout = Duration::from_millis(500);
    load.bound = Bound::Requests(10);
    let error = load.run().expect_err("nobody answers").to_string();
    assert!(error.contains("no reply"), "{error}");
}
