//! Mounting a folder by FUSE and taking it away, and what stands in the way: the same for every front end that shows files.

use crate::exit;
use crate::serve_error::ServeError;
use fuser::{BackgroundSession, Config, Filesystem, Session};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Makes the folder ready to be mounted on: it is made if it is absent, and freed of a mount whose server was killed. Errors
/// begin with `what` it is, such as the name of a flag.
///
/// # Errors
/// Why it cannot be used, and what to do.
pub fn prepare(folder: &Path, what: &str) -> Result<PathBuf, ServeError> {
    let place = folder.display();
    let metadata = match alive(folder, what)? {
        Some(metadata) => metadata,
        None => {
            std::fs::create_dir(folder).map_err(|error| {
                usage(format!("{what} {place}: cannot make the folder: {error}"))
            })?;
            std::fs::metadata(folder).map_err(|error| usage(format!("{what} {place}: {error}")))?
        }
    };
    if !metadata.is_dir() {
        return Err(usage(format!("{what} {place}: this is no folder")));
    }
    if is_fuse_mount(folder, &metadata) {
        return Err(unavailable(format!(
            "{what} {place}: another process has mounted something there: choose another folder, or end that process"
        )));
    }
    let mut inside = std::fs::read_dir(folder)
        .map_err(|error| usage(format!("{what} {place}: cannot look into the folder: {error}")))?;
    if inside.next().is_some() {
        return Err(usage(format!(
            "{what} {place}: the folder is not empty, and mounting would hide what is there: name an empty one"
        )));
    }
    folder.canonicalize().map_err(|error| usage(format!("{what} {place}: {error}")))
}

/// What is there once dead mounts are gone; `None` if nothing is.
fn alive(folder: &Path, what: &str) -> Result<Option<std::fs::Metadata>, ServeError> {
    // Several servers may have been killed one after the other.
    for _ in 0..DEAD_MOUNTS_MAX {
        // Attributes may be remembered from when it was alive; how the file system is cannot.
        let asked = std::fs::metadata(folder)
            .and_then(|metadata| Ok(rustix::fs::statfs(folder).map(|_| metadata)?));
        match asked {
            Ok(metadata) => return Ok(Some(metadata)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) if is_dead(&error) => remove_dead(folder, what)?,
            Err(error) => return Err(usage(format!("{what} {}: {error}", folder.display()))),
        }
    }
    Err(unavailable(dead_message(folder, what, "it is there again each time it is removed")))
}

/// Whether this is what a mount says whose process is gone.
fn is_dead(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::NOTCONN.raw_os_error())
}

fn remove_dead(folder: &Path, what: &str) -> Result<(), ServeError> {
    detach(folder).map_err(|error| unavailable(dead_message(folder, what, &error)))?;
    tracing::warn!(
        folder = %folder.display(),
        "took away the mount of a server that was killed; what still uses its files only gets errors any more: end those \
         programs, and detach loop devices on them ('losetup --list', 'losetup --detach')"
    );
    Ok(())
}

fn dead_message(folder: &Path, what: &str, reason: &str) -> String {
    let folder = folder.display();
    format!(
        "{what} {folder}: a server that was killed has left its mount there, and it cannot be removed ({reason}): run \
         'umount --lazy {folder}' as root"
    )
}

/// Takes a mount out of the tree, used or not.
fn detach(folder: &Path) -> Result<(), String> {
    match rustix::mount::unmount(folder, UnmountFlags::DETACH) {
        Ok(()) => Ok(()),
        Err(Errno::PERM) => detach_by_helper(folder),
        Err(error) => Err(error.to_string()),
    }
}

/// The same for who is not root.
fn detach_by_helper(folder: &Path) -> Result<(), String> {
    let output = Command::new(HELPER)
        .args(["-u", "-z", "--"])
        .arg(folder)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("{HELPER}: {error}"))?;
    if output.status.success() {
        Ok(())
    } else {
        Err(String::from_utf8_lossy(&output.stderr).trim().to_owned())
    }
}

