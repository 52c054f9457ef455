//! ARC: two lists whose shares of the memory adapt.
//!
//! Source: Megiddo and Modha, "ARC: a self-tuning, low overhead replacement cache", FAST 2003. What was seen once and what was
//! seen again are two least-recently-used lists; what left either is remembered; a remembered unit that returns moves the
//! boundary between the two in favour of the list it had left.

use super::Replacement;
use super::queues::Queues;
use super::recall::{Numbered, Recall, Remember};
use crate::id::UnitId;

/// The paper's T1, and B1 among the remembered.
const RECENT: usize = 0;
/// The paper's T2, and B2 among the remembered.
const FREQUENT: usize = 1;

/// ARC over units of varying size; the paper's page counts are bytes here.
pub type Arc = ArcOver<Recall<2>>;

/// The same, where the identity of each unit is its number.
pub type NumberedArc = ArcOver<Numbered<2>>;

/// ARC, whatever finds what it remembers.
#[derive(Clone, Debug, Default)]
pub struct ArcOver<M> {
    queues: Queues<2>,
    recall: M,
    /// The paper's p: the bytes that the recent list should have.
    recent_bytes: u64,
    /// The paper's c, as of the last eviction; 0 before.
    bytes_max: u64,
    /// The identity expected next, and the list that remembered it.
    expected: Option<(u64, Option<usize>)>,
    /// The list that the unit evicted last was in, and its size.
    leaving: Option<(usize, u32)>,
}

impl<M: Remember<2>> ArcOver<M> {
    /// Looks for a unit among the remembered; if it is there, adapts and forgets it.
    fn recognise(&mut self, identity: u64) -> Option<usize> {
        let (list, bytes) = self.recall.find(identity)?;
        let (own, other) = (self.recall.bytes_in(list), self.recall.bytes_in(1 - list));
        // The paper's delta: at least one unit, more if the other list is the longer one.
        let step = u64::from(bytes) * other / own.max(1);
        let step = step.max(u64::from(bytes));
        self.recent_bytes = match list {
            RECENT => (self.recent_bytes + step).min(self.bytes_max),
            _ => self.recent_bytes.saturating_sub(step),
        };
        self.recall.take(identity);
        Some(list)
    }

    /// The recent list and what is remembered of it hold at most the memory's size, all lists at most twice that.
    fn trim(&mut self) {
        if self.bytes_max == 0 {
            return;
        }
        let recent = self.queues.bytes_in(RECENT);
        while recent + self.recall.bytes_in(RECENT) > self.bytes_max
            && self.recall.drop_oldest(RECENT)
        {}
        let present = self.queues.bytes();
        while present + self.recall.bytes() > 2 * self.bytes_max
            && (self.recall.drop_oldest(FREQUENT) || self.recall.drop_oldest(RECENT))
        {}
    }
}

impl<M: Remember<2>> Replacement for ArcOver<M> {
    fn expect(&mut self, identity: u64) {
        self.expected = Some((identity, self.recognise(identity)));
    }

    fn insert(&mut self, unit: UnitId, bytes: u32, identity: Option<u64>) {
        let expected = self.expected.take();
        let is_known = match (identity, expected) {
            (None, _) => true,
            (Some(identity), Some((other, list))) if identity == other => list.is_some(),
            (Some(identity), _) => self.recognise(identity).is_some(),
        };
        self.queues.push(if is_known { FREQUENT } else { RECENT }, unit.0, bytes);
        self.trim();
    }

    #[inline]
    fn foresee(&self, unit: UnitId) -> u32 {
        self.queues.foresee(unit.0) ^ self.recall.foresee(unit)
    }

    #[inline]
    fn touch(&mut self, unit: UnitId) -> bool {
        let is_present = self.queues.queue_of(unit.0).is_some();
        if is_present {
            self.queues.renew(unit.0, FREQUENT);
        }
        is_present
    }

    fn first_use(&mut self, unit: UnitId) {
        if let Some(queue) = self.queues.queue_of(unit.0) {
            self.queues.renew(unit.0, queue);
        }
    }

    fn remove(&mut self, unit: UnitId) -> Option<u32> {
        self.queues.remove(unit.0).map(|(_, bytes)| bytes)
    }

    fn resize(&mut self, unit: UnitId, bytes: u32) {
        self.queues.resize(unit.0, bytes);
    }

    fn evict(&mut self, bytes_max: u64) -> Option<UnitId> {
        self.bytes_max = bytes_max;
        let was_frequent = self.expected.is_some_and(|(_, list)| list == Some(FREQUENT));
        let recent = self.queues.bytes_in(RECENT);
        let is_long = recent > self.recent_bytes || (was_frequent && recent == self.recent_bytes);
        let [from, otherwise] = if is_long { [RECENT, FREQUENT] } else { [FREQUENT, RECENT] };
        let unit = self.queues.oldest(from).or_else(|| self.queues.oldest(otherwise))?;
        self.leaving = self.queues.remove(unit);
        Some(UnitId(unit))
    }

    fn evicted(&mut self, identity: u64) {
        if let Some((list, bytes)) = self.leaving.take() {
            self.recall.push(list, identity, bytes);
        }
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
