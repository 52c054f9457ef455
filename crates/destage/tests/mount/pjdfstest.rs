//! pjdfstest, some 8,800 checks of what POSIX says of a file system, by a suite that others wrote.

use crate::baseline::Baseline;
use crate::harness::{Scratch, seconds};
use crate::mounted::{Launch, Unmounting};
use crate::origin::{Kind, Origin};
use crate::tap::{self, Reports};
use destage_testkit::needs;
use std::path::Path;

/// Runs all of it in a folder; `None` where the suite is missing.
fn run(folder: &Path) -> Option<Reports> {
    let suite = needs::suite("DESTAGE_TEST_PJDFSTEST", "pjdfstest")?;
    Some(tap::run(&tap::scripts(&suite.join("tests")), folder))
}

fn on_a_mount(kind: Kind) {
    let scratch = Scratch::for_at_most(seconds(900));
    let Some(origin) = Origin::new(kind, &scratch) else { return };
    let launch = Launch::before(&scratch, &origin);
    let mounted = launch.start();
    let _unmounting = Unmounting(mounted.folder().to_owned());
    let Some(reports) = run(mounted.folder()) else { return };
    let baseline = Baseline::pjdfstest(kind);
    let held = baseline.holds(reports.ran(), &reports.failed(), |one| reports.said(one));
    mounted.stop();
    held.unwrap_or_else(|what| panic!("{what}"));
}

fn on_the_origin(kind: Kind) {
    let scratch = Scratch::for_at_most(seconds(900));
    let Some(origin) = Origin::new(kind, &scratch) else { return };
    let Some(reports) = run(origin.folder()) else { return };
    let same = Baseline::pjdfstest(kind).is_exactly(reports.ran(), &reports.failed());
    same.unwrap_or_else(|what| panic!("{what}"));
}

#[test]
fn a_mount_in_front_of_a_local_folder_fails_nothing_that_the_folder_passes() {
    on_a_mount(Kind::Local);
}

#[test]
fn a_mount_in_front_of_ceph_fuse_fails_nothing_that_ceph_fuse_passes() {
    on_a_mount(Kind::Ceph);
}

#[test]
#[ignore = "takes two minutes and looks at the origin alone: `cargo xtask suites` runs it"]
fn a_local_folder_fails_what_its_baseline_says() {
    on_the_origin(Kind::Local);
}

#[test]
#[ignore = "takes two minutes and looks at the origin alone: `cargo xtask suites` runs it"]
fn ceph_fuse_fails_what_its_baseline_says() {
    on_the_origin(Kind::Ceph);
}
