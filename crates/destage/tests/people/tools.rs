//! What tools for Redis ask for, by redis-cli as their users have it.

use crate::harness::{Launch, Scratch, has, output, prepared};
use std::path::Path;
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
}

#[test]
fn the_state_is_shown_again_and_again() {
    if !has("redis-cli") {
        return;
    }
    let scratch = Scratch::new();
    let server = Launch::example(&scratch).start();
    let port = server.port();
    ask(&port, &["HGETALL", "products:1"]);
    ask(&port, &["HGETALL", "products:2"]);
    let stat = Command::new("timeout")
        .args(["3", "stdbuf", "-oL", "redis-cli", "-p", &port, "--stat", "-i", "1"])
        .output();
    let stat = String::from_utf8_lossy(&stat.expect("it starts").stdout).into_owned();
    let rows: Vec<Vec<&str>> =
        stat.lines().map(|line| line.split_whitespace().collect()).skip(2).collect();
    assert!(rows.len() >= 2, "{stat}");
    assert!(rows.iter().all(|row| row[0] == "2"), "two keys are in memory: {stat}");
}

/// It goes through all keys; which are large by fields, which by bytes.
#[test]
fn the_largest_keys_are_found() {
    if !has("redis-cli") {
        return;
    }
    let scratch = Scratch::new();
    let server = Launch::example(&scratch).with(&["--unmapped", "cache"]).start();
    let port = server.port();
    ask(&port, &["SET", "plain", &"x".repeat(50_000)]);
    let wide: Vec<String> = (0..40).flat_map(|n| [format!("field{n}"), "1".into()]).collect();
    let wide: Vec<&str> = wide.iter().map(String::as_str).collect();
    ask(&port, &[&["HSET", "wide"], &wide[..]].concat());
    let keys = ask(&port, &["--scan"]).lines().count();
    assert!(keys > 10, "{keys} keys");
    let by_fields = ask(&port, &["--bigkeys"]);
    let found = |said: &str, what: &str| {
        said.split_whitespace().collect::<Vec<_>>().join(" ").contains(what)
    };
    for what in [
        &format!("Sampled {keys} keys"),
        r#"Biggest hash found '"wide"' has 40 fields"#,
        r#"Biggest string found '"plain"' has 50000 bytes"#,
    ] {
        assert!(found(&by_fields, what), "{what}: {by_fields}");
    }
    let by_bytes = ask(&port, &["--memkeys"]);
    assert!(found(&by_bytes, r#"Biggest string found '"plain"' has 50"#), "{by_bytes}");
    assert!(found(&by_bytes, &format!("Sampled {keys} keys")), "{by_bytes}");
}

#[test]
fn redis_insight_is_answered() {
    let Some(client) = prepared("DESTAGE_TEST_NODE_CLIENT") else { return };
    let scratch = Scratch::new();
    let server = Launch::example(&scratch).start();
    let program = Path::new(&client).with_file_name("insight.mjs");
    let said = output(Command::new("node").arg(program).arg(server.port()));
    assert!(said.ends_with(" checks\n"), "{said}");
}
