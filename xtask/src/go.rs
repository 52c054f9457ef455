//! The Go that what the tests need is built with.

use crate::clients::run;
use crate::{Result, root};
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The oldest Go that takes the sources of FerretDB and of the Redis client; Debian 12's own is older.
const GO_MINOR_MIN: u32 = 22;
/// The Go that takes its place, as the module proxy has it.
const NEWER_GO: &str = "golang.org/toolchain@v0.0.1-go1.24.9";

/// The Go to build with: the installed one, or one from the module proxy where that is too old.
///
/// # Errors
/// What failed, with its output above.
pub(crate) fn go() -> Result<PathBuf> {
    match installed_minor() {
        Some(minor) if minor < GO_MINOR_MIN => {
            println!("the tests need Go 1.{GO_MINOR_MIN}, here is 1.{minor}: taking {NEWER_GO}");
            newer()
        }
        // One whose version says nothing is a development build.
        _ => Ok(PathBuf::from("go")),
    }
}

/// Fetches the newer Go into the folder where Go keeps modules, which checks its sum.
fn newer() -> Result<PathBuf> {
    let [os, arch] = ["GOOS", "GOARCH"].map(|name| go_env(name).unwrap_or_default());
    let module = format!("{NEWER_GO}.{os}-{arch}");
    let mut download = Command::new("go");
    download.args(["mod", "download", &module]).current_dir(root());
    run("go mod download", &mut download)?;
    let folder = go_env("GOMODCACHE").ok_or("go does not say where it keeps modules")?;
    let folder = Path::new(&folder).join(module);
    // Modules are kept without the right to run them.
    for programs in [folder.join("bin"), folder.join(format!("pkg/tool/{os}_{arch}"))] {
        let failed = |error| format!("failed to make {} executable: {error}", programs.display());
        for program in std::fs::read_dir(&programs).map_err(failed)? {
            let program = program.map_err(failed)?.path();
            std::fs::set_permissions(&program, Permissions::from_mode(0o755)).map_err(failed)?;
        }
    }
    Ok(folder.join("bin/go"))
}

/// The minor version of the Go that is installed: 19 for 1.19.
fn installed_minor() -> Option<u32> {
    minor(&go_env("GOVERSION")?)
}

fn go_env(name: &str) -> Option<String> {
    let output = Command::new("go").args(["env", name]).output().ok()?;
    Some(String::from_utf8(output.stdout).ok()?.trim().to_owned())
}

fn minor(version: &str) -> Option<u32> {
    let digits = version.strip_prefix("go1.")?;
    let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
    digits[..end].parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read() {
        for (version, expected) in
            [("go1.19.8", Some(19)), ("go1.26", Some(26)), ("go1.23rc1", Some(23)), ("devel", None)]
        {
            assert_eq!(minor(version), expected, "{version}");
        }
    }
}
