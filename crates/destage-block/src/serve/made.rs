//! Files that a start has made. They go with it if it comes to nothing, and nobody else's ever.

use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Removed when dropped, unless they are kept.
#[derive(Debug, Default)]
pub(super) struct Made(pub(super) Vec<MadeFile>);

/// One file: its name, and which file that stood for.
#[derive(Debug)]
pub(super) struct MadeFile {
    path: PathBuf,
    device: u64,
    inode: u64,
}

impl Made {
    /// Makes an empty file, for its owner only.
    ///
    /// # Errors
    /// As the system reports them; also where there is one by now.
    pub(super) fn create(&mut self, path: &Path) -> io::Result<()> {
        let mut options = File::options();
        let file = options.write(true).create_new(true).mode(0o600).open(path)?;
        self.add(path, &file.metadata()?);
        Ok(())
    }

    /// Of a file that was just made.
    pub(super) fn note(&mut self, path: &Path) {
        if let Ok(found) = path.symlink_metadata() {
            self.add(path, &found);
        }
    }

    fn add(&mut self, path: &Path, found: &Metadata) {
        let (device, inode) = (found.dev(), found.ino());
        self.0.push(MadeFile { path: path.to_owned(), device, inode });
    }

    /// Somebody else has it.
    pub(super) fn forget(&mut self, path: &Path) {
        self.0.retain(|made| made.path != path);
    }

    /// The start has succeeded.
    pub(super) fn keep(&mut self) {
        self.0.clear();
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        for made in &self.0 {
            let found = made.path.symlink_metadata();
            if found.is_ok_and(|found| (found.dev(), found.ino()) == (made.device, made.inode)) {
                // What cannot be removed is found empty, or as a cache of this origin, by the next start.
                let _ = std::fs::remove_file(&made.path);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_made_and_is_still_there_goes() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let mut made = Made::default();
        for name in ["gone", "replaced", "lost"] {
            made.create(&path(name)).unwrap();
        }
        std::fs::write(path("theirs"), "dear all").unwrap();
        assert!(made.create(&path("theirs")).is_err());
        // Made anew beside the first one, so that it is another file for certain.
        std::fs::write(path("other"), "dear all").unwrap();
        std::fs::rename(path("other"), path("replaced")).unwrap();
        made.forget(&path("lost"));
        drop(made);
        let is_there = |name: &str| path(name).exists();
        assert!(!is_there("gone"));
        assert!(is_there("replaced") && is_there("theirs") && is_there("lost"));
        let mut made = Made::default();
        made.create(&path("kept")).unwrap();
        made.keep();
        drop(made);
        assert!(is_there("kept"));
    }
}
