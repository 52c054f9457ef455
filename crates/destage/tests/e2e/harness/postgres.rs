//! PostgreSQL servers: the one that `cargo xtask test` shares, and a test's own that it may stop.

use super::{output, prepared};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

/// The shared server's address, without a database.
fn shared() -> Option<String> {
    prepared("DESTAGE_TEST_POSTGRES")
}

/// A new database in the shared server; `None` (after saying so) where there is no server.
pub(crate) fn new_database() -> Option<String> {
    Some(create_database(&shared()?))
}

fn create_database(server: &str) -> String {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let name = format!("e2e_{}_{number}", std::process::id());
    psql(server, &format!("CREATE DATABASE {name}"));
    let (address, _) = server.rsplit_once('/').expect("the address names a database");
    format!("{address}/{name}")
}

/// Runs SQL directly, past Destage; rows of values, NULL as `NULL`.
///
/// # Panics
/// If the server refuses it.
#[track_caller]
pub(crate) fn psql(url: &str, sql: &str) -> Vec<Vec<String>> {
    let mut command = Command::new("psql");
    command.args(["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-P", "null=NULL"]);
    let printed = output(command.args(["-F", SEPARATOR, "-d", url, "-c", sql]));
    printed.lines().map(|line| line.split(SEPARATOR).map(str::to_owned).collect()).collect()
}

/// A test's own server. Stopped and removed when dropped.
pub(crate) struct Postgres {
    guard: Child,
    answers: BufReader<ChildStdout>,
    server: String,
}

impl Postgres {
    /// Starts one; `None` (after saying so) where that is not possible.
    pub(crate) fn start() -> Option<Self> {
        let script = prepared("DESTAGE_TEST_POSTGRES_SCRIPT")?;
        let programs = prepared("DESTAGE_TEST_POSTGRES_PROGRAMS")?;
        let user = std::env::var("DESTAGE_TEST_POSTGRES_USER").unwrap_or_default();
        let mut guard = Command::new("sh")
            .args([script, programs, user])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the shell starts");
        let mut answers = BufReader::new(guard.stdout.take().expect("the output is piped"));
        let mut server = String::new();
        answers.read_line(&mut server).expect("the server prints its address");
        assert!(!server.is_empty(), "PostgreSQL did not start");
        Some(Self { guard, answers, server: server.trim().to_owned() })
    }

    /// A new database in it.
    pub(crate) fn database(&self) -> String {
        create_database(&self.server)
    }

    /// Ends it as a crash does.
    #[track_caller]
    pub(crate) fn stop(&mut self) {
        self.command("stop");
    }

    /// Starts it again on the same port.
    #[track_caller]
    pub(crate) fn restart(&mut self) {
        self.command("start");
    }

    /// Keeps it from running: connections stay open and nothing answers.
    #[track_caller]
    pub(crate) fn freeze(&mut self) {
        self.command("freeze");
    }

    /// Lets it run again.
    #[track_caller]
    pub(crate) fn thaw(&mut self) {
        self.command("thaw");
    }

    #[track_caller]
    fn command(&mut self, command: &str) {
        let pipe = self.guard.stdin.as_mut().expect("the input is piped");
        writeln!(pipe, "{command}").expect("the script reads");
        let mut answer = String::new();
        self.answers.read_line(&mut answer).expect("the script answers");
        assert_eq!(answer.trim(), "ok", "failed to {command} PostgreSQL");
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        drop(self.guard.stdin.take());
        let _ = self.guard.wait();
    }
}

/// Between columns; in no test's value.
const SEPARATOR: &str = "\x1f";
