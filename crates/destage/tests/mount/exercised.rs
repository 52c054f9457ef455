//! Files under random operations by the programs of others: fsx on one file, fsstress on a tree.

use crate::harness::{Scratch, output, seconds};
use crate::mounted::{Launch, Mounted, Unmounting};
use crate::origin::{Kind, Origin};
use destage_testkit::needs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

/// Operations of fsx for each seed, in ordinary runs and in long ones.
const OPERATIONS: u32 = 4_000;
const OPERATIONS_LONG: u32 = 100_000;
/// With stores into mapped memory and reads of it, and without.
const MAPPED: &[&str] = &[];
const UNMAPPED: &[&str] = &["-W", "-R"];

/// A program among those that come with xfstests.
fn program(name: &str) -> Option<PathBuf> {
    Some(needs::suite("DESTAGE_TEST_XFSTESTS", "xfstests")?.join("ltp").join(name))
}

/// A folder of an origin, mounted.
struct Setup {
    origin: Origin,
    launch: Launch,
    mounted: Mounted,
    _unmounting: Unmounting,
    scratch: Scratch,
}

impl Setup {
    fn new(kind: Kind) -> Option<Self> {
        let scratch = Scratch::for_at_most(seconds(1_800));
        let origin = Origin::new(kind, &scratch)?;
        let launch = Launch::before(&scratch, &origin);
        let mounted = launch.start();
        let _unmounting = Unmounting(mounted.folder().to_owned());
        Some(Self { origin, launch, mounted, _unmounting, scratch })
    }
}

/// Compares each read with what it wrote before; fails at the first difference. What it leaves is at the origin in the end.
fn fsx(kind: Kind, seeds: std::ops::Range<u32>, operations: u32, how: &[&str]) {
    let Some(fsx) = program("fsx") else { return };
    let Some(setup) = Setup::new(kind) else { return };
    for seed in seeds {
        let file = setup.mounted.folder().join(format!("fsx{seed}"));
        let mut command = Command::new("timeout");
        command.arg("900").arg(&fsx).args(["-q", "-l", "262144", "-N", &operations.to_string()]);
        command.args(["-S", &seed.to_string(), "-P"]).arg(setup.scratch.join("")).args(how);
        let said = output(command.arg(&file));
        assert!(said.contains("All") && said.contains("operations completed"), "{said}");
    }
    let digest = digest(setup.mounted.folder());
    setup.mounted.stop();
    assert_eq!(digest, self::digest(setup.origin.folder()), "through the mount and at the origin");
}

/// All that can be told of a tree: names, kinds, permissions, owners, numbers of names, links' targets, lengths and bytes.
fn digest(folder: &Path) -> String {
    let script = "find . -mindepth 1 -path ./.destage -prune -o \\( -type f -printf '%P %y %m %U %G %n %s\\n' -o \
                  -type d -printf '%P %y %m %U %G\\n' -o -printf '%P %y %m %U %G %n %l\\n' \\) | sort; \
                  find . -path ./.destage -prune -o -type f -print0 | sort -z | xargs -0 -r md5sum";
    output(Command::new("sh").args(["-e", "-c", script]).current_dir(folder))
}

fn fsstress(folder: &Path, seed: u32, operations: u32) -> Option<Command> {
    let mut command = Command::new("timeout");
    command.args(["--kill-after=5", "600"]).arg(program("fsstress")?).arg("-d").arg(folder);
    command.args(["-p", "4", "-s", &seed.to_string(), "-n", &operations.to_string(), "-w"]);
    command.stdin(Stdio::null());
    Some(command)
}

/// Works on a tree in four processes; then the origin holds what was seen through the mount.
fn stressed(kind: Kind, seed: u32, operations: u32) {
    let Some(setup) = Setup::new(kind) else { return };
    let tree = setup.mounted.folder().join("tree");
    let Some(mut command) = fsstress(&tree, seed, operations) else { return };
    output(&mut command);
    let through = digest(setup.mounted.folder());
    assert!(through.lines().count() > 100, "that is hardly anything:\n{through}");
    setup.mounted.stop();
    assert_same(&through, &digest(setup.origin.folder()), "through the mount and at the origin");
}

