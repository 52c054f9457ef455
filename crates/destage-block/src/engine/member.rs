//! A volume's side of a consistency group: the order of its writes among those of all volumes, and what has reached the
//! origin without the core having asked for it.

use super::Volume;
use super::job::{Failure, Part, Sent};
use super::waits::Wait;
use destage_core::consistency::Ordered;
use destage_core::{BatchId, Lsn, Order, Time, UnitId, WaitFor};
use destage_engine::Drive;
use hashbrown::HashMap;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Numbers the writes of all volumes of a consistency group: each gets a stamp above all earlier ones, so that every prefix
/// of the stamps is a state that existed, across volumes and across restarts. Stamps are the time, as nearly as that allows.
#[derive(Clone, Debug, Default)]
pub struct GroupClock(Arc<AtomicU64>);

impl GroupClock {
    /// Nanoseconds since the Unix epoch, `now` or a little later.
    pub(super) fn stamp(&self, now: Time) -> u64 {
        // One thread owns the volumes of a group: there is nobody to race with.
        let stamp = now.0.max(self.0.load(Ordering::Relaxed) + 1);
        self.0.store(stamp, Ordering::Relaxed);
        stamp
    }

    /// A stamp that an earlier run has given.
    pub(super) fn seen(&self, stamp: u64) {
        self.0.fetch_max(stamp, Ordering::Relaxed);
    }
}

/// What a volume of a consistency group keeps besides.
#[derive(Debug)]
pub(super) struct Membership {
    clock: GroupClock,
    /// Writes that are not at the origin, in the order of their stamps.
    order: VecDeque<Ordered>,
    /// What the core wants at the origin: a batch and its last write.
    wanted: Option<(BatchId, Lsn)>,
    /// The origin has everything up to here.
    done: Lsn,
    /// Blocks that are at the origin and of which the core has not been told.
    sent: HashMap<UnitId, Sent>,
    /// The log was asked to be durable up to here.
    asked: Lsn,
}

impl Membership {
    pub(super) fn new(clock: GroupClock, done: Lsn) -> Self {
        Self {
            clock,
            order: VecDeque::new(),
            wanted: None,
            done,
            sent: HashMap::new(),
            asked: Lsn::ZERO,
        }
    }

    /// The core wants a batch at the origin.
    pub(super) fn want(&mut self, batch: BatchId, last: Lsn) {
        self.wanted = Some((batch, last));
    }

    /// The batch that the core wants will not be at the origin for now.
    fn take_wanted(&mut self) -> Option<BatchId> {
        Some(self.wanted.take()?.0)
    }

    /// The stamp of the last write that the core wants at the origin and that is not there.
    fn wanted_stamp(&self) -> Option<u64> {
        let (_, last) = self.wanted?;
        let index = self.order.partition_point(|write| write.lsn < last);
        self.order.get(index).map(|write| write.stamp)
    }

    /// The last write up to a stamp, of those that are not at the origin.
    fn last_upto(&self, stamp: u64) -> Option<Lsn> {
        let index = self.order.partition_point(|write| write.stamp <= stamp);
        index.checked_sub(1).map(|index| self.order[index].lsn)
    }

    /// Whether the log has to be asked for `last`; it is asked to be durable up to `upto` then.
    fn must_ask(&mut self, last: Lsn, upto: Lsn) -> bool {
        let must_ask = self.asked < last;
        if must_ask {
            self.asked = upto;
        }
        must_ask
    }

    /// The origin has everything up to `upto`. Returns the blocks of zeros among what was sent.
    fn arrived(&mut self, sent: Vec<Sent>, upto: Lsn) -> u64 {
        self.done = self.done.max(upto);
        while self.order.front().is_some_and(|write| write.lsn <= upto) {
            self.order.pop_front();
        }
        let mut zeroed_blocks = 0;
        for block in sent {
            match block.unit {
                Some(unit) => drop(self.sent.insert(unit, block)),
                None => zeroed_blocks += u64::from(block.blocks),
            }
        }
        zeroed_blocks
    }

    /// The batch that the core wants, if the origin has all of it, and what was sent of it.
    fn take_done(&mut self) -> Option<(BatchId, Vec<Sent>)> {
        let (batch, last) = self.wanted.filter(|&(_, last)| last <= self.done)?;
        self.wanted = None;
        let sent = self.sent.extract_if(|_, block| block.lsn <= last);
        let mut sent: Vec<Sent> = sent.map(|(_, block)| block).collect();
        // A hash map's order must not show.
        sent.sort_unstable_by_key(|block| (block.lsn, block.unit));
        Some((batch, sent))
    }
}

impl Volume {
    /// The stamp of the next write.
    pub(super) fn stamp(&self) -> u64 {
        self.membership.as_ref().map_or(self.now.0, |membership| membership.clock.stamp(self.now))
    }

    pub(super) fn note_recovered_stamp(&self, stamp: u64) {
        if let Some(membership) = &self.membership {
            membership.clock.seen(stamp);
        }
    }

