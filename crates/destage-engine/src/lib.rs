//! What every front end does around the policy engine, written once.
//!
//! [`destage_core::Core`] decides; this crate drives it. Each front end (rows, blocks, the simulator's machine, the model in
//! the tests) hands its requests to the core, appends its groups by [`write`] and carries out what the core asks for through
//! [`FrontEnd`]; [`GroupCommit`] says when its journal is written and made durable. Like the core, the crate does no I/O,
//! reads no clock and starts no thread: time is an argument, and what a disk has answered is one, too.
//!
//! ```text
//!   requests ──► front end ──► write() ──► journal's buffer          GroupCommit ──► Step ──► threads, or a simulated disk
//!                    ▲            └──────► Core ──► Effect ──► carry_out() ──► FrontEnd        │
//!                    └───────────────────────────────────────────────────────────── Ended ◄────┘
//! ```
#![no_std]

extern crate alloc;

/// Whether this build lets tests switch off what promises rest on, to show that they would notice. Never in what ships.
pub const CONTROLS: bool = cfg!(feature = "controls");

pub mod auto;
mod commit;
mod decide;
pub mod defaults;
mod drive;
mod front_end;
mod group;
mod policy;
mod watermarks;
mod writers;

pub use commit::{CommitSettings, Ended, GroupCommit, Lane, Load, Log, LogFault, News, Step};
pub use decide::Decide;
pub use drive::{Drive, recover};
pub use front_end::{FrontEnd, Park, carry_out};
pub use group::{Append, Recovered, write};
pub use policy::{
    VOLUME_SLOTS_MAX, VOLUME_SLOTS_MIN, WritePolicy, commit_on_flush, fit_running_volume,
    fit_volume, journal_limit, reserved_slots, set_dirty_limit,
};
pub use watermarks::{Mark, Watermarks};
pub use writers::Writers;
