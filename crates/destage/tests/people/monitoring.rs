//! The examples of monitoring name metrics that there are, and Prometheus reads what both servers export.

use crate::harness::{Launch, Scratch, has, output};
use crate::volumes::Volumes;
use destage_runtime::metrics::{Family, Kind, common};
use std::collections::BTreeSet;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

fn examples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/monitoring")
}

/// Every name that a series can have.
fn names() -> BTreeSet<String> {
    let own = [destage_data::serve::EXPORTS, destage_block::serve::EXPORTS];
    let own = own.into_iter().flat_map(|exports| (exports.families)());
    let all = common().into_iter().chain(own);
    let named = |family: Family| match family.kind {
        Kind::Histogram => {
            ["_bucket", "_sum", "_count"].map(|end| format!("{}{end}", family.name)).to_vec()
        }
        _ => vec![family.name.to_owned()],
    };
    all.flat_map(named).collect()
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
        .filter(|word| word.starts_with("destage_"))
}

#[test]
fn every_metric_that_the_examples_name_exists() {
    let names = names();
    for file in ["alerts.yml", "dashboard.json"] {
        let text = std::fs::read_to_string(examples().join(file)).expect("the file is there");
        let used: BTreeSet<&str> = words(&text).collect();
        assert!(used.len() >= 10, "{file}: {used:?}");
        let unknown: Vec<_> = used.iter().filter(|name| !names.contains(**name)).collect();
        assert!(unknown.is_empty(), "{file}: {unknown:?}");
    }
}

#[test]
fn prometheus_reads_the_rules_and_what_a_server_exports() {
    if !has("promtool") {
        return;
    }
    output(Command::new("promtool").args(["check", "rules"]).arg(examples().join("alerts.yml")));
    output(
        Command::new("promtool").args(["check", "config"]).arg(examples().join("prometheus.yml")),
    );
    let scratch = Scratch::new();
    let server = Launch::example(&scratch).start();
    server.client().run("HINCRBY products:1 stock 1");
    let page = server.get("/metrics");
    is_read(&page);
    // Of what the other front end exports there is nothing.
    assert!(!page.contains("destage_volume_"), "{page}");
    let commits = "destage_commit_seconds_count ";
    let count = page.lines().find_map(|line| line.strip_prefix(commits)).expect("it is counted");
    assert_ne!(count, "0");
    // Of volumes, each with requests, bytes and a histogram of its own.
    let volumes = Volumes::start(&scratch, &["database", "log"]);
    let page = ureq::get(format!("http://{}/metrics", volumes.admin)).call().expect("an answer");
    let page = page.into_body().read_to_string().expect("text");
    is_read(&page);
    for family in ["requests_total", "request_bytes_total", "request_seconds_bucket"] {
        for volume in ["database", "log"] {
            let series = |line: &&str| line.contains(&format!("volume=\"{volume}\""));
            let name = format!("destage_volume_{family}{{");
            assert!(page.lines().filter(series).any(|line| line.starts_with(&name)), "{page}");
        }
    }
    for family in ["destage_parked_groups", "destage_domain", "destage_derived", "destage_once"] {
        assert!(!page.contains(family), "{family} in\n{page}");
    }
}

/// What servers export for ten minutes, and the alerts that are to come of it.
const TESTS: &str = r#"
rule_files: [alerts.yml]
evaluation_interval: 30s
tests:
  - interval: 30s
    input_series:
      # In order: an owner and its standby, with d = 1s and rows that take more room than their writes.
      - { series: 'destage_ready{job="destage",instance="owner"}', values: '1x20' }
      - { series: 'destage_mode{job="destage",instance="owner",mode="normal"}', values: '1x20' }
      - { series: 'destage_mode{job="destage",instance="owner",mode="standby"}', values: '0x20' }
      - { series: 'destage_replicas_owned{job="destage",instance="owner"}', values: '1x20' }
      - { series: 'destage_commit_seconds_bucket{instance="owner",le="0.1"}', values: '0x20' }
      - { series: 'destage_commit_seconds_bucket{instance="owner",le="1"}', values: '0+30x20' }
      - { series: 'destage_commit_seconds_bucket{instance="owner",le="+Inf"}', values: '0+30x20' }
      - { series: 'destage_journal_sync_seconds_bucket{instance="owner",le="0.1"}', values: '0+30x20' }
      - { series: 'destage_journal_sync_seconds_bucket{instance="owner",le="+Inf"}', values: '0+30x20' }
      - { series: 'destage_ready{job="destage",instance="standby"}', values: '0x20' }
      - { series: 'destage_mode{job="destage",instance="standby",mode="normal"}', values: '0x20' }
      - { series: 'destage_mode{job="destage",instance="standby",mode="standby"}', values: '1x20' }
      - { series: 'destage_replicas_owned{job="destage",instance="standby"}', values: '0x20' }
      # Not in order, each in its own way.
      - { series: 'destage_ready{job="destage",instance="stale"}', values: '0x20' }
      - { series: 'destage_mode{job="destage",instance="stale",mode="normal"}', values: '0x20' }
      - { series: 'destage_mode{job="destage",instance="stale",mode="standby"}', values: '0x20' }
      - { series: 'destage_replicas_owned{job="other",instance="left"}', values: '0x20' }
      - { series: 'destage_dirty_bytes{instance="rows"}', values: '50x20' }
      - { series: 'destage_limited_bytes{instance="rows"}', values: '80x20' }
      - { series: 'destage_dirty_bytes_max{instance="rows"}', values: '100x20' }
      - { series: 'destage_journal_sync_seconds_bucket{instance="slow",le="0.1"}', values: '0x20' }
      - { series: 'destage_journal_sync_seconds_bucket{instance="slow",le="1"}', values: '0+30x20' }
      - { series: 'destage_journal_sync_seconds_bucket{instance="slow",le="+Inf"}', values: '0+30x20' }
    promql_expr_test:
      - expr: count by (alertname, instance, job) (ALERTS{alertstate="firing"})
        eval_time: 10m
        exp_samples:
          - { labels: '{alertname="DestageNotReady",instance="stale",job="destage"}', value: 1 }
          - { labels: '{alertname="DestageNoOwner",job="other"}', value: 1 }
          - { labels: '{alertname="DestageBacklogNearLimit",instance="rows"}', value: 1 }
          - { labels: '{alertname="DestageSlowSyncs",instance="slow"}', value: 1 }
"#;

#[test]
fn alerts_come_of_servers_that_fail_and_of_no_others() {
    if !has("promtool") {
        return;
    }
    let scratch = Scratch::new();
    let rules = std::fs::read_to_string(examples().join("alerts.yml")).expect("the file is there");
    std::fs::write(scratch.join("alerts.yml"), rules).expect("the folder is writable");
    std::fs::write(scratch.join("tests.yml"), TESTS).expect("the folder is writable");
    output(Command::new("promtool").args(["test", "rules"]).arg(scratch.join("tests.yml")));
}

/// Prometheus reads a page of metrics.
#[track_caller]
fn is_read(page: &str) {
    let mut promtool = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("promtool starts");
    promtool.stdin.take().expect("piped").write_all(page.as_bytes()).expect("it reads");
    let done = promtool.wait_with_output().expect("it ends");
    // 3 is for names that are not to its taste.
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(matches!(done.status.code(), Some(0 | 3)), "{said}");
}
