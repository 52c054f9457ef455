//! `--save`: a policy that was changed while the server runs is written into its settings file, so that a restart keeps it.
//! Comments, order and everything else in the file stay as they are.

use crate::error::CliError;
use crate::output::print;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, fchown};
use std::path::{Path, PathBuf};
use toml_edit::{DocumentMut, Item, Table, Value};

/// Where to save.
#[derive(Debug, clap::Args)]
pub(crate) struct SaveArgs {
    /// Write the change into this settings file as well, once the server has taken it; that of DESTAGE_CONFIG where none is named.
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "", value_name = "FILE")]
    save: Option<PathBuf>,
}

/// A file that can be changed.
#[derive(Debug)]
pub(crate) struct Save {
    path: PathBuf,
    changes: Vec<(String, Value)>,
}

impl SaveArgs {
    /// Looks whether the file can be changed, before the server is asked.
    pub(crate) fn prepare(&self, changes: &[String]) -> Result<Option<Save>, CliError> {
        let Some(path) = &self.save else { return Ok(None) };
        let by_environment = || std::env::var_os("DESTAGE_CONFIG").map(PathBuf::from);
        let path = if path.as_os_str().is_empty() { by_environment() } else { Some(path.clone()) };
        let path = path.ok_or_else(|| {
            CliError::usage("which settings file? Name it by --save=FILE, or by DESTAGE_CONFIG")
        })?;
        if changes.is_empty() {
            return Err(CliError::usage("--save goes with a change, such as when=adaptive"));
        }
        read(&path)?;
        let changes = changes.iter().map(|change| key_and_value(change)).collect();
        Ok(Some(Save { path, changes }))
    }
}

impl Save {
    /// Writes the change: for these volumes, or for the whole server.
    pub(crate) fn write(&self, volumes: Vec<String>) -> Result<(), CliError> {
        let mut document = read(&self.path)?;
        for (key, value) in &self.changes {
            set(&mut document, &volumes, key, value);
        }
        let text = document.to_string();
        replace(&self.path, &text).map_err(|error| {
            let path = self.path.display();
            CliError::unwritable(format!(
                "the server has taken the change, but {path} could not be written: {error}"
            ))
        })?;
        print(&format!("saved in {}", self.path.display()))
    }
}

fn read(path: &Path) -> Result<DocumentMut, CliError> {
    let failed = |error: &dyn std::fmt::Display| {
        CliError::usage(format!("failed to read the settings in {}: {error}", path.display()))
    };
    let text = fs::read_to_string(path).map_err(|error| failed(&error))?;
    // The parser's own words show the line, which may hold a password.
    text.parse().map_err(|error: toml_edit::TomlError| failed(&error.message()))
}

/// As the settings file writes it.
fn key_and_value(change: &str) -> (String, Value) {
    let (key, text) = change.split_once('=').unwrap_or(("policy", change));
    let value = match (key, text) {
        ("read-priority", text) => Value::from(text == "on"),
        ("batch" | "parked-per-minute", text) if text.parse::<i64>().is_ok() => {
            Value::from(text.parse::<i64>().unwrap_or_default())
        }
        _ => Value::from(text),
    };
    (key.to_owned(), value)
}

/// In the sections of these volumes; without any in all that there are, or else above them.
fn set(document: &mut DocumentMut, volumes: &[String], key: &str, value: &Value) {
    let Some(sections) = document.get_mut("volume").and_then(Item::as_table_mut) else {
        return put(document.as_table_mut(), key, value);
    };
    for (name, section) in sections.iter_mut() {
        if (volumes.is_empty() || volumes.iter().any(|volume| *volume == name.get()))
            && let Some(section) = section.as_table_mut()
        {
            put(section, key, value);
        }
    }
}

/// What stands around the old value, as a comment behind it, stays.
fn put(table: &mut Table, key: &str, value: &Value) {
    match table.get_mut(key).and_then(Item::as_value_mut) {
        Some(old) => {
            let decor = old.decor().clone();
            *old = value.clone();
            *old.decor_mut() = decor;
        }
        None => {
            table.insert(key, Item::Value(value.clone()));
        }
    }
}

/// Beside the file, which the new one then replaces with the same owner and mode.
fn replace(path: &Path, text: &str) -> io::Result<()> {
    let path = fs::canonicalize(path)?;
    let found = fs::metadata(&path)?;
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    let beside = path.with_file_name(name);
    match fs::remove_file(&beside) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file =
        OpenOptions::new().write(true).create_new(true).mode(found.mode() & 0o777).open(&beside)?;
    let written = file
        .write_all(text.as_bytes())
        .and_then(|()| fchown(&file, Some(found.uid()), Some(found.gid())))
        .and_then(|()| file.set_permissions(found.permissions()))
        .and_then(|()| file.sync_all())
        .and_then(|()| fs::rename(&beside, &path));
    if written.is_err() {
        let _ = fs::remove_file(&beside);
    }
    written?;
    let folder = path.parent().unwrap_or_else(|| Path::new("/"));
    File::open(folder)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn saved(text: &str, changes: &[&str], volumes: &[&str]) -> String {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("destage.toml");
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        let changes: Vec<String> = changes.iter().map(ToString::to_string).collect();
        let save = SaveArgs { save: Some(path.clone()) }.prepare(&changes).unwrap().unwrap();
        save.write(volumes.iter().map(ToString::to_string).collect()).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o640);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        fs::read_to_string(&path).unwrap()
    }

    #[test]
    fn a_change_keeps_comments_and_everything_else() {
        let text =
            "# mine\nwhen = 'async' # why\nlisten = '127.0.0.1:1'\n\n[table.a]\nblind = true\n";
        let now =
            saved(text, &["write-through", "when=adaptive", "batch=7", "read-priority=on"], &[]);
        assert_eq!(
            now,
            "# mine\nwhen = \"adaptive\" # why\nlisten = '127.0.0.1:1'\npolicy = \"write-through\"\nbatch = 7\n\
             read-priority = true\n\n[table.a]\nblind = true\n"
        );
    }

    #[test]
    fn a_volume_has_its_own_section() {
        let text = "[volume.a]\ncache = '/a'\n[volume.b]\ncache = '/b'\n";
        assert_eq!(
            saved(text, &["staleness=5s"], &["b"]),
            "[volume.a]\ncache = '/a'\n[volume.b]\ncache = '/b'\nstaleness = \"5s\"\n"
        );
        assert_eq!(saved(text, &["staleness=5s"], &[]).matches("5s").count(), 2);
    }

    #[test]
    fn a_file_that_cannot_be_read_is_told_of_before_the_server_is_asked() {
        let gone = SaveArgs { save: Some("/nowhere/destage.toml".into()) };
        assert!(gone.prepare(&["when=async".into()]).unwrap_err().to_string().contains("/nowhere"));
    }
}
