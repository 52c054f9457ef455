//! How much of the origin destaging may take while clients read from it.

use crate::time::{Span, Time};

/// Leaves room for clients' reads at the origin. What the origin has been asked for it serves in its own order, so a read
/// that comes behind a whole batch waits for much of it; nothing that is sent can be called back. Where reads are expected
/// the room is therefore left before they come: destaging has as many requests under way as clients have, and a few at
/// least, so that it goes on. Where none are, it has as many as the origin takes.
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
    /// Requests of destaging under way beside a read: enough to keep two disks busy in the order of their addresses, few
    /// enough for a read to wait for one or two of them.
    pub const BESIDE_READ: usize = 4;
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
        let most = most.max(1);
        match self.under_way > 0 || self.until().is_some_and(|until| now < until) {
            true => self.under_way.max(Self::BESIDE_READ).min(most),
            false => most,
        }
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
    fn beside_reads_it_has_a_few_requests_or_as_many_as_they_are() {
        let mut reads = ReadsFirst::default();
        reads.begin();
        assert_eq!(reads.requests_max(at(0), MOST), ReadsFirst::BESIDE_READ);
        assert_eq!(reads.requests_max(at(0), 2), 2, "never more than the origin takes");
        assert_eq!(reads.next_change(at(0)), None, "no time ends a read");
        (0..9).for_each(|_| reads.begin());
        assert_eq!(reads.requests_max(at(0), MOST), 10);
        (0..99).for_each(|_| reads.begin());
        assert_eq!(reads.requests_max(at(0), MOST), MOST);
    }

    #[test]
    fn soon_after_a_read_another_one_is_expected() {
        let mut reads = ReadsFirst::default();
        reads.begin();
        reads.end(at(5));
        let until = at(5) + ReadsFirst::EXPECTED;
        assert_eq!(reads.next_change(at(5)), Some(until));
        assert_eq!(reads.requests_max(at(104), MOST), ReadsFirst::BESIDE_READ);
        assert_eq!(reads.requests_max(until, MOST), MOST);
        assert_eq!(reads.next_change(until), None);
    }
}
