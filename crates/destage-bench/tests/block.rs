//! Every case of `destage-bench block` on a tiny scale: that it runs, and measures something.

mod report;

/// The cases, and what each is to fill: figures, tables or both.
const CASES: [(&str, &[&str]); 9] = [
    ("raw", &["io_uring", "qemu-nbd"]),
    ("synchronous", &["O_DSYNC"]),
    ("burst", &["Bursts"]),
    ("sustained", &["Sustained"]),
    ("policies", &["Figure 12: throughput", "Figure 12: against"]),
    ("cache-sizes", &["Figure 13: the file server", "Figure 13: against"]),
    ("journal-sizes", &["Figure 14: PostMark", "Figure 14: against"]),
    ("recovery", &["Starts"]),
    ("full", &["Starts"]),
];
/// Those that mount file systems.
const MOUNTING: [(&str, &[&str]); 2] = [
    ("files", &["mounted ext4"]),
    ("file-systems", &["Figure 15: PostMark", "Figure 15: against"]),
];
const TINY: [&str; 12] = [
    "block",
    "--quick",
    "--seconds",
    "0.1",
    "--region",
    "32M",
    "--burst",
    "16M",
    "--recovery-log",
    "64M",
    "--full-cache",
    "128M",
];

fn run(cases: &[(&str, &[&str])]) {
    let names: Vec<&str> = cases.iter().map(|(name, _)| *name).collect();
    let report = report::of(report::bench().args(TINY).args(["--cases", &names.join(",")]));
    let texts = |list: &str, name: &str| -> Vec<String> {
        let all = report[list].as_array().into_iter().flatten();
        all.filter_map(|it| it[name].as_str().map(str::to_owned)).collect()
    };
    let shown = [texts("figures", "group"), texts("tables", "title")].concat();
    for (case, parts) in cases {
        for part in *parts {
            assert!(shown.iter().any(|it| it.contains(part)), "{case}: no {part} in {shown:?}");
        }
    }
    let figures = report["figures"].as_array().into_iter().flatten();
    for run in figures.flat_map(|it| [&it["ours"], &it["theirs"]]).filter_map(|it| it.as_array()) {
        assert!(run.iter().all(|it| it["per_second"].as_f64().is_some_and(|rate| rate > 0.0)));
    }
    let tables = report["tables"].as_array().into_iter().flatten();
    tables.for_each(|it| assert_ne!(it["rows"].as_array().map(Vec::len), Some(0), "{it:#}"));
}

#[test]
#[ignore = "takes a built destage, fio and qemu-nbd: cargo xtask test --only bench"]
fn every_case_measures_something() {
    run(&CASES);
}

#[test]
#[ignore = "takes a built destage, root, FUSE and loop devices: cargo xtask test --only bench"]
fn every_case_with_a_file_system_measures_something() {
    run(&MOUNTING);
}
