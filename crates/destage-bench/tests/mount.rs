//! Every case of `destage-bench mount` on a tiny scale: that it runs, and measures something on every side.

mod report;

use std::ffi::OsString;

use destage_testkit::needs;

const CASES: [&str; 8] =
    ["varmail", "fileserver", "createfiles", "metadata", "fsync", "sqlite", "build", "zipf"];
const FILEBENCH: [&str; 3] = ["filebench-varmail", "filebench-fileserver", "filebench-createfiles"];

fn run(cases: &[&str], sides: usize, more: &[(&str, OsString)]) {
    let mut bench = report::bench();
    bench.args(["mount", "--quick", "--seconds", "0.2", "--files", "32", "--zipf", "2"]);
    bench.args(["--cases", &cases.join(",")]);
    bench.env_remove("DESTAGE_CEPH").env_remove("DESTAGE_TEST_FILEBENCH");
    bench.args(more.iter().flat_map(|(flag, value)| [OsString::from(flag), value.clone()]));
    let report = report::of(&mut bench);
    let tables = report["tables"].as_array().expect("a list");
    assert_eq!(tables.len(), cases.len(), "{report:#}");
    for table in tables {
        let rows = table["rows"].as_array().expect("a list");
        assert_eq!(rows.len(), sides, "{table:#}");
        for row in rows {
            let rate = row[1].as_str().map(|cell| cell.replace(',', ""));
            let rate: Option<f64> = rate.and_then(|cell| cell.parse().ok());
            assert!(rate.is_some_and(|rate| rate > 0.0), "{row}");
        }
    }
}

#[test]
#[ignore = "takes a built destage, root and a CephFS: cargo xtask test --only bench"]
fn every_case_measures_something_on_every_side() {
    let Some(scripts) = needs::ceph("DESTAGE_TEST_CEPHFS_SCRIPTS") else { return };
    run(&CASES, 5, &[("--ceph", scripts.into())]);
}

#[test]
#[ignore = "takes a built destage, root and filebench: cargo xtask test --only bench"]
fn filebench_measures_something_on_a_local_folder() {
    let Some(suite) = needs::suite("DESTAGE_TEST_FILEBENCH", "filebench") else { return };
    run(&FILEBENCH, 2, &[("--filebench", suite.into())]);
}
