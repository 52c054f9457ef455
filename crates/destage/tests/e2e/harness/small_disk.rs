//! A disk so small that a test can fill it.

use super::{Scratch, output, skip};
use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Bytes written at a time until the disk is full, and the grain of what may be left.
const BLOCK: usize = 4096;

/// A file system of its own in memory; unmounted when dropped.
pub(crate) struct SmallDisk {
    folder: PathBuf,
}

impl SmallDisk {
    /// With room for `mib`; `None` (after saying so) where this may not mount one.
    pub(crate) fn new(scratch: &Scratch, mib: u32) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            skip("root, to mount a small disk");
            return None;
        }
        let folder = scratch.join("small");
        fs::create_dir(&folder).expect("a folder can be made");
        let options = format!("size={mib}m");
        output(Command::new("mount").args(["-t", "tmpfs", "-o", &options, "small"]).arg(&folder));
        Some(Self { folder })
    }

    /// The path of something on it.
    pub(crate) fn join(&self, name: impl AsRef<Path>) -> PathBuf {
        self.folder.join(name)
    }

    /// Takes all the space that is left.
    pub(crate) fn fill(&self) {
        let mut file = File::options().create(true).append(true).open(self.other());
        let file = file.as_mut().expect("a file can be made");
        let full = loop {
            if let Err(error) = file.write_all(&[1; BLOCK]) {
                break error;
            }
        };
        assert_eq!(full.kind(), ErrorKind::StorageFull, "{full}");
    }

    /// Gives it back.
    pub(crate) fn free(&self) {
        fs::remove_file(self.other()).expect("the file goes");
    }

    fn other(&self) -> PathBuf {
        self.join("others")
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // A server that the test ends later may still have files open.
        let done = Command::new("umount").arg("--lazy").arg(&self.folder).status();
        if !done.as_ref().is_ok_and(std::process::ExitStatus::success) {
            eprintln!("{} stays mounted: {done:?}", self.folder.display());
        }
    }
}
