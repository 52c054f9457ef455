//! One tier of a cache: the core's replacement over places of equal size.

use super::{Cache, Dirty, One, Outcome};
use crate::blocks::mix;
use destage_core::UnitId;
use destage_core::replace::{
    Choice, Clock, Fifo, Lru, NumberedArc, NumberedTwoQ, Replacement, S3Fifo, Sieve,
};
use serde::{Deserialize, Serialize};
use std::marker::PhantomData;
use std::str::FromStr;

/// Where an access found its block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Ram,
    Flash,
    Origin,
}

/// The replacement policies that can be simulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Replacements {
    /// First in, first out.
    Fifo,
    /// Least recently used.
    Lru,
    /// Second chance.
    Clock,
    /// 2Q, the full version.
    #[serde(rename = "2q")]
    TwoQ,
    /// ARC.
    Arc,
    /// S3-FIFO.
    #[serde(rename = "s3-fifo")]
    S3Fifo,
    /// SIEVE.
    Sieve,
    /// Belady's: the block that is needed last leaves. Knows the future; the bound for all others.
    Belady,
}

impl Replacements {
    /// Every policy with its name.
    pub const ALL: [(&'static str, Self); 8] = [
        ("fifo", Self::Fifo),
        ("lru", Self::Lru),
        ("clock", Self::Clock),
        ("2q", Self::TwoQ),
        ("arc", Self::Arc),
        ("s3-fifo", Self::S3Fifo),
        ("sieve", Self::Sieve),
        ("belady", Self::Belady),
    ];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        let found = Self::ALL.iter().find(|(_, policy)| *policy == self);
        found.map_or("", |(name, _)| name)
    }

    /// The core's own name for it; `None` for Belady's, which the core does not know.
    pub fn choice(self) -> Option<Choice> {
        Some(match self {
            Self::Fifo => Choice::Fifo,
            Self::Lru => Choice::Lru,
            Self::Clock => Choice::Clock,
            Self::TwoQ => Choice::TwoQ,
            Self::Arc => Choice::Arc,
            Self::S3Fifo => Choice::S3Fifo,
            Self::Sieve => Choice::Sieve,
            Self::Belady => return None,
        })
    }

    /// The policy of the core's name for it.
    pub const fn of(choice: Choice) -> Self {
        match choice {
            Choice::Fifo => Self::Fifo,
            Choice::Lru => Self::Lru,
            Choice::Clock => Self::Clock,
            Choice::TwoQ => Self::TwoQ,
            Choice::Arc => Self::Arc,
            Choice::S3Fifo => Self::S3Fifo,
            Choice::Sieve => Self::Sieve,
        }
    }

    pub(super) fn tier(self, places: u64) -> Option<Box<dyn Tier>> {
        Some(match self {
            Self::Fifo => Box::new(Places::<Fifo, ItsNumber>::new(places)),
            Self::Lru => Box::new(Places::<Lru, ItsNumber>::new(places)),
            Self::Clock => Box::new(Places::<Clock, ItsNumber>::new(places)),
            Self::TwoQ => Box::new(Places::<NumberedTwoQ, ItsNumber>::new(places)),
            Self::Arc => Box::new(Places::<NumberedArc, ItsNumber>::new(places)),
            Self::S3Fifo => Box::new(Places::<S3Fifo, Hashed>::new(places)),
            Self::Sieve => Box::new(Places::<Sieve, ItsNumber>::new(places)),
            Self::Belady => return None,
        })
    }

