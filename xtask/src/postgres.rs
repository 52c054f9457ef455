//! A private PostgreSQL for one run: own folder, own port, password only, gone afterwards.

use crate::tools::{is_root, postgres_folder};
use crate::{Result, root};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// A running server. Dropping it stops the server and removes its folder; so does the end of this process, whatever
/// ends it.
pub(crate) struct Postgres {
    guard: Child,
    url: String,
    programs: PathBuf,
}

impl Postgres {
    /// Makes a database cluster in a temporary folder and starts its server.
    ///
    /// # Errors
    /// Names the program that failed, with its output.
    pub(crate) fn start() -> Result<Self> {
        let programs = postgres_folder().ok_or("PostgreSQL's server programs are not installed")?;
        let mut guard = Command::new("sh")
            .arg(script())
            .arg(&programs)
            .arg(if is_root() { SYSTEM_USER } else { "" })
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("failed to start PostgreSQL: {error}"))?;
        let output = guard.stdout.take().expect("the output is piped");
        let mut url = String::new();
        BufReader::new(output)
            .read_line(&mut url)
            .map_err(|error| format!("failed to start PostgreSQL: {error}"))?;
        let postgres = Self { guard, url: url.trim().to_owned(), programs };
        match postgres.url.is_empty() {
            true => Err("failed to start PostgreSQL: see its output above".to_owned()),
            false => Ok(postgres),
        }
    }

    /// What the tests must know of it.
    pub(crate) fn environment(&self) -> Vec<(&'static str, String)> {
        vec![
            ("DESTAGE_TEST_POSTGRES", self.url.clone()),
            ("DESTAGE_TEST_POSTGRES_SCRIPT", script().display().to_string()),
            ("DESTAGE_TEST_POSTGRES_PROGRAMS", self.programs.display().to_string()),
            ("DESTAGE_TEST_POSTGRES_USER", if is_root() { SYSTEM_USER } else { "" }.to_owned()),
        ]
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        // The script stops the server once its standard input ends.
        drop(self.guard.stdin.take());
        if let Err(error) = self.guard.wait() {
            eprintln!("xtask: failed to stop PostgreSQL: {error}");
        }
    }
}

/// The script that the tests use too, for servers that they stop and start.
fn script() -> PathBuf {
    root().join(Path::new("tests/servers/postgres.sh"))
}

/// PostgreSQL refuses to run as root; this user comes with its package.
const SYSTEM_USER: &str = "postgres";
