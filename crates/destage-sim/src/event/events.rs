//! Events in order of time; of the same time, in the order in which they were planned.

use destage_core::Time;
use std::collections::BTreeMap;

/// What is to happen.
#[derive(Debug)]
pub struct Events<E> {
    planned: BTreeMap<(Time, u64), E>,
    sequence: u64,
}

impl<E> Default for Events<E> {
    fn default() -> Self {
        Self { planned: BTreeMap::new(), sequence: 0 }
    }
}

impl<E> Events<E> {
    /// Plans an event.
    pub fn plan(&mut self, at: Time, event: E) {
        self.planned.insert((at, self.sequence), event);
        self.sequence += 1;
    }

    /// When the next event is.
    pub fn next_at(&self) -> Option<Time> {
        self.planned.first_key_value().map(|((at, _), _)| *at)
    }

    /// Takes the next event if it is not after `now`.
    pub fn take_until(&mut self, now: Time) -> Option<E> {
        let due = self.next_at().is_some_and(|at| at <= now);
        due.then(|| self.planned.pop_first()).flatten().map(|(_, event)| event)
    }
}

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
