//! TPC-C at a small scale: the standard's consistency conditions hold after a drain and after kills.

use destage_testkit::needs::skip;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

fn run(arguments: &[&str]) -> String {
    let folder = tempfile::tempdir().expect("a temporary folder");
    // The server's user must be able to enter it.
    let open = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(folder.path(), open).expect("its mode can be changed");
    let mut command = Command::new(env!("CARGO_BIN_EXE_destage-bench"));
    command.args(["tpcc", "--quick", "--items", "100", "--customers", "20", "--warehouses", "2"]);
    command.args(["--seconds", "0.5", "--dir"]).arg(folder.path()).args(arguments);
    let output = command.output().expect("the program starts");
    let (out, err) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{out}\n{err}");
    out.into_owned()
}

#[test]
fn consistency_conditions_hold_before_sqlite() {
    let report = run(&["--sqlite"]);
    assert!(report.contains("0 were missing") && report.contains("New-Order"), "{report}");
}

#[test]
fn consistency_conditions_hold_before_postgresql() {
    let is_there =
        std::fs::read_dir("/usr/lib/postgresql").is_ok_and(|mut found| found.next().is_some());
    if !is_there {
        return skip("PostgreSQL below /usr/lib/postgresql");
    }
    let report = run(&[]);
    for part in ["0 were missing", "the origin directly", "the origin 1 ms away each way"] {
        assert!(report.contains(part), "{report}");
    }
}
