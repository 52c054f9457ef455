//! The simulator of Destage: the policies of `destage-core` on I/O traces, without I/O of their own.
//!
//! [`trace`] reads traces of many formats as one stream of requests; [`hits`] runs the core's replacement code on them
//! and counts exactly; [`curves`] has the misses by size; [`disk`] knows how long a disk takes; [`machine`] puts hosts,
//! caches, a network and a filer around it; [`generate`] makes traces; [`sweep`] has grids of runs, [`report`] charts
//! and pages.

pub mod advise;
pub mod blocks;
pub mod curves;
pub mod disk;
pub mod event;
pub mod generate;
pub mod hits;
pub mod machine;
mod numbers;
pub mod replay;
pub mod report;
pub mod sweep;
pub mod trace;