    /// A cache of one tier, compiled for its policy.
    pub(super) fn single(self, places: u64, is_ram: bool) -> Option<Box<dyn Cache>> {
        fn one<R: Replacement + Default + 'static, I: Identity + 'static>(
            places: u64,
            is_ram: bool,
        ) -> Box<dyn Cache> {
            let tier = Places::<R, I>::new(places);
            Box::new(One { tier, is_ram, outcome: Outcome::default() })
        }
        Some(match self {
            Self::Fifo => one::<Fifo, ItsNumber>(places, is_ram),
            Self::Lru => one::<Lru, ItsNumber>(places, is_ram),
            Self::Clock => one::<Clock, ItsNumber>(places, is_ram),
            Self::TwoQ => one::<NumberedTwoQ, ItsNumber>(places, is_ram),
            Self::Arc => one::<NumberedArc, ItsNumber>(places, is_ram),
            Self::S3Fifo => one::<S3Fifo, Hashed>(places, is_ram),
            Self::Sieve => one::<Sieve, ItsNumber>(places, is_ram),
            Self::Belady => return None,
        })
    }
}

impl FromStr for Replacements {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.iter().find(|(name, _)| *name == text);
        found.map(|&(_, policy)| policy).ok_or_else(|| {
            let names: Vec<_> = Self::ALL.iter().map(|(name, _)| *name).collect();
            format!("unknown replacement policy: use {}", names.join(", "))
        })
    }
}

/// Blocks that are present, and which of them leaves.
pub(super) trait Tier {
    /// Looks at what there is of a block, ahead of its access. What is returned means nothing.
    fn foresee(&self, id: u32) -> u32;

    /// Reads or writes a block, which is present afterwards; whether it was before.
    fn access(&mut self, id: u32, is_write: bool) -> bool;

    /// Drops a block; whether it was present.
    fn discard(&mut self, id: u32) -> bool;

    /// Notes what left.
    fn tell(&self, outcome: &mut Outcome);
}

/// What a policy knows an evicted block by.
trait Identity {
    fn of(id: u32) -> u64;
}

/// Blocks keep their numbers, so that what is remembered of them needs no table.
struct ItsNumber;

impl Identity for ItsNumber {
    #[inline]
    fn of(id: u32) -> u64 {
        id.into()
    }
}

/// As in the servers, where ghosts are found by hashes.
struct Hashed;

impl Identity for Hashed {
    #[inline]
    fn of(id: u32) -> u64 {
        mix(id.into())
    }
}

/// So many places under a policy of the core. Each counts as one unit of size.
struct Places<R, I> {
    policy: R,
    identity: PhantomData<I>,
    places: u64,
    evicted: u64,
    dirty: Dirty,
}

/// The size of a block as the policies see it. More than one byte, since shares of the memory are rounded to whole bytes.
const PLACE_BYTES: u32 = 4_096;

impl<R: Replacement + Default, I: Identity> Places<R, I> {
    fn new(places: u64) -> Self {
        Self {
            policy: R::default(),
            identity: PhantomData,
            places,
            evicted: 0,
            dirty: Dirty::default(),
        }
    }

    #[inline(never)]
    fn miss(&mut self, id: u32) {
        let bytes_max = self.places * u64::from(PLACE_BYTES);
        let identity = I::of(id);
        self.policy.expect(identity);
        while self.policy.len() as u64 >= self.places {
            let Some(evicted) = self.policy.evict(bytes_max) else { break };
            self.policy.evicted(I::of(evicted.0));
            self.evicted += 1;
            self.dirty.evict(evicted.0);
        }
        self.policy.insert(UnitId(id), PLACE_BYTES, Some(identity));
    }
}

impl<R: Replacement + Default, I: Identity> Tier for Places<R, I> {
    #[inline]
    fn foresee(&self, id: u32) -> u32 {
        self.policy.foresee(UnitId(id))
    }

    #[inline]
    fn access(&mut self, id: u32, is_write: bool) -> bool {
        let hit = self.policy.touch(UnitId(id));
        if !hit {
            self.miss(id);
        }
        if is_write {
            self.dirty.write(id);
        }
        hit
    }

    fn discard(&mut self, id: u32) -> bool {
        self.dirty.clear(id);
        self.policy.remove(UnitId(id)).is_some()
    }

    fn tell(&self, outcome: &mut Outcome) {
        outcome.evicted_blocks = self.evicted;
        self.dirty.tell(outcome);
    }
}
