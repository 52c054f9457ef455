//! The block front end of Destage: NBD clients in front of a slow disk, write-back with a contract.
//!
//! After Koller, Marmol, Rangaswami, Sundararaman, Talagala and Zhao, "Write Policies for Host-side Flash Caches", 2013.

pub mod attach;
pub mod block;
pub mod cache;
mod compare;
pub mod engine;
pub mod nbd;
pub mod origin;
pub mod redo;
pub mod request;
pub mod serve;
pub mod settings;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
