//! Every origin against a real database: SQLite in files, PostgreSQL and MariaDB at the servers that `DESTAGE_TEST_POSTGRES`
//! and `DESTAGE_TEST_MARIADB` name, MongoDB's protocol by the program of FerretDB that `DESTAGE_TEST_FERRETDB` names;
//! without these their tests are skipped by name, or fail where `DESTAGE_TEST_REQUIRE=1`. What all of them promise is in
//! [`conformance`]; the rest is each one's own.

#![allow(clippy::unwrap_used, reason = "a test ends where it fails")]

mod checks;
mod claimed;
mod conformance;
mod memory;
mod mongo;
mod mysql;
mod postgres;
mod sqlite;
