//! A test's own database server, which it may stop.

use super::{Database, mariadb, postgres, prepared};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdout, Command, Stdio};

/// Which server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Postgres,
    Mariadb,
}

/// A test's own server. Stopped and removed when dropped.
pub(crate) struct OwnServer {
    kind: Kind,
    guard: Child,
    answers: BufReader<ChildStdout>,
    server: String,
}

impl OwnServer {
    /// Starts one; `None` (after saying so) where that is not possible.
    pub(crate) fn start(kind: Kind) -> Option<Self> {
        let arguments = match kind {
            Kind::Postgres => vec![
                prepared("DESTAGE_TEST_POSTGRES_SCRIPT")?,
                prepared("DESTAGE_TEST_POSTGRES_PROGRAMS")?,
                std::env::var("DESTAGE_TEST_POSTGRES_USER").unwrap_or_default(),
            ],
            Kind::Mariadb => vec![prepared("DESTAGE_TEST_MARIADB_SCRIPT")?],
        };
        let mut guard = Command::new("sh")
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the shell starts");
        let mut answers = BufReader::new(guard.stdout.take().expect("the output is piped"));
        let mut server = String::new();
        answers.read_line(&mut server).expect("the server prints its address");
        assert!(!server.is_empty(), "{kind:?} did not start");
        Some(Self { kind, guard, answers, server: server.trim().to_owned() })
    }

    /// A new database in it.
    pub(crate) fn database(&self) -> Database {
        match self.kind {
            Kind::Postgres => Database::Postgres(postgres::create_database(&self.server)),
            Kind::Mariadb => Database::Mariadb(mariadb::create_database(&self.server)),
        }
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
        assert_eq!(answer.trim(), "ok", "failed to {command} {:?}", self.kind);
    }
}

impl Drop for OwnServer {
    fn drop(&mut self) {
        drop(self.guard.stdin.take());
        let _ = self.guard.wait();
    }
}
