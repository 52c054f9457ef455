//! PostgreSQL: databases in a server, and SQL past Destage.

use super::{output, prepared};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

/// The shared server's address, without a database.
fn shared() -> Option<String> {
    prepared("DESTAGE_TEST_POSTGRES")
}

/// A new database in the shared server; `None` (after saying so) where there is no server.
pub(crate) fn new_database() -> Option<String> {
    Some(create_database(&shared()?))
}

/// A new database in that server.
pub(super) fn create_database(server: &str) -> String {
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

/// Between columns; in no test's value.
const SEPARATOR: &str = "\x1f";
