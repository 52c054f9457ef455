//! A policy that is chosen at run time.

use super::{Arc, Clock, Fifo, Lru, Replacement, S3Fifo, Sieve, TwoQ};
use crate::id::UnitId;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Which policy decides what leaves. The live front ends use the default; the simulator offers all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Choice {
    /// See [`Fifo`].
    Fifo,
    /// See [`Lru`].
    Lru,
    /// See [`Clock`].
    Clock,
    /// See [`TwoQ`].
    TwoQ,
    /// See [`Arc`].
    Arc,
    /// See [`S3Fifo`].
    #[default]
    S3Fifo,
    /// See [`Sieve`].
    Sieve,
}

/// The chosen policy.
#[derive(Clone, Debug)]
pub(crate) enum Chosen {
    Fifo(Fifo),
    Lru(Lru),
    Clock(Clock),
    TwoQ(TwoQ),
    Arc(Arc),
    S3Fifo(S3Fifo),
    Sieve(Sieve),
}

impl Default for Chosen {
    fn default() -> Self {
        Self::new(Choice::default())
    }
}

impl Chosen {
    pub(crate) fn new(choice: Choice) -> Self {
        match choice {
            Choice::Fifo => Self::Fifo(Fifo::default()),
            Choice::Lru => Self::Lru(Lru::default()),
            Choice::Clock => Self::Clock(Clock::default()),
            Choice::TwoQ => Self::TwoQ(TwoQ::default()),
            Choice::Arc => Self::Arc(Arc::default()),
            Choice::S3Fifo => Self::S3Fifo(S3Fifo::default()),
            Choice::Sieve => Self::Sieve(Sieve::default()),
        }
    }
}

/// A record holds the policy of the live front ends, under which it was made.
impl Serialize for Chosen {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::S3Fifo(policy) => policy.serialize(serializer),
            _ => Err(serde::ser::Error::custom("only S3-FIFO can be recorded")),
        }
    }
}

impl<'de> Deserialize<'de> for Chosen {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        S3Fifo::deserialize(deserializer).map(Self::S3Fifo)
    }
}

macro_rules! pass_on {
    ($self:ident, $policy:ident => $call:expr) => {
        match $self {
            Chosen::Fifo($policy) => $call,
            Chosen::Lru($policy) => $call,
            Chosen::Clock($policy) => $call,
            Chosen::TwoQ($policy) => $call,
            Chosen::Arc($policy) => $call,
            Chosen::S3Fifo($policy) => $call,
            Chosen::Sieve($policy) => $call,
        }
    };
}

impl Replacement for Chosen {
    fn expect(&mut self, identity: u64) {
        pass_on!(self, policy => policy.expect(identity));
    }

    fn insert(&mut self, unit: UnitId, bytes: u32, identity: Option<u64>) {
        pass_on!(self, policy => policy.insert(unit, bytes, identity));
    }

    #[inline]
    fn touch(&mut self, unit: UnitId) -> bool {
        pass_on!(self, policy => policy.touch(unit))
    }

    fn first_use(&mut self, unit: UnitId) {
        pass_on!(self, policy => policy.first_use(unit));
    }

    fn remove(&mut self, unit: UnitId) -> Option<u32> {
        pass_on!(self, policy => policy.remove(unit))
    }

    fn resize(&mut self, unit: UnitId, bytes: u32) {
        pass_on!(self, policy => policy.resize(unit, bytes));
    }

    fn evict(&mut self, bytes_max: u64) -> Option<UnitId> {
        pass_on!(self, policy => policy.evict(bytes_max))
    }

    fn evicted(&mut self, identity: u64) {
        pass_on!(self, policy => policy.evicted(identity));
    }

    #[inline]
    fn bytes(&self) -> u64 {
        pass_on!(self, policy => policy.bytes())
    }

    fn len(&self) -> usize {
        pass_on!(self, policy => policy.len())
    }

    fn bytes_of(&self, unit: UnitId) -> Option<u32> {
        pass_on!(self, policy => policy.bytes_of(unit))
    }
}
