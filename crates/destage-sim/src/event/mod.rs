//! What every simulation in virtual time needs: events in order, random streams, devices.

mod events;
mod geometry;
mod random;
mod service;
mod station;
mod waiting;

pub use events::Events;
pub use geometry::{GeometricDisk, Geometry};
pub use random::Stream;
pub use service::{ExponentialTimes, MeanTimes, Service};
pub use station::{Begun, Discipline, Job, JobKind, Rules, Station};
