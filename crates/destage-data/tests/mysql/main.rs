//! MariaDB as the origin, against a real server. `DESTAGE_TEST_MARIADB` holds the URL of a server in which the tests may
//! create databases; without it they are skipped by name, or fail where `DESTAGE_TEST_REQUIRE=1`.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail the test")]

#[path = "../arm/mod.rs"]
mod arm;
mod catalog;
mod database;
mod dml;
#[path = "../arm/killed.rs"]
mod killed;
mod reading;
mod tls;
mod values;
mod writing;

impl arm::Arm {
    /// Claims a test's database as its first owner.
    pub(crate) fn new(database: &database::Database) -> Self {
        Self::before(&database.origin())
    }
}
