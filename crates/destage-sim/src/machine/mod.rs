//! Requests through hosts with caches, a network and a filer, in virtual time.
//!
//! Each tier of a host is a [`destage_core::Core`], which decides when dirty blocks leave, in which order and how much at once,
//! and which clean blocks stay: nothing of the policies is simulated. This module carries out what the core asks for, as the
//! live front ends do, on devices that are [`crate::event::Station`]s. What it leaves out is in `docs/SIMULATION.md`.

mod crash;
mod device;
mod disk;
mod flow;
mod looks;
mod meter;
mod remote;
mod report;
mod run;
mod served;
mod settings;
mod task;
#[cfg(test)]
mod tests;
mod tier;
mod words;

pub use destage_engine::WritePolicy;
pub use looks::{Look, run_looked};
pub use meter::Meter;
pub(crate) use report::Gathered;
pub use report::{Bucket, Crash, Destage, Kind, Latency, Origin, Overload, Report, StationLoad};
pub use settings::{
    Architecture, Arrivals, Device, Devices, Discipline, Disk, DiskProfile, FaultKind, Faulty,
    InjectedFault, Settings, SettingsError, Spread, Start, Tier,
};

use crate::blocks::TooManyBlocks;
use crate::trace::Request;

/// Why a run ended before its requests did.
#[derive(Debug, thiserror::Error)]
pub enum RunError<E> {
    /// The settings do not fit together.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The trace touches too much.
    #[error(transparent)]
    Blocks(#[from] TooManyBlocks),
    /// The source of the requests failed.
    #[error(transparent)]
    Source(E),
}

/// Runs the requests, which come in the order of their times, to the end of the last one.
///
/// # Errors
/// The settings are out of range, the source fails, or there are too many blocks.
pub fn run<E>(
    requests: impl IntoIterator<Item = Result<Request, E>>,
    settings: &Settings,
) -> Result<Report, RunError<E>> {
    run_metered(requests, settings, &Meter::default())
}

/// The same, to be watched on the way and ended early: then the report is of what was done by then.
///
/// # Errors
/// As [`run`].
pub fn run_metered<E>(
    requests: impl IntoIterator<Item = Result<Request, E>>,
    settings: &Settings,
    meter: &Meter,
) -> Result<Report, RunError<E>> {
    settings.validate()?;
    run::Machine::new(settings, meter).run(requests.into_iter())
}
