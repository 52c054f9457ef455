//! Lives of files that the origin never sees, each from the group that made the file to the one with which its last name went.
//!
//! A file made in advance that was gone before it was due is given out again: its number is another file's then, while changes
//! of names of its first life are still on their way. So a number alone does not say which of them are void; a life does.

use crate::ask::Ino;
use destage_core::Lsn;
use std::collections::BTreeMap;

/// A life of a file made in advance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Life {
    pub(crate) ino: Ino,
    pub(crate) from: Lsn,
    pub(crate) to: Lsn,
}

/// Such lives: see the module. Those of one number do not overlap.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Lives(BTreeMap<(Ino, Lsn), Lsn>);

impl Lives {
    pub(crate) fn insert(&mut self, life: Life) {
        self.0.insert((life.ino, life.from), life.to);
    }

    /// The one that a file lived when a group was written.
    pub(crate) fn of(&self, ino: Ino, lsn: Lsn) -> Option<Life> {
        let (&(_, from), &to) = self.0.range((ino, Lsn::ZERO)..=(ino, lsn)).next_back()?;
        (lsn <= to).then_some(Life { ino, from, to })
    }

    pub(crate) fn contains(&self, ino: Ino, lsn: Lsn) -> bool {
        self.of(ino, lsn).is_some()
    }

    pub(crate) fn remove(&mut self, ino: Ino, from: Lsn) {
        self.0.remove(&(ino, from));
    }

    /// The number begins another life with this group: what was said of one without an end is said of those before it.
    pub(crate) fn end(&mut self, ino: Ino, next: Lsn) {
        let to = Lsn(next.0.saturating_sub(1));
        let before = self.0.range_mut((ino, Lsn::ZERO)..(ino, next));
        before.filter(|(_, end)| **end == UNKNOWN_END).for_each(|(_, end)| *end = to);
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = Life> + '_ {
        self.0.iter().map(|(&(ino, from), &to)| Life { ino, from, to })
    }

    pub(crate) fn retain(&mut self, mut keeps: impl FnMut(Life) -> bool) {
        self.0.retain(|&(ino, from), to| keeps(Life { ino, from, to: *to }));
    }
}

impl Extend<Life> for Lives {
    fn extend<T: IntoIterator<Item = Life>>(&mut self, lives: T) {
        lives.into_iter().for_each(|life| self.insert(life));
    }
}

impl FromIterator<Life> for Lives {
    fn from_iter<T: IntoIterator<Item = Life>>(lives: T) -> Self {
        let mut all = Self::default();
        all.extend(lives);
        all
    }
}

/// Earlier versions gave no file two lives, and wrote down neither beginning nor end.
pub(crate) const UNKNOWN_END: Lsn = Lsn(u64::MAX);

#[cfg(test)]
mod tests {
    use super::*;

    fn life(ino: Ino, from: u64, to: u64) -> Life {
        Life { ino, from: Lsn(from), to: Lsn(to) }
    }

    #[test]
    fn a_number_has_several_lives_and_none_between_them() {
        let lives: Lives = [life(7, 3, 5), life(7, 9, 9), life(8, 1, 2)].into_iter().collect();
        let within = |ino, lsn| lives.of(ino, Lsn(lsn));
        assert_eq!([2, 6, 8, 10].map(|lsn| within(7, lsn)), [None; 4]);
        assert_eq!([3, 4, 5].map(|lsn| within(7, lsn)), [Some(life(7, 3, 5)); 3]);
        assert_eq!(within(7, 9), Some(life(7, 9, 9)));
        assert_eq!(within(8, 5), None);
    }

    #[test]
    fn a_life_without_an_end_ends_where_the_next_one_begins() {
        let mut lives: Lives =
            [Life { ino: 7, from: Lsn::ZERO, to: UNKNOWN_END }].into_iter().collect();
        assert!(lives.contains(7, Lsn(100)));
        lives.end(7, Lsn(50));
        assert!(lives.contains(7, Lsn(49)) && !lives.contains(7, Lsn(50)));
        lives.end(7, Lsn(60));
        assert!(!lives.contains(7, Lsn(55)), "it has ended once");
    }
}
