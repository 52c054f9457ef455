//! FerretDB, the MongoDB server of the tests: a small program around its library, built once from pinned modules.

use crate::clients::{copied, remember, run, up_to_date};
use crate::{Result, root, target};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The library reads its version from a file that only its own releases have; pinned in go.mod too.
const VERSION: &str = "v1.24.0\n";
const VERSION_FILE: &str = "vendor/github.com/FerretDB/FerretDB/build/version/version.txt";

/// Builds the program with this Go where it is not yet; for the tests' environment.
///
/// # Errors
/// What failed, with its output above.
pub(crate) fn build(go: &Path) -> Result<Vec<(&'static str, String)>> {
    let sources = root().join("tests/servers/ferretdb");
    let home = target().join("xtask");
    let work = copied(&sources, &home.join("ferretdb"))?;
    let work = work
        .canonicalize()
        .map_err(|error| format!("failed to find {}: {error}", work.display()))?;
    vendor(go, &work)?;
    let program = work.join("ferretdb");
    let mut build = Command::new(go);
    build.args(["build", "-mod=vendor", "-buildvcs=false", "-trimpath", "-o"]).arg(&program);
    run("go build", build.arg(".").env("CGO_ENABLED", "0").current_dir(&work))?;
    Ok(vec![("DESTAGE_TEST_FERRETDB", program.display().to_string())])
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
