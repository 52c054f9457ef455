//! A log with a single writer on n independent servers, replicated by its owner: what the owner does, what a server does, and
//! how an owner takes over from another one.
//!
//! Like the policy engine, the crate does no I/O, reads no clock and starts no thread: time is an argument, and what a server
//! has answered is one, too. The live program and the simulation drive the same [`Owner`]; what a server does is a script on
//! a real one, and [`Server`] here, to which a test compares the script.
//!
//! ```text
//!   a group of writes ──► Owner::append ──► Request ──► n servers ──► Reply ──► Owner::replied ──► committed(), may_answer()
//!                             ▲                                                     │
//!                        Owner::reclaim ◄── decided at the origin                   └──► fenced: another owner has taken over
//! ```
//!
//! The log is replicated as Raft replicates one: an entry is known by its position and the epoch under which it was written,
//! and equal entries have equal logs before them. Owners are not elected by the servers, as in Raft. One takes over by promises
//! of n - k + 1 servers, of which any k servers that accepted an entry have at least one; so it finds every such entry in the
//! log with the highest last epoch, or the longest of those. Its first entry, under its own epoch, comes behind the whole of
//! that log; nothing counts before k servers have accepted it. Epochs are made unique by the owner's identity, since two owners
//! may each have promises of n - k + 1 servers.
//!
//! Where k is more than a majority, a take-over still needs promises of half of the servers: what a majority holds is found, too
//! ([`Owner::secured`]). It may go to the origin with fewer than k servers, and be acknowledged once that has it.
#![no_std]

extern crate alloc;

/// Whether this build lets tests switch off what promises rest on, to show that they would notice. Never in what ships.
pub const CONTROLS: bool = cfg!(feature = "controls");

mod config;
mod controls;
mod epoch;
mod log;
mod message;
mod owner;
mod server;
mod settings;

pub use config::{Config, Member, MemberList};
pub use controls::Controls;
pub use epoch::{Epoch, Position, RunId};
pub use log::{Entry, Payload};
pub use message::{Beat, Reply, Request, View};
pub use owner::{Connection, Owner, Refusal, Stage, Standing};
pub use server::Server;
pub use settings::Settings;

/// Where a server is, in words that also name it.
pub type Address = alloc::sync::Arc<str>;
