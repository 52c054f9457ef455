//! The library through its public interface, before SQLite files.
#![allow(clippy::unwrap_used, reason = "a test ends where it fails")]

mod changes;
mod dml;
mod entries;
mod history;
#[path = "../arm/killed.rs"]
mod killed;
mod leases;
mod support;
