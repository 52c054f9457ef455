//! A volume's side of a consistency group: the order of its writes among those of all volumes, and what has reached the
//! origin without the core having asked for it.

use super::Volume;
use super::job::{Failure, Part, Sent};
use super::waits::Wait;
use destage_core::together::Ordered;
use destage_core::{BatchId, Lsn, Order, Time, UnitId, WaitFor};
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
        let membership = self.membership.as_ref()?;
        let (_, last) = membership.wanted?;
        let index = membership.order.partition_point(|write| write.lsn < last);
        membership.order.get(index).map(|write| write.stamp)
    }

    /// Whether everything up to a stamp is durable in the log; asks for it if not.
    pub(super) fn is_committed_upto(&mut self, now: Time, stamp: u64) -> bool {
        let committed = self.core.committed();
        let order = &self.member().order;
        let index = order.partition_point(|write| write.stamp <= stamp);
        let Some(last) = index.checked_sub(1).map(|index| order[index].lsn) else { return true };
        if last <= committed {
            return true;
        }
        if self.member().asked < last {
            self.now = self.now.max(now);
            let upto = self.last();
            self.member().asked = upto;
            self.wait_for(Wait::Nobody, upto, WaitFor::Committed);
            self.pump();
        }
        self.core.committed() >= last
    }

    /// What to send so that the origin has everything up to `upto`. What is read from the log is kept until
    /// [`Volume::sent_together`] or [`Volume::not_sent_together`].
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
    pub(super) fn sent_together(&mut self, now: Time, sent: Vec<Sent>, upto: Lsn, pins: &[Lsn]) {
        self.now = self.now.max(now);
        pins.iter().for_each(|&lsn| self.log.unpin(lsn));
        let membership = self.member();
        membership.done = membership.done.max(upto);
        while membership.order.front().is_some_and(|write| write.lsn <= upto) {
            membership.order.pop_front();
        }
        let mut zeroed_blocks = 0;
        for block in sent {
            match block.unit {
                Some(unit) => drop(membership.sent.insert(unit, block)),
                None => zeroed_blocks += u64::from(block.blocks),
            }
        }
        self.counters.sent_blocks += zeroed_blocks;
        self.tell_core();
    }

    /// The group has not reached the origins, or nobody knows.
    pub(super) fn not_sent_together(&mut self, now: Time, failure: &Failure, pins: &[Lsn]) {
        self.now = self.now.max(now);
        pins.iter().for_each(|&lsn| self.log.unpin(lsn));
        if let Some((batch, _)) = self.member().wanted.take() {
            self.destage_done(batch, &[], Err(failure.clone()));
        }
        self.pump();
    }

    /// Tells the core of batches that are at the origin already; it may want the next one then.
    pub(super) fn tell_core(&mut self) {
        while let Some((batch, last)) = self.member().wanted
            && last <= self.member().done
        {
            let membership = self.member();
            membership.wanted = None;
            let mut sent: Vec<Sent> =
                membership.sent.extract_if(|_, block| block.lsn <= last).map(|(_, b)| b).collect();
            // A hash map's order must not show.
            sent.sort_unstable_by_key(|block| (block.lsn, block.unit));
            self.destage_done(batch, &sent, Ok(()));
            self.pump();
        }
    }
}
