//! What the live front ends of Destage share: the clock, units of measure, the status report with its metrics and its admin
//! port, progress, logging, signals and exit codes. Knows nothing of any protocol or store.

pub mod admin;
pub mod advice;
pub mod auth;
pub mod auto;
pub mod child;
pub mod clock;
pub mod commit;
pub mod commit_ring;
mod console;
pub mod descriptors;
pub mod exit;
pub mod findings;
pub mod flusher;
pub mod foreign;
pub mod fuse;
pub mod handoff;
pub mod human;
pub mod latency;
pub mod log;
pub mod memory;
pub mod metrics;
pub mod mode_log;
pub mod notify;
pub mod own;
pub mod password_hash;
pub mod policy;
pub mod progress;
pub mod reload;
pub mod ring;
pub mod secret_input;
mod serve_error;
pub mod shell;
pub mod shutdown;
pub mod sockets;
pub mod status;
mod table;
pub mod tls;
pub mod units;
pub mod warnings;
pub mod watch;

pub use serve_error::ServeError;
