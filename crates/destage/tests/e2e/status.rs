//! Every view of a server says the same.

use crate::harness::scratch::{adopt, release};
use crate::harness::server::binary;
use crate::harness::{Launch, PATIENCE, Scratch, Server, eventually, output, shop};
use serde_json::Value;
use std::fs::{self, File};
use std::process::{Command, Stdio};

/// A server that has served 40 writes and some reads, and is idle now.
fn used(scratch: &Scratch) -> Server {
    let database = shop::sqlite(scratch);
    let server = Launch::before(scratch, &database.url()).start();
    let mut client = server.client();
    for _ in 0..40 {
        client.run("HINCRBY products:1 stock 1");
        client.run("HGETALL products:1");
        client.run("HGETALL products:2");
    }
    server.drain();
    server
}

/// The number in a line such as `dirty_groups:0` of INFO.
fn info(text: &str, name: &str) -> f64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    let line = line.unwrap_or_else(|| panic!("no {name} in INFO:\n{text}"));
    line.trim().parse().unwrap_or_else(|_| panic!("{name} is not a number: {line}"))
}

#[test]
fn info_shows_each_section_that_is_asked_for() {
    let scratch = Scratch::new();
    let server = Launch::example(&scratch).start();
    let mut client = server.client();
    let text = client.run("INFO clients SERVER").text();
    let titles: Vec<&str> = text.lines().filter(|line| line.starts_with('#')).collect();
    assert_eq!(titles, ["# Server", "# Clients"]);
    assert!(client.run("INFO server all").text().contains("# Persistence"));
    assert_eq!(client.run("PING a").text(), "a");
    for wrong in ["PING a b", "DESTAGE STATUS all", "DESTAGE PAUSE now"] {
        assert!(client.run(wrong).error().contains("wrong number of arguments"), "{wrong}");
    }
    assert!(client.run("DESTAGE RESUME now").error().contains("use RESUME or RESUME PARK"));
    assert!(!client.run("DESTAGE STATUS").is_error());
}

#[test]
fn the_status_says_how_the_journal_is_written() {
    let scratch = Scratch::new();
    let launch = |depth: &str| Launch::example(&scratch).with(&["--journal-depth", depth]);
    launch("33").refused().says(2, &["--journal-depth", "auto, or 0 to 32"]);
    for (depth, said) in [("0", "buffered writes"), ("5", "direct writes, up to 5 at once")] {
        let server = launch(depth).start();
        let mut client = server.client();
        for _ in 0..20 {
            assert!(!client.run("HINCRBY products:1 stock 1").is_error());
        }
        assert_eq!(server.status()["journal"]["depth"].to_string(), depth);
        let admin = server.admin.to_string();
        let shown = output(Command::new(binary()).args(["status", "--admin", &admin]));
        assert!(shown.contains(said), "{shown}");
        assert!(server.status()["journal"]["syncs_total"].as_u64() > Some(0));
    }
}

#[test]
fn commands_of_the_admin_port_refuse_arguments_that_they_do_not_have() {
    let scratch = Scratch::new();
    let server = Launch::example(&scratch).start();
    for command in ["pause", "flush", "drain"] {
        let answer = server.post(command, &["x"]);
        assert!(answer.contains(&format!("'{command}' takes no arguments, not 'x'")), "{answer}");
    }
    assert_eq!(server.status()["paused"], false);
    server.post("pause", &[]);
    assert_eq!(server.status()["paused"], true);
}

#[test]
fn how_far_back_decided_writes_are_kept_is_told() {
    let scratch = Scratch::new();
    let database = shop::sqlite(&scratch);
    let launch = Launch::before(&scratch, &database.url());
    let server = launch.start();
    let kept = |server: &Server| {
        server.status()["journal"]["retained_seconds"].as_f64().expect("a number")
    };
    assert_eq!(kept(&server), 0.0, "nothing was written");
    let mut client = server.client();
    client.run("DESTAGE PAUSE").ok();
    client.run("HINCRBY products:1 stock 1").int();
    assert_eq!(kept(&server), 0.0, "nothing is decided");
    client.run("DESTAGE RESUME").ok();
    server.drain();
    eventually("time goes by", PATIENCE, || kept(&server) > 0.5);
    assert!(server.metric("destage_journal_retained_seconds") > 0.5);
    assert!(client.run("DESTAGE STATUS").text().contains("decided groups of the last"));
    server.terminate(PATIENCE).says(0, &[]);
    assert!(kept(&launch.start()) > 0.5, "it is kept by the next one, too");
}

#[test]
fn status_metrics_and_info_agree() {
    let scratch = Scratch::new();
    let server = used(&scratch);
    let status = server.status();
    let info_text = server.client().run("INFO").text();
    let number = |value: &Value| value.as_f64().expect("a number");
    for (value, metric, name) in [
        (&status["writes"]["last_lsn"], "destage_last_lsn", "last_lsn"),
        (&status["writes"]["decided_lsn"], "destage_decided_lsn", "decided_lsn"),
        (&status["writes"]["dirty_groups"], "destage_dirty_groups", "dirty_groups"),
        (&status["destage"]["parked_groups"], "destage_parked_groups", "parked_groups"),
        (&status["cache"]["misses_total"], "destage_cache_misses_total", "keyspace_misses"),
        (&status["cache"]["hits_total"], "destage_cache_hits_total", "keyspace_hits"),
    ] {
        assert_eq!(number(value), server.metric(metric), "{metric}");
        assert_eq!(number(value), info(&info_text, name), "{name}");
    }
    assert_eq!(number(&status["writes"]["groups_total"]), 40.0);
    assert_eq!(number(&status["destage"]["groups_total"]), 40.0);
    assert_eq!(number(&status["cache"]["misses_total"]), 2.0);
    assert!(number(&status["cache"]["hit_ratio"]) > 0.9);
    assert!(number(&status["writes"]["commit_latency"]["p99_seconds"]) > 0.0);
    assert!(number(&status["destage"]["latency"]["p50_seconds"]) > 0.0);
    assert_eq!(number(&status["rpo"]["total_loss_seconds"]), 0.0);
    assert_eq!(status["mode"], "normal");
}

