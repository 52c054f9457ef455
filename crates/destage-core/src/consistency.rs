//! Where a group of several journals ends that is to be one state together, such as those of a database and its log.
//!
//! The writes of all journals stand in one order, that of their stamps. What reaches the origins is a prefix of it. *When*
//! one is sent each journal's own [`crate::Core`] decides; how far it then reaches over all of them is decided here.

use crate::id::Lsn;
use crate::policy::Limits;
use alloc::vec;
use alloc::vec::Vec;

/// A write in the order of all journals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ordered {
    /// Its number in its own journal.
    pub lsn: Lsn,
    /// Its place among the writes of all journals: above those of all earlier ones.
    pub stamp: u64,
    /// Payload.
    pub bytes: u64,
    /// It names a point at which an application was consistent.
    pub is_mark: bool,
    /// The journal's next write is another part of the same request.
    pub continues: bool,
}

/// One of the journals.
#[derive(Clone, Debug)]
pub struct Share<W> {
    /// Its writes that are not at its origin, in their order.
    pub not_sent: W,
    /// It is durable up to here.
    pub committed: Lsn,
    /// Of its policy: how much one batch may hold.
    pub limits: Limits,
}

/// How far each journal goes in the next group, in the order of `shares`; [`Lsn::ZERO`] for those that have nothing in it.
///
/// The group holds the writes of all in the order of their stamps, as far as they are durable and within the limits, and
/// ends behind the first mark. Never inside a request, whatever the limits; it is empty if the first request is not durable
/// as a whole.
pub fn cut<W: Iterator<Item = Ordered>>(shares: Vec<Share<W>>) -> Vec<Lsn> {
    let mut shares: Vec<_> = shares
        .into_iter()
        .map(|share| (share.not_sent.peekable(), share.committed, share.limits))
        .collect();
    let mut next = Cut::new(shares.len());
    // As of the last write that ends a request.
    let (mut whole, mut whole_count) = (next.upto.clone(), 0);
    loop {
        let heads = shares
            .iter_mut()
            .enumerate()
            .filter_map(|(index, (queue, ..))| queue.peek().map(|head| (head.stamp, index)));
        // What follows a part of a request on another journal shows that a crash has cut the request short there.
        let Some((_, index)) = heads.min() else { return next.upto };
        if next.inside.is_some_and(|inside| inside != index) {
            next.inside = None;
            whole.copy_from_slice(&next.upto);
            whole_count = next.count;
        }
        let (queue, committed, limits) = &mut shares[index];
        let Some(head) = queue.next() else { return whole };
        let is_over = whole_count > 0 && next.is_full(index, &head, limits);
        let is_durable = head.lsn <= *committed;
        if is_over || !is_durable || (next.has_mark && !head.is_mark) {
            return whole;
        }
        next.take(index, &head);
        if next.inside.is_none() {
            whole.copy_from_slice(&next.upto);
            whole_count = next.count;
        }
    }
}

/// A cut through the order of all writes.
#[derive(Debug)]
struct Cut {
    /// By journal, as what follows.
    upto: Vec<Lsn>,
    bytes: Vec<u64>,
    count: u32,
    has_mark: bool,
    /// The journal of a request that goes on behind the cut.
    inside: Option<usize>,
}

impl Cut {
    fn new(journals: usize) -> Self {
        let (upto, bytes) = (vec![Lsn::ZERO; journals], vec![0; journals]);
        Self { upto, bytes, count: 0, has_mark: false, inside: None }
    }

    fn is_full(&self, index: usize, head: &Ordered, limits: &Limits) -> bool {
        let bytes = self.bytes[index] + head.bytes;
        self.count >= limits.batch_groups_max || bytes > limits.batch_bytes_max
    }

