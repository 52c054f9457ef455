//! Writes that go past the log: whether the origin holds them durably, and whether it lost some.
//!
//! Such a write is acknowledged once it is at the origin. A flush of the origin makes it durable. The origin counts how
//! often it may have lost writes: if that count differs between the first write and the flush that covers it, the flush
//! fails.

/// What the origin owes for writes that went past the log.
#[derive(Debug)]
pub(super) struct WriteThrough {
    /// Writes went past the log since the origin was last flushed.
    is_unflushed: bool,
    /// Flushes of the origin under way.
    flushes: usize,
    /// The origin's count of losses before the first write that no good flush has covered.
    losses: Option<u64>,
    /// How often a flush found that writes may be lost.
    losses_found: u64,
    /// Negative control of the tests: long sequential writes go past the log whatever the policy.
    takes_streams: bool,
}

impl WriteThrough {
    pub(super) fn new(takes_streams: bool) -> Self {
        Self { is_unflushed: false, flushes: 0, losses: None, losses_found: 0, takes_streams }
    }

    /// Whether long sequential writes go past the log whatever the policy.
    pub(super) fn takes_streams(&self) -> bool {
        self.takes_streams
    }

    /// A write begins.
    pub(super) fn begin(&mut self) {
        self.is_unflushed = true;
    }

    /// A write has ended, when which began the origin counted so many losses. Others that began later may have ended before, and a
    /// flush that did not cover this one.
    pub(super) fn end(&mut self, losses: u64) {
        self.losses = Some(self.losses.map_or(losses, |known| known.min(losses)));
    }

    /// Whether a durable write must flush the origin first. A flush under way may have begun too early for it.
    pub(super) fn needs_flush(&self) -> bool {
        self.is_unflushed || self.flushes > 0
    }

    /// Whether a flush is under way.
    pub(super) fn is_flushing(&self) -> bool {
        self.flushes > 0
    }

    /// A flush begins. It does not cover writes that are under way.
    pub(super) fn begin_flush(&mut self, is_write_under_way: bool) {
        self.is_unflushed = is_write_under_way;
        self.flushes += 1;
    }

    /// A flush has ended, at which the origin counted so many losses. Returns whether writes may be lost. With `is_last`,
    /// lost writes stay unflushed, so that the next start knows.
    pub(super) fn end_flush(&mut self, is_good: bool, losses: u64, is_last: bool) -> bool {
        self.flushes -= 1;
        let is_lost = self.losses.is_some_and(|before| before != losses);
        self.losses = Some(losses);
        self.losses_found += u64::from(is_lost);
        // What a failed flush covered is not known to be durable; nobody was told that it is.
        self.is_unflushed |= !is_good || (is_lost && is_last);
        if !self.is_unflushed && self.flushes == 0 {
            // Good flushes have covered all there is: later losses are of later writes, each of which tells its own count.
            self.losses = None;
        }
        is_lost
    }

    /// Whether the origin is not known to hold all writes durably.
    pub(super) fn is_unflushed(&self) -> bool {
        self.is_unflushed
    }

    /// How often a flush found that writes may be lost.
    pub(super) fn losses_found(&self) -> u64 {
        self.losses_found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_flush_leaves_the_origin_unflushed() {
        let mut through = WriteThrough::new(false);
        assert!(!through.needs_flush());
        through.begin();
        through.end(0);
        through.begin_flush(false);
        assert!(through.needs_flush() && !through.is_unflushed(), "the flush is under way");
        assert!(!through.end_flush(false, 0, false));
        assert!(through.needs_flush() && through.is_unflushed());
        through.begin_flush(false);
        assert!(!through.end_flush(true, 0, false));
        assert!(!through.needs_flush());
    }

    #[test]
    fn a_flush_does_not_cover_writes_under_way() {
        let mut through = WriteThrough::new(false);
        through.begin();
        through.begin_flush(true);
        assert!(!through.end_flush(true, 0, false));
        assert!(through.is_unflushed());
    }

    #[test]
    fn a_write_that_ends_after_a_loss_was_found_may_be_lost_as_well() {
        let mut through = WriteThrough::new(false);
        through.begin();
        through.begin();
        through.end(3);
        through.begin_flush(true);
        assert!(through.end_flush(true, 4, false), "the first one may be lost");
        through.end(3);
        through.begin_flush(false);
        assert!(through.end_flush(true, 4, false), "so may the second one");
        through.begin();
        through.begin();
        through.end(5);
        through.end(4);
        through.begin_flush(false);
        assert!(through.end_flush(true, 5, false), "it began before the loss, and ended last");
    }

    #[test]
    fn what_was_flushed_before_a_loss_is_not_lost_by_it() {
        let mut through = WriteThrough::new(false);
        let write = |through: &mut WriteThrough, losses| {
            through.begin();
            through.end(losses);
        };
        write(&mut through, 3);
        through.begin_flush(false);
        assert!(!through.end_flush(true, 3, false));
        // Somebody else's write was lost.
        write(&mut through, 4);
        through.begin_flush(false);
        assert!(!through.end_flush(true, 4, false), "nothing of ours was lost");
        write(&mut through, 4);
        // A flush that is under way, or fails, has covered nothing yet.
        through.begin_flush(false);
        through.begin_flush(false);
        assert!(!through.end_flush(true, 4, false));
        assert!(!through.end_flush(false, 4, false));
        write(&mut through, 5);
        through.begin_flush(false);
        assert!(through.end_flush(true, 5, false), "the write before may be lost");
    }

    #[test]
    fn a_loss_is_found_once_and_kept_for_the_next_start_at_the_end_only() {
        let mut through = WriteThrough::new(false);
        through.begin();
        through.end(3);
        through.begin_flush(false);
        assert!(through.end_flush(true, 4, false));
        assert_eq!((through.losses_found(), through.is_unflushed()), (1, false));
        through.begin_flush(false);
        assert!(!through.end_flush(true, 4, true));
        through.begin();
        through.end(4);
        through.begin_flush(false);
        assert!(through.end_flush(true, 5, true));
        assert_eq!((through.losses_found(), through.is_unflushed()), (2, true));
    }
}
