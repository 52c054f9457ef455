//! The databases behind the data front end: values and rows, what a write group holds, how a batch of groups is planned, and
//! the databases that take it.
//!
//! [`contract`] says what an origin has to do; [`origins`] holds those that there are.

mod asked;
pub mod catalog;
pub mod cells;
pub mod change;
pub mod checks;
pub mod collection;
#[cfg(feature = "conformance")]
pub mod conformance;
pub mod contract;
pub mod defaults;
pub mod derived;
pub mod dml;
pub mod domains;
mod error;
pub mod key_text;
pub mod mapping;
pub mod once;
pub mod origins;
pub mod parked;
pub mod plan;
pub mod schema;
pub mod settings;
mod sql_text;
mod triggers;
pub mod ttl;
pub mod value;