    pub(super) fn put_in_order(&mut self, write: Ordered) {
        if let Some(membership) = &mut self.membership {
            membership.order.push_back(write);
        }
    }

    fn member(&mut self) -> &mut Membership {
        self.membership.as_mut().expect("only volumes with a group's clock are driven by a group")
    }

    /// Writes that are not at the origin, in the order of their stamps.
    pub(super) fn not_sent(&self) -> impl Iterator<Item = Ordered> + '_ {
        self.membership.iter().flat_map(|membership| membership.order.iter().copied())
    }

    /// The stamp of the last write that the core wants at the origin and that is not there.
    pub(super) fn wanted_stamp(&self) -> Option<u64> {
        self.membership.as_ref()?.wanted_stamp()
    }

    /// Whether everything up to a stamp is durable in the log; asks for it if not.
    pub(super) fn is_committed_upto(&mut self, now: Time, stamp: u64) -> bool {
        let committed = self.core.committed();
        let Some(last) = self.member().last_upto(stamp) else { return true };
        if last <= committed {
            return true;
        }
        let upto = self.last();
        if self.member().must_ask(last, upto) {
            self.now = self.now.max(now);
            self.wait_for(Wait::Nobody, upto, WaitFor::Committed);
            self.pump();
        }
        self.core.committed() >= last
    }

    /// What to send so that the origin has everything up to `upto`. What is read from the log is kept until
    /// [`Volume::group_sent`] or [`Volume::group_not_sent`].
    pub(super) fn share(&mut self, upto: Lsn) -> Result<Part, Failure> {
        let done = self.member().done;
        let lsns: Vec<Lsn> =
            self.not_sent().map(|write| write.lsn).take_while(|&lsn| lsn <= upto).collect();
        let mut part = self.part(&lsns, Order::Domain)?;
        if lsns.is_empty() {
            (part.from, part.upto) = (done, done);
        }
        Ok(part)
    }

    pub(super) fn pin_logs(&mut self, pins: &[Lsn]) {
        pins.iter().for_each(|&lsn| self.log.pin(lsn));
    }

    /// A group of all volumes has reached the origins.
    pub(super) fn group_sent(&mut self, now: Time, sent: Vec<Sent>, upto: Lsn, pins: &[Lsn]) {
        self.now = self.now.max(now);
        pins.iter().for_each(|&lsn| self.log.unpin(lsn));
        self.counters.sent_blocks += self.member().arrived(sent, upto);
        self.tell_core();
    }

    /// The group has not reached the origins, or nobody knows.
    pub(super) fn group_not_sent(&mut self, now: Time, failure: &Failure, pins: &[Lsn]) {
        self.now = self.now.max(now);
        pins.iter().for_each(|&lsn| self.log.unpin(lsn));
        if let Some(batch) = self.member().take_wanted() {
            self.destage_done(batch, &[], Err(failure.clone()));
        }
        self.pump();
    }

    /// Tells the core of batches that are at the origin already; it may want the next one then.
    pub(super) fn tell_core(&mut self) {
        while let Some((batch, sent)) = self.member().take_done() {
            self.destage_done(batch, &sent, Ok(()));
            self.pump();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(lsn: u64, stamp: u64) -> Ordered {
        Ordered { lsn: Lsn(lsn), stamp, bytes: 0, is_mark: false, continues: false }
    }

    fn sent(unit: Option<u32>, lsn: u64) -> Sent {
        Sent { unit: unit.map(UnitId), lsn: Lsn(lsn), blocks: 1, content: None }
    }

    #[test]
    fn a_batch_is_done_once_the_origin_has_all_of_it() {
        let mut member = Membership::new(GroupClock::default(), Lsn::ZERO);
        member.order.extend([write(1, 10), write(2, 20), write(3, 30)]);
        assert_eq!((member.last_upto(9), member.last_upto(25)), (None, Some(Lsn(2))));
        member.want(BatchId(1), Lsn(2));
        assert_eq!(member.wanted_stamp(), Some(20));
        let zeroed = member.arrived(vec![sent(Some(7), 1), sent(None, 1)], Lsn(1));
        assert_eq!(zeroed, 1);
        assert!(member.take_done().is_none());
        member.arrived(vec![sent(Some(9), 2), sent(Some(8), 2), sent(Some(6), 3)], Lsn(3));
        let (batch, blocks) = member.take_done().expect("the origin has all of it");
        let units: Vec<u32> = blocks.iter().filter_map(|block| Some(block.unit?.0)).collect();
        assert_eq!((batch, units), (BatchId(1), vec![7, 8, 9]));
        assert!(member.take_done().is_none() && member.take_wanted().is_none());
    }

    #[test]
    fn the_log_is_asked_once_for_what_it_was_asked_before() {
        let mut member = Membership::new(GroupClock::default(), Lsn::ZERO);
        assert!(member.must_ask(Lsn(2), Lsn(5)));
        assert!(!member.must_ask(Lsn(5), Lsn(6)));
        assert!(member.must_ask(Lsn(6), Lsn(6)));
    }
}
