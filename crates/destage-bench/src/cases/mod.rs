//! The cases, one file each.

mod distance;
mod drain;
mod hits;
mod hset;
mod limits;
mod memory;
mod postgres;
mod sqlite;
mod update;

pub(crate) use distance::proxy;

use crate::Result;
use crate::bench::Bench;

/// A case's name and body.
type Case = (&'static str, fn(&mut Bench) -> Result<()>);

/// In the order in which they run.
pub(crate) const CASES: [Case; 8] = [
    ("hits", hits::run),
    ("hset", hset::run),
    ("postgres", postgres::run),
    ("drain", drain::run),
    ("limits", limits::run),
    ("sqlite", sqlite::run),
    ("distance", distance::run),
    ("memory", memory::run),
];
