//! A store before a new file.

use destage_data::store::{LEASE_MAX, Options, Store};
use rusqlite::Connection;
use std::path::PathBuf;
use std::time::Duration;
use tempfile::TempDir;

/// A database with the folder of its journal.
pub(crate) struct Place {
    folder: TempDir,
}

impl Place {
    pub(crate) fn new(script: &str) -> Self {
        let place = Self { folder: tempfile::tempdir().unwrap() };
        place.sql().execute_batch(script).unwrap();
        place
    }

    pub(crate) fn file(&self) -> PathBuf {
        self.folder.path().join("origin.db")
    }

    /// The database past the store.
    pub(crate) fn sql(&self) -> Connection {
        Connection::open(self.file()).unwrap()
    }

    /// The first column of the first row at the origin, as text.
    pub(crate) fn at_origin(&self, query: &str) -> Option<String> {
        let query = format!("SELECT CAST(({query}) AS TEXT)");
        self.sql().query_row(&query, [], |row| row.get(0)).unwrap()
    }

    pub(crate) fn options(&self) -> Options {
        let origin = format!("sqlite:{}", self.file().display());
        // Long enough that no stall of the machine ends a lease, or a thread's patience.
        let options = Options::new(origin, self.folder.path().join("data"));
        options.lease(LEASE_MAX).patience(Duration::from_secs(600))
    }

    pub(crate) fn open(&self) -> Store {
        self.options().open().unwrap()
    }
}

/// Accounts 1 to `count` with a balance of 100.
pub(crate) fn bank(count: u32) -> Place {
    let rows: Vec<String> = (1..=count).map(|id| format!("({id}, 100, 0)")).collect();
    Place::new(&format!(
        "CREATE TABLE accounts (id INTEGER PRIMARY KEY, balance INTEGER NOT NULL, version INTEGER NOT NULL);
         INSERT INTO accounts VALUES {}",
        rows.join(", ")
    ))
}
