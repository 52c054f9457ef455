//! Growth on a tiny scale: each curve has its points, its exponents and its verdict.

use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

/// `destage` as the tests are told, or where cargo builds it.
fn destage() -> OsString {
    let built = || Path::new(env!("CARGO_BIN_EXE_destage-bench")).with_file_name("destage").into();
    std::env::var_os("DESTAGE_BIN").unwrap_or_else(built)
}

#[test]
#[ignore = "takes a built destage and PostgreSQL: cargo xtask test --only bench"]
fn each_curve_has_its_points_and_its_exponents() {
    let folder = tempfile::tempdir().expect("a folder");
    // The database's user must be able to enter it.
    let open = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(folder.path(), open).expect("its mode can be changed");
    let json = folder.path().join("report.json");
    let mut bench = Command::new(env!("CARGO_BIN_EXE_destage-bench"));
    bench.args(["growth", "--quick", "--json"]).arg(&json).arg("--dir").arg(folder.path());
    let output = bench.arg("--destage-bin").arg(destage()).output().expect("it starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {said}", output.status);
    let text = std::fs::read_to_string(&json).expect("a report");
    let report: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(report["failures"].as_array().map(Vec::len), Some(0), "{report:#}");
    let tables = report["tables"].as_array().expect("a list");
    // Sorted sets have two, in parts and as a whole.
    assert_eq!(tables.len(), 8, "{report:#}");
    for table in tables {
        let rows = table["rows"].as_array().expect("a list");
        let names: Vec<_> = rows.iter().map(|row| row[0].as_str().unwrap_or_default()).collect();
        let (sizes, verdict) = names.split_at(names.len() - 4);
        assert_eq!(verdict, ["exponent", "exponent, last decade", "bound", "within"], "{table:#}");
        assert!(sizes.len() >= 2, "{table:#}");
        // What was counted is not nothing.
        let values = rows[..sizes.len()].iter().filter_map(|row| row.as_array());
        let cells = values.flat_map(|row| row.iter().skip(1).filter_map(Value::as_str));
        let numbers = cells.map(|cell| cell.replace(',', "").parse::<f64>());
        assert!(
            numbers.clone().all(|number| number.is_ok_and(|number| number >= 0.0)),
            "{table:#}"
        );
        assert!(numbers.flatten().any(|number| number > 0.0), "{table:#}");
    }
}
