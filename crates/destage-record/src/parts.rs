//! The files of a recording: `NAME.1`, `NAME.2` and so on, the newest with the highest number.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

/// A recording that cannot be found.
#[derive(Debug, thiserror::Error)]
pub enum ListError {
    /// The folder cannot be read.
    #[error("failed to look for the parts of {}: {source}", .path.display())]
    Io {
        /// The recording.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// There is neither the file nor a part of it.
    #[error("there is no recording {0}: neither that file nor {0}.1 or a later part")]
    Missing(String),
}

/// The parts of a recording, oldest first; only the file itself if there is one of that very name.
///
/// # Errors
/// [`ListError`] where there is none.
pub fn list(path: &Path) -> Result<Vec<PathBuf>, ListError> {
    if path.is_file() {
        return Ok(vec![path.to_owned()]);
    }
    let parts = numbered(path).map_err(|source| ListError::Io { path: path.to_owned(), source })?;
    if parts.is_empty() {
        Err(ListError::Missing(path.display().to_string()))
    } else {
        Ok(parts.into_iter().map(|number| part_path(path, number)).collect())
    }
}

/// The numbers of the parts that there are, in order.
pub(crate) fn numbered(path: &Path) -> io::Result<Vec<u64>> {
    let folder = match path.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    };
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".");
    let mut numbers = Vec::new();
    for entry in folder.read_dir()? {
        let entry = entry?.file_name();
        let number: Option<u64> = entry
            .as_encoded_bytes()
            .strip_prefix(name.as_encoded_bytes())
            .and_then(|rest| std::str::from_utf8(rest).ok())
            .filter(|rest| rest.bytes().all(|byte| byte.is_ascii_digit()))
            .and_then(|rest| rest.parse().ok());
        numbers.extend(number);
    }
    numbers.sort_unstable();
    Ok(numbers)
}

/// A part's file.
pub(crate) fn part_path(path: &Path, number: u64) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(format!(".{number}"));
    name.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_come_by_number_and_nothing_else_is_taken_for_one() {
        let folder = tempfile::tempdir().unwrap();
        let base = folder.path().join("run");
        assert!(list(&base).unwrap_err().to_string().contains("there is no recording"));
        for name in ["run.10", "run.9", "run.1x", "run.", "ru.3", "run.2.old", "other.1"] {
            std::fs::write(folder.path().join(name), "").unwrap();
        }
        assert_eq!(list(&base).unwrap(), [part_path(&base, 9), part_path(&base, 10)]);
        let one = part_path(&base, 9);
        assert_eq!(list(&one).unwrap(), [part_path(&base, 9)]);
        let error = list(Path::new("/nonexistent/run")).unwrap_err().to_string();
        assert!(error.contains("/nonexistent/run"), "{error}");
    }
}
