//! A live run recorded, and told to the core once more.

use crate::harness::server::binary;
use crate::harness::{Database, Launch, PATIENCE, Scratch, eventually};
use crate::load::{self, Load, Mix};
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