#[track_caller]
fn assert_same(left: &str, right: &str, what: &str) {
    let only = |of: &str, other: &str, mark| -> Vec<String> {
        let known: std::collections::HashSet<_> = other.lines().collect();
        of.lines()
            .filter(|line| !known.contains(line))
            .map(|line| format!("{mark} {line:.150}"))
            .collect()
    };
    let mut differences = only(left, right, '<');
    differences.extend(only(right, left, '>'));
    assert!(differences.is_empty(), "{what}:\n{}", differences.join("\n"));
}

/// Kills the daemon beneath it: what is there afterwards is there after a second kill, and at the origin in the end.
fn stressed_and_killed(kind: Kind, seed: u32) {
    let Some(setup) = Setup::new(kind) else { return };
    let tree = setup.mounted.folder().join("tree");
    let Some(mut command) = fsstress(&tree, seed, 100_000) else { return };
    let mut stress: Child = command.stderr(Stdio::null()).spawn().expect("timeout starts");
    thread::sleep(Duration::from_millis(u64::from(1_500 + seed * 300)));
    setup.mounted.kill();
    stress.wait().expect("it is our child");
    let mounted = setup.launch.start();
    let first = digest(mounted.folder());
    assert!(first.lines().count() > 50, "that is hardly anything:\n{first}");
    mounted.kill();
    let mounted = setup.launch.start();
    assert_same(&first, &digest(mounted.folder()), "after a second kill");
    mounted.stop();
    assert_same(&first, &digest(setup.origin.folder()), "through the mount and at the origin");
}

#[test]
fn fsx_finds_no_difference_in_front_of_a_local_folder() {
    fsx(Kind::Local, 1..3, OPERATIONS, MAPPED);
    fsx(Kind::Local, 3..5, OPERATIONS, UNMAPPED);
}

#[test]
fn fsx_finds_no_difference_in_front_of_ceph_fuse() {
    fsx(Kind::Ceph, 1..2, OPERATIONS, MAPPED);
    fsx(Kind::Ceph, 2..3, OPERATIONS, UNMAPPED);
}

#[test]
#[ignore = "takes minutes: `cargo xtask suites` runs it"]
fn long_fsx_finds_no_difference_in_front_of_a_local_folder() {
    fsx(Kind::Local, 10..14, OPERATIONS_LONG, MAPPED);
    fsx(Kind::Local, 14..18, OPERATIONS_LONG, UNMAPPED);
}

#[test]
#[ignore = "takes minutes: `cargo xtask suites` runs it"]
fn long_fsx_finds_no_difference_in_front_of_ceph_fuse() {
    fsx(Kind::Ceph, 10..12, OPERATIONS_LONG, MAPPED);
    fsx(Kind::Ceph, 12..14, OPERATIONS_LONG, UNMAPPED);
}

#[test]
fn what_fsstress_leaves_arrives_at_a_local_folder() {
    stressed(Kind::Local, 1, 300);
}

#[test]
fn what_fsstress_leaves_arrives_at_ceph_fuse() {
    stressed(Kind::Ceph, 2, 200);
}

#[test]
fn after_a_kill_under_fsstress_a_second_replay_changes_nothing_at_a_local_folder() {
    stressed_and_killed(Kind::Local, 3);
}

#[test]
fn after_a_kill_under_fsstress_a_second_replay_changes_nothing_at_ceph_fuse() {
    stressed_and_killed(Kind::Ceph, 4);
}

#[test]
#[ignore = "takes minutes: `cargo xtask suites` runs it"]
fn long_kills_under_fsstress_leave_one_state() {
    for seed in 5..15 {
        stressed_and_killed(Kind::Local, seed);
        stressed_and_killed(Kind::Ceph, seed);
    }
}
