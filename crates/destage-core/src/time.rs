//! Time as the core sees it: an argument, never a reading.

use core::fmt;
use core::ops::{Add, Sub};
use serde::{Deserialize, Serialize};

/// A point in time. *Units:* nanoseconds since the Unix epoch in the live drivers (so that stamps in a journal keep
/// their meaning across restarts), since the start of the run in the simulator.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Deserialize, Serialize)]
pub struct Time(pub u64);

/// A length of time. *Units:* nanoseconds. [`Span::MAX`] means "never" or "no bound".
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Deserialize, Serialize)]
pub struct Span(pub u64);

impl Time {
    /// The origin of the time line.
    pub const ZERO: Self = Self(0);

    /// The point `secs` seconds after the origin.
    pub const fn from_secs(secs: u64) -> Self {
        Self(secs * 1_000_000_000)
    }

    /// The span from `earlier` to `self`; zero if `earlier` is later (a stamp from before a clock was set back).
    pub const fn since(self, earlier: Self) -> Span {
        Span(self.0.saturating_sub(earlier.0))
    }
}

impl Span {
    /// No time at all.
    pub const ZERO: Self = Self(0);
    /// Never, or no bound.
    pub const MAX: Self = Self(u64::MAX);

    /// `n` nanoseconds.
    pub const fn from_nanos(n: u64) -> Self {
        Self(n)
    }

    /// `n` microseconds; [`Span::MAX`] if they are more than it holds, as below.
    pub const fn from_micros(n: u64) -> Self {
        Self(n.saturating_mul(1_000))
    }

    /// `n` milliseconds.
    pub const fn from_millis(n: u64) -> Self {
        Self(n.saturating_mul(1_000_000))
    }

    /// `n` seconds.
    pub const fn from_secs(n: u64) -> Self {
        Self(n.saturating_mul(1_000_000_000))
    }

    /// Whole nanoseconds.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Seconds, with their fraction.
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1e9
    }

    /// `self - other`, zero where that would be negative.
    pub const fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

impl Add<Span> for Time {
    type Output = Self;
    fn add(self, span: Span) -> Self {
        Self(self.0.saturating_add(span.0))
    }
}

impl Sub<Span> for Time {
    type Output = Self;
    fn sub(self, span: Span) -> Self {
        Self(self.0.saturating_sub(span.0))
    }
}

impl fmt::Debug for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "@{}.{:09}s", self.0 / 1_000_000_000, self.0 % 1_000_000_000)
    }
}

impl fmt::Debug for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::MAX {
            return f.write_str("never");
        }
        write!(f, "{}.{:09}s", self.0 / 1_000_000_000, self.0 % 1_000_000_000)
    }
}
