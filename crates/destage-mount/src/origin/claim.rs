//! Who may write to an origin: the boundary behind which tokens for several hosts go. Here, one mount has the whole folder.
//!
//! The claim is a lock of a file at the origin, taken through the origin's own mount: it ends with the session that carries
//! the data.

use destage_runtime::{ServeError, exit};
use rustix::fs::{FlockOperation, flock};
use std::fs::File;
use std::io::{Read, Seek, Write};
use std::path::Path;

/// Which files this host may cache, and change.
pub(crate) trait TokenService: Send + Sync {
    /// Whether everything may be cached and changed, until this is dropped.
    fn has_all(&self) -> bool;
}

/// One mount on one host: see the module.
#[derive(Debug)]
pub(crate) struct LocalTokens {
    _claim: File,
}

impl LocalTokens {
    /// Claims the folder whose own folder this is, for a mount of this name.
    ///
    /// # Errors
    /// Another mount has it, on whichever host; or the origin cannot lock.
    pub(crate) fn claim(own: &Path, mount: &str) -> Result<Self, ServeError> {
        let path = own.join("claim");
        let place = path.display();
        let failed = |error: std::io::Error| {
            let message = format!("cannot claim the origin by {place}: {error}");
            ServeError::new(exit::ORIGIN_UNREACHABLE, message)
        };
        let mut options = File::options();
        let mut file = options
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(failed)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => {
                let mut who = String::new();
                // It says who, where it says anything.
                let _ = file.read_to_string(&mut who);
                let message = format!(
                    "the origin is mounted already ({}): one mount at a time has a folder; end that one first",
                    who.trim()
                );
                return Err(ServeError::new(exit::FENCED, message));
            }
            Err(error) => return Err(failed(error.into())),
        }
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let process = std::process::id();
        let text = format!("host {host}, process {process}, journal {mount}\n");
        file.set_len(0).and_then(|()| file.rewind()).map_err(failed)?;
        file.write_all(text.as_bytes()).map_err(failed)?;
        Ok(Self { _claim: file })
    }
}

impl TokenService for LocalTokens {
    fn has_all(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_claim_is_refused_and_told_whose_the_first_is() {
        let folder = tempfile::tempdir().unwrap();
        let first = LocalTokens::claim(folder.path(), "one").unwrap();
        assert!(first.has_all());
        let error = LocalTokens::claim(folder.path(), "two").unwrap_err();
        assert_eq!(error.exit_code(), exit::FENCED);
        assert!(error.to_string().contains("journal one"), "{error}");
        drop(first);
        LocalTokens::claim(folder.path(), "two").unwrap();
    }
}
