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
