//! Ways to break the protocol on purpose, so that the tests can see that they would notice.

/// What is switched off. Without the feature `controls`, none of it has an effect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Controls {
    /// Servers take entries of whichever owner.
    pub no_fence: bool,
    /// A take-over is content with n - k promises.
    pub short_quorum: bool,
    /// A server without its memory counts.
    pub memoryless_counts: bool,
    /// An owner admits a server without memory without taking over.
    pub admits_alone: bool,
    /// Of each position, the entry with the highest epoch is taken, from whichever log.
    pub entry_by_entry: bool,
    /// An owner answers before its log is accepted under its own epoch.
    pub answers_early: bool,
    /// Owners have no identity.
    pub shared_epochs: bool,
    /// A new configuration needs no promises of the old one's servers.
    pub no_old_promises: bool,
    /// What a standby has followed is the log, whatever the servers that promise show.
    pub trusts_followed: bool,
    /// A full server is asked to hold more before it has let go of what is decided.
    pub insists: bool,
    /// An owner answers after its lease.
    pub ignores_lease: bool,
    /// A lease is content with one server less.
    pub short_lease: bool,
    /// What one server less holds is taken for secured.
    pub short_secured: bool,
}

impl Controls {
    /// Those that have an effect.
    #[must_use]
    pub(crate) fn in_force(self) -> Self {
        if crate::CONTROLS { self } else { Self::default() }
    }
}
