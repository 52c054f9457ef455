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
    #[arg(long, num_args = 0..=1, require_equals = true, value_name = "FILE")]
    save: Option<Option<PathBuf>>,
}

/// Whether a start takes settings of this text, as far as they tell by themselves.
pub(crate) type Check = fn(&str) -> Result<(), CliError>;

/// A change of a file that a start would take.
#[derive(Debug)]
pub(crate) struct Save {
    path: PathBuf,
    changes: Vec<(String, Value)>,
    volumes: Vec<String>,
    check: Check,
}

impl SaveArgs {
    /// Looks whether the file can be changed, before the server is asked for the change. `volumes` tells whose policy it
    /// is, by their names; none for the only one that the file has.
    pub(crate) fn prepare(
        &self,
        changes: &[String],
        check: Check,
        volumes: impl FnOnce() -> Result<Vec<String>, CliError>,
    ) -> Result<Option<Save>, CliError> {
        let Some(path) = &self.save else { return Ok(None) };
        let by_environment = || {
            let path = std::env::var_os("DESTAGE_CONFIG").map(PathBuf::from);
            path.filter(|path| !path.as_os_str().is_empty())
        };
        let path = path.clone().or_else(by_environment).ok_or_else(|| {
            CliError::usage("which settings file? Name it by --save=FILE, or by DESTAGE_CONFIG")
        })?;
        if changes.is_empty() {
            return Err(CliError::usage("--save goes with a change, such as when=adaptive"));
        }
        read(&path)?;
        let changes = changes.iter().flat_map(|change| keys_and_values(change)).collect();
        let save = Save { path, changes, volumes: volumes()?, check };
        save.changed()?;
        Ok(Some(save))
    }
}

impl Save {
    /// Writes the change.
    pub(crate) fn write(&self) -> Result<(), CliError> {
        let path = self.path.display();
        let written = self.changed().map_err(|error| error.to_string()).and_then(|text| {
            replace(&self.path, &text)
                .map_err(|error| format!("{path} could not be written: {error}"))
        });
        written.map_err(|why| {
            CliError::unwritable(format!("the server has taken the change, but {why}"))
        })?;
        print(&format!("saved in {path}"))
    }

    /// The file's text with the change.
    fn changed(&self) -> Result<String, CliError> {
        let (text, mut document) = read(&self.path)?;
        let volumes = match &self.volumes[..] {
            [] => [only_volume(&document).ok_or_else(|| {
                self.refused("it has several volumes, and the server has one".to_owned())
            })?]
            .to_vec(),
            named => named.to_vec(),
        };
        for volume in &volumes {
            let table = table(&mut document, volume).ok_or_else(|| {
                self.refused(format!("it has no section [volume.{volume}], and the server has"))
            })?;
            for (key, value) in &self.changes {
                put(table, key, value);
            }
        }
        let changed = document.to_string();
        let refusal = |text: &str| (self.check)(text).err().map(|error| error.to_string());
        match refusal(&changed) {
            // What only the command line completes lacks the same before and after.
            Some(why) if refusal(&text).as_ref() != Some(&why) => {
                Err(self.refused(format!("with this change a start would refuse it: {why}")))
            }
            _ => Ok(changed),
        }
    }

    fn refused(&self, why: String) -> CliError {
        CliError::usage(format!("{} stays as it is: {why}", self.path.display()))
    }
}

/// The text, and what it says.
fn read(path: &Path) -> Result<(String, DocumentMut), CliError> {
    let failed = |error: &dyn std::fmt::Display| {
        CliError::usage(format!("failed to read the settings in {}: {error}", path.display()))
    };
    let text = fs::read_to_string(path).map_err(|error| failed(&error))?;
    // The parser's own words show the line, which may hold a password.
    let document = text.parse().map_err(|error: toml_edit::TomlError| failed(&error.message()))?;
    Ok((text, document))
}

