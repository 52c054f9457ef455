//! What tests need from outside: programs, servers, files. One that lacks something is left out and says so by name, in a line
//! that `cargo xtask test` counts; where nothing may be missing, as in such a run, which sets `DESTAGE_TEST_REQUIRE`, it fails.

use std::io::Write;
use std::path::{Path, PathBuf};

/// What the line begins with that a test prints which is left out; then come its name, `needs`, and what it lacks.
pub const LEFT_OUT: &str = "left out: ";

/// Says that the present test, or a part of it, cannot run for want of `what`.
///
/// # Panics
/// Where nothing may be missing.
#[track_caller]
pub fn skip(what: &str) {
    lack(&format!("needs {what}; `cargo xtask test` provides it"));
}

/// Says that the present test, or a part of it, cannot run as the system refuses `what`, which nothing installs: a container's
/// filter, a setting of the kernel, or the file system of the temporary folder.
///
/// # Panics
/// Where nothing may be missing.
#[track_caller]
pub fn refused(what: &str) {
    lack(&format!("needs {what}, which the system refuses here"));
}

#[track_caller]
fn lack(message: &str) {
    assert!(std::env::var_os("DESTAGE_TEST_REQUIRE").is_none(), "{message}");
    say(message);
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
/// them is left out even where nothing else may be missing.
///
/// # Panics
/// If there is a folder and the file is not in it.
#[track_caller]
pub fn trace(name: &str) -> Option<PathBuf> {
    let Some(folder) = std::env::var_os("DESTAGE_TRACES") else {
        say(&format!("needs {name} in the folder that DESTAGE_TRACES names"));
        return None;
    };
    let path = Path::new(&folder).join(name);
    assert!(path.exists(), "{} is missing", path.display());
    Some(path)
}

/// A suite of others that `cargo xtask test` has built from the folder that `DESTAGE_SUITES` names; `variable` says where. The
/// suites are not part of the project: a test without them is left out even where nothing else may be missing.
pub fn suite(variable: &str, name: &str) -> Option<PathBuf> {
    outside(variable, name, "DESTAGE_SUITES").map(PathBuf::from)
}

/// What `cargo xtask test` has prepared by the scripts in the folder that `DESTAGE_CEPH` names; otherwise as [`suite`].
pub fn ceph(variable: &str) -> Option<String> {
    outside(variable, "a CephFS", "DESTAGE_CEPH")
}

/// Whether the kernel knows a file system, after its module was asked for. Nothing can be installed where it does not: a test
/// without it is left out even where nothing else may be missing.
///
/// # Panics
/// If the kernel does not tell which ones it knows.
#[must_use]
pub fn file_system(kind: &str) -> bool {
    let is_known = || {
        let known = std::fs::read_to_string("/proc/filesystems").expect("the kernel tells");
        known.lines().any(|line| line.split_whitespace().last() == Some(kind))
    };
    // Loads nothing where it is built in, and need not be there.
    let found = is_known()
        || (std::process::Command::new("modprobe").arg(kind).output().is_ok() && is_known());
    if !found {
        say(&format!("needs {kind} in the kernel"));
    }
    found
}

fn outside(variable: &str, what: &str, folder: &str) -> Option<String> {
    let value = std::env::var(variable).ok();
    if value.is_none() {
        say(&format!(
            "needs {what}, which `cargo xtask test` makes of what is in the folder that {folder} names"
        ));
    }
    value
}

/// Not by the macros: what a test prints by them is shown only if it fails.
fn say(message: &str) {
    let thread = std::thread::current();
    let line = format!("{LEFT_OUT}{} {message}\n", thread.name().unwrap_or("a test"));
    // Nobody reads the output any more: then nobody is deceived.
    let _ = std::io::stdout().write_all(line.as_bytes());
}
