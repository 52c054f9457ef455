//! The suites that others wrote for file systems: built once from their published sources, which are no part of the project.

use crate::clients::{remember, run, up_to_date};
use crate::{Result, root, target};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A suite: its archive, the folder that the archive makes, what builds it there, and for how long at the most.
struct Suite {
    archive: &'static str,
    folder: &'static str,
    build: &'static str,
    seconds_max: u32,
    variable: &'static str,
}

const SUITES: [Suite; 3] = [
    Suite {
        archive: "pjdfstest-85a8aea.tar.gz",
        folder: "pjdfstest",
        build: "autoreconf -ifs && ./configure && make",
        seconds_max: 300,
        variable: "DESTAGE_TEST_PJDFSTEST",
    },
    Suite {
        archive: "xfstests-63a2972.tar.gz",
        folder: "xfstests",
        build: "make -j2",
        seconds_max: 900,
        variable: "DESTAGE_TEST_XFSTESTS",
    },
    Suite {
        archive: "filebench-22620e6.tar.gz",
        folder: "filebench",
        build: "libtoolize && aclocal && autoheader && automake --add-missing && autoconf && \
                ./configure --prefix=\"$PWD/installed\" && make -j2 install",
        seconds_max: 300,
        variable: "DESTAGE_TEST_FILEBENCH",
    },
];

/// Builds the suites where they are not yet built; for the tests' environment, where each is.
///
/// # Errors
/// What failed, and where its output is. A folder that the caller names and that is not there.
pub(crate) fn build() -> Result<Vec<(&'static str, String)>> {
    let Some(archives) = folder(ARCHIVES, "suites")? else { return Ok(Vec::new()) };
    // Among the tests of one suite are some that run as these.
    for user in TEST_USERS {
        add_user(user)?;
    }
    let home = target().join("xtask/suites");
    std::fs::create_dir_all(&home)
        .map_err(|error| format!("failed to create {}: {error}", home.display()))?;
    let home = home
        .canonicalize()
        .map_err(|error| format!("failed to find {}: {error}", home.display()))?;
    let one = |suite: &Suite| Ok((suite.variable, suite.built(&archives, &home)?));
    SUITES.iter().map(one).collect()
}

/// The scripts that bring up a CephFS, if this machine has them.
///
/// # Errors
/// A folder that the caller names and that is not there.
pub(crate) fn ceph() -> Result<Option<PathBuf>> {
    folder(CEPH, "ceph")
}

/// What the caller names by this variable, else what lies beside the checkout; the tests that need it say where they miss it.
fn folder(variable: &str, name: &str) -> Result<Option<PathBuf>> {
    if let Some(named) = std::env::var_os(variable) {
        let found = Path::new(&named).canonicalize();
        let failed = |error| format!("{variable} names {}: {error}", named.display());
        return found.map(Some).map_err(failed);
    }
    let beside = root().join("../shared").join(name);
    let found = beside.canonicalize().ok();
    if found.is_none() {
        println!("no {}: the tests on it are left out", beside.display());
    }
    Ok(found)
}

impl Suite {
    /// Builds it, unless it was built from this very archive before; where it is.
    fn built(&self, archives: &Path, home: &Path) -> Result<String> {
        let archive = archives.join(self.archive);
        let work = home.join(self.folder);
        // Archives differ in their names if they differ at all.
        let mark = home.join(format!("{}.archive", self.folder));
        let known = format!("{}\n{}\n", self.archive, self.build);
        if !std::fs::read_to_string(&mark).is_ok_and(|now| now == known) {
            std::fs::write(&mark, &known)
                .map_err(|error| format!("failed to write {}: {error}", mark.display()))?;
        }
        if up_to_date(&work, &mark)? {
            return Ok(work.display().to_string());
        }
        println!("building {} from {}", self.folder, archive.display());
        if work.exists() {
            std::fs::remove_dir_all(&work)
                .map_err(|error| format!("failed to remove {}: {error}", work.display()))?;
        }
        run("tar", Command::new("tar").arg("-xzf").arg(&archive).arg("-C").arg(home))?;
        let log = home.join(format!("{}.log", self.folder));
        self.make(&work, &log).map_err(|what| format!("{what}; see {}", log.display()))?;
        remember(&work, &mark)?;
        Ok(work.display().to_string())
    }

    fn make(&self, work: &Path, log: &Path) -> Result<()> {
        let failed = |error| format!("failed to write {}: {error}", log.display());
        let output = std::fs::File::create(log).map_err(failed)?;
        let errors = output.try_clone().map_err(failed)?;
        let mut make = Command::new("timeout");
        make.arg(self.seconds_max.to_string()).args(["sh", "-c", self.build]).current_dir(work);
        let status = make.stdin(Stdio::null()).stdout(output).stderr(errors).status();
        let status = status.map_err(|error| format!("failed to start timeout: {error}"))?;
        if status.success() {
            Ok(())
        } else {
            Err(format!("{} cannot be built: {status}", self.folder))
        }
    }
}

fn add_user(name: &str) -> Result<()> {
    let known = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    if known.lines().any(|line| line.split(':').next() == Some(name)) {
        return Ok(());
    }
    run("useradd", Command::new("useradd").args(["--create-home", "--user-group", name]))
}

/// Names a folder with the suites' archives.
const ARCHIVES: &str = "DESTAGE_SUITES";
/// Names a folder with `start.sh` and `stop.sh`.
const CEPH: &str = "DESTAGE_CEPH";
const TEST_USERS: [&str; 3] = ["fsgqa", "fsgqa2", "123456-fsgqa"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn archives_are_named_after_their_folders() {
        for suite in SUITES {
            let (name, commit) = suite.archive.rsplit_once('-').expect("a name and a commit");
            assert_eq!(name, suite.folder);
            assert!(commit.ends_with(".tar.gz"), "{commit}");
        }
    }
}
