//! Runs of the benchmark, and what they report.

use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

/// The benchmark.
pub(crate) fn bench() -> Command {
    Command::new(env!("CARGO_BIN_EXE_destage-bench"))
}

/// `destage` as the tests are told, or where cargo builds it.
fn destage() -> OsString {
    let built = || Path::new(env!("CARGO_BIN_EXE_destage-bench")).with_file_name("destage").into();
    std::env::var_os("DESTAGE_BIN").unwrap_or_else(built)
}

/// What a run reports that has its data in a folder of its own. Nothing failed in it.
#[track_caller]
pub(crate) fn of(bench: &mut Command) -> serde_json::Value {
    let folder = tempfile::tempdir().expect("a folder");
    // The database's user must be able to enter it.
    let open = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(folder.path(), open).expect("its mode can be changed");
    let json = folder.path().join("report.json");
    bench.arg("--json").arg(&json).arg("--destage-bin").arg(destage());
    let output = bench.arg("--dir").arg(folder.path()).output().expect("it starts");
    let said = String::from_utf8_lossy(&output.stderr);
    // What could not be measured is part of the report.
    let report = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{bench:?}: {}: {said}\n{report}", output.status);
    let text = std::fs::read_to_string(&json).expect("a report");
    let report: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(report["failures"].as_array().map(Vec::len), Some(0), "{report:#}");
    report
}
