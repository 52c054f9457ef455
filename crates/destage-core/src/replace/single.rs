//! The policies that keep one queue: FIFO, LRU, CLOCK and SIEVE.

use super::Replacement;
use super::queues::Queues;
use crate::id::UnitId;

/// A policy of one queue: `R` says what a hit changes and which unit leaves.
#[derive(Clone, Debug, Default)]
pub struct Single<R> {
    queue: Queues<1>,
    rule: R,
}

/// First in, first out: hits change nothing.
pub type Fifo = Single<FifoRule>;

/// The least recently used unit leaves.
pub type Lru = Single<LruRule>;

/// Second chance: the oldest unit leaves unless it was touched since it entered or was last spared; then it is spared and
/// counts as new. Source: Corbató, "A paging experiment with the Multics system", 1969, as a queue.
pub type Clock = Single<ClockRule>;

/// A hand moves from old to new over units that stay where they are; it spares those that were touched and takes the first
/// that was not. Source: Zhang, Yang, Yue, Vigfusson, Rashmi, "SIEVE is simpler than LRU", NSDI 2024.
pub type Sieve = Single<SieveRule>;

/// What tells the policies of one queue apart.
pub trait Rule {
    /// Notes a hit; false if the unit is not present.
    fn touch(&mut self, queue: &mut Line, unit: u32) -> bool;

    /// Notes the use that a unit was inserted for.
    fn first_use(&mut self, _queue: &mut Line, _unit: u32) {}

    /// The unit that is to leave.
    fn victim(&mut self, queue: &mut Line) -> Option<u32>;

    /// A unit is about to be taken out.
    fn removing(&mut self, _queue: &Line, _unit: u32) {}
}

/// The one queue.
#[derive(Debug)]
pub struct Line<'a>(&'a mut Queues<1>);

/// See [`Fifo`].
#[derive(Clone, Debug, Default)]
pub struct FifoRule;

/// See [`Lru`].
#[derive(Clone, Debug, Default)]
pub struct LruRule;

/// See [`Clock`].
#[derive(Clone, Debug, Default)]
pub struct ClockRule;

/// See [`Sieve`].
#[derive(Clone, Debug, Default)]
pub struct SieveRule {
    /// Where the search goes on; `None` for the old end.
    hand: Option<u32>,
}

/// The queue's number.
const ONLY: usize = 0;

impl<R: Rule> Replacement for Single<R> {
    fn insert(&mut self, unit: UnitId, bytes: u32, _identity: Option<u64>) {
        self.queue.push(ONLY, unit.0, bytes);
    }

    #[inline]
    fn foresee(&self, unit: UnitId) -> u32 {
        self.queue.foresee(unit.0)
    }

    #[inline]
    fn touch(&mut self, unit: UnitId) -> bool {
        self.rule.touch(&mut Line(&mut self.queue), unit.0)
    }

    fn first_use(&mut self, unit: UnitId) {
        self.rule.first_use(&mut Line(&mut self.queue), unit.0);
    }

    fn remove(&mut self, unit: UnitId) -> Option<u32> {
        self.queue.queue_of(unit.0)?;
        self.rule.removing(&Line(&mut self.queue), unit.0);
        self.queue.remove(unit.0).map(|(_, bytes)| bytes)
    }

    fn resize(&mut self, unit: UnitId, bytes: u32) {
        self.queue.resize(unit.0, bytes);
    }

    fn evict(&mut self, _bytes_max: u64) -> Option<UnitId> {
        let unit = self.rule.victim(&mut Line(&mut self.queue))?;
        self.remove(UnitId(unit));
        Some(UnitId(unit))
    }

    fn bytes(&self) -> u64 {
        self.queue.bytes()
    }

    fn len(&self) -> usize {
        self.queue.len()
    }

    fn bytes_of(&self, unit: UnitId) -> Option<u32> {
        self.queue.bytes_of(unit.0)
    }
}

impl Rule for FifoRule {
    #[inline]
    fn touch(&mut self, Line(queue): &mut Line, unit: u32) -> bool {
        queue.queue_of(unit).is_some()
    }

    fn victim(&mut self, Line(queue): &mut Line) -> Option<u32> {
        queue.oldest(ONLY)
    }
}

impl Rule for LruRule {
    #[inline]
    fn touch(&mut self, Line(queue): &mut Line, unit: u32) -> bool {
        let is_present = queue.queue_of(unit).is_some();
        if is_present {
            queue.renew(unit, ONLY);
        }
        is_present
    }

    fn first_use(&mut self, queue: &mut Line, unit: u32) {
        self.touch(queue, unit);
    }

    fn victim(&mut self, Line(queue): &mut Line) -> Option<u32> {
        queue.oldest(ONLY)
    }
}

impl Rule for ClockRule {
    #[inline]
    fn touch(&mut self, Line(queue): &mut Line, unit: u32) -> bool {
        queue.count_touch(unit, 1)
    }

    fn victim(&mut self, Line(queue): &mut Line) -> Option<u32> {
        loop {
            let unit = queue.oldest(ONLY)?;
            if queue.touches(unit) == 0 {
                return Some(unit);
            }
            queue.set_touches(unit, 0);
            queue.renew(unit, ONLY);
        }
    }
}

impl Rule for SieveRule {
    #[inline]
    fn touch(&mut self, Line(queue): &mut Line, unit: u32) -> bool {
        queue.count_touch(unit, 1)
    }

    fn victim(&mut self, Line(queue): &mut Line) -> Option<u32> {
        loop {
            let unit = match self.hand {
                Some(unit) => unit,
                None => queue.oldest(ONLY)?,
            };
            if queue.touches(unit) == 0 {
                self.hand = Some(unit);
                return Some(unit);
            }
            queue.set_touches(unit, 0);
            self.hand = queue.newer(unit);
        }
    }

    fn removing(&mut self, Line(queue): &Line, unit: u32) {
        if self.hand == Some(unit) {
            self.hand = queue.newer(unit);
        }
    }
}
