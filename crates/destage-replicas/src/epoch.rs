//! Numbers that order owners, entries and the lives of servers.

use core::fmt;

/// Under which owner something was written. Later owners have higher epochs; equal numbers are ordered by the owners'
/// identities, so that no two owners ever share an epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch {
    /// Grows with each take-over. At most 2^53, which every scripting language can hold.
    pub number: u64,
    /// Of the process that owns or owned the log. Never 0, and never the highest number.
    pub identity: u64,
}

impl Epoch {
    /// Before every owner.
    pub const NONE: Self = Self { number: 0, identity: 0 };

    /// What a server has promised whose owner gave the log up in order: later than that owner, and earlier than the next number.
    #[must_use]
    pub const fn given_up(self) -> Self {
        Self { number: self.number, identity: u64::MAX }
    }

    /// Whether an owner gave the log up, rather than lost it.
    pub const fn is_given_up(self) -> bool {
        self.identity == u64::MAX
    }
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:016x}", self.number, self.identity)
    }
}

/// Where an entry is in the log: the first one is at 1. [`Position::NONE`] is before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position(pub u64);

impl Position {
    /// Before the first entry.
    pub const NONE: Self = Self(0);
    /// The first entry's.
    pub const FIRST: Self = Self(1);

    /// The one after.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }

    /// The one before; nothing is before [`Position::NONE`].
    #[must_use]
    pub const fn before(self) -> Self {
        Self(self.0.saturating_sub(1))
    }

    /// So many further on.
    #[must_use]
    pub const fn plus(self, count: usize) -> Self {
        Self(self.0 + count as u64)
    }

    /// How many entries further on than `earlier`, which is not later.
    pub const fn since(self, earlier: Self) -> usize {
        (self.0 - earlier.0) as usize
    }
}

/// The life of a server, from its start to its end: another one has another number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RunId(pub u128);
