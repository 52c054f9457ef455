//! Destage as a library: [`store`]. Everything else here is what `destage serve` is made of, and may change at any time.

#[doc(hidden)]
pub mod engine;
mod lookup;
#[doc(hidden)]
pub mod resp;
#[doc(hidden)]
pub mod serve;
#[doc(hidden)]
pub mod settings;
pub mod store;
#[doc(hidden)]
pub mod users;

#[doc(hidden)]
pub use destage_origins::{
    catalog, cells, change, checks, collection, defaults, derived, dml, domains, key_text, mapping,
    once, parked, plan, schema, ttl, value,
};

/// The stores behind the cache.
#[doc(hidden)]
pub mod origins {
    pub use destage_origins::contract::*;
    pub use destage_origins::origins::*;
}
