//! Who may write to an origin: one mount, or several that share it by tokens ([`crate::tokens`]), but not both.
//!
//! The claim is a lock of a file at the origin, taken through the origin's own mount: it ends with the session that carries
//! the data.

use destage_runtime::{ServeError, exit};
use rustix::fs::{FlockOperation, flock};
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::path::Path;

/// A claim: see the module. Ends when it is dropped.
#[derive(Debug)]
pub(crate) struct Claim {
    _lock: File,
}

impl Claim {
    /// Claims the folder whose own folder this is, for a mount of this name.
    ///
    /// # Errors
    /// Another mount has it, on whichever host; or the origin cannot lock.
    pub(crate) fn whole(own: &Path, mount: &str) -> Result<Self, ServeError> {
        Self::take(own, mount, FlockOperation::NonBlockingLockExclusive)
    }

    /// Has a part in the folder, beside other mounts that do, each by its tokens: a mount that wants all of it is kept out.
    ///
    /// # Errors
    /// As [`Claim::whole`].
    pub(crate) fn share(own: &Path, mount: &str) -> Result<Self, ServeError> {
        Self::take(own, mount, FlockOperation::NonBlockingLockShared)
    }

    fn take(own: &Path, mount: &str, how: FlockOperation) -> Result<Self, ServeError> {
        let path = own.join("claim");
        let place = path.display();
        let failed = |error: io::Error| {
            let message = format!("cannot claim the origin by {place}: {error}");
            ServeError::new(exit::ORIGIN_UNREACHABLE, message)
        };
        let mut file = open(&path).map_err(failed)?;
        if !try_lock(&file, how).map_err(failed)? {
            let message = format!(
                "the origin is mounted already ({}): one mount at a time has a folder, unless all of them share it by --tokens; end \
                 that one first",
                who(&mut file).trim()
            );
            return Err(ServeError::new(exit::FENCED, message));
        }
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let process = std::process::id();
        let text = format!("host {host}, process {process}, journal {mount}\n");
        say(&mut file, &text).map_err(failed)?;
        Ok(Self { _lock: file })
    }
}

/// Opens a file that is there to be locked; made if it is absent.
///
/// # Errors
/// It cannot be opened or made.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    File::options().read(true).write(true).create(true).truncate(false).open(path)
}

/// Locks it for as long as it is open, without waiting; false if others have it.
///
/// # Errors
/// The file system cannot lock.
pub(crate) fn try_lock(file: &File, how: FlockOperation) -> io::Result<bool> {
    match flock(file, how) {
        Ok(()) => Ok(true),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Who has it locked, where it says anything.
pub(crate) fn who(file: &mut File) -> String {
    let mut who = String::new();
    let _ = file.read_to_string(&mut who);
    who
}

/// Says in it who has it locked.
///
/// # Errors
/// It cannot be written.
pub(crate) fn say(file: &mut File, who: &str) -> io::Result<()> {
    file.set_len(0)?;
    file.rewind()?;
    file.write_all(who.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_claim_is_refused_and_told_whose_the_first_is() {
        let folder = tempfile::tempdir().unwrap();
        let first = Claim::whole(folder.path(), "one").unwrap();
        let error = Claim::whole(folder.path(), "two").unwrap_err();
        assert_eq!(error.exit_code(), exit::FENCED);
        assert!(error.to_string().contains("journal one"), "{error}");
        drop(first);
        Claim::whole(folder.path(), "two").unwrap();
    }

    #[test]
    fn who_shares_keeps_out_who_wants_all_and_nobody_else() {
        let folder = tempfile::tempdir().unwrap();
        let first = Claim::share(folder.path(), "one").unwrap();
        let second = Claim::share(folder.path(), "two").unwrap();
        drop(first);
        Claim::whole(folder.path(), "three").unwrap_err();
        drop(second);
        let whole = Claim::whole(folder.path(), "three").unwrap();
        Claim::share(folder.path(), "one").unwrap_err();
        drop(whole);
    }
}
