//! Volumes as files, loop devices on them, and the file systems on those. Everything is taken apart with its test, also when
//! the server below it is dead.

use crate::harness::{PATIENCE, Scratch, eventually};
use crate::server::text;
use destage_testkit::needs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// What a program says that looks at a file on a mount whose server is dead.
const DEAD_MOUNT: &str = "check mount status";

/// Refuses to run a test where it cannot prove anything.
#[track_caller]
pub(crate) fn require_root() {
    let is_root = rustix::process::geteuid().is_root();
    let has_loops = Path::new("/dev/loop-control").exists();
    let has_fuse = Path::new("/dev/fuse").exists();
    assert!(
        is_root && has_loops && has_fuse,
        "this test mounts file systems: it needs root (is: {is_root}), /dev/loop-control (is there: {has_loops}) and \
         /dev/fuse (is there: {has_fuse})"
    );
}

/// Runs a program with a time limit; what it printed, or what went wrong.
pub(crate) fn run(program: &str, arguments: &[&str]) -> Result<String, String> {
    let output = Command::new("timeout")
        .args(["--signal=KILL", "120", program])
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("timeout: {error}"))?;
    let printed = format!("{}{}", text(&output.stdout), text(&output.stderr));
    if output.status.success() {
        Ok(printed)
    } else {
        Err(format!("{program} {arguments:?}: {}\n{printed}", output.status))
    }
}

/// Runs what looks at all loop devices of the machine, and at their files, again while it meets one whose file is on a mount that
/// another test has killed.
fn beside_others(run: impl Fn() -> Result<String, String>) -> Result<String, String> {
    let until = Instant::now() + PATIENCE;
    let mut result = run();
    while Instant::now() < until && result.as_ref().is_err_and(|why| why.contains(DEAD_MOUNT)) {
        thread::sleep(Duration::from_millis(100));
        result = run();
    }
    result
}

/// A path as an argument.
pub(crate) fn argument(path: &Path) -> &str {
    path.to_str().expect("the test's paths are UTF-8")
}

/// The folder in which a server's volumes are files.
pub(crate) struct Folder(PathBuf);

impl Folder {
    /// A folder in the test's own.
    pub(crate) fn new(scratch: &Scratch) -> Self {
        require_root();
        Self(scratch.join("volumes"))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// The flags that serve it.
    pub(crate) fn flags(&self) -> [&str; 2] {
        ["--fuse", argument(&self.0)]
    }

    /// The file of the volume without a name.
    pub(crate) fn file(&self) -> PathBuf {
        self.0.join("disk")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // Mostly it is not mounted any more.
        let _ = run("umount", &["--lazy", "--quiet", argument(&self.0)]);
    }
}

/// A loop device; detached when dropped.
pub(crate) struct Loop(PathBuf);

impl Loop {
    /// On this file, past the page cache, for a file system of that kind.
    #[track_caller]
    pub(crate) fn on(file: &Path, kind: Kind) -> Self {
        let sector = kind.sector_bytes().to_string();
        let arguments =
            ["--find", "--show", "--direct-io=on", "--sector-size", &sector, argument(file)];
        let mut attached = run("losetup", &arguments);
        // Others look for a free one at the same time.
        eventually("a loop device is free", PATIENCE, || {
            if attached.is_err() {
                attached = run("losetup", &arguments);
            }
            attached.is_ok()
        });
        Self(PathBuf::from(attached.expect("it was attached").trim()))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    fn is_attached(&self) -> bool {
        let name = self.0.file_name().expect("a device has a name");
        Path::new("/sys/block").join(name).join("loop/backing_file").exists()
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        if let Err(error) = run("losetup", &["--detach", argument(&self.0)]) {
            eprintln!("{error}");
        }
        // The device goes once the last who has it open lets go.
        let start = Instant::now();
        while self.is_attached() {
            if start.elapsed() > PATIENCE {
                eprintln!("{} stays attached", self.0.display());
                return;
            }
            thread::sleep(Duration::from_millis(5));
        }
    }
}

/// A mounted file system; unmounted when dropped.
pub(crate) struct Mounted(PathBuf);

impl Mounted {
    /// Mounts a device or an image.
    pub(crate) fn new(scratch: &Scratch, device: &Path, options: &str) -> Result<Self, String> {
        let folder = scratch.join("mounted");
        std::fs::create_dir_all(&folder).expect("a folder can be made");
        run("mount", &["-o", options, argument(device), argument(&folder)])?;
        Ok(Self(folder))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// Unmounts it, and says what went wrong.
    pub(crate) fn unmount(self) -> Result<(), String> {
        let folder = self.0.clone();
        std::mem::forget(self);
        unmount(&folder)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if let Err(error) = unmount(&self.0) {
            eprintln!("{error}");
        }
    }
}

/// Unmounts; lazily where that is all that is left to do.
fn unmount(folder: &Path) -> Result<(), String> {
    run("umount", &[argument(folder)])
        .or_else(|error| run("umount", &["--lazy", argument(folder)]).and(Err(error)))
        .map(|_| ())
}

/// A file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Ext4,
    Xfs,
    Btrfs,
}

impl Kind {
    /// Whether the kernel knows it; otherwise the test is left out.
    #[must_use]
    pub(crate) fn is_known(self) -> bool {
        needs::file_system(match self {
            Self::Ext4 => "ext4",
            Self::Xfs => "xfs",
            Self::Btrfs => "btrfs",
        })
    }

    /// Bytes of a small disk for it.
    pub(crate) fn disk_bytes(self) -> u64 {
        let mib = match self {
            Self::Ext4 => 64,
            Self::Xfs => 300,
            Self::Btrfs => 128,
        };
        mib << 20
    }

    /// Bytes of the sectors of a disk for it. XFS gets the ones that are shorter than a block of the cache, since its log uses
    /// them.
    fn sector_bytes(self) -> u32 {
        match self {
            Self::Xfs => 512,
            Self::Ext4 | Self::Btrfs => 4096,
        }
    }

    /// Makes one, on a device or in an image.
    #[track_caller]
    pub(crate) fn make(self, disk: &Path) {
        let disk = argument(disk);
        let make = || match self {
            Self::Ext4 => run("mkfs.ext4", &["-q", "-F", "-b", "4096", disk]),
            Self::Xfs => run("mkfs.xfs", &["-q", "-f", disk]),
            Self::Btrfs => run("mkfs.btrfs", &["-q", "-f", disk]),
        };
        beside_others(make).expect("the file system can be made");
    }

    /// Looks at one that is not mounted; changes nothing.
    pub(crate) fn check(self, disk: &Path) -> Result<(), String> {
        let disk = argument(disk);
        let check = || match self {
            Self::Ext4 => run("e2fsck", &["-fn", disk]),
            Self::Xfs => run("xfs_repair", &["-n", disk]),
            Self::Btrfs => run("btrfs", &["check", "--check-data-csum", disk]),
        };
        beside_others(check).map(|_| ())
    }
}
