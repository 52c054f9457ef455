//! The origins that there are, and their addresses.

mod address;
mod bound;
mod ledger;
mod mongo;
mod mysql;
mod open;
mod postgres;
mod quote;
mod sqlite;
mod tls;

pub use mongo::Mongo;
pub use mysql::Mysql;
pub use open::{ADDRESSES, open};
pub use postgres::Postgres;
pub use sqlite::{Sqlite, create_example};
