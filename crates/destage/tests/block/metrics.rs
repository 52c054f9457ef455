//! What a volume tells of itself: the policy as it was given, measured latencies, and every metric that the manual names.

use crate::harness::{PATIENCE, Scratch, eventually};
use crate::history::stamped;
use crate::server::{Launch, Server, connect, image};
use std::collections::BTreeMap;

const MIB: u64 = 1 << 20;
const SYNCS: u64 = 97;

/// A page of metrics: the values of each family.
struct Page(BTreeMap<String, Vec<(String, f64)>>);

impl Page {
    fn of(server: &Server) -> Self {
        let answer = ureq::get(format!("http://{}/metrics", server.admin)).call();
        let text = answer.expect("an answer").into_body().read_to_string().expect("text");
        let mut page = BTreeMap::<String, Vec<(String, f64)>>::new();
        for line in text.lines().filter(|line| !line.starts_with('#') && !line.is_empty()) {
            let (series, value) = line.rsplit_once(' ').expect("a series and its value");
            let (name, labels) = series.split_once('{').unwrap_or((series, ""));
            let value = value.parse().expect("a number");
            page.entry(name.into()).or_default().push((labels.into(), value));
        }
        Self(page)
    }

    /// The sum of the series that have all of these labels.
    fn value(&self, name: &str, labels: &[&str]) -> f64 {
        let series = self.0.get(name).unwrap_or_else(|| panic!("no {name}"));
        let meant = |found: &&(String, f64)| labels.iter().all(|label| found.0.contains(label));
        let values: Vec<f64> = series.iter().filter(meant).map(|&(_, value)| value).collect();
        assert!(!values.is_empty(), "no {name} with {labels:?}: {series:?}");
        values.iter().sum()
    }
}

fn launch(scratch: &Scratch) -> Launch {
    let image = image(scratch, 8 * MIB);
    Launch::before(scratch, &image.display().to_string()).with(&["--linger", "0"])
}

/// Some of everything that a client may ask.
fn work(server: &Server) {
    let client = server.client();
    for number in 0..SYNCS {
        client.write(number % 8 * 4_096, &stamped(number), false).expect("a write");
        client.flush().expect("a flush");
    }
    client.trim(MIB, 8_192, false).expect("a trim");
    client.zero(2 * MIB, 16_384, false, false).expect("zeros");
    let mut read = vec![0; 4_096];
    client.read(0, &mut read).expect("a hit");
    client.read(4 * MIB, &mut read).expect("a miss");
    client.read(4 * MIB, &mut read).expect("a hit");
    server.ask(&["checkpoint", "--wait"]);
}

/// The rows of the manual's table of alerts, and the names of what is worth a graph.
fn documented() -> (Vec<(String, String)>, Vec<String>) {
    let page = format!("{}/../../docs/WATCHING.md", env!("CARGO_MANIFEST_DIR"));
    let page = std::fs::read_to_string(page).expect("the manual is there");
    let section = page.split("## Metrics and alerts").nth(1).expect("the heading is there");
    let section = section.split("\n## ").next().expect("it has an end");
    let rows = section.lines().filter_map(|line| {
        let (when, means) = line.strip_prefix("| `")?.split_once("` ")?;
        let means = means.split_once('|')?.1;
        Some((when.to_owned(), means.trim().to_owned()))
    });
    let graphs = section.split("Also worth a graph:").nth(1).expect("the list is there");
    let graphs = graphs.split(". ").next().expect("it has an end");
    let graphs = graphs.split('`').skip(1).step_by(2).map(str::to_owned);
    (rows.collect(), graphs.collect())
}

/// The metrics in an alert's condition, with the labels that it asks for.
fn selectors(condition: &str) -> Vec<(String, Vec<String>)> {
    let starts = condition.match_indices("destage_").map(|(at, _)| &condition[at..]);
    starts
        .map(|rest| {
            let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
            let (name, rest) = rest.split_at(end);
            let labels = rest.strip_prefix('{').and_then(|rest| rest.split('}').next());
            let labels = labels.map(|labels| labels.split(',').map(str::to_owned).collect());
            (name.to_owned(), labels.unwrap_or_default())
        })
        .collect()
}

