//! MariaDB, a database for each test.

mod catalog;
mod database;
mod dml;
mod reading;
mod tls;
mod values;
mod writing;

pub(crate) use database::Database;
