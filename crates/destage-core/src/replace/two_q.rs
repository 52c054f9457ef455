//! 2Q: a queue for what was seen once, a list for what came back.
//!
//! Source: Johnson and Shasha, "2Q: a low overhead high performance buffer management replacement algorithm", VLDB 1994, the
//! full version: new units enter a first-in-first-out queue of a quarter of the memory; what leaves it is remembered, for as
//! many bytes as half the memory; a remembered unit that returns enters a least-recently-used list.

use super::Replacement;
use super::queues::Queues;
use super::recall::{Numbered, Recall, Remember};
use crate::id::UnitId;

/// The paper's A1in.
const ONCE: usize = 0;
/// The paper's Am.
const AGAIN: usize = 1;
/// The first queue's share of the memory (the paper's Kin): one in four.
const ONCE_DIVISOR: u64 = 4;
/// What is remembered (the paper's Kout), as a share of the memory: one in two.
const RECALL_DIVISOR: u64 = 2;

/// 2Q over units of varying size.
pub type TwoQ = TwoQOver<Recall<1>>;

/// The same, where the identity of each unit is its number.
pub type NumberedTwoQ = TwoQOver<Numbered<1>>;

/// 2Q, whatever finds what it remembers.
#[derive(Clone, Debug, Default)]
pub struct TwoQOver<M> {
    queues: Queues<2>,
    /// The paper's A1out.
    recall: M,
    /// The identity expected next, and whether it was remembered.
    expected: Option<(u64, bool)>,
    /// The size of the unit that left the first queue just now.
    leaving: Option<u32>,
    bytes_max: u64,
}

impl<M: Remember<1>> TwoQOver<M> {
    fn recognise(&mut self, identity: u64) -> bool {
        let is_known = self.recall.find(identity).is_some();
        self.recall.take(identity);
        is_known
    }
}

impl<M: Remember<1>> Replacement for TwoQOver<M> {
    fn expect(&mut self, identity: u64) {
        self.expected = Some((identity, self.recognise(identity)));
    }

    fn insert(&mut self, unit: UnitId, bytes: u32, identity: Option<u64>) {
        let expected = self.expected.take();
        let is_known = match (identity, expected) {
            (None, _) => true,
            (Some(identity), Some((other, is_known))) if identity == other => is_known,
            (Some(identity), _) => self.recognise(identity),
        };
        self.queues.push(if is_known { AGAIN } else { ONCE }, unit.0, bytes);
    }

    #[inline]
    fn foresee(&self, unit: UnitId) -> u32 {
        self.queues.foresee(unit.0) ^ self.recall.foresee(unit)
    }

    #[inline]
    fn touch(&mut self, unit: UnitId) -> bool {
        let queue = self.queues.queue_of(unit.0);
        if queue == Some(AGAIN) {
            self.queues.renew(unit.0, AGAIN);
        }
        queue.is_some()
    }

    fn remove(&mut self, unit: UnitId) -> Option<u32> {
        self.queues.remove(unit.0).map(|(_, bytes)| bytes)
    }

    fn resize(&mut self, unit: UnitId, bytes: u32) {
        self.queues.resize(unit.0, bytes);
    }

    fn evict(&mut self, bytes_max: u64) -> Option<UnitId> {
        self.bytes_max = bytes_max;
        let once = self.queues.oldest(ONCE);
        let again = self.queues.oldest(AGAIN);
        let is_long = self.queues.bytes_in(ONCE) > bytes_max / ONCE_DIVISOR;
        let unit = if is_long { once.or(again) } else { again.or(once) }?;
        let (queue, bytes) = self.queues.remove(unit)?;
        self.leaving = (queue == ONCE).then_some(bytes);
        Some(UnitId(unit))
    }

    fn evicted(&mut self, identity: u64) {
        let Some(bytes) = self.leaving.take() else { return };
        self.recall.push(0, identity, bytes);
        while self.recall.bytes() > self.bytes_max / RECALL_DIVISOR && self.recall.drop_oldest(0) {}
    }

    fn bytes(&self) -> u64 {
        self.queues.bytes()
    }

    fn len(&self) -> usize {
        self.queues.len()
    }

    fn bytes_of(&self, unit: UnitId) -> Option<u32> {
        self.queues.bytes_of(unit.0)
    }
}
