//! Reference models and fault injection for the tests of Destage.

pub mod disk;
pub mod files;
pub mod history;
pub mod needs;
pub mod origin;
pub mod virtual_time;

pub use disk::SimDisk;