#[test]
fn every_metric_and_alert_of_the_manual_is_exported_and_syncs_are_measured() {
    let scratch = Scratch::new();
    let server = launch(&scratch).with(&["--policy", "journaled", "-d", "flush"]).start();
    work(&server);
    let page = Page::of(&server);
    let (alerts, graphs) = documented();
    assert!(alerts.len() > 14 && graphs.len() > 7, "{alerts:?} {graphs:?}");
    for (condition, means) in &alerts {
        for (name, labels) in selectors(condition) {
            if means.starts_with("`serve`") {
                assert!(!page.0.contains_key(&name), "{name} is none of ours");
            } else {
                let labels: Vec<&str> = labels.iter().map(String::as_str).collect();
                page.value(&name, &labels);
            }
        }
    }
    for name in &graphs {
        assert!(page.value(name, &[]) > 0.0, "{name}");
    }
    for name in [
        "destage_bound_staleness_seconds",
        "destage_dirty_bytes_max",
        "destage_journal_bytes_max",
        "destage_volume_log_bytes_max",
        "destage_ready",
        "destage_batch_groups_mean",
    ] {
        assert!(page.value(name, &[]) > 0.0, "{name}");
    }
    // An alert on what is always 0 never fires.
    assert!(page.value("destage_journal_fsync_seconds", &["quantile=\"0.99\""]) > 0.0);
    assert!(page.value("destage_journal_fsync_count", &[]) >= SYNCS as f64);
    assert!(page.value("destage_commit_latency_count", &[]) >= SYNCS as f64);
    assert!(page.value("destage_destage_latency_count", &[]) > 0.0);
    for family in ["destage_derived", "destage_invalidation", "destage_domain", "destage_rejected"]
    {
        let foreign: Vec<_> = page.0.keys().filter(|name| name.starts_with(family)).collect();
        assert!(foreign.is_empty(), "{foreign:?}");
    }
}

#[test]
fn requests_are_counted_by_kind_with_their_bytes_and_latencies() {
    let scratch = Scratch::new();
    let server = launch(&scratch).start();
    work(&server);
    let page = Page::of(&server);
    for (kind, requests, bytes) in [
        ("read", 3, 3 * 4_096),
        ("write", SYNCS, SYNCS * 4_096),
        ("flush", SYNCS, 0),
        ("trim", 1, 8_192),
        ("zero", 1, 16_384),
    ] {
        let kind = format!("kind=\"{kind}\"");
        let value = |name: &str| page.value(&format!("destage_volume_request{name}"), &[&kind]);
        assert_eq!(
            (value("s_total"), value("_bytes_total")),
            (requests as f64, bytes as f64),
            "{kind}"
        );
        assert!(
            page.value("destage_volume_request_latency_seconds", &[&kind, "quantile=\"1\""]) > 0.0
        );
        assert_eq!(value("_errors_total"), 0.0, "{kind}");
    }
    assert!(page.value("destage_volume_hit_blocks_total", &[]) >= 1.0);
    assert!(page.value("destage_volume_miss_blocks_total", &[]) >= 1.0);
}

