//! Files and folders that belong to this program alone: opened so that nobody else leads it astray.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

/// Opens a file of ours: no symbolic link is followed, nothing is waited for, and it is a plain file of this user (or of root).
/// With `create(true)` it is made readable by its owner only.
///
/// # Errors
/// It cannot be opened, or is none of ours: then nothing was read or written.
pub fn open(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    let flags = rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK;
    let opened = options.mode(0o600).custom_flags(flags.bits() as i32).open(path);
    let file = opened.map_err(|error| match error.raw_os_error() {
        Some(code) if code == rustix::io::Errno::LOOP.raw_os_error() => {
            refusal("a symbolic link, which is not followed: remove it, if it is not yours")
        }
        // A FIFO that nobody reads.
        Some(code) if code == rustix::io::Errno::NXIO.raw_os_error() => refusal(NOT_PLAIN),
        _ => error,
    })?;
    let meta = file.metadata()?;
    if !meta.is_file() {
        return Err(refusal(NOT_PLAIN));
    }
    if is_strangers(&meta) {
        return Err(refusal("a file of another user: remove it, if it is not yours"));
    }
    Ok(file)
}

/// Opens a file to read that says who may do what. Symbolic links are followed, nothing is waited for, and it is a plain file
/// that no other user may change (but root).
///
/// # Errors
/// It cannot be opened, or is none of these: then nothing was read.
pub fn open_trusted(path: &Path) -> io::Result<File> {
    let flags = rustix::fs::OFlags::NONBLOCK.bits() as i32;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    let meta = file.metadata()?;
    if !meta.is_file() {
        return Err(refusal("no plain file: name one"));
    }
    match at_risk(&meta) {
        Some(why) => Err(io::Error::new(io::ErrorKind::InvalidInput, why)),
        None => Ok(file),
    }
}

/// All of a file of ours.
///
/// # Errors
/// As for [`open`], [`io::ErrorKind::NotFound`] among them.
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open(path, OpenOptions::new().read(true))?.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Puts a file in the place of another one, which gets its name where the file system can exchange the two.
///
/// # Errors
/// It cannot be renamed.
pub fn exchange(path: &Path, other: &Path) -> io::Result<()> {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    match renameat_with(CWD, path, CWD, other, RenameFlags::EXCHANGE) {
        Ok(()) => Ok(()),
        // The other one is not there, or the file system cannot.
        Err(_) => std::fs::rename(path, other),
    }
}

/// Why a folder is not safe to keep files in: other users may change what is in it. `None` if it is.
///
/// # Errors
/// It cannot be looked at.
pub fn folder_at_risk(path: &Path) -> io::Result<Option<String>> {
    Ok(at_risk(&std::fs::metadata(path)?))
}

/// Why others may change what this is of.
fn at_risk(meta: &Metadata) -> Option<String> {
    let mode = meta.mode() & 0o7777;
    if is_strangers(meta) {
        Some(format!(
            "it belongs to another user (uid {}): give it to the user who runs destage (chown)",
            meta.uid()
        ))
    } else if mode & 0o022 != 0 {
        Some(format!("other users may write in it (mode {mode:04o}): chmod go-w it"))
    } else {
        None
    }
}

/// Root may do all things anyway.
fn is_strangers(meta: &Metadata) -> bool {
    meta.uid() != 0 && meta.uid() != rustix::process::geteuid().as_raw()
}

fn refusal(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, format!("it is {what}"))
}

const NOT_PLAIN: &str = "no plain file: remove it, if it is not yours";

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn links_and_fifos_are_neither_followed_nor_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        std::fs::write(path("elsewhere"), "kept").unwrap();
        std::os::unix::fs::symlink(path("elsewhere"), path("link")).unwrap();
        let fifo = std::process::Command::new("mkfifo").arg(path("fifo")).status().unwrap();
        assert!(fifo.success());
        for name in ["link", "fifo"] {
            assert_eq!(read(&path(name)).unwrap_err().kind(), io::ErrorKind::InvalidInput);
            let mut options = OpenOptions::new();
            let opened = open(&path(name), options.create(true).write(true).truncate(false));
            assert_eq!(opened.unwrap_err().kind(), io::ErrorKind::InvalidInput, "{name}");
        }
        assert_eq!(read(&path("elsewhere")).unwrap(), b"kept");
        assert_eq!(read(&path("none")).unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn what_is_trusted_is_a_plain_file_that_nobody_else_may_change() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let set_mode = |name: &str, mode| {
            std::fs::set_permissions(path(name), std::fs::Permissions::from_mode(mode)).unwrap();
        };
        std::fs::write(path("file"), "kept").unwrap();
        std::os::unix::fs::symlink(path("file"), path("link")).unwrap();
        for (mode, is_safe) in [(0o600, true), (0o644, true), (0o664, false), (0o602, false)] {
            set_mode("file", mode);
            for name in ["file", "link"] {
                let opened = open_trusted(&path(name));
                assert_eq!(opened.is_ok(), is_safe, "{name} {mode:o}");
                let is_told = opened.is_err_and(|error| error.to_string().contains("chmod go-w"));
                assert_eq!(is_told, !is_safe);
            }
        }
        let fifo = std::process::Command::new("mkfifo").arg(path("fifo")).status().unwrap();
        assert!(fifo.success());
        set_mode("fifo", 0o600);
        for name in ["fifo", "."] {
            let error = open_trusted(&path(name)).unwrap_err().to_string();
            assert!(error.contains("no plain file"), "{name}: {error}");
        }
        set_mode("file", 0o600);
        // Only root gives files away.
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(path("file"), Some(65_534), None).unwrap();
            let error = open_trusted(&path("file")).unwrap_err().to_string();
            assert!(error.contains("another user (uid 65534)"), "{error}");
        } else {
            eprintln!("not tried as another user than root: a file of somebody else");
        }
    }

    #[test]
    fn a_folder_that_others_may_write_in_is_at_risk() {
        let folder = tempfile::tempdir().unwrap();
        for (mode, is_safe) in [(0o700, true), (0o755, true), (0o775, false), (0o1777, false)] {
            let mode = std::fs::Permissions::from_mode(mode);
            std::fs::set_permissions(folder.path(), mode).unwrap();
            assert_eq!(folder_at_risk(folder.path()).unwrap().is_none(), is_safe);
        }
    }
}
