//! The engine: what decides. It knows no kernel and no file system; the origin is asked and changed by those who hold both.

mod below;
mod carry;
mod covers;
mod exec;
mod extents;
mod front;
mod held;
mod homes;
mod lives;
mod looked;
mod needs;
mod node;
mod plan;
mod record;
mod recover;
mod room;
mod settling;
#[cfg(test)]
mod tests;
mod traces;
mod tree;
mod views;

pub(crate) use below::Below;
#[cfg(test)]
pub(crate) use carry::Carried;
pub(crate) use carry::{AtWork, OwnFolders, carry_out};
pub(crate) use covers::Covers;
pub(crate) use extents::Fragment;
pub(crate) use front::{Front, FrontSettings, Kept, Out, Pending, Submitted, Ticket};
pub(crate) use homes::Homes;
pub(crate) use needs::{Hints, Need, Stage, Staged, staged_name};
pub(crate) use plan::Plan;
pub(crate) use record::{Record, Unreadable, read_group};
pub(crate) use recover::Scan;

/// Tells lives of a number apart, for the kernel.
fn generation(key: &crate::origin::Key) -> u64 {
    node::Node::new(key.clone(), crate::ask::Kind::File).generation()
}
