//! Tests of xfstests: the list is frozen, and each of them passes on the origins themselves.

use crate::harness::server::binary;
use crate::harness::{Scratch, output, seconds};
use crate::origin::{Kind, Origin};
use destage_testkit::needs;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

const SHORT: &str = include_str!("baseline/xfstests-short.txt");
const LONG: &str = include_str!("baseline/xfstests-long.txt");

/// A name a line; `#` begins a remark.
fn list(text: &str) -> Vec<&str> {
    let lines = text.lines().map(str::trim);
    lines.filter(|line| !line.is_empty() && !line.starts_with('#')).collect()
}

/// What the tests call to mount: by its name for the type `fuse.destage`. It waits for a daemon that still drains.
fn helper(scratch: &Scratch) -> String {
    let (binary, journal) = (binary(), scratch.join("journal"));
    let (binary, journal, log) = (binary.display(), journal.display(), scratch.join("mount.log"));
    let log = log.display();
    format!(
        "#!/bin/sh\nfor _ in $(seq 100); do\n    : >{log}.new\n    \
         setsid {binary} mount \"$1\" \"$2\" --admin 127.0.0.1:0 --journal {journal} </dev/null >{log}.new 2>>{log} &\n    \
         while kill -0 $! 2>/dev/null; do\n        grep -q mounted= {log}.new && exit 0\n        sleep 0.05\n    done\n    \
         sleep 0.2\ndone\ntail -n 5 {log} >&2\nexit 32\n"
    )
}

/// Runs the tests of that list, each of which must run and pass.
fn passes(kind: Kind, tests: &[&str]) {
    let Some(suite) = needs::suite("DESTAGE_TEST_XFSTESTS", "xfstests") else { return };
    let scratch = Scratch::for_at_most(seconds(1_800));
    let Some(origin) = Origin::new(kind, &scratch) else { return };
    for folder in ["sbin", "mnt", "results"] {
        fs::create_dir(scratch.join(folder)).expect("a folder can be made");
    }
    let program = scratch.join("sbin/mount.fuse.destage");
    fs::write(&program, helper(&scratch)).expect("it is written");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("it is ours");
    let config = scratch.join("config");
    let settings = format!(
        "export FSTYP=fuse FUSE_SUBTYP=.destage TEST_DEV={} TEST_DIR={} RESULT_BASE={}\n",
        origin.folder().display(),
        scratch.join("mnt").display(),
        scratch.join("results").display(),
    );
    fs::write(&config, settings).expect("it is written");
    let said = check(&suite, &scratch, &config, tests);
    let passed = |test: &&&str| {
        let own = said.lines().find(|line| line.starts_with(&format!("{test} ")));
        own.is_some_and(|line| line.trim_end().ends_with('s') && !line.contains('['))
    };
    let failed: Vec<_> = tests.iter().filter(|test| !passed(test)).collect();
    let log = fs::read_to_string(scratch.join("mount.log")).unwrap_or_default();
    assert!(failed.is_empty() && !tests.is_empty(), "{failed:?} did not pass\n{said}\n{log}");
}

/// The suite's own program, in a list of mounts of its own, where the helper is among the system's programs.
fn check(suite: &Path, scratch: &Scratch, config: &Path, tests: &[&str]) -> String {
    let script = "mount -t overlay helper -o lowerdir=\"$1\":/usr/sbin /usr/sbin; shift; \
                  ./check \"$@\" 2>&1 || true; umount \"$TEST_DIR\" 2>/dev/null || true";
    let mut command = Command::new("timeout");
    command.args(["--kill-after=10", "1500", "unshare", "--mount", "--propagation", "private"]);
    command.args(["sh", "-e", "-c", script, "-"]).arg(scratch.join("sbin")).args(tests);
    command.env("HOST_OPTIONS", config).env("TEST_DIR", scratch.join("mnt"));
    output(command.current_dir(suite))
}

#[test]
fn a_short_list_passes_in_front_of_a_local_folder() {
    passes(Kind::Local, &list(SHORT));
}

#[test]
#[ignore = "takes minutes: `cargo xtask suites` runs it"]
fn a_short_list_passes_in_front_of_ceph_fuse() {
    passes(Kind::Ceph, &list(SHORT));
}

#[test]
#[ignore = "takes minutes: `cargo xtask suites` runs it"]
fn a_long_list_passes_in_front_of_a_local_folder() {
    passes(Kind::Local, &list(LONG));
}

#[test]
#[ignore = "takes minutes: `cargo xtask suites` runs it"]
fn a_long_list_passes_in_front_of_ceph_fuse() {
    passes(Kind::Ceph, &list(LONG));
}

#[test]
fn the_short_list_is_a_part_of_the_long_one() {
    let (short, long) = (list(SHORT), list(LONG));
    assert!(short.len() >= 15, "{short:?}");
    assert!(short.iter().all(|test| long.contains(test)));
}
