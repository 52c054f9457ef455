//! The known traps of a journal in front of a file system: a test for each, named after its number in the list of the design.
//! Those that several hosts meet are in `hosts.rs`, and beside what else is tested of them.

mod hosts;
mod names;
mod space;
mod times;
mod writes;

use crate::harness::{Scratch, has, output, seconds};
use crate::mounted::{Launch, Mounted, Unmounting};
use crate::origin::{Kind, Origin};
pub(crate) use space::Disk;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A mount whose origin lags a minute behind, unless it is told to drain.
pub(crate) struct Trap {
    pub(crate) launch: Launch,
    mounted: Option<Mounted>,
    _unmounting: Unmounting,
    pub(crate) origin: Origin,
    pub(crate) scratch: Scratch,
}

impl Trap {
    /// In front of a local folder.
    #[track_caller]
    pub(crate) fn new() -> Self {
        Self::with(&[])
    }

    /// With more arguments.
    #[track_caller]
    pub(crate) fn with(arguments: &[&str]) -> Self {
        let scratch = Scratch::for_at_most(seconds(480));
        let origin = Origin::new(Kind::Local, &scratch).expect("a folder is always there");
        Self::before(scratch, origin, arguments)
    }

    /// In front of a CephFS; `None` (after saying so) where there is none.
    #[track_caller]
    pub(crate) fn on_ceph() -> Option<Self> {
        let scratch = Scratch::for_at_most(seconds(480));
        let origin = Origin::new(Kind::Ceph, &scratch)?;
        Some(Self::before(scratch, origin, &[]))
    }

    #[track_caller]
    pub(crate) fn before(scratch: Scratch, origin: Origin, arguments: &[&str]) -> Self {
        let launch = Launch::before(&scratch, &origin).with(arguments);
        let mounted = launch.start();
        let _unmounting = Unmounting(mounted.folder().to_owned());
        Self { launch, mounted: Some(mounted), _unmounting, origin, scratch }
    }

    pub(crate) fn mounted(&self) -> &Mounted {
        self.mounted.as_ref().expect("it is mounted")
    }

    /// A name on the mount.
    pub(crate) fn join(&self, name: &str) -> PathBuf {
        self.mounted().folder().join(name)
    }

    /// A shell's commands in the mount's top; what they print.
    #[track_caller]
    pub(crate) fn sh(&self, script: &str) -> String {
        sh(self.mounted().folder(), script)
    }

    /// Kills the daemon and starts it again.
    #[track_caller]
    pub(crate) fn crash(&mut self) {
        self.mounted.take().expect("it is mounted").kill();
        self.mounted = Some(self.launch.start());
    }

    /// Ends it, which drains, and starts it again.
    #[track_caller]
    pub(crate) fn restart(&mut self) {
        self.mounted.take().expect("it is mounted").stop();
        self.mounted = Some(self.launch.start());
    }

    /// Ends it, which drains; then the commands' output in the origin's folder.
    #[track_caller]
    pub(crate) fn at_the_origin(mut self, script: &str) -> String {
        self.mounted.take().expect("it is mounted").stop();
        sh(self.origin.folder(), script)
    }
}

#[track_caller]
pub(crate) fn sh(folder: &Path, script: &str) -> String {
    let mut command = Command::new("timeout");
    command.args(["120", "sh", "-e", "-c", script]).current_dir(folder);
    output(&mut command)
}

/// Makes a file's bytes durable.
pub(crate) fn sync(path: &Path) {
    File::open(path).and_then(|file| file.sync_all()).expect("it is made durable");
}

pub(crate) fn inode(path: &Path) -> u64 {
    fs::metadata(path).expect("it is there").ino()
}

/// Whether Python is there, for calls that no other program makes.
pub(crate) fn has_python() -> bool {
    has("python3")
}

/// A folder is one mount's alone: a second one on the same journal, or in front of the same folder, would write by its own lights.
#[test]
fn trap_30_a_journal_and_a_folder_have_one_mount_each() {
    let trap = Trap::new();
    let elsewhere = trap.scratch.join("elsewhere");
    fs::create_dir(&elsewhere).expect("a folder can be made");
    let (code, said) = trap.launch.clone().on(elsewhere.clone()).refused();
    assert_ne!(code, 0, "the same journal: {said}");
    let other = trap.launch.clone().on(elsewhere).journaled_in(trap.scratch.join("other"));
    let (code, said) = other.refused();
    assert_ne!(code, 0, "the same folder: {said}");
    fs::write(trap.join("still"), "here").expect("the first one goes on");
    assert_eq!(trap.at_the_origin("cat still"), "here");
}

/// What the daemon itself writes must not come back to it.
#[test]
fn trap_27_a_journal_on_the_mount_or_in_the_origin_is_refused() {
    let scratch = Scratch::new();
    let origin = Origin::new(Kind::Local, &scratch).expect("a folder is always there");
    let launch = Launch::before(&scratch, &origin);
    for inside in [origin.folder().join("journal"), scratch.join("mnt/journal")] {
        let (code, said) = launch.clone().journaled_in(inside.clone()).refused();
        assert_ne!(code, 0, "{}: {said}", inside.display());
    }
}
