//! How much of the origin destaging may take while clients read from it.

use crate::time::{Span, Time};

/// Leaves room for clients' reads at the origin. What the origin has been asked for it serves in an order of its own: a disk
/// that goes upwards, and always finds the next request of a sorted batch there, comes back for a read only when the batch
/// ends or its patience does. Nothing that is sent can be called back. So beside reads destaging has one request under way,
/// or one for several of them, which keeps it going; where a read is expected, a few, so that it finds few before it; where
/// none is, as many as the origin takes.
///
/// The remedy is the read priority of Carson and Setia, "Analysis of the periodic update write policy for disk cache" (1992),
/// which lets reads pass the writes of a burst; here the queue is another machine's.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReadsFirst {
    under_way: usize,
    /// When the last one ended.
    ended: Option<Time>,
}

impl ReadsFirst {
    /// So many clients' reads under way let one request of destaging be beside them.
    pub const READS_FOR_ONE: usize = 4;
    /// Requests of destaging under way where a read is expected: enough to keep two disks busy, few enough for a read to wait
    /// for one or two of them.
    pub const EXPECTING: usize = 4;
    /// So long after a read another one is expected.
    pub const EXPECTED: Span = Span::from_millis(100);

    /// A client's read goes to the origin.
    pub fn begin(&mut self) {
        self.under_way += 1;
    }

    /// It has ended, well or not.
    ///
    /// # Panics
    /// If none is under way.
    pub fn end(&mut self, now: Time) {
        assert!(self.under_way > 0, "each read ends once");
        self.under_way -= 1;
        self.ended = Some(now);
    }

    /// How many requests of destaging may be under way, where the origin takes `most`: at least 1.
    pub fn requests_max(&self, now: Time, most: usize) -> usize {
        let few = match self.under_way {
            0 if self.until().is_some_and(|until| now < until) => Self::EXPECTING,
            0 => most,
            reads => reads / Self::READS_FOR_ONE,
        };
        few.min(most).max(1)
    }

    /// When more may be under way by the passing of time alone; `None` while a read is.
    pub fn next_change(&self, now: Time) -> Option<Time> {
        self.until().filter(|&until| self.under_way == 0 && now < until)
    }

    fn until(&self) -> Option<Time> {
        self.ended.map(|ended| ended + Self::EXPECTED)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: usize = 32;

    fn at(ms: u64) -> Time {
        Time::ZERO + Span::from_millis(ms)
    }

    #[test]
    fn without_reads_destaging_has_the_origin_for_itself() {
        let reads = ReadsFirst::default();
        assert_eq!(reads.requests_max(at(0), MOST), MOST);
        assert_eq!(reads.requests_max(at(0), 0), 1, "it always goes on");
        assert_eq!(reads.next_change(at(0)), None);
    }

    #[test]
    fn beside_reads_it_has_one_request_under_way_or_one_for_several() {
        let mut reads = ReadsFirst::default();
        reads.begin();
        assert_eq!(reads.requests_max(at(0), MOST), 1);
        assert_eq!(reads.next_change(at(0)), None, "no time ends a read");
        (0..11).for_each(|_| reads.begin());
        assert_eq!(reads.requests_max(at(0), MOST), 3);
        assert_eq!(reads.requests_max(at(0), 2), 2, "never more than the origin takes");
    }

    #[test]
    fn soon_after_a_read_another_one_is_expected() {
        let mut reads = ReadsFirst::default();
        reads.begin();
        reads.end(at(5));
        let until = at(5) + ReadsFirst::EXPECTED;
        assert_eq!(reads.next_change(at(5)), Some(until));
        assert_eq!(reads.requests_max(at(104), MOST), ReadsFirst::EXPECTING);
        assert_eq!(reads.requests_max(until, MOST), MOST);
        assert_eq!(reads.next_change(until), None);
    }
}
