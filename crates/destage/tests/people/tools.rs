//! What tools for Redis ask for, by redis-cli as their users have it.

use crate::harness::{Launch, Scratch, has, output};
use std::process::Command;

fn ask(port: &str, words: &[&str]) -> String {
    let mut command = Command::new("redis-cli");
    output(command.args(["-p", port]).args(words)).trim_end().to_owned()
}

#[test]
fn rows_are_looked_at_field_by_field() {
    if !has("redis-cli") {
        return;
    }
    let scratch = Scratch::new();
    let server = Launch::example(&scratch).with(&["--unmapped", "cache"]).start();
    let port = server.port();
    ask(&port, &["HSET", "plain", "one", "1", "two", "22", "three", "333"]);
    for key in ["products:1", "plain"] {
        let all = ask(&port, &["HGETALL", key]);
        assert_eq!(ask(&port, &["HSCAN", key, "0"]), format!("0\n{all}"), "{key}");
    }
    assert_eq!(ask(&port, &["HSCAN", "plain", "0", "MATCH", "t*", "NOVALUES"]), "0\ntwo\nthree");
    assert_eq!(ask(&port, &["HSTRLEN", "plain", "three"]), "3");
    let name = ask(&port, &["HGET", "products:1", "name"]);
    assert_eq!(ask(&port, &["HSTRLEN", "products:1", "name"]), name.len().to_string());
    assert_eq!(ask(&port, &["HSTRLEN", "products:424242", "name"]), "0");
    assert!(ask(&port, &["DBSIZE"]).parse::<u64>().expect("a number") >= 2);
    // What `redis-cli --stat` shows comes of INFO.
    let stat = Command::new("timeout")
        .args(["3", "stdbuf", "-oL", "redis-cli", "-p", &port, "--stat", "-i", "1"])
        .output();
    let stat = String::from_utf8_lossy(&stat.expect("it starts").stdout).into_owned();
    assert!(stat.contains("keys") && stat.lines().count() >= 3, "{stat}");
}
