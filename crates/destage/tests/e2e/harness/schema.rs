//! What `destage schema` says.

use super::Database;
use super::server::binary;
use std::path::Path;
use std::process::Command;

/// What it prints for an origin, with these further arguments.
///
/// # Panics
/// With what it says if it fails.
#[track_caller]
pub(crate) fn schema(database: &Database, more: &[&str]) -> String {
    let mut command = Command::new(binary());
    let output = command.args(["schema", "--origin", &database.url()]).args(more).output();
    let output = output.expect("the binary starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("it is text")
}

/// The same under these settings, which are written to that file.
#[track_caller]
pub(crate) fn schema_under(database: &Database, file: &Path, settings: &str) -> String {
    std::fs::write(file, settings).expect("the settings can be written");
    schema(database, &["--config", file.to_str().expect("the test's folder has a plain name")])
}
