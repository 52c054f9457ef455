//! MariaDB: databases in a server, and SQL past Destage.

use super::{output, prepared};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

/// A new database in the shared server; `None` (after saying so) where there is no server.
pub(crate) fn new_database() -> Option<String> {
    Some(create_database(&prepared("DESTAGE_TEST_MARIADB")?))
}

/// A new database in that server.
pub(super) fn create_database(server: &str) -> String {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let name = format!("e2e_{}_{number}", std::process::id());
    // Keys of text are told apart by their bytes.
    mariadb(server, &format!("CREATE DATABASE {name} COLLATE utf8mb4_nopad_bin"));
    let (address, _) = server.rsplit_once('/').expect("the address names a database");
    format!("{address}/{name}")
}

/// The client of that database.
pub(super) fn client(url: &str) -> Command {
    let (user, place) = url
        .strip_prefix("mysql://")
        .and_then(|rest| rest.split_once('@'))
        .expect("the address names a user");
    let (user, password) = user.split_once(':').expect("the address has a password");
    let (host, database) = place.split_once('/').expect("the address names a database");
    let (host, port) = host.split_once(':').expect("the address has a port");
    let mut command = Command::new("mariadb");
    command.args(["--no-defaults", "--protocol=tcp", "--batch", "--raw", "--skip-column-names"]);
    command.args(["-h", host, "-P", port, "-u", user, "-D", database]);
    command.arg("--init-command=SET sql_mode = 'ANSI_QUOTES,STRICT_ALL_TABLES'");
    command.arg("--default-character-set=utf8mb4").env("MYSQL_PWD", password);
    command
}

/// Runs SQL directly, past Destage; rows of values, NULL as `NULL`.
///
/// # Panics
/// If the server refuses it.
#[track_caller]
pub(crate) fn mariadb(url: &str, sql: &str) -> Vec<Vec<String>> {
    let printed = output(client(url).args(["-e", sql]));
    printed.lines().map(|line| line.split('\t').map(str::to_owned).collect()).collect()
}
