//! The data front end of Destage: Redis clients before SQL databases and MongoDB's protocol, write-back with a contract.

pub mod catalog;
pub mod cells;
pub mod change;
pub mod collection;
pub mod derived;
pub mod dml;
pub mod domains;
pub mod engine;
mod key_text;
pub mod mapping;
pub mod once;
pub mod origins;
pub mod parked;
pub mod plan;
pub mod resp;
pub mod schema;
pub mod serve;
pub mod settings;
pub mod store;
pub mod value;
