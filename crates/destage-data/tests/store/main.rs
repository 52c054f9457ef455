//! The library through its public interface, before SQLite files.
#![allow(clippy::unwrap_used, reason = "a test ends where it fails")]

mod changes;
mod entries;
mod history;
mod leases;
mod support;
