//! Replacement of clean units: which one leaves when memory is short.
//!
//! Each policy is a [`Replacement`]; the core and the simulator drive the same code.

mod arc;
mod chosen;
mod fifos;
mod ghost;
mod list;
mod queues;
mod recall;
mod s3fifo;
mod single;
mod two_q;

use crate::id::UnitId;

pub use arc::{Arc, NumberedArc};
pub use chosen::Choice;
pub(crate) use chosen::Chosen;
pub use s3fifo::S3Fifo;
pub use single::{Clock, Fifo, Lru, Sieve};
pub use two_q::{NumberedTwoQ, TwoQ};

/// An identity from a number: spread over all 64 bits, one to one, for what is remembered of evicted units is found by the lower
/// and told apart by the upper ones (the finaliser of SplitMix64; Steele, Lea and Flood, OOPSLA 2014).
pub const fn spread(number: u64) -> u64 {
    let number = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let number = (number ^ number >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ number >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ number >> 31
}

/// What stands for itself under [`spread`], backwards.
pub const fn unspread(number: u64) -> u64 {
    let number = number ^ number >> 31 ^ number >> 62;
    let number = number.wrapping_mul(0x3196_42b2_d24d_8ec3);
    let number = number ^ number >> 27 ^ number >> 54;
    let number = number.wrapping_mul(0x96de_1b17_3f11_9089);
    let number = number ^ number >> 30 ^ number >> 60;
    number.wrapping_sub(0x9e37_79b9_7f4a_7c15)
}

/// Decides which of the present units leave. Sizes are bytes; units may differ in size.
///
/// Where the driver makes room before it inserts, as the policies' papers have it, it says [`Replacement::expect`] first, then
/// [`Replacement::evict`] as often as needed, each followed by [`Replacement::evicted`], then [`Replacement::insert`]. It may as
/// well insert first and evict later.
pub trait Replacement {
    /// Tells which unit that is not present will be inserted next, so that what is remembered of it counts when room is
    /// made. `identity` is a hash of what the unit stands for.
    fn expect(&mut self, _identity: u64) {}

    /// Adds a unit of `bytes` that is not present. Without an identity (a unit that comes back from being pinned, hence in
    /// use) it counts as seen before.
    fn insert(&mut self, unit: UnitId, bytes: u32, identity: Option<u64>);

    /// Looks at what is kept of a unit. What is returned means nothing: reading it for many units ahead of their use brings
    /// all of it into the processor's caches at once, which one after the other would have to wait for.
    fn foresee(&self, _unit: UnitId) -> u32 {
        0
    }

    /// Notes a hit; false if the unit is not present.
    fn touch(&mut self, unit: UnitId) -> bool;

    /// Notes the use that a present unit was inserted for, which is no hit: where the order of use counts, the unit counts as
    /// used now.
    fn first_use(&mut self, _unit: UnitId) {}

    /// Takes a unit out, for instance because it became dirty; its size is returned, `None` if it is not present.
    fn remove(&mut self, unit: UnitId) -> Option<u32>;

    /// Changes a present unit's size.
    fn resize(&mut self, unit: UnitId, bytes: u32);

    /// Chooses a unit to leave and takes it out, for a memory of `bytes_max`. `None` if nothing is present.
    fn evict(&mut self, bytes_max: u64) -> Option<UnitId>;

    /// Remembers what the unit evicted last stood for.
    fn evicted(&mut self, _identity: u64) {}

    /// Bytes present.
    fn bytes(&self) -> u64;

    /// Units present.
    fn len(&self) -> usize;

    /// Whether nothing is present.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The size of a present unit.
    fn bytes_of(&self, unit: UnitId) -> Option<u32>;
}

#[cfg(test)]
mod tests;
