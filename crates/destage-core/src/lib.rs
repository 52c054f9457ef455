//! The policy engine of Destage.
//!
//! This crate decides *when*, in *which order* and *how much* to write back, what a reader must see, when an
//! acknowledgement may leave and which clean units stay in memory. It does no I/O, reads no clock, starts no
//! thread and holds no payload: a driver feeds it [`Input`]s and carries out its [`Effect`]s. The live front ends
//! and the simulator drive the same code, so the policy that was simulated is the policy that runs.
//!
//! ```
//! use destage_core::{Core, Effect, Input, Intent, Policy, RequestId, Time, UnitId};
//!
//! let mut core = Core::new(Time::from_secs(1), Policy::default());
//! let unit = UnitId(0);
//! core.handle(Time::from_secs(1), Input::Access {
//!     request: RequestId(7), intent: Intent::Read, units: &[unit],
//! });
//! // Nothing is cached yet: the core asks the driver to fetch the unit from the origin.
//! assert!(matches!(core.poll_effect(), Some(Effect::Fetch { unit: u, .. }) if u == unit));
//! ```
#![no_std]

extern crate alloc;

pub mod consistency;
mod core;
pub mod expiry;
mod groups;
mod id;
mod io;
pub mod lease;
mod per_unit;
mod policy;
mod rate;
mod reads_first;
pub mod replace;
mod rhythm;
pub mod ring;
mod sequential;
mod status;
mod time;
mod units;

pub use crate::core::Core;
pub use id::{BatchId, ClientId, DomainId, Lsn, RequestId, UnitId};
pub use io::{
    Access, Ack, Effect, Fault, Halt, Input, Intent, Mode, Outcome, Refusal, StopReason, WaitFor,
};
pub use per_unit::PerUnit;
pub use policy::{Acknowledge, AtLimit, Limits, OnReject, Order, Policy, PolicyError, When};
pub use reads_first::ReadsFirst;
pub use rhythm::FlushRhythm;
pub use sequential::Sequential;
pub use status::{DomainStatus, Status};
pub use time::{Span, Time};
