//! Tar archives with the owner root and one date.

use super::stage::{SETTINGS, gzip};
use super::{Package, STATIC_TARGET, read, write};
use crate::{Result, root};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// An archive under way.
pub(super) struct Archive {
    tar: tar::Builder<Vec<u8>>,
    date: u64,
}

impl Archive {
    pub(super) fn new(date: u64) -> Self {
        Self { tar: tar::Builder::new(Vec::new()), date }
    }

    /// A file of these bytes.
    pub(super) fn file(&mut self, name: &str, mode: u32, bytes: &[u8]) -> Result<()> {
        self.entry(name, tar::EntryType::Regular, mode, (0, 0), bytes)
    }

    /// An empty folder of this owner.
    pub(super) fn folder(&mut self, name: &str, mode: u32, owner: u64) -> Result<()> {
        self.entry(&format!("{name}/"), tar::EntryType::Directory, mode, (owner, owner), &[])
    }

    fn entry(
        &mut self,
        name: &str,
        kind: tar::EntryType,
        mode: u32,
        (user, group): (u64, u64),
        bytes: &[u8],
    ) -> Result<()> {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(mode);
        header.set_uid(user);
        header.set_gid(group);
        header.set_mtime(self.date);
        header.set_size(bytes.len() as u64);
        self.tar
            .append_data(&mut header, name, bytes)
            .map_err(|error| format!("failed to pack {name}: {error}"))
    }

    /// A folder with all that is in it but one file, under another name.
    fn tree(&mut self, folder: &Path, name: &str, without: &Path) -> Result<()> {
        let mut entries: Vec<PathBuf> = fs::read_dir(folder)
            .map_err(|error| format!("{}: {error}", folder.display()))?
            .flatten()
            .map(|entry| entry.path())
            .collect();
        entries.sort();
        for path in entries {
            let inside = format!("{name}/{}", super::name_of(&path));
            if path.is_dir() {
                self.tree(&path, &inside, without)?;
            } else if path != without {
                let found = path.metadata().map_err(|error| format!("{inside}: {error}"))?;
                self.file(&inside, found.permissions().mode() & 0o777, &read(&path)?)?;
            }
        }
        Ok(())
    }

    pub(super) fn finish(self) -> Result<Vec<u8>> {
        self.tar.into_inner().map_err(|error| format!("failed to pack: {error}"))
    }
}

/// The archive for any Linux. Settings that an administrator changes are not in it: whoever unpacks the next version over this
/// one would lose them. The samples are.
pub(super) fn make(package: &Package, stage: &Path) -> Result<PathBuf> {
    let target = if package.is_static { STATIC_TARGET } else { "x86_64-unknown-linux-gnu" };
    let name = format!("destage-{}-{target}", package.version);
    let mut archive = Archive::new(package.date);
    archive.tree(stage, &name, &stage.join(SETTINGS))?;
    for licence in ["LICENSE-MIT", "LICENSE-APACHE"] {
        archive.file(&format!("{name}/{licence}"), 0o644, &read(&root().join(licence))?)?;
    }
    let path = package.out.join(format!("{name}.tar.gz"));
    write(&path, &gzip(&archive.finish()?)?)?;
    Ok(path)
}
