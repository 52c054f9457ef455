//! Events in order of time; of the same time, in the order in which they were planned.

use destage_core::Time;
use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

/// What is to happen.
#[derive(Debug)]
pub struct Events<E> {
    planned: BinaryHeap<Reverse<Planned<E>>>,
    sequence: u64,
}

#[derive(Debug)]
struct Planned<E> {
    at: Time,
    sequence: u64,
    event: E,
}

impl<E> Default for Events<E> {
    fn default() -> Self {
        Self { planned: BinaryHeap::new(), sequence: 0 }
    }
}

impl<E> Events<E> {
    /// Plans an event.
    pub fn plan(&mut self, at: Time, event: E) {
        self.planned.push(Reverse(Planned { at, sequence: self.sequence, event }));
        self.sequence += 1;
    }

    /// When the next event is.
    #[inline]
    pub fn next_at(&self) -> Option<Time> {
        self.planned.peek().map(|Reverse(planned)| planned.at)
    }

    /// Takes the next event if it is not after `now`.
    pub fn take_until(&mut self, now: Time) -> Option<E> {
        let due = self.next_at().is_some_and(|at| at <= now);
        due.then(|| self.planned.pop()).flatten().map(|Reverse(planned)| planned.event)
    }
}

impl<E> Ord for Planned<E> {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.at, self.sequence).cmp(&(other.at, other.sequence))
    }
}

impl<E> PartialOrd for Planned<E> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> PartialEq for Planned<E> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<E> Eq for Planned<E> {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_by_time_then_as_planned() {
        let mut events = Events::default();
        for (at, name) in [(5, "c"), (3, "a"), (5, "d"), (3, "b"), (9, "e")] {
            events.plan(Time(at), name);
        }
        let mut order = Vec::new();
        while let Some(event) = events.take_until(Time(5)) {
            order.push(event);
        }
        assert_eq!((order, events.next_at()), (vec!["a", "b", "c", "d"], Some(Time(9))));
    }
}
