//! Private servers for one run: own folders, own ports, gone afterwards. Databases take passwords only.

use crate::tools::{is_root, postgres_folder};
use crate::{Result, root, suites};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// A running server. Dropping it stops the server and removes its folder; so does the end of this process, whatever
/// ends it.
pub(crate) struct Server {
    name: &'static str,
    guard: Child,
    variables: Vec<(&'static str, String)>,
}

impl Server {
    /// Makes a PostgreSQL cluster in a temporary folder and starts its server.
    ///
    /// # Errors
    /// Names the program that failed, with its output.
    pub(crate) fn postgres() -> Result<Self> {
        let variables = Self::postgres_programs()?;
        let script = script("postgres.sh");
        let [(_, programs), (_, user)] = &variables;
        let (guard, url) = start("PostgreSQL", &script, &[programs, user])?;
        let mut all = vec![
            ("DESTAGE_TEST_POSTGRES", url),
            ("DESTAGE_TEST_POSTGRES_SCRIPT", script.display().to_string()),
        ];
        all.extend(variables);
        Ok(Self { name: "PostgreSQL", guard, variables: all })
    }

    /// Where PostgreSQL's server programs are, and which user may run them.
    ///
    /// # Errors
    /// They are not installed.
    pub(crate) fn postgres_programs() -> Result<[(&'static str, String); 2]> {
        let programs = postgres_folder().ok_or("PostgreSQL's server programs are not installed")?;
        let user = if is_root() { SYSTEM_USER } else { "" };
        Ok([
            ("DESTAGE_TEST_POSTGRES_PROGRAMS", programs.display().to_string()),
            ("DESTAGE_TEST_POSTGRES_USER", user.to_owned()),
        ])
    }

    /// Makes a MariaDB data folder in a temporary folder and starts its server.
    ///
    /// # Errors
    /// Names the program that failed, with its output.
    pub(crate) fn mariadb() -> Result<Self> {
        let script = script("mariadb.sh");
        let (guard, url) = start("MariaDB", &script, &[])?;
        let variables = vec![
            ("DESTAGE_TEST_MARIADB", url),
            ("DESTAGE_TEST_MARIADB_SCRIPT", script.display().to_string()),
        ];
        Ok(Self { name: "MariaDB", guard, variables })
    }

    /// Brings up a CephFS, if the scripts for it are there: one OSD in memory, mounted once, without the kernel's page cache.
    ///
    /// # Errors
    /// Names the program that failed, with its output.
    pub(crate) fn cephfs() -> Result<Option<Self>> {
        let Some(scripts) = suites::ceph()? else { return Ok(None) };
        let (script, scripts) = (script("cephfs.sh"), scripts.display().to_string());
        let arguments = [&*scripts, "--store", "memstore", "--osds", "1", "--mounts", "1"];
        let (guard, state) = start("CephFS", &script, &arguments)?;
        let variables = vec![
            ("DESTAGE_TEST_CEPHFS", state),
            ("DESTAGE_TEST_CEPHFS_SCRIPT", script.display().to_string()),
            ("DESTAGE_TEST_CEPHFS_SCRIPTS", scripts),
        ];
        Ok(Some(Self { name: "CephFS", guard, variables }))
    }

    /// What the tests must know of it.
    pub(crate) fn environment(&self) -> Vec<(&'static str, String)> {
        self.variables.clone()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The script stops the server once its standard input ends.
        drop(self.guard.stdin.take());
        if let Err(error) = self.guard.wait() {
            eprintln!("xtask: failed to stop {}: {error}", self.name);
        }
    }
}

/// Starts a server by its script, which prints its address.
fn start(name: &str, script: &Path, arguments: &[&str]) -> Result<(Child, String)> {
    let failed = |error| format!("failed to start {name}: {error}");
    let mut guard = Command::new("sh")
        .arg(script)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    let output = guard.stdout.take().expect("the output is piped");
    let mut url = String::new();
    BufReader::new(output).read_line(&mut url).map_err(failed)?;
    match url.trim() {
        "" => Err(format!("failed to start {name}: see its output above")),
        address => Ok((guard, address.to_owned())),
    }
}

/// A script that the tests use too, for servers that they stop and start.
fn script(name: &str) -> PathBuf {
    root().join("tests/servers").join(name)
}

/// PostgreSQL refuses to run as root; this user comes with its package.
const SYSTEM_USER: &str = "postgres";
