//! The conflicts that are kept at the origin, for who decides on them.

use serde_json::{Value, json};
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

/// Where they are kept.
pub(super) struct Conflicts {
    folder: PathBuf,
}

impl Conflicts {
    /// Those of the mount with this journal.
    pub(super) fn new(origin: &Path, journal: &str) -> Self {
        let own = origin.join(OsStr::from_bytes(crate::OWN_FOLDER));
        let folder = own.join("conflicts").join(journal);
        // The server may be asked from elsewhere.
        let folder = folder.canonicalize().unwrap_or(folder);
        Self { folder }
    }

    /// Each with its reason.
    pub(super) fn list(&self) -> io::Result<Value> {
        let mut found = Vec::new();
        for entry in fs::read_dir(&self.folder)? {
            let name = entry?.file_name().to_string_lossy().into_owned();
            if let Ok(about) = self.about(&name) {
                found.push((name.clone(), json!({ "conflict": name, "reason": about["reason"] })));
            }
        }
        found.sort_by(|a, b| a.0.cmp(&b.0));
        Ok(found.into_iter().map(|(_, about)| about).collect())
    }

    /// All that is known of one, and where what was kept of it is.
    pub(super) fn show(&self, conflict: &str) -> io::Result<Value> {
        let mut about = self.about(conflict)?;
        let kept = self.place(conflict)?.join("data");
        if kept.symlink_metadata().is_ok() {
            about["kept"] = json!(kept.display().to_string());
        }
        Ok(about)
    }

    /// Deletes one.
    pub(super) fn forget(&self, conflict: &str) -> io::Result<Value> {
        let place = self.place(conflict)?;
        fs::read_dir(&place)?;
        fs::remove_dir_all(place)?;
        Ok(json!("dropped"))
    }

    /// What was said of one. Whatever was interrupted before it was said is a conflict all the same.
    fn about(&self, conflict: &str) -> io::Result<Value> {
        let place = self.place(conflict)?;
        fs::read_dir(&place)?;
        let said = fs::read(place.join("about.json")).ok();
        let said = said.and_then(|text| serde_json::from_slice(&text).ok());
        Ok(said.unwrap_or_else(|| json!({ "reason": UNTOLD })))
    }

    /// A name of one's own folder, and of nothing else.
    fn place(&self, conflict: &str) -> io::Result<PathBuf> {
        let mut parts = Path::new(conflict).components();
        match (parts.next(), parts.next()) {
            (Some(Component::Normal(name)), None) => Ok(self.folder.join(name)),
            _ => Err(io::ErrorKind::NotFound.into()),
        }
    }
}

const UNTOLD: &str = "it was interrupted before it could say why";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_conflict_is_listed_shown_and_dropped_and_nothing_else_is() {
        let origin = tempfile::tempdir().unwrap();
        let folder = origin.path().join(".destage/conflicts/j/7-9");
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("about.json"), r#"{"ino":9,"reason":"why"}"#).unwrap();
        fs::write(folder.join("data"), "kept").unwrap();
        let conflicts = Conflicts::new(origin.path(), "j");
        assert_eq!(conflicts.list().unwrap(), json!([{ "conflict": "7-9", "reason": "why" }]));
        let kept = conflicts.show("7-9").unwrap()["kept"].as_str().unwrap().to_owned();
        assert_eq!(fs::read(kept).unwrap(), b"kept");
        for wrong in ["", "..", "../j", "/etc", "8-9"] {
            assert!(conflicts.show(wrong).is_err() && conflicts.forget(wrong).is_err(), "{wrong}");
        }
        conflicts.forget("7-9").unwrap();
        assert_eq!(conflicts.list().unwrap(), json!([]));
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("about.json"), "").unwrap();
        assert_eq!(conflicts.list().unwrap()[0]["reason"], UNTOLD);
        conflicts.forget("7-9").unwrap();
    }
}
