//! What every simulation in virtual time needs: events in order, random streams, devices.

mod events;
mod random;
mod station;

pub use events::Events;
pub use random::Stream;
pub use station::{Discipline, Job, JobKind, Station};
