//! Grids of runs, and their results in a file that outlives crashes.
//!
//! A [`Grid`] names parameters, one value or several each, and so all combinations of them. [`Results`] holds a row for each
//! run that is done: a sweep that was killed goes on where it stopped.

mod grid;
mod key;
mod results;

pub use grid::{Grid, GridError, Parameters, RUNS_MAX, shown};
pub use key::{RequestDigest, key};
pub use results::{Results, ResultsError, cell, columns};
