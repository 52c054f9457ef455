//! What a file system has no operation for, in several.

use super::Result;
use crate::ask::Errno;
use rustix::fs::{self as sys, AtFlags, FileType};
use std::os::fd::OwnedFd;

/// Renames without replacing where the file system has no such operation. A file gets the new name as a further one, which
/// never replaces; a start that finds both names goes on from there. A directory cannot have two: it may take the place of
/// an empty one that others make in the same moment.
///
/// # Errors
/// [`Errno::EXIST`] if the name is taken.
pub(super) fn rename_in_steps(
    dir: &OwnedFd,
    name: &[u8],
    to_dir: &OwnedFd,
    to_name: &[u8],
) -> Result<()> {
    let look = |dir: &OwnedFd, name: &[u8]| sys::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW);
    match sys::linkat(dir, name, to_dir, to_name, AtFlags::empty()) {
        Ok(()) => {}
        Err(rustix::io::Errno::EXIST) => {
            let from = look(dir, name)?;
            match look(to_dir, to_name) {
                Ok(there) if (there.st_dev, there.st_ino) == (from.st_dev, from.st_ino) => {}
                // A client may have forgotten a name that is there.
                Ok(_) | Err(rustix::io::Errno::NOENT) => return Err(Errno::EXIST),
                Err(error) => return Err(error.into()),
            }
        }
        // So it is with a directory.
        Err(rustix::io::Errno::PERM)
            if FileType::from_raw_mode(look(dir, name)?.st_mode).is_dir() =>
        {
            return match look(to_dir, to_name) {
                Err(rustix::io::Errno::NOENT) => Ok(sys::renameat(dir, name, to_dir, to_name)?),
                there => Err(there.map_or_else(Errno::from, |_| Errno::EXIST)),
            };
        }
        Err(error) => return Err(error.into()),
    }
    Ok(sys::unlinkat(dir, name, AtFlags::empty())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rename_in_steps_replaces_nothing_and_ends_what_a_crash_left_between_them() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let dir: OwnedFd = std::fs::File::open(folder.path()).unwrap().into();
        std::fs::write(at("a"), "a").unwrap();
        std::fs::write(at("b"), "b").unwrap();
        std::fs::create_dir(at("d")).unwrap();
        std::fs::create_dir(at("e")).unwrap();
        let step = |from: &[u8], to: &[u8]| rename_in_steps(&dir, from, &dir, to);
        assert_eq!(step(b"a", b"b"), Err(Errno::EXIST));
        assert_eq!(step(b"d", b"e"), Err(Errno::EXIST));
        assert_eq!(step(b"none", b"c"), Err(Errno::NOENT));
        assert_eq!((step(b"a", b"c"), step(b"d", b"f")), (Ok(()), Ok(())));
        assert!(!at("a").exists() && !at("d").exists() && at("f").is_dir());
        std::fs::hard_link(at("c"), at("c2")).unwrap();
        assert_eq!(step(b"c", b"c2"), Ok(()));
        assert_eq!((at("c").exists(), std::fs::read(at("c2")).unwrap()), (false, b"a".to_vec()));
        assert_eq!(std::fs::read(at("b")).unwrap(), b"b");
    }
}
