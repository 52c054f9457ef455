//! A live run recorded, and told to the core once more.

use crate::harness::server::binary;
use crate::harness::{Database, Launch, PATIENCE, Scratch, eventually};
use crate::load::{self, Load, Mix};
use std::collections::BTreeSet;
use std::process::Command;

#[test]
fn a_run_under_load_replays_with_the_same_effects_and_lets_another_policy_be_tried() {
    let scratch = Scratch::new();
    let database = load::tables(Database::sqlite(&scratch));
    let file = scratch.join("run").display().to_string();
    // So little memory that rows are evicted, and more writes than may wait.
    let small = ["--cache-size", "64K", "--dirty-limit", "64K", "--record", &file];
    let server = Launch::before(&scratch, &database.url()).with(&small).start();
    let load = Load::start(server.listen, 11, 4, 4, Mix::Full);
    eventually("the load runs", PATIENCE, || load.acks() > 300);
    server.post("policy", &["when=periodic:100ms"]);
    let so_far = load.acks();
    eventually("it goes on", PATIENCE, || load.acks() > so_far + 100);
    server.terminate(PATIENCE).says(0, &[]);
    drop(load.finish());
    let replay = |arguments: &[&str]| {
        let mut command = Command::new(binary());
        command.args(["sim", "replay", &file, "--output", "json"]).args(arguments);
        let output = command.output().expect("the binary starts");
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{error}");
        serde_json::from_slice::<serde_json::Value>(&output.stdout).expect("it is JSON")
    };
    let report = replay(&[]);
    assert_eq!(
        (&report["same_effects"], &report["parts"][0]["subject"]),
        (&true.into(), &"serve".into())
    );
    assert!(report["parts"][0]["inputs"].as_u64() > Some(1_000), "{report}");
    let report = replay(&["--when", "periodic:1s", "--staleness", "1m"]);
    let policy = report["what_if"]["policy"].as_str().expect("a text");
    let begin = "write-back, periodic:1s, d = 0, D = 1m, at limit throttle; dirty limit ";
    assert!(policy.starts_with(begin), "{policy}");
    let [recorded, what_if] = ["recorded", "what_if"].map(|run| {
        let run = &report[run];
        let tally = if run["outcome"].is_null() { run } else { &run["outcome"]["tally"] };
        tally["writes"].as_u64().expect("a number")
    });
    assert!(recorded > 100 && recorded.abs_diff(what_if) * 5 < recorded, "{report}");
}

/// The rows that were asked for, each by what a recording knows it by, and the largest size that it tells of each.
fn rows(file: &str) -> BTreeSet<(u64, u32)> {
    let mut command = Command::new(binary());
    command.args(["sim", "convert", "--trace", file, "--to", "oracle-general"]);
    let output = command.output().expect("the binary starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let record = |bytes: &[u8]| {
        let object = u64::from_le_bytes(bytes[4..12].try_into().expect("eight bytes"));
        (object, u32::from_le_bytes(bytes[12..16].try_into().expect("four bytes")))
    };
    output.stdout.chunks(24).map(record).collect()
}

#[test]
fn rows_are_known_by_the_same_hash_in_each_recording_unless_it_is_anonymous() {
    let record = |flags: &[&str]| {
        let scratch = Scratch::new();
        let file = scratch.join("run").display().to_string();
        let launch = Launch::example(&scratch).with(&["--record", &file]).with(flags);
        let server = launch.start();
        let mut client = server.client();
        // Rows that are only written are neither fetched nor evicted.
        for row in 0..20 {
            let done = client
                .run(&format!("HSET customers:{row} name Ada{row} email ada{row}@example.com"));
            assert!(!done.is_error(), "{done:?}");
        }
        drop(client);
        server.terminate(PATIENCE).says(0, &[]);
        rows(&file)
    };
    let plain = record(&[]);
    let ids = |rows: &BTreeSet<(u64, u32)>| rows.iter().map(|row| row.0).collect::<BTreeSet<_>>();
    assert!(ids(&plain).len() >= 20 && plain.iter().all(|row| row.1 > 1), "{plain:?}");
    assert_eq!(ids(&plain), ids(&record(&[])), "another server, the same rows");
    let [one, other] = [(); 2].map(|()| record(&["--record-anonymous"]));
    assert_eq!(one.len(), plain.len());
    assert!(ids(&one).is_disjoint(&ids(&plain)) && ids(&one).is_disjoint(&ids(&other)));
}
