//! The network block device protocol: the server's side without I/O, a blocking client, TLS and addresses.
//!
//! # Source
//! "The NBD protocol" and "The NBD Uniform Resource Indicator (URI) format", both in the `doc` folder of
//! <https://github.com/NetworkBlockDevice/nbd>. Fixed newstyle negotiation only.

pub mod client;
#[cfg(test)]
mod interoperation;
pub mod server;
#[cfg(test)]
pub(crate) mod testing;
pub mod tls;
pub mod uri;
pub mod wire;
