//! Every load of `destage-bench loop` on a tiny scale: that it is recorded, advised on and measured again.

use std::ffi::OsString;
use std::path::Path;
use std::process::Command;

/// `destage` as the tests are told, or where cargo builds it.
fn destage() -> OsString {
    let built = || Path::new(env!("CARGO_BIN_EXE_destage-bench")).with_file_name("destage").into();
    std::env::var_os("DESTAGE_BIN").unwrap_or_else(built)
}

#[test]
#[ignore = "takes a built destage, PostgreSQL, root, FUSE and loop devices: cargo xtask test --only bench"]
fn every_load_goes_once_round() {
    let folder = tempfile::tempdir().expect("a folder");
    let json = folder.path().join("report.json");
    let mut bench = Command::new(env!("CARGO_BIN_EXE_destage-bench"));
    bench.args(["loop", "--quick", "--json"]).arg(&json).arg("--destage-bin").arg(destage());
    let output = bench.output().expect("it starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {said}", output.status);
    let text = std::fs::read_to_string(&json).expect("a report");
    let report: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let rows = |table: usize| -> Vec<Vec<String>> {
        serde_json::from_value(report["tables"][table]["rows"].clone()).expect("rows")
    };
    let (gains, predictions, settings) = (rows(0), rows(1), rows(2));
    for (at, load) in ["mail", "database", "rows"].into_iter().enumerate() {
        assert_eq!(gains[at][0], load);
        for (column, what) in [(1, "operations"), (2, "mean before"), (3, "mean after")] {
            let number: f64 = gains[at][column].parse().expect("a number");
            assert!(number > 0.0, "{load}, {what}: {report:#}");
        }
        let behind = predictions.iter().filter(|row| row[0] == load && row[1].contains("behind"));
        assert_eq!(behind.count(), 1, "{load}: {report:#}");
        assert!(settings[at][1].contains("--cache-size "), "{load}: {report:#}");
    }
}
