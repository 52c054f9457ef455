//! FerretDB, the MongoDB server of the tests: a small program around its library, built once from pinned modules.

use crate::clients::{copied, remember, run, up_to_date};
use crate::{Result, root, target};
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The library reads its version from a file that only its own releases have; pinned in go.mod too.
const VERSION: &str = "v1.24.0\n";
const VERSION_FILE: &str = "vendor/github.com/FerretDB/FerretDB/build/version/version.txt";

/// The oldest Go that takes its sources; Debian 12's own is older.
const GO_MINOR_MIN: u32 = 22;
/// The Go that takes its place, as the module proxy has it.
const NEWER_GO: &str = "golang.org/toolchain@v0.0.1-go1.24.9";

/// Builds the program where it is not yet; for the tests' environment.
///
/// # Errors
/// What failed, with its output above.
pub(crate) fn build() -> Result<Vec<(&'static str, String)>> {
    let go = go()?;
    let sources = root().join("tests/servers/ferretdb");
    let home = target().join("xtask");
    let work = copied(&sources, &home.join("ferretdb"))?;
    let work = work
        .canonicalize()
        .map_err(|error| format!("failed to find {}: {error}", work.display()))?;
    vendor(&go, &work)?;
    let program = work.join("ferretdb");
    let mut build = Command::new(&go);
    build.args(["build", "-mod=vendor", "-buildvcs=false", "-trimpath", "-o"]).arg(&program);
    run("go build", build.arg(".").env("CGO_ENABLED", "0").current_dir(&work))?;
    Ok(vec![("DESTAGE_TEST_FERRETDB", program.display().to_string())])
}

/// The Go to build with: the installed one, or one from the module proxy where that is too old.
fn go() -> Result<PathBuf> {
    match installed_minor() {
        Some(minor) if minor < GO_MINOR_MIN => {
            println!("FerretDB needs Go 1.{GO_MINOR_MIN}, here is 1.{minor}: taking {NEWER_GO}");
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

/// The modules' sources beside the program, since one of their files is missing where Go keeps them.
fn vendor(go: &Path, work: &Path) -> Result<()> {
    let sums = work.join("go.sum");
    if up_to_date(work, &sums)? {
        return Ok(());
    }
    run("go mod vendor", Command::new(go).args(["mod", "vendor"]).current_dir(work))?;
    let file: PathBuf = work.join(VERSION_FILE);
    std::fs::write(&file, VERSION)
        .map_err(|error| format!("failed to write {}: {error}", file.display()))?;
    remember(work, &sums)
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