/// As the settings file writes it.
fn keys_and_values(change: &str) -> Vec<(String, Value)> {
    let (key, text) = change.split_once('=').unwrap_or(("policy", change));
    let value = match (key, text) {
        ("read-priority", text) => Value::from(text == "on"),
        ("batch" | "parked-per-minute", text) if text.parse::<i64>().is_ok() => {
            Value::from(text.parse::<i64>().unwrap_or_default())
        }
        _ => Value::from(text),
    };
    let own = (key.to_owned(), value);
    // The server changes both at once, and the file has two keys.
    match (key, text) {
        ("order", _) => vec![("policy".to_owned(), "ordered".into()), own],
        ("policy", "ordered") => vec![own, ("order".to_owned(), "epoch".into())],
        _ => vec![own],
    }
}

/// The name of the volume of a file, unless it has several.
fn only_volume(document: &DocumentMut) -> Option<String> {
    let sections = document.get("volume").and_then(Item::as_table);
    let mut names = sections.into_iter().flat_map(Table::iter).map(|(name, _)| name.to_owned());
    let first = names.next().unwrap_or_default();
    names.next().is_none().then_some(first)
}

/// The section of a volume; what is above all sections for the one without a name, and for a server without volumes.
fn table<'a>(document: &'a mut DocumentMut, volume: &str) -> Option<&'a mut Table> {
    if volume.is_empty() {
        return Some(document.as_table_mut());
    }
    document.get_mut("volume")?.as_table_mut()?.get_mut(volume)?.as_table_mut()
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
    use crate::{block, serve};
    use std::os::unix::fs::PermissionsExt;

    fn prepared(
        path: &Path,
        changes: &[&str],
        check: Check,
        volumes: &[&str],
    ) -> Result<Save, String> {
        let changes: Vec<String> = changes.iter().map(ToString::to_string).collect();
        let volumes = || Ok(volumes.iter().map(ToString::to_string).collect());
        let save = SaveArgs { save: Some(Some(path.to_owned())) }.prepare(&changes, check, volumes);
        save.map(Option::unwrap).map_err(|error| error.to_string())
    }

    fn saved(
        text: &str,
        changes: &[&str],
        check: Check,
        volumes: &[&str],
    ) -> Result<String, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("destage.toml");
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        prepared(&path, changes, check, volumes)?.write().map_err(|error| error.to_string())?;
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o640);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        Ok(fs::read_to_string(&path).unwrap())
    }

    #[test]
    fn a_change_keeps_comments_and_everything_else() {
        let text =
            "# mine\nwhen = 'async' # why\nlisten = '127.0.0.1:1'\n\n[table.a]\nblind = true\n";
        let changes = ["write-through", "when=adaptive", "batch=7", "read-priority=on"];
        assert_eq!(
            saved(text, &changes, serve::check_text, &[]).unwrap(),
            "# mine\nwhen = \"adaptive\" # why\nlisten = '127.0.0.1:1'\npolicy = \"write-through\"\nbatch = 7\n\
             read-priority = true\n\n[table.a]\nblind = true\n"
        );
    }

    const A: &str = "[volume.a]\norigin = 'file:/a.img'\ncache = '/a'\n";
    const B: &str = "[volume.b]\norigin = 'file:/b.img'\ncache = '/b'\n";

    fn of_volumes(text: &str, changes: &[&str], volumes: &[&str]) -> Result<String, String> {
        saved(text, changes, block::check_text, volumes)
    }

    #[test]
    fn the_file_need_not_be_named() {
        for (argument, file) in [("--save", None), ("--save=/f", Some("/f".into()))] {
            let command = crate::file::command::<SaveArgs>();
            let matches = command.try_get_matches_from(["destage", argument]).unwrap();
            let args = <SaveArgs as clap::FromArgMatches>::from_arg_matches(&matches).unwrap();
            assert_eq!(args.save, Some(file));
        }
    }

    #[test]
    fn a_volume_has_its_own_section() {
        let (both, staleness) = (format!("{A}{B}"), "staleness = \"5s\"\n");
        let change = ["staleness=5s"];
        assert_eq!(of_volumes(&both, &change, &["b"]).unwrap(), format!("{both}{staleness}"));
        let all = format!("{A}{staleness}{B}{staleness}");
        assert_eq!(of_volumes(&both, &change, &["a", "b"]).unwrap(), all);
        // A server with one volume does not tell how it is called.
        assert_eq!(of_volumes(A, &change, &[]).unwrap(), format!("{A}{staleness}"));
        assert!(of_volumes(&both, &change, &[]).unwrap_err().contains("several volumes"));
        let error = of_volumes(A, &change, &["a", "b"]).unwrap_err();
        assert!(error.contains("stays as it is") && error.contains("[volume.b]"), "{error}");
        let above = "origin = 'file:/c.img'\ncache = '/c'\n";
        let text = format!("{above}{A}");
        assert_eq!(of_volumes(&text, &change, &[""]).unwrap(), format!("{above}{staleness}{A}"));
    }

    #[test]
    fn what_a_start_would_refuse_is_refused_before_the_server_is_asked() {
        let group = "group = 'g'\n";
        let shop = format!("{A}{group}coordinator = true\n{B}{group}");
        let file = "origin = 'file:/a.img'\ncache = '/a'\n";
        for (text, change, volumes, part) in [
            (&shop[..], "when=interval:5s,1s", &["a"][..], "another --staleness or --when"),
            (A, "bypass-sequential=32K", &[], "64K to 1T"),
            (A, "batch=100", &[], "unknown key 'batch'"),
            (A, "dirty-limit=2T", &[], "64K to 1T"),
            (A, "volume=a", &[], "unknown key 'volume'"),
            (A, "commit=40s", &[], "must exceed the commit interval"),
            (file, "batch=100", &[], "unknown key 'batch'"),
            // Of a volume that the command line makes, with all but what is wrong.
            ("when = 'async'", "commit=40s", &[], "must exceed the commit interval"),
        ] {
            let error = of_volumes(text, &[change], volumes).unwrap_err();
            assert!(error.contains("a start would refuse it") && error.contains(part), "{error}");
        }
        let both = of_volumes(&shop, &["when=interval:5s,1s"], &["a", "b"]).unwrap();
        assert_eq!(both.matches("interval:5s,1s").count(), 2);
        let of_rows = |change| saved("when = 'async'\n", &[change], serve::check_text, &[]);
        for (change, part) in [
            ("bypass-sequential=1M", "unknown key"),
            ("dirty-limit=2T", "64K to 1T"),
            ("staleness=2d", "100ms to 1d"),
        ] {
            let error = of_rows(change).unwrap_err();
            assert!(error.contains("a start would refuse it") && error.contains(part), "{error}");
        }
    }

    #[test]
    fn what_the_command_line_completes_is_saved() {
        assert_eq!(of_volumes("", &["when=adaptive"], &[]).unwrap(), "when = \"adaptive\"\n");
        let listen = "listen = '0.0.0.0:6380'\n";
        let text = saved(listen, &["when=adaptive"], serve::check_text, &[]).unwrap();
        assert_eq!(text, format!("{listen}when = \"adaptive\"\n"));
    }

    #[test]
    fn a_start_has_the_order_that_the_server_has_taken() {
        let strict = format!("{A}policy = \"ordered\"\norder = \"strict\"\n");
        assert_eq!(of_volumes(A, &["order=strict"], &[]).unwrap(), strict);
        assert_eq!(
            of_volumes(&strict, &["ordered"], &[]).unwrap(),
            format!("{A}policy = \"ordered\"\norder = \"epoch\"\n")
        );
    }

    #[test]
    fn a_file_that_cannot_be_read_is_told_of_before_the_server_is_asked() {
        let gone = Path::new("/nowhere/destage.toml");
        let error = prepared(gone, &["when=async"], serve::check_text, &[]).unwrap_err();
        assert!(error.contains("/nowhere"), "{error}");
    }
}
