//! The file front end of Destage: a host-side journal in front of a directory of a shared file system.

pub mod ask;
mod engine;
mod kernel;
pub mod origin;
pub mod serve;
pub mod settings;

/// What this front end keeps at the origin, in its folder's top; not shown.
pub const OWN_FOLDER: &[u8] = b".destage";
