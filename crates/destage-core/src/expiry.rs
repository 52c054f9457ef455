//! When cached units expire: at times that clients choose, unlike an age that all copies of a kind may reach.
//!
//! A unit expires at its deadline, seen in two ways: whoever is about to use it asks [`Expiries::is_due`] first, so that
//! nobody meets it late; and units that nobody asks for are found by [`Expiries::take_due`], a bounded number at a time.
//! What cannot leave yet, since the origin lacks its changes, is looked at again later and keeps its deadline. Time is an
//! argument here as everywhere; the driver drops what it is told.

use crate::id::UnitId;
use crate::time::{Span, Time};
use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use hashbrown::HashMap;

/// The deadlines of units.
#[derive(Clone, Debug, Default)]
pub struct Expiries {
    units: HashMap<UnitId, Deadline>,
    /// When to look at each of them.
    order: BTreeSet<(Time, UnitId)>,
}

#[derive(Clone, Copy, Debug)]
struct Deadline {
    at: Time,
    /// The deadline, or later where the unit could not leave then.
    look_at: Time,
}

/// Bytes that one deadline takes: an entry of the map and one of the order, with the room that both keep for more.
pub const DEADLINE_BYTES: u32 = 64;

/// What could not leave at its deadline is looked at again after this time, or after as long as it is overdue.
const POSTPONED_MIN: Span = Span::from_millis(100);

impl Expiries {
    /// Whether nothing ever expires.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.units.is_empty()
    }

    /// How many units have a deadline.
    pub fn len(&self) -> usize {
        self.units.len()
    }

    /// When the unit expires; `None` for never.
    #[inline]
    pub fn get(&self, unit: UnitId) -> Option<Time> {
        self.units.get(&unit).map(|deadline| deadline.at)
    }

    /// Whether the unit's deadline is reached.
    #[inline]
    pub fn is_due(&self, unit: UnitId, now: Time) -> bool {
        self.get(unit).is_some_and(|at| at <= now)
    }

    /// The unit expires then, whatever was said before; `None` for never. To be said also when its number is given up.
    pub fn set(&mut self, unit: UnitId, at: Option<Time>) {
        if let Some(old) = self.units.remove(&unit) {
            self.order.remove(&(old.look_at, unit));
        }
        if let Some(at) = at {
            self.units.insert(unit, Deadline { at, look_at: at });
            self.order.insert((at, unit));
        }
    }

    /// The unit cannot leave yet although its deadline is reached. It is looked at less and less often, so that many such
    /// units cost little however long the origin is away.
    pub fn postpone(&mut self, unit: UnitId, now: Time) {
        let Some(deadline) = self.units.get_mut(&unit) else { return };
        self.order.remove(&(deadline.look_at, unit));
        deadline.look_at = now + now.since(deadline.at).max(POSTPONED_MIN);
        self.order.insert((deadline.look_at, unit));
    }

    /// Units whose deadline is reached, earliest first: at most so many. The driver drops each and says so by
    /// [`Expiries::set`], or postpones it.
    pub fn take_due(&self, now: Time, most: usize) -> Vec<UnitId> {
        let due = self.order.iter().take_while(|(at, _)| *at <= now);
        due.take(most).map(|&(_, unit)| unit).collect()
    }

    /// When to look next.
    pub fn next_timeout(&self) -> Option<Time> {
        self.order.first().map(|&(at, _)| at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unit_is_due_from_its_deadline_on_and_the_last_word_counts() {
        let mut expiries = Expiries::default();
        let (one, two) = (UnitId(1), UnitId(2));
        expiries.set(one, Some(Time(10)));
        expiries.set(two, Some(Time(5)));
        expiries.set(one, Some(Time(20)));
        assert_eq!((expiries.get(one), expiries.next_timeout()), (Some(Time(20)), Some(Time(5))));
        assert_eq!(expiries.take_due(Time(19), 9), [two]);
        assert!(!expiries.is_due(one, Time(19)) && expiries.is_due(one, Time(20)));
        expiries.set(two, None);
        assert_eq!((expiries.get(two), expiries.len()), (None, 1));
        assert_eq!(expiries.take_due(Time(19), 9), []);
        expiries.set(one, None);
        assert!(expiries.is_empty() && expiries.next_timeout().is_none());
    }

    #[test]
    fn only_so_many_are_found_at_once_earliest_first() {
        let mut expiries = Expiries::default();
        for number in 0..10 {
            expiries.set(UnitId(number), Some(Time(100 - u64::from(number))));
        }
        assert_eq!(expiries.take_due(Time(100), 3), [UnitId(9), UnitId(8), UnitId(7)]);
    }

    #[test]
    fn what_cannot_leave_keeps_its_deadline_and_is_looked_at_later() {
        let mut expiries = Expiries::default();
        let unit = UnitId(3);
        expiries.set(unit, Some(Time(10)));
        expiries.postpone(unit, Time(12));
        assert!(expiries.is_due(unit, Time(12)) && expiries.take_due(Time(12), 9).is_empty());
        let later = Time(12) + POSTPONED_MIN;
        assert_eq!(expiries.next_timeout(), Some(later));
        assert_eq!(expiries.take_due(later, 9), [unit]);
        let overdue = Time::from_secs(60);
        expiries.postpone(unit, overdue);
        assert_eq!(expiries.next_timeout(), Some(overdue + overdue.since(Time(10))));
        expiries.set(unit, None);
        assert_eq!(expiries.next_timeout(), None);
    }
}
