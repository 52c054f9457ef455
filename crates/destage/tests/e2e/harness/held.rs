//! A transaction of another program that stays open for as long as a test wants.

use super::{Database, mariadb};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};

/// An open transaction; rolled back when dropped.
pub(crate) enum Held {
    /// In this process.
    Sqlite(rusqlite::Connection),
    /// A client of the database's server, which reads statements from a pipe.
    Client(Child),
}

impl Held {
    /// Begins one with these statements, and waits until they are done.
    ///
    /// # Panics
    /// If the database refuses them.
    #[track_caller]
    pub(crate) fn begin(database: &Database, sql: &str) -> Self {
        let mut client = match database {
            Database::Sqlite(_) => {
                let connection = database.connect();
                let begun = connection.execute_batch(&format!("BEGIN IMMEDIATE; {sql};"));
                begun.unwrap_or_else(|error| panic!("{sql}: {error}"));
                return Self::Sqlite(connection);
            }
            Database::Postgres(url) => {
                let mut psql = Command::new("psql");
                psql.args(["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-d", url]);
                psql
            }
            Database::Mariadb(url) => {
                let mut client = mariadb::client(url);
                client.arg("--unbuffered");
                client
            }
        };
        client.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut held = Self::Client(client.spawn().expect("the client starts"));
        held.send(&format!("BEGIN; {sql}; SELECT 'held';"));
        let Self::Client(child) = &mut held else { unreachable!("made above") };
        let output = BufReader::new(child.stdout.as_mut().expect("the output is piped"));
        let mut lines = output.lines().map_while(Result::ok);
        assert!(lines.any(|line| line == "held"), "{sql}: refused");
        held
    }

    /// Commits it.
    #[track_caller]
    pub(crate) fn commit(mut self) {
        if let Self::Sqlite(connection) = &self {
            connection.execute_batch("COMMIT").expect("the transaction commits");
        }
        self.send("COMMIT;");
    }

    fn send(&mut self, sql: &str) {
        let Self::Client(child) = self else { return };
        let input = child.stdin.as_mut().expect("the input is piped");
        writeln!(input, "{sql}").and_then(|()| input.flush()).expect("the client reads");
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Self::Client(child) = self {
            // At the end of its input it ends, and its transaction with it.
            drop(child.stdin.take());
            let _ = child.wait();
        }
    }
}
