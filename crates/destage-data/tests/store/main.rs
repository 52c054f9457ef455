//! The library through its public interface, before SQLite files and the servers that `DESTAGE_TEST_POSTGRES` and
//! `DESTAGE_TEST_MARIADB` name; without these their tests are skipped by name, or fail where `DESTAGE_TEST_REQUIRE=1`.
#![allow(clippy::unwrap_used, reason = "a test ends where it fails")]

mod builds_on;
mod changes;
mod dml;
mod entries;
mod history;
mod killed;
mod leases;
#[path = "../../../destage-origins/tests/origins/mysql/database.rs"]
#[expect(dead_code, reason = "only the database is used, not the origin")]
mod mariadb;
#[path = "../../../destage-origins/tests/origins/postgres/database.rs"]
#[expect(dead_code, reason = "only the database is used, not the origin")]
mod postgres;
mod support;
mod trouble;