fn is_fuse_mount(folder: &Path, metadata: &std::fs::Metadata) -> bool {
    let above = std::fs::metadata(folder.join(".."));
    let is_mount_point = above.is_ok_and(|above| above.dev() != metadata.dev());
    is_mount_point && rustix::fs::statfs(folder).is_ok_and(|fs| fs.f_type == FUSE_SUPER_MAGIC)
}

/// Mounts a file system in the folder and starts to serve it.
///
/// # Errors
/// What is missing, and what to do; begins with `what` the folder is.
pub fn mount(
    files: impl Filesystem,
    folder: &Path,
    config: &Config,
    what: &str,
) -> Result<BackgroundSession, ServeError> {
    let is_root = rustix::process::geteuid().is_root();
    Session::new(files, folder, config)
        .and_then(Session::spawn)
        .map_err(|error| unavailable(why(folder, what, &error, is_root)))
}

fn why(folder: &Path, what: &str, error: &io::Error, is_root: bool) -> String {
    let said = error.to_string();
    let said = said.trim();
    let helps = match error.kind() {
        _ if !Path::new(DEVICE).exists() => {
            format!("{DEVICE} does not exist: load the kernel's module ('modprobe fuse'), or give the container this device")
        }
        _ if said.contains("user_allow_other") => {
            "root must be let in, for loop devices: write 'user_allow_other' into /etc/fuse.conf, or run as root".into()
        }
        io::ErrorKind::PermissionDenied => {
            format!("run as root with CAP_SYS_ADMIN, or give this user {DEVICE} and {HELPER} (package fuse3)")
        }
        io::ErrorKind::NotFound if !is_root => {
            format!("{HELPER} is missing: install the package fuse3, or run as root")
        }
        _ => "see the kernel's log".into(),
    };
    format!("{what} {}: cannot mount ({said}): {helps}", folder.display())
}

/// Takes the folder away; lazily, if somebody still uses it.
pub fn unmount(session: BackgroundSession, folder: &Path) {
    // If somebody has unmounted it already, what is there now is not ours.
    if !session.guard.is_finished()
        && let Err(error) = detach(folder)
    {
        let folder = folder.display();
        tracing::warn!("cannot unmount {folder} ({error}): run 'umount --lazy {folder}' as root");
    }
    // Its own end would unmount what lies beneath, and wait for whoever still uses a file.
    std::mem::forget(session);
}

fn usage(message: String) -> ServeError {
    ServeError::new(exit::USAGE, message)
}

fn unavailable(message: String) -> ServeError {
    ServeError::new(exit::ADDRESS_IN_USE, message)
}

const DEVICE: &str = "/dev/fuse";
const HELPER: &str = "fusermount3";
const DEAD_MOUNTS_MAX: usize = 16;
/// How `statfs` calls a mount of this kind.
const FUSE_SUPER_MAGIC: rustix::fs::FsWord = 0x6573_5546;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_made_and_one_with_content_or_a_file_is_refused() {
        let scratch = tempfile::tempdir().unwrap();
        let folder = scratch.path().join("volumes");
        let ready = prepare(&folder, "--fuse").unwrap();
        assert!(ready.is_dir());
        assert_eq!(prepare(&folder, "--fuse").unwrap(), ready);
        std::fs::write(folder.join("file"), "content").unwrap();
        for (place, part) in [
            (&folder, "not empty"),
            (&folder.join("file"), "no folder"),
            (&scratch.path().join("a/b"), "cannot make the folder"),
        ] {
            let error =
                prepare(place, "--fuse").err().unwrap_or_else(|| panic!("{place:?} is taken"));
            assert_eq!(error.exit_code(), exit::USAGE);
            assert!(error.to_string().contains(part), "{error}");
        }
    }
}
