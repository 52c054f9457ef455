//! Whether a file is still the one that was opened.

use destage_core::{Span, Time};
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Looks at a file from time to time that nobody but its server may cut, remove or put another one in the place of: the server's
/// own reads and writes would not notice for long.
#[derive(Debug)]
pub struct Watch {
    /// The open file, also after its name is gone.
    file: File,
    path: PathBuf,
    bytes: u64,
}

/// What has become of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tampering {
    /// It is shorter than it was: bytes now, and before.
    Cut(u64, u64),
    /// Its name is gone: what is open has no name, and is gone with the server.
    Removed,
    /// Its name is another file's: what is open is gone with the server.
    Replaced,
}

impl Watch {
    /// A look at the file under this name, which is in use; `None` for a device, which keeps its size, and whose loss is an error
    /// of each access.
    ///
    /// # Errors
    /// If the file cannot be looked at.
    pub fn on(path: &Path) -> io::Result<Option<Self>> {
        let file = File::open(path)?;
        let found = file.metadata()?;
        Ok(found.is_file().then(|| Self { file, path: path.to_owned(), bytes: found.len() }))
    }

    /// What has become of the file; `None` if it is as it was. What cannot be looked at now counts as that.
    pub fn look(&self) -> Option<Tampering> {
        let own = self.file.metadata().ok()?;
        if own.len() < self.bytes {
            return Some(Tampering::Cut(own.len(), self.bytes));
        }
        match std::fs::metadata(&self.path) {
            Ok(found) if (found.dev(), found.ino()) == (own.dev(), own.ino()) => None,
            Ok(_) => Some(Tampering::Replaced),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Some(Tampering::Removed),
            Err(_) => None,
        }
    }
}

/// A file that is looked at once in a second, until something has become of it.
#[derive(Debug)]
pub struct Guard {
    /// None for a device.
    watch: Option<Watch>,
    due: Time,
    found: Option<Tampering>,
}

impl Guard {
    /// Looks at what [`Watch::on`] gave.
    pub const fn new(watch: Option<Watch>) -> Self {
        Self { watch, due: Time(0), found: None }
    }

    /// What has become of the file, told once, if it is time to look.
    pub fn look_if_due(&mut self, now: Time) -> Option<Tampering> {
        if now < self.due {
            return None;
        }
        self.due = now + EVERY;
        self.look()
    }

    /// The same, whether or not it is time.
    pub fn look(&mut self) -> Option<Tampering> {
        if self.found.is_some() {
            return None;
        }
        self.found = self.watch.as_ref()?.look();
        self.found.clone()
    }

    /// What was found.
    pub fn found(&self) -> Option<&Tampering> {
        self.found.as_ref()
    }
}

const EVERY: Span = Span::from_secs(1);

impl std::fmt::Display for Tampering {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Cut(now, then) => write!(out, "was cut from {then} to {now} bytes"),
            Self::Removed => out.write_str("was removed"),
            Self::Replaced => out.write_str("was replaced by another file"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_cut_removed_or_replaced_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, vec![7; 100_000]).unwrap();
        let watch = Watch::on(&path).unwrap().expect("it is a file");
        assert_eq!(watch.look(), None);
        let away = folder.path().join("away");
        std::fs::rename(&path, &away).unwrap();
        assert_eq!(watch.look(), Some(Tampering::Removed));
        std::fs::copy(&away, &path).unwrap();
        assert_eq!(watch.look(), Some(Tampering::Replaced));
        std::fs::rename(&away, &path).unwrap();
        assert_eq!(watch.look(), None);
        File::options().write(true).open(&path).unwrap().set_len(5).unwrap();
        assert_eq!(watch.look(), Some(Tampering::Cut(5, 100_000)));
    }

    #[test]
    fn a_guard_looks_once_in_a_second_and_tells_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, [7]).unwrap();
        let mut guard = Guard::new(Watch::on(&path).unwrap());
        let at = |ms| Time::from_secs(9) + Span::from_millis(ms);
        assert_eq!(guard.look_if_due(at(0)), None);
        std::fs::remove_file(&path).unwrap();
        assert_eq!(guard.look_if_due(at(999)), None);
        assert_eq!(guard.look_if_due(at(1_000)), Some(Tampering::Removed));
        assert_eq!((guard.look(), guard.found()), (None, Some(&Tampering::Removed)));
    }
}
