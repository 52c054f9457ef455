//! What an owner is told.

use crate::{Address, Controls};
use alloc::vec::Vec;
use core::hash::{Hash, Hasher};
use destage_core::Span;

/// What an owner is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Of this process: random, neither 0 nor the highest number.
    pub identity: u64,
    /// Where clients reach this owner, for others to tell them.
    pub place: Address,
    /// What the log is for, in words: a log that is for something else is refused.
    pub subject: Address,
    /// Servers to ask first. A configuration that is found names others.
    pub servers: Vec<Address>,
    /// k, where no configuration is found.
    pub copies: usize,
    /// How long an owner may answer after it sent what enough servers have accepted, by its own clock.
    pub lease: Span,
    /// How long a server must not have heard of an owner before another one takes over, by that one's clock. Longer than the
    /// lease by what clocks' rates may differ.
    pub quiet: Span,
    /// How often the lease is renewed, and servers are looked at.
    pub renew_every: Span,
    /// Most appends that are under way at one server.
    pub window: usize,
    /// Most bytes of one append or one answer, unless a single entry is more.
    pub bytes_max: usize,
    /// It opens although fewer than k servers take entries, once its first entry is secured: see [`crate::Owner::secured`].
    pub opens_short: bool,
    /// Where no server holds anything, it begins a log unasked. Otherwise it waits for [`crate::Owner::found`].
    pub founds: bool,
    /// Take over from an owner that shows itself.
    pub at_once: bool,
    /// Negative controls of the tests.
    pub controls: Controls,
}

/// They are those of a process, which its identity names; a search of states looks at nothing else.
impl Hash for Settings {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.identity.hash(state);
    }
}