#[test]
fn the_command_and_the_command_line_show_the_same_status() {
    let scratch = Scratch::new();
    let server = used(&scratch);
    let by_command = server.client().run("DESTAGE STATUS").text();
    let admin = server.admin.to_string();
    let by_line = output(Command::new(binary()).args(["status", "--admin", &admin]));
    for word in ["write-back", "normal"] {
        assert!(by_command.contains(word), "{by_command}");
        assert!(by_line.contains(word), "{by_line}");
    }
    let json = ["status", "--admin", &admin, "--format", "json"];
    let report: Value = serde_json::from_str(&output(Command::new(binary()).args(json)))
        .expect("the report is JSON");
    assert_eq!(report["writes"]["groups_total"], 40);
}

#[test]
fn watch_goes_on_showing_the_status() {
    let scratch = Scratch::new();
    let server = used(&scratch);
    let page = scratch.join("page");
    let mut watch = Command::new(binary())
        .args(["status", "--admin", &server.admin.to_string(), "--watch"])
        .stdout(File::create(&page).expect("the file can be made"))
        .stderr(Stdio::null())
        .spawn()
        .expect("the binary starts");
    adopt(watch.id());
    eventually("the status is shown again", PATIENCE, || {
        assert!(watch.try_wait().expect("it is ours").is_none(), "--watch ended by itself");
        let shown = fs::read(&page).expect("the file is readable");
        String::from_utf8_lossy(&shown).matches("write-back").count() >= 2
    });
    watch.kill().expect("it is ours");
    watch.wait().expect("it is ours");
    release(watch.id());
}

#[test]
fn health_and_readiness_are_told_apart() {
    let scratch = Scratch::new();
    let server = used(&scratch);
    server.get("/healthz");
    server.get("/readyz");
}

#[test]
fn status_of_nobody_says_where_it_looked() {
    let output = Command::new(binary())
        .args(["status", "--admin", "127.0.0.1:1"])
        .output()
        .expect("the binary starts");
    assert!(!output.status.success());
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("127.0.0.1:1"), "{said}");
}

/// The manual's section on metrics: the conditions of its alerts with what they mean, and the names of what is worth a graph.
fn documented() -> (Vec<(String, String)>, Vec<String>) {
    let page = format!("{}/../../docs/WATCHING.md", env!("CARGO_MANIFEST_DIR"));
    let page = fs::read_to_string(page).expect("the manual is there");
    let section = page.split("## Metrics and alerts").nth(1).expect("the heading is there");
    let section = section.split("With `destage block serve`").next().expect("it has a begin");
    let rows = section.lines().filter_map(|line| {
        let (when, means) = line.strip_prefix("| `")?.split_once("` ")?;
        Some((when.to_owned(), means.split_once('|')?.1.trim().to_owned()))
    });
    let graphs = section.split("Also worth a graph:").nth(1).expect("the list is there");
    let graphs = graphs.split(". ").next().expect("it has an end");
    let graphs = graphs.split('`').skip(1).step_by(2).map(str::to_owned);
    (rows.collect(), graphs.collect())
}

#[test]
fn every_metric_and_alert_of_the_manual_is_exported_and_measured() {
    let scratch = Scratch::new();
    let server = used(&scratch);
    let page = server.get("/metrics");
    let (alerts, graphs) = documented();
    assert!(alerts.len() > 12 && graphs.len() > 7, "{alerts:?} {graphs:?}");
    for (condition, means) in &alerts {
        let words = condition.split(|c: char| !c.is_alphanumeric() && c != '_');
        for name in words.filter(|word| word.starts_with("destage_")) {
            // Who has no servers for a log has no metrics of them: those are looked at where there are some.
            let is_foreign =
                means.starts_with("`block serve`") || name.starts_with("destage_replica");
            if is_foreign {
                assert!(!page.contains(name), "{name} is none of ours");
            } else {
                server.metric(name);
            }
        }
    }
    for name in graphs.iter().map(String::as_str).chain([
        "destage_journal_fsync_seconds",
        "destage_journal_fsync_count",
        "destage_commit_latency_count",
        "destage_destage_latency_count",
        "destage_journal_bytes_max",
        "destage_dirty_bytes_max",
        "destage_bound_staleness_seconds",
        "destage_policy_info",
    ]) {
        assert!(server.metric(name) > 0.0, "{name}");
    }
    for foreign in ["destage_volume_", "destage_open_files"] {
        assert!(!page.contains(foreign), "{foreign}");
    }
    assert!(page.contains("destage_policy_info{policy=\"write-back\",commit=\"0\"} 1"), "{page}");
}