    fn take(&mut self, index: usize, head: &Ordered) {
        self.upto[index] = head.lsn;
        self.bytes[index] += head.bytes;
        self.count += 1;
        self.has_mark |= head.is_mark;
        self.inside = head.continues.then_some(index);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: u64 = 4096;

    /// Writes of one journal with these stamps.
    fn writes(stamps: &[u64]) -> Vec<Ordered> {
        let numbered = (1..).zip(stamps);
        let write = |(lsn, &stamp): (u64, &u64)| Ordered {
            lsn: Lsn(lsn),
            stamp,
            bytes: BLOCK,
            is_mark: false,
            continues: false,
        };
        numbered.map(write).collect()
    }

    fn cut_of(journals: &[(&[Ordered], u64)], limits: Limits) -> Vec<u64> {
        let shares = journals.iter().map(|&(writes, committed)| Share {
            not_sent: writes.iter().copied(),
            committed: Lsn(committed),
            limits,
        });
        cut(shares.collect()).into_iter().map(|lsn| lsn.0).collect()
    }

    fn few(batch_groups_max: u32) -> Limits {
        Limits { batch_groups_max, ..Limits::default() }
    }

    #[test]
    fn everything_durable_goes_together() {
        let (data, log) = (writes(&[1, 4, 5]), writes(&[2, 3]));
        assert_eq!(cut_of(&[(&data, 3), (&log, 2)], Limits::default()), [3, 2]);
        assert_eq!(cut_of(&[(&[], 0), (&log, 2)], Limits::default()), [0, 2]);
        assert_eq!(cut_of(&[(&[], 0), (&[], 9)], Limits::default()), [0, 0]);
    }

    #[test]
    fn nothing_goes_that_was_written_after_what_is_not_durable() {
        let (data, log) = (writes(&[1, 4, 5]), writes(&[2, 3]));
        assert_eq!(cut_of(&[(&data, 3), (&log, 1)], Limits::default()), [1, 1]);
        assert_eq!(cut_of(&[(&data, 0), (&log, 2)], Limits::default()), [0, 0]);
    }

    #[test]
    fn limits_end_a_group_in_the_order_of_the_stamps() {
        let (data, log) = (writes(&[1, 4, 5]), writes(&[2, 3]));
        let all = [(&data[..], 3), (&log[..], 2)];
        assert_eq!(cut_of(&all, few(1)), [1, 0]);
        assert_eq!(cut_of(&all, few(3)), [1, 2]);
        let bytes = |batch_bytes_max| Limits { batch_bytes_max, ..Limits::default() };
        assert_eq!(cut_of(&all, bytes(2 * BLOCK)), [2, 2], "each journal has its own bytes");
        assert_eq!(cut_of(&all, bytes(1)), [1, 0], "the first one always goes");
    }

    #[test]
    fn a_group_never_ends_inside_a_request() {
        let (mut data, log) = (writes(&[1, 2, 4]), writes(&[3]));
        (data[0].continues, data[1].continues) = (true, false);
        assert_eq!(cut_of(&[(&data, 3), (&log, 1)], few(1)), [2, 0], "whatever the limits");
        assert_eq!(
            cut_of(&[(&data, 1), (&log, 1)], Limits::default()),
            [0, 0],
            "not durable whole"
        );
    }

    #[test]
    fn a_request_that_a_crash_cut_short_ends_where_another_journal_goes_on() {
        let (mut data, log) = (writes(&[1, 2]), writes(&[3, 4]));
        data[1].continues = true;
        assert_eq!(cut_of(&[(&data, 2), (&log, 0)], Limits::default()), [2, 0]);
        assert_eq!(cut_of(&[(&data, 2), (&log, 2)], few(3)), [2, 1]);
        // It may also be the last that there is.
        assert_eq!(cut_of(&[(&data, 2), (&[], 0)], Limits::default()), [2, 0]);
    }

    #[test]
    fn a_group_ends_behind_a_mark() {
        let (mut data, mut log) = (writes(&[1, 3, 5]), writes(&[2, 4]));
        (data[1].is_mark, log[1].is_mark) = (true, true);
        let all = [(&data[..], 3), (&log[..], 2)];
        assert_eq!(
            cut_of(&all, Limits::default()),
            [2, 2],
            "marks that stand together are one point"
        );
        log[1].is_mark = false;
        assert_eq!(cut_of(&[(&data, 3), (&log, 2)], Limits::default()), [2, 1]);
    }
}
