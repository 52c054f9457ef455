//! Ways to break the protocol on purpose, so that the tests can see that they would notice.

/// What is switched off. Without the feature `controls`, none of it has an effect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Controls {
    /// A token is given up while requests under it are on their way, and new ones begin meanwhile.
    pub no_gate: bool,
    /// A host whose session has ended is declared fenced without having been.
    pub no_fence: bool,
    /// A host is declared fenced in whichever life it is by then.
    pub any_life: bool,
    /// News are taken however old they are.
    pub old_news: bool,
    /// Requests are served after the lease.
    pub ignores_lease: bool,
    /// A host that comes back counts all that it had as still its own.
    pub confirms_all: bool,
}

impl Controls {
    /// Those that have an effect.
    #[must_use]
    pub(crate) fn in_force(self) -> Self {
        if crate::CONTROLS { self } else { Self::default() }
    }
}
