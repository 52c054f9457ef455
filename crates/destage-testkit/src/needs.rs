//! What tests need from outside: programs, servers, files. One that lacks something says so by name; where nothing may be
//! missing, as in a run of `cargo xtask test`, which sets `DESTAGE_TEST_REQUIRE`, it fails.

use std::path::{Path, PathBuf};

/// Says that the present test cannot run for want of `what`.
///
/// # Panics
/// Where nothing may be missing.
#[track_caller]
pub fn skip(what: &str) {
    let message = format!("needs {what}; `cargo xtask test` provides it");
    assert!(std::env::var_os("DESTAGE_TEST_REQUIRE").is_none(), "{message}");
    let test = std::thread::current();
    eprintln!("skipped: {} {message}", test.name().unwrap_or("a test"));
}

/// Whether a program can be started; skips the test if not.
///
/// # Panics
/// As [`skip`] does.
#[track_caller]
pub fn has(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).any(|folder| folder.join(program).is_file());
    if !found {
        skip(program);
    }
    found
}

/// What `cargo xtask test` has prepared, named by an environment variable; skips the test if it has not.
///
/// # Panics
/// As [`skip`] does.
#[track_caller]
pub fn prepared(variable: &str) -> Option<String> {
    let value = std::env::var(variable).ok();
    if value.is_none() {
        skip(variable);
    }
    value
}

/// A file in the folder of real traces that `DESTAGE_TRACES` names. The traces are not part of the project: a test without
/// them says so, and `cargo xtask test` says at its start whether there are any.
///
/// # Panics
/// If there is a folder and the file is not in it.
#[track_caller]
pub fn trace(name: &str) -> Option<PathBuf> {
    let Some(folder) = std::env::var_os("DESTAGE_TRACES") else {
        let test = std::thread::current();
        let test = test.name().unwrap_or("a test");
        eprintln!("skipped: {test} needs {name} in the folder that DESTAGE_TRACES names");
        return None;
    };
    let path = Path::new(&folder).join(name);
    assert!(path.exists(), "{} is missing", path.display());
    Some(path)
}