#[test]
fn the_policy_is_told_as_it_was_given() {
    let scratch = Scratch::new();
    let server = launch(&scratch).with(&["--policy", "journaled", "-d", "flush"]).start();
    let status = server.status();
    assert_eq!(
        (&status["policy"]["name"], &status["policy"]["commit"]),
        (&"journaled".into(), &"flush".into())
    );
    assert_eq!(status["volumes"][0]["commit"], "flush");
    assert!(
        status.get("derived").is_none() && status["destage"].get("parked_groups").is_none(),
        "{status}"
    );
    let text = server.ask(&["status"]);
    let line = |label: &str| {
        let found = text.lines().find(|line| line.trim_start().starts_with(label));
        found.unwrap_or_else(|| panic!("no {label} in {text}")).to_owned()
    };
    assert!(line("policy").contains("journaled,"), "{text}");
    assert!(line("lost if host crashes").ends_with("bound d = flush"), "{text}");
    assert!(!text.contains("parked") && !text.contains("what is rejected"), "{text}");
    let shown = |page: &Page, labels: &[&str]| page.value("destage_policy_info", labels);
    assert_eq!(shown(&Page::of(&server), &["policy=\"journaled\"", "commit=\"flush\""]), 1.0);
    server.ask(&["policy", "ordered", "commit=100ms"]);
    assert_eq!(server.status()["policy"]["commit"], "100ms");
    let page = Page::of(&server);
    assert_eq!(shown(&page, &["policy=\"ordered\"", "commit=\"100ms\""]), 1.0);
    assert_eq!(shown(&page, &[]), 1.0, "the policy before is not told any more");
    // However much smaller D becomes: what is committed without a flush is so within a part of D.
    server.ask(&["policy", "commit=flush", "staleness=1h"]);
    for staleness in ["1s", "10m"] {
        server.ask(&["policy", &format!("staleness={staleness}")]);
        assert_eq!(server.status()["policy"]["commit"], "flush");
    }
}

#[test]
fn a_server_is_not_ready_while_one_of_its_volumes_acknowledges_no_write() {
    let scratch = Scratch::new();
    let other = image(&scratch.folder("other"), MIB);
    let file = scratch.join("destage.toml");
    let section = format!(
        "[volume.other]\norigin = '{}'\ncache = '{}'\ncache-size = '64M'\nstaleness = '1s'\n",
        other.display(),
        scratch.join("other.cache").display()
    );
    std::fs::write(&file, section).expect("a settings file");
    let config = file.display().to_string();
    let server = launch(&scratch).with(&["-D", "1h", "--config", &config]).start();
    server.ask(&["pause"]);
    let ready = || server.try_ask(&["status", "--ready"]).status.code();
    // The one that is further behind is far from its bound.
    server.client().write(0, &stamped(1), true).expect("a write");
    assert_eq!(ready(), Some(0));
    let client = connect(&server.uri.replace(":///?", ":///other?"));
    client.write(0, &stamped(2), true).expect("a write");
    eventually("the other one reaches its bound", PATIENCE, || {
        server.status()["volumes"][1]["mode"] == "staleness-exceeded"
    });
    let status = server.status();
    assert_eq!(
        (&status["mode"], &status["volumes"][0]["mode"]),
        (&"staleness-exceeded".into(), &"normal".into())
    );
    assert_eq!(ready(), Some(20));
    let page = Page::of(&server);
    assert_eq!(page.value("destage_ready", &[]), 0.0);
    assert_eq!(page.value("destage_mode", &["mode=\"staleness-exceeded\""]), 1.0);
    server.ask(&["resume"]);
    server.ask(&["drain"]);
    assert_eq!(ready(), Some(0));
}

#[test]
fn limits_follow_the_log_that_the_cache_has() {
    let scratch = Scratch::new();
    let launch = launch(&scratch);
    let limits = |server: &Server| {
        let status = server.status();
        let limit = |name: &str| status["policy"][name].as_u64().expect("a number");
        let log = status["volumes"][0]["log_bytes_max"].as_u64().expect("a number");
        (limit("journal_bytes_max"), limit("dirty_bytes_max"), log)
    };
    let server = launch.clone().with(&["--cache-size", "256M"]).start();
    let (journal, dirty, log) = limits(&server);
    assert_eq!((journal, dirty), (log / 2, log / 4));
    assert_eq!(server.stop(), 0);
    // Without the flags a new cache would be another one.
    let server = launch.with(&["--cache-size", "64M"]).start();
    assert_eq!(limits(&server), (journal, dirty, log));
    assert_eq!(server.stop(), 0);
}
