//! PostgreSQL as the origin, against a real server. `DESTAGE_TEST_POSTGRES` holds the URL of a database in which the tests
//! may create schemas; without it they are skipped by name, or fail where `DESTAGE_TEST_REQUIRE=1`.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail the test")]

#[path = "../arm/mod.rs"]
mod arm;
mod batches;
mod catalog;
mod database;
mod dml;
#[path = "../arm/killed.rs"]
mod killed;
mod overlap;
mod reading;
mod speed;
mod tls;
mod values;
mod writing;

impl arm::Arm {
    /// Claims a test's database as its first owner.
    pub(crate) fn new(database: &database::Database) -> Self {
        Self::before(&database.origin())
    }
}
