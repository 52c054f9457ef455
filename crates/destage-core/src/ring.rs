//! What is kept for each group from the oldest undecided one to the newest: numbers are dense, so a number is an index.
//!
//! ```text
//!   base                          next
//!    v                             v
//!    | oldest | ... | ... | newest |      the front is forgotten once it is decided
//! ```

use crate::id::Lsn;
use alloc::collections::VecDeque;
use serde::{Deserialize, Serialize};

/// Groups by number, without gaps. Its owner decides when the oldest one may be forgotten.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct Ring<T> {
    base: Lsn,
    groups: VecDeque<T>,
}

impl<T> Ring<T> {
    /// Nothing is kept; the next group is the one behind `before`.
    pub const fn new(before: Lsn) -> Self {
        Self { base: before.next(), groups: VecDeque::new() }
    }

    /// The number of the next group.
    pub fn next(&self) -> Lsn {
        Lsn(self.base.0 + self.groups.len() as u64)
    }

    /// The number of the newest group; the one before the base where nothing is kept.
    pub fn last(&self) -> Lsn {
        Lsn(self.next().0 - 1)
    }

    /// Everything up to here is forgotten.
    pub const fn forgotten(&self) -> Lsn {
        Lsn(self.base.0 - 1)
    }

    /// How many groups are kept.
    pub fn len(&self) -> usize {
        self.groups.len()
    }

    /// Whether no group is kept.
    pub fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    /// Keeps the next group.
    ///
    /// # Panics
    /// If `lsn` is not the next number.
    pub fn push(&mut self, lsn: Lsn, group: T) {
        let next = self.next();
        assert!(lsn == next, "groups come without gaps: {lsn:?} where {next:?} is next");
        self.groups.push_back(group);
    }

    /// Numbers up to `upto` hold nothing any more. Where older groups are still kept, each of those numbers gets a `filler`.
    /// Numbers that are known already stay as they are.
    pub fn skip_to(&mut self, upto: Lsn, mut filler: impl FnMut(&T) -> T) {
        let Some(newest) = self.groups.back() else {
            self.base = self.base.max(upto.next());
            return;
        };
        let count = upto.0.saturating_sub(self.last().0);
        let fillers: VecDeque<T> = (0..count).map(|_| filler(newest)).collect();
        self.groups.extend(fillers);
    }

    /// A group that is kept.
    #[inline]
    pub fn get(&self, lsn: Lsn) -> Option<&T> {
        self.groups.get(self.index(lsn)?)
    }

    /// A group that is kept, to be changed.
    #[inline]
    pub fn get_mut(&mut self, lsn: Lsn) -> Option<&mut T> {
        let index = self.index(lsn)?;
        self.groups.get_mut(index)
    }

    /// The oldest group.
    pub fn front(&self) -> Option<&T> {
        self.groups.front()
    }

    /// The newest group.
    pub fn back(&self) -> Option<&T> {
        self.groups.back()
    }

    /// The groups with their numbers, oldest first.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (Lsn, &T)> {
        let base = self.base.0;
        self.groups.iter().enumerate().map(move |(index, group)| (Lsn(base + index as u64), group))
    }

    /// The groups, to be changed, oldest first.
    pub fn values_mut(&mut self) -> impl DoubleEndedIterator<Item = &mut T> {
        self.groups.iter_mut()
    }

    /// Forgets the oldest groups as long as `may_go` agrees.
    pub fn forget_while(&mut self, mut may_go: impl FnMut(Lsn, &T) -> bool) {
        while self.groups.front().is_some_and(|group| may_go(self.base, group)) {
            self.groups.pop_front();
            self.base = self.base.next();
        }
    }

    fn index(&self, lsn: Lsn) -> Option<usize> {
        usize::try_from(lsn.0.checked_sub(self.base.0)?).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_found_by_their_numbers_until_they_are_forgotten() {
        let mut ring = Ring::new(Lsn(4));
        assert_eq!((ring.next(), ring.last(), ring.forgotten()), (Lsn(5), Lsn(4), Lsn(4)));
        for (lsn, word) in [(5, "five"), (6, "six"), (7, "seven")] {
            ring.push(Lsn(lsn), word);
        }
        ring.forget_while(|lsn, _| lsn <= Lsn(5));
        assert_eq!(ring.get(Lsn(5)), None);
        assert_eq!(ring.get(Lsn(6)), Some(&"six"));
        assert_eq!(ring.get(Lsn(8)), None);
        assert_eq!(ring.iter().map(|(lsn, _)| lsn.0).collect::<alloc::vec::Vec<_>>(), [6, 7]);
        assert_eq!((ring.forgotten(), ring.last()), (Lsn(5), Lsn(7)));
    }

    #[test]
    fn skipped_numbers_are_filled_only_behind_groups_that_are_kept() {
        let mut ring = Ring::new(Lsn::ZERO);
        ring.skip_to(Lsn(10), |&last: &u8| last);
        assert_eq!((ring.next(), ring.len()), (Lsn(11), 0));
        ring.push(Lsn(11), 1);
        ring.skip_to(Lsn(13), |&last| last + 1);
        ring.skip_to(Lsn(12), |_| unreachable!("known already"));
        assert_eq!(ring.iter().map(|(_, &value)| value).collect::<alloc::vec::Vec<_>>(), [1, 2, 2]);
    }

    #[test]
    #[should_panic(expected = "without gaps")]
    fn a_gap_is_a_broken_invariant() {
        Ring::new(Lsn::ZERO).push(Lsn(2), ());
    }
}
