//! Tokens by which several hosts share one file system: which of them may cache what, and change it. As a protocol: what a host
//! does, and what it expects of the store (etcd) through which the hosts agree.
//!
//! The crate does no I/O, reads no clock and starts no thread: time is an argument, and what the store has answered is one,
//! too. The live program and the simulations drive the same [`Host`]; what the store does is etcd's matter, and [`Store`]'s
//! here, to which a test compares the real one.
//!
//! ```text
//!   a request ──► Host::ask ──► Effect::Txn ──► store ──► Host::replied, Host::event ──► Effect::Admit ──► Host::ended
//!                                                              │
//!   another host's want ────────────────────────────────────────┴──► Effect::Revoke ──► checkpoint ──► Host::drained
//! ```
//!
//! There are two floors of tokens. The *volume* stands for everything: who has it for itself needs nothing else, and so a
//! host alone asks the store once. Hosts that share it have a token for each directory and each file that they use: for
//! reading, which many may have, or exclusively. A directory's covers its names. Held exclusively it also covers, down to
//! any depth, what its holder has made in it: nobody else can have heard of that.
//!
//! Each token is one key at the store, changed by comparing its revision: so two hosts never hold what excludes each other.
//! Who cannot have it says so in the same key; the holder sees that, brings what it has to the origin, and gives it up.
//!
//! A holder that is silent loses nothing by that alone. Its lease ends its session; whoever wants its tokens must first *fence*
//! it, so that nothing of it reaches the origin any more, and says so at the store, of the life of which that is true and of
//! no later one. From then on its tokens are void, and
//! stay where they are until somebody takes one. So a host that comes back finds out what it may still bring to the
//! origin: that of which its token is still there, since then nobody else has had it.
#![no_std]

extern crate alloc;

/// Whether this build lets tests switch off what promises rest on, to show that they would notice. Never in what ships.
pub const CONTROLS: bool = cfg!(feature = "controls");

mod controls;
mod host;
mod register;
mod settings;
mod store;

pub use controls::Controls;
pub use host::{AskId, Effect, Host, Kept, Need, Stage};
pub use register::{Entry, Register};
pub use settings::Settings;
pub use store::{Event, Put, Snapshot, Store, Txn, TxnReply};

use alloc::sync::Arc;

/// Which host: its journal's identity, so that it is the same after a restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostId(pub u128);

/// A revision of the store: each transaction that changes something has the next one. Zero is that of what is not there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rev(pub u64);

impl Rev {
    /// Of what is not there.
    pub const NONE: Self = Self(0);
}

/// A lease of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseId(pub u64);

/// A file's handle, the same on every host.
pub type FileId = Arc<[u8]>;

/// What a token is for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Root {
    /// Everything.
    Volume,
    /// A file, or a directory's names and attributes.
    File(FileId),
}

/// What its holder may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Mode {
    /// Read, and keep what was read. Of the volume: have tokens of files.
    Read,
    /// Read, change, and keep both.
    Exclusive,
}

impl Mode {
    /// Whether two hosts cannot have these at a time.
    #[must_use]
    pub fn excludes(self, other: Self) -> bool {
        self == Self::Exclusive || other == Self::Exclusive
    }
}

/// A key at the store.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Key {
    /// A host is known. Stays when it dies.
    Host(HostId),
    /// It is alive. Ends with its lease.
    Session(HostId),
    /// Written whenever it comes: in which of its lives it is. Stays when it dies.
    Life(HostId),
    /// A token.
    Token(Root),
}

/// What a key holds.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Value {
    /// Whether the host has been fenced since it last came.
    Host {
        /// All that it holds is void.
        is_fenced: bool,
    },
    /// Nothing but that it is there.
    Session,
    /// Nothing but when it was written.
    Life,
    /// Who holds a token, and who wants it.
    Token(Register),
}
