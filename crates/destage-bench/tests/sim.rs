//! The comparison of simulators on a tiny scale: that it runs, and measures something. Without another simulator it says so.

use std::ffi::OsString;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

/// `destage` as the tests are told, or where cargo builds it.
fn destage() -> OsString {
    let built = || Path::new(env!("CARGO_BIN_EXE_destage-bench")).with_file_name("destage").into();
    std::env::var_os("DESTAGE_BIN").unwrap_or_else(built)
}

/// Runs it; whether it succeeded, and its report.
fn run(folder: &Path, cachesim: Option<&Path>) -> (bool, Value) {
    let json = folder.join("report.json");
    let mut bench = Command::new(env!("CARGO_BIN_EXE_destage-bench"));
    bench.args(["sim", "--quick", "--json"]).arg(&json).arg("--dir").arg(folder);
    bench.arg("--destage-bin").arg(destage()).env_remove("DESTAGE_TEST_CACHESIM");
    if let Some(program) = cachesim {
        bench.arg("--cachesim").arg(program);
    }
    let output = bench.output().expect("it starts");
    let text = std::fs::read_to_string(&json);
    let text = text.unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&output.stderr)));
    (output.status.success(), serde_json::from_str(&text).expect("JSON"))
}

#[test]
#[ignore = "takes a built destage: cargo xtask test --only bench"]
fn destage_is_measured_alone_where_there_is_no_other() {
    let folder = tempfile::tempdir().expect("a folder");
    let (succeeded, report) = run(folder.path(), None);
    assert!(succeeded, "{report:#}");
    let said = report["settings"].to_string();
    assert!(said.contains("Destage is measured alone"), "{said}");
    let rows = report["tables"][0]["rows"].as_array().expect("a list");
    assert_eq!(rows.len(), 5, "{report:#}");
    for row in rows {
        let rate: Option<f64> = row[1].as_str().and_then(|cell| cell.parse().ok());
        assert!(rate.is_some_and(|rate| rate > 0.0), "{row}");
        assert_eq!((&row[2], &row[3]), (&Value::from("-"), &Value::from("-")), "{row}");
    }
}

#[test]
#[ignore = "takes a built destage: cargo xtask test --only bench"]
fn a_simulator_that_counts_otherwise_is_no_comparison() {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = tempfile::tempdir().expect("a folder");
    let other = folder.path().join("other");
    std::fs::write(&other, "#!/bin/sh\necho ', 9 req, miss ratio 0.0123, throughput 1 MQPS'\n")
        .expect("a script");
    let mode = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(&other, mode).expect("it is a program");
    let (succeeded, report) = run(folder.path(), Some(&other));
    let failures = report["failures"].as_array().expect("a list");
    // lru, sieve, and the end of the curve; the others' rules leave something open.
    assert!(!succeeded && failures.len() == 3, "{report:#}");
}
