//! YCSB and BG on a small scale: they run, on every side, and find at the origin what was acknowledged.

mod report;

/// The report of a run.
fn run(arguments: &[&str]) -> serde_json::Value {
    report::of(report::bench().args(arguments).arg("--quick"))
}

/// The rows of the table of this title.
fn rows<'r>(report: &'r serde_json::Value, title: &str) -> &'r Vec<serde_json::Value> {
    let tables = report["tables"].as_array().into_iter().flatten();
    let found = tables.into_iter().find(|table| table["title"].as_str() == Some(title));
    let rows = found.and_then(|table| table["rows"].as_array());
    rows.unwrap_or_else(|| panic!("no table {title} in {report:#}"))
}

#[test]
#[ignore = "takes a built destage, redis-server and PostgreSQL: cargo xtask test --only bench"]
fn every_side_of_ycsb_leaves_at_postgresql_what_it_acknowledged() {
    let report = run(&["ycsb", "--clients", "4", "--records", "3000"]);
    let near = rows(&report, "YCSB: actions per second");
    let names: Vec<_> = near.iter().map(|row| row[0].as_str().unwrap_or_default()).collect();
    assert_eq!(names, ["load", "A", "A", "B", "B", "C", "C", "S", "S"]);
    let cells = near.iter().flat_map(|row| row.as_array().into_iter().flatten());
    assert!(
        cells.clone().count() == names.len() * 9 && cells.clone().all(|cell| cell != "-"),
        "{near:#?}"
    );
    let far = rows(&report, "YCSB: actions per second, the origin 1 ms away each way");
    assert_eq!(far.len(), 3);
    // One round trip per action, whatever the side.
    let times = rows(&report, "YCSB: mean response times, ms");
    let update = times.iter().find(|row| row[0] == "Update").expect("a row");
    for side in 1..=6 {
        assert!(update[side].as_str().is_some_and(|cell| cell.ends_with("(1)")), "{update}");
    }
}

#[test]
#[ignore = "takes a built destage, redis-server and PostgreSQL: cargo xtask test --only bench"]
fn every_side_of_ycsb_is_reached_through_unix_sockets_too() {
    let words = ["--unix", "--clients", "4", "--workloads", "A", "--keys", "uniform"];
    let report = run(&[&["ycsb", "--records", "3000"], &words[..]].concat());
    let said = report["settings"].to_string();
    assert!(said.contains("unix sockets"), "{said}");
    for (title, sides) in [("", 6), (", the origin 1 ms away each way", 5)] {
        let all = rows(&report, &format!("YCSB: actions per second{title}"));
        let cells: Vec<_> =
            all.iter().flat_map(|row| row.as_array().into_iter().flatten()).collect();
        assert!(cells.len() == 3 + sides && cells.iter().all(|cell| *cell != "-"), "{all:#?}");
    }
}

#[test]
#[ignore = "takes a built destage and PostgreSQL: cargo xtask test --only bench"]
fn friendships_survive_every_policy_and_a_kill() {
    let report = run(&["bg"]);
    assert_eq!(rows(&report, "BG: SoAR, actions per second").len(), 6);
    assert_eq!(rows(&report, "BG: mean response times, ms").len(), 14);
}

#[test]
#[ignore = "takes a built destage, redis-server and PostgreSQL: cargo xtask test --only bench"]
fn copies_on_other_servers_and_take_overs_are_measured() {
    let report = run(&["replicas"]);
    let nine = rows(&report, "Replicas: YCSB by number of copies (Figure 9), actions per second");
    let names: Vec<_> = nine.iter().map(|row| row[0].as_str().unwrap_or_default()).collect();
    assert_eq!(names, ["A", "B", "S"]);
    for row in nine {
        assert!((1..=5).all(|column| row[column] != "-"), "{row}");
    }
    // A batch is one round trip to each server; one that lags is sent several at once.
    let trips = rows(&report, "Replicas: round trips for each acknowledged batch");
    assert_eq!(trips.len(), 3);
    for row in trips {
        let calls: f64 = row[1].as_str().and_then(|text| text.parse().ok()).expect("a number");
        assert!((0.1..1.1).contains(&calls), "{row}");
    }
    let taken = rows(&report, "Replicas: from kill -9 to the first acknowledged write, seconds");
    assert_eq!(taken.len(), 2, "{taken:#?}");
    assert_eq!(report["figures"].as_array().map(Vec::len), Some(6), "{report:#}");
}

#[test]
#[ignore = "takes a built destage, PostgreSQL, Java and the libraries: cargo xtask test --only bench"]
fn write_behind_maps_are_measured_and_their_losses_are_seen() {
    let parts = ["--only", "rates", "--only", "losses"];
    let report = run(&[&["peers", "--peers", "hazelcast"], &parts[..]].concat());
    let number = |cell: &serde_json::Value| -> f64 {
        let text = cell.as_str().map(|text| text.replace(',', ""));
        text.and_then(|text| text.parse().ok()).unwrap_or_else(|| panic!("no number: {cell}"))
    };
    for mix in ["YCSB A", "updates only"] {
        let sides = rows(&report, &format!("Peers: {mix}"));
        let names: Vec<_> = sides.iter().map(|row| row[0].as_str().unwrap_or_default()).collect();
        assert_eq!(names, ["Destage, d = 1s", "Destage, d = 0", "Hazelcast, embedded"]);
        for side in sides {
            assert!(number(&side[1]) > 100.0, "{side}");
            assert_eq!((number(&side[4]), number(&side[5])), (0.0, 0.0), "{side}");
        }
    }
    let losses = rows(&report, "Peers: what the database lacks of what was acknowledged");
    let lost = |who: &str| {
        let row = losses.iter().find(|row| row[1] == who).unwrap_or_else(|| panic!("no {who}"));
        assert!(number(&row[2]) > 500.0, "too few writes: {row}");
        number(&row[4])
    };
    // The control: a buffer in the memory of a process that is killed is lost, and the count sees it.
    assert!(lost("Hazelcast") > 100.0, "{losses:#?}");
    assert_eq!(lost("Destage, d = 0"), 0.0, "{losses:#?}");
}
