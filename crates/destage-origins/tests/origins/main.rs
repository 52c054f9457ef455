//! Every origin against a real database: SQLite in files, PostgreSQL and MariaDB at the servers that `DESTAGE_TEST_POSTGRES`
//! and `DESTAGE_TEST_MARIADB` name; without these their tests are skipped by name, or fail where `DESTAGE_TEST_REQUIRE=1`.

#![allow(clippy::unwrap_used, reason = "a test ends where it fails")]

mod arm;
mod mysql;
mod postgres;
mod sqlite;
