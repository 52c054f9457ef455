//! FerretDB, the MongoDB server of the tests: a small program around its library, built once from pinned modules.

use crate::clients::{copied, remember, run, up_to_date};
use crate::{Result, root, target};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The library reads its version from a file that only its own releases have; pinned in go.mod too.
const VERSION: &str = "v1.24.0\n";
const VERSION_FILE: &str = "vendor/github.com/FerretDB/FerretDB/build/version/version.txt";

/// The oldest Go that takes its sources; Debian 12's own is older.
const GO_MINOR_MIN: u32 = 22;

/// Builds the program where it is not yet; for the tests' environment. With an older Go there is none, and the tests before
/// MongoDB say that they are left out.
///
/// # Errors
/// What failed, with its output above.
pub(crate) fn build() -> Result<Vec<(&'static str, String)>> {
    const VARIABLE: &str = "DESTAGE_TEST_FERRETDB";
    if go_minor().is_none_or(|minor| minor < GO_MINOR_MIN) {
        println!("FerretDB needs Go 1.{GO_MINOR_MIN}: the tests before MongoDB are left out");
        return Ok(vec![(VARIABLE, String::new())]);
    }
    let sources = root().join("tests/servers/ferretdb");
    let home = target().join("xtask");
    let work = copied(&sources, &home.join("ferretdb"))?;
    let work = work
        .canonicalize()
        .map_err(|error| format!("failed to find {}: {error}", work.display()))?;
    vendor(&work)?;
    let program = work.join("ferretdb");
    let mut build = Command::new("go");
    build.args(["build", "-mod=vendor", "-buildvcs=false", "-trimpath", "-o"]).arg(&program);
    run("go build", build.arg(".").env("CGO_ENABLED", "0").current_dir(&work))?;
    Ok(vec![(VARIABLE, program.display().to_string())])
}

/// The Go that would be used: 19 for 1.19.
fn go_minor() -> Option<u32> {
    let version = Command::new("go").args(["env", "GOVERSION"]).output().ok()?;
    let version = String::from_utf8(version.stdout).ok()?;
    minor(&version)
}

fn minor(version: &str) -> Option<u32> {
    let digits = version.trim().strip_prefix("go1.")?;
    let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
    digits[..end].parse().ok()
}

/// The modules' sources beside the program, since one of their files is missing where Go keeps them.
fn vendor(work: &Path) -> Result<()> {
    let sums = work.join("go.sum");
    if up_to_date(work, &sums)? {
        return Ok(());
    }
    run("go mod vendor", Command::new("go").args(["mod", "vendor"]).current_dir(work))?;
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
        for (version, expected) in [
            ("go1.19.8\n", Some(19)),
            ("go1.26", Some(26)),
            ("go1.23rc1", Some(23)),
            ("devel", None),
        ] {
            assert_eq!(minor(version), expected, "{version}");
        }
    }
}
