//! PostgreSQL, a schema for each test.

mod batches;
mod catalog;
mod database;
mod dml;
mod overlap;
mod reading;
mod speed;
mod tls;
mod values;
mod writing;

pub(crate) use database::Database;
