//! Which ranges of a file an owner of locks has, and by which open of it.
//!
//! The kernel may give the number of an owner that is an open to the next open before it says that the first one has ended. So
//! what ends with an open is told by the open, not by the owner. A process has its locks by whichever open it took them.

/// Ranges that do not overlap: see the module.
#[derive(Debug, Default)]
pub(super) struct Ranges(Vec<Range>);

#[derive(Clone, Copy, Debug)]
struct Range {
    first: u64,
    last: u64,
    open: u64,
}

impl Ranges {
    /// It is this open's from now on, whosever it was.
    pub(super) fn take(&mut self, mut first: u64, mut last: u64, open: u64) {
        self.give_up(first, last);
        self.0.retain(|range| {
            let is_beside = range.last.checked_add(1) == Some(first)
                || last.checked_add(1) == Some(range.first);
            let is_one = range.open == open && is_beside;
            if is_one {
                (first, last) = (first.min(range.first), last.max(range.last));
            }
            !is_one
        });
        self.0.push(Range { first, last, open });
    }

    /// It is nobody's, whosever it was.
    pub(super) fn give_up(&mut self, first: u64, last: u64) {
        for range in std::mem::take(&mut self.0) {
            if range.last < first || last < range.first {
                self.0.push(range);
                continue;
            }
            if range.first < first {
                self.0.push(Range { last: first - 1, ..range });
            }
            if last < range.last {
                self.0.push(Range { first: last + 1, ..range });
            }
        }
    }

    /// The first and the last bytes of what was taken by an open, which is nobody's then.
    pub(super) fn end(&mut self, open: u64) -> Vec<(u64, u64)> {
        let (ended, left) = self.0.iter().partition(|range| range.open == open);
        self.0 = left;
        let ended: Vec<Range> = ended;
        ended.into_iter().map(|range| (range.first, range.last)).collect()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn a_range_is_whose_it_was_last_and_ends_with_that_open_alone() {
        let mut ranges = Ranges::default();
        ranges.take(0, 99, 1);
        ranges.take(40, 49, 2);
        ranges.give_up(90, u64::MAX);
        ranges.take(50, 59, 2);
        assert_eq!(ranges.end(3), []);
        let ended: BTreeSet<_> = ranges.end(1).into_iter().collect();
        assert_eq!(ended, BTreeSet::from([(0, 39), (60, 89)]));
        assert_eq!(ranges.end(2), [(40, 59)], "what is side by side is one");
        assert!(ranges.is_empty());
    }
}
