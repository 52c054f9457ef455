//! What a run works with: its folder, the program to measure, its own command line.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use crate::Result;

/// A folder below `parent` that is removed when dropped, and that PostgreSQL's user may enter.
///
/// # Errors
///
/// It cannot be made.
pub(crate) fn run_folder(parent: Option<&Path>) -> Result<tempfile::TempDir> {
    let parent = parent.map_or_else(default_parent, |parent| Ok(parent.to_owned()))?;
    let folder = tempfile::Builder::new().prefix("destage-bench-").tempdir_in(&parent);
    let folder = folder
        .map_err(|error| format!("failed to make a folder in {}: {error}", parent.display()))?;
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755))?;
    Ok(folder)
}

/// The folder above this program's own: the build's target folder.
fn default_parent() -> Result<PathBuf> {
    let program = std::env::current_exe()?;
    let target = program.parent().and_then(Path::parent).filter(|dir| dir.is_dir());
    Ok(target.map_or_else(std::env::temp_dir, Path::to_owned))
}

/// The program to measure: this one, else `destage` beside this program.
///
/// # Errors
///
/// There is none.
pub(crate) fn program(named: Option<&Path>) -> Result<PathBuf> {
    let path = match named {
        Some(path) => path.to_owned(),
        None => std::env::current_exe()?.with_file_name("destage"),
    };
    if path.exists() {
        Ok(path)
    } else {
        let shown = path.display();
        Err(format!("{shown} does not exist: build it or name it by --destage-bin").into())
    }
}

/// The arguments without those that only say where something lies on this machine.
pub(crate) fn command_line() -> String {
    let mut words = vec!["destage-bench".to_owned()];
    let mut arguments = std::env::args().skip(1);
    while let Some(word) = arguments.next() {
        let name = word.split('=').next().unwrap_or_default();
        match name {
            "--destage-bin" | "--dir" | "--json" | "--output" | "--traces" | "--cachesim"
            | "--programs" | "--guest" => {
                if name == word {
                    arguments.next();
                }
            }
            _ => words.push(word),
        }
    }
    words.join(" ")
}
