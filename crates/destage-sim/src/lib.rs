//! The simulator of Destage: the policies of `destage-core` on I/O traces, without I/O of their own.
//!
//! [`trace`] reads traces of many formats as one stream of requests; [`hits`] runs the core's replacement code on them and
//! counts exactly; [`update`] drives the whole core in virtual time; [`figures`] reproduces
//! figures of papers; [`generate`] makes traces.

pub mod blocks;
pub mod event;
pub mod figures;
pub mod generate;
pub mod hits;
pub mod replay;
pub mod trace;
pub mod update;
