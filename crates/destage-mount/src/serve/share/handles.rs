//! Whether an origin calls a file the same on all hosts. Tokens are named after the handles of files: two hosts that have
//! different ones for a file do not keep each other from it.
//!
//! Programs that serve a file system in the kernel's stead mostly number files as they meet them, each host's on its own.
//! `ceph-fuse` is one that does not. Such numbers may be the same by chance, so that no comparison would do.
//! On all others the first host keeps at the origin what it calls two files there, and the rest compare.

use super::{VOLUME, said_first};
use crate::origin::{LocalOrigin, Origin};
use destage_runtime::{ServeError, exit};
use std::fmt::Write;
use std::io;
use std::path::Path;

/// Refuses an origin whose handles are each host's own. `own` is this front end's folder there, which has a name for it.
///
/// # Errors
/// What is kept there cannot be read or written; within: the refusal.
pub(super) fn check(origin: &LocalOrigin, own: &Path) -> io::Result<Result<(), ServeError>> {
    let refused = |message: String| Ok(Err(ServeError::new(exit::USAGE, message)));
    if !origin.syncs_all() && !is_ceph(own) {
        return refused(format!(
            "a program serves the origin's file system which is not ceph-fuse: it may number files otherwise on each host, and \
             --tokens are named after them; {REMEDY}"
        ));
    }
    let handles = [origin.root().handle, LocalOrigin::handle_of(&own.join(VOLUME))?];
    let [folder, volume] = handles.map(|handle| words(&handle));
    let found = format!("{folder} {volume}");
    let kept = said_first(own, HANDLES, &found)?;
    if kept == found {
        return Ok(Ok(()));
    }
    refused(format!(
        "this host's handles of the origin's folder and of .destage/{VOLUME} in it are {found}, and those of the host that came \
         first {kept}: --tokens are named after them; {REMEDY}. If the folder has been copied here, or restored, end its mounts on \
         all hosts, and delete {}",
        own.join(HANDLES).display()
    ))
}

/// Its folders have attributes that nobody else's have.
fn is_ceph(folder: &Path) -> bool {
    let mut value = Vec::with_capacity(ATTRIBUTE_LEN_MAX);
    rustix::fs::getxattr(folder, "ceph.dir.entries", rustix::buffer::spare_capacity(&mut value))
        .is_ok()
}

fn words(handle: &[u8]) -> String {
    let mut words = String::new();
    // A string takes everything.
    handle.iter().for_each(|byte| _ = write!(words, "{byte:02x}"));
    words
}

const HANDLES: &str = "handles";
const ATTRIBUTE_LEN_MAX: usize = 64;
const REMEDY: &str = "use CephFS, mounted on each host by the same client (ceph-fuse or the kernel), from the same folder of it";

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn an_origin_whose_files_are_called_otherwise_here_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let own = folder.path().join(".destage");
        fs::create_dir(&own).unwrap();
        super::super::volume(&own).unwrap();
        let Ok(origin) = LocalOrigin::open(folder.path()) else {
            return println!("left out: handles needs the right to open files by their handles");
        };
        let check = || check(&origin, &own).unwrap();
        // An earlier version has kept none.
        check().unwrap();
        check().unwrap();
        let handles = own.join(HANDLES);
        let kept = fs::read_to_string(&handles).unwrap();
        let (root, volume) = kept.trim().split_once(' ').unwrap();
        assert_eq!(root, words(&origin.root().handle));
        for other in [format!("{volume} {volume}"), format!("{root} {root}")] {
            fs::write(&handles, other).unwrap();
            let error = check().unwrap_err();
            assert_eq!(error.exit_code(), exit::USAGE);
            assert!(error.to_string().contains("delete"), "{error}");
        }
        fs::remove_file(&handles).unwrap();
        check().unwrap();
    }

    #[test]
    fn a_program_that_may_number_files_as_it_likes_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        super::super::volume(folder.path()).unwrap();
        let Ok(origin) = LocalOrigin::open(folder.path()) else {
            return println!("left out: handles needs the right to open files by their handles");
        };
        let error = check(&origin.served_by_a_program(), folder.path()).unwrap().unwrap_err();
        assert_eq!(error.exit_code(), exit::USAGE);
        assert!(!folder.path().join(HANDLES).exists());
    }
}
