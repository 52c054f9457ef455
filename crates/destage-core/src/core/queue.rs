//! The queue of one ordering domain, and what is to be repeated at its head.

use crate::id::{DomainId, Lsn};
use crate::io::{Fault, Halt};
use crate::policy::{Limits, OnReject};
use crate::time::{Span, Time};
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

/// The queue of one ordering domain.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Domain {
    pub(super) id: DomainId,
    /// Undecided groups that are in no batch, oldest first.
    pub(super) queue: VecDeque<Lsn>,
    /// Before anything else of the queue: what has to be tried again.
    pub(super) repeats: VecDeque<Repeat>,
    /// Batches and parkings under way.
    pub(super) in_flight: u32,
    /// Not before this time, after a failure.
    pub(super) retry_at: Time,
    retry: Span,
    pub(super) failing: bool,
    /// The origin answered last that nothing will work until someone mends it.
    pub(super) denied: bool,
    /// After a rejection: the next batches hold at most `size` groups, until `until` is past.
    pub(super) isolate: Option<Isolate>,
    /// Nothing up to here can start before something under way ends.
    pub(super) blocked: Lsn,
    /// Someone waits for everything up to here.
    pub(super) hurry: Lsn,
    /// The periodic policies and the adaptive one want everything up to here.
    pub(super) due: Lsn,
    /// The adaptive policy owes so much of a further group.
    pub(super) credit: f64,
    /// Instead of what the policy says.
    pub(super) on_reject: Option<OnReject>,
    /// It stands still until someone has looked.
    pub(super) halt: Option<Halt>,
    /// What is rejected up to here is parked, whatever `on_reject` says.
    pub(super) may_park: Lsn,
    pub(super) parked_lately: Lately,
}

/// How much was parked within the minute that began with the first of it.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
pub(super) struct Lately {
    since: Time,
    groups: u32,
}

impl Lately {
    /// Counts one more; how many there are.
    pub(super) fn count(&mut self, now: Time) -> u32 {
        if self.groups == 0 || now.since(self.since) >= MINUTE {
            *self = Self { since: now, groups: 0 };
        }
        self.groups = self.groups.saturating_add(1);
        self.groups
    }
}

const MINUTE: Span = Span::from_secs(60);

#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub(super) struct Isolate {
    pub(super) size: usize,
    pub(super) until: Lsn,
}

/// Work whose outcome at the origin is unknown. It is repeated exactly as it was, since it may have landed.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) enum Repeat {
    Batch(Vec<Lsn>),
    Park(Parking),
}

/// A group on its way out of the queue.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub(super) struct Parking {
    pub(super) lsn: Lsn,
    pub(super) depends_on: Option<Lsn>,
    pub(super) keep: bool,
}

impl Domain {
    pub(super) fn new(id: DomainId) -> Self {
        Self {
            id,
            queue: VecDeque::new(),
            repeats: VecDeque::new(),
            in_flight: 0,
            retry_at: Time::ZERO,
            retry: Span::ZERO,
            failing: false,
            denied: false,
            isolate: None,
            blocked: Lsn::ZERO,
            hurry: Lsn::ZERO,
            due: Lsn::ZERO,
            credit: 0.0,
            on_reject: None,
            halt: None,
            may_park: Lsn::ZERO,
            parked_lately: Lately::default(),
        }
    }

    pub(super) fn head(&self) -> Option<Lsn> {
        self.queue.front().copied()
    }

    /// How many queued groups are not newer than `lsn`.
    pub(super) fn count_upto(&self, lsn: Lsn) -> usize {
        self.queue.partition_point(|&queued| queued <= lsn)
    }

    /// The newest queued group that is not newer than `lsn`; zero if there is none.
    pub(super) fn newest_upto(&self, lsn: Lsn) -> Lsn {
        self.newest_where(|queued| queued <= lsn)
    }

    /// The newest of the leading queued groups for which `holds`.
    pub(super) fn newest_where(&self, holds: impl Fn(Lsn) -> bool) -> Lsn {
        let count = self.queue.partition_point(|&lsn| holds(lsn));
        count.checked_sub(1).map_or(Lsn::ZERO, |last| self.queue[last])
    }

    /// Takes groups back in their order.
    pub(super) fn put_back(&mut self, lsns: &[Lsn]) {
        if self.queue.front().is_none_or(|&front| lsns.last().is_some_and(|&last| last < front)) {
            lsns.iter().rev().for_each(|&lsn| self.queue.push_front(lsn));
            return;
        }
        self.queue.extend(lsns);
        self.queue.make_contiguous().sort_unstable();
    }

    /// Waits before the next try.
    pub(super) fn back_off(&mut self, fault: Fault, now: Time, limits: &Limits) {
        self.failing = true;
        self.denied = fault == Fault::Denied;
        self.retry = match fault {
            Fault::Denied => limits.retry_max,
            _ => Span(self.retry.0.saturating_mul(2)).max(limits.retry_min).min(limits.retry_max),
        };
        self.retry_at = now + self.retry;
    }

    /// The origin answered: ends the back-off.
    pub(super) fn answered(&mut self) {
        self.failing = false;
        self.denied = false;
        self.retry = Span::ZERO;
    }

    /// The origin decided everything up to `reached` that was sent: lets batches grow again.
    pub(super) fn grow(&mut self, reached: Lsn) {
        self.isolate = self
            .isolate
            .filter(|isolate| reached < isolate.until)
            // Of many groups that are parked in turn, each doubles it.
            .map(|isolate| Isolate { size: isolate.size.saturating_mul(2), ..isolate });
    }
}
