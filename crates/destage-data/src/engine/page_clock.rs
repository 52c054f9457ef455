//! Moments of what happens to collections: a page of a large one holds as long as its collection has not changed since the
//! page was asked for.

use destage_core::UnitId;
use std::collections::HashMap;

/// Counts moments, and knows when the fetches of pages under way began.
#[derive(Debug, Default)]
pub(super) struct PageClock {
    moment: u64,
    began: HashMap<UnitId, u64>,
}

impl PageClock {
    /// The moment after the last one.
    pub(super) fn tick(&mut self) -> u64 {
        self.moment += 1;
        self.moment
    }

    /// A page is asked for at the origin.
    pub(super) fn begin(&mut self, page: UnitId) {
        let now = self.tick();
        self.began.insert(page, now);
    }

    /// It has come, or will not come: when it was asked for; 0, which is before everything, if nobody knows.
    pub(super) fn end(&mut self, page: UnitId) -> u64 {
        self.began.remove(&page).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_that_was_asked_for_before_a_change_is_older_than_it() {
        let (mut clock, page) = (PageClock::default(), UnitId(1));
        clock.begin(page);
        let changed = clock.tick();
        assert!(clock.end(page) < changed);
        clock.begin(page);
        assert!(clock.end(page) > changed && clock.end(page) == 0);
    }
}
