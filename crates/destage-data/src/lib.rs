//! The data front end of Destage: Redis clients in front of SQL databases and MongoDB's protocol, write-back with a contract.

pub mod engine;
mod lookup;
pub mod resp;
pub mod serve;
pub mod settings;
pub mod store;
pub mod users;

pub use destage_origins::{
    catalog, cells, change, checks, collection, defaults, derived, dml, domains, key_text, mapping,
    once, parked, plan, schema, ttl, value,
};

/// The stores behind the cache.
pub mod origins {
    pub use destage_origins::contract::*;
    pub use destage_origins::origins::*;
}
