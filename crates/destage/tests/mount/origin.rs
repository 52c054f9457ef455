//! What `destage mount` stands in front of: a local folder, or a folder of a CephFS that ceph-fuse has mounted.

use crate::harness::Scratch;
use destage_testkit::needs;
use std::fs;
use std::path::{Path, PathBuf};

/// The kinds of origins that the tests have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Local,
    Ceph,
}

/// A folder of a test's own at an origin; removed with the test unless it fails.
pub(crate) struct Origin {
    folder: PathBuf,
}

impl Origin {
    /// A new folder; `None` (after saying so) where there is no CephFS.
    pub(crate) fn new(kind: Kind, scratch: &Scratch) -> Option<Self> {
        let folder = match kind {
            Kind::Local => scratch.join("origin"),
            Kind::Ceph => {
                let state = needs::ceph("DESTAGE_TEST_CEPHFS")?;
                let own = scratch.join("").file_name().expect("it has a name").to_owned();
                let mount = Path::new(&state).join("mnt/1");
                // Without it this would be a local folder, and the tests would pass for nothing.
                assert_eq!(
                    kind_of_mount(&mount).as_deref(),
                    Some("fuse.ceph-fuse"),
                    "{}",
                    mount.display()
                );
                mount.join(own)
            }
        };
        Some(Self::at(folder))
    }

    /// A new folder there.
    pub(crate) fn at(folder: PathBuf) -> Self {
        fs::create_dir(&folder).expect("a folder can be made at the origin");
        Self { folder }
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }
}

/// Has a client of CephFS read directories anew, which it does once it has changed them: it may have forgotten names of files one
/// of whose names was replaced by a rename.
pub(crate) fn read_anew(folder: &Path) {
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        let touch = folder.join("read-anew");
        fs::write(&touch, "").and_then(|()| fs::remove_file(&touch)).expect("it can be changed");
        let entries = fs::read_dir(&folder).expect("a folder").flatten();
        let inner = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        folders.extend(inner.map(|entry| entry.path()));
    }
}

/// The type of what is mounted there.
fn kind_of_mount(folder: &Path) -> Option<String> {
    let mounts = fs::read_to_string("/proc/self/mounts").ok()?;
    let place = folder.display().to_string();
    let fields = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    let mut there = fields.filter(|fields| fields.get(1) == Some(&&*place));
    there.next_back().and_then(|fields| fields.get(2).map(|&kind| kind.to_owned()))
}

impl Drop for Origin {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            // Best effort: the whole file system ends with the run.
            let _ = fs::remove_dir_all(&self.folder);
        }
    }
}
