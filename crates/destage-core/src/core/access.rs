//! Requests: admission at the limits, misses, locks.

use super::Core;
use crate::groups::UnitList;
use crate::id::{Lsn, RequestId, UnitId};
use crate::io::{Access, Ack, Effect, Fault, Intent, Mode, Refusal, StopReason};
use crate::policy::{Acknowledge, AtLimit};
use crate::time::{Span, Time};
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use hashbrown::HashMap;
use serde::{Deserialize, Serialize};

/// A request that could not be executed at once.
#[derive(Clone, Debug, Deserialize, Serialize)]
struct Waiting {
    intent: Intent,
    units: UnitList,
    /// Set once a write has passed the limits, and how it will be treated.
    admitted: Option<Access>,
    /// The units before this one were found ready; they are looked at again before the request is executed.
    ready: usize,
    /// For `ReadSettled`: its units are locked, and fetched again once this is decided.
    settles: Option<Lsn>,
}

/// All waiting requests.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(super) struct Requests {
    waiting: HashMap<RequestId, Waiting>,
    /// Who waits for a unit to become ready, in order of arrival.
    by_unit: HashMap<UnitId, Vec<RequestId>>,
    /// Writes that wait for a limit.
    admission: VecDeque<RequestId>,
    /// Who waits for a group to be decided before fetching again.
    settling: BTreeMap<Lsn, Vec<RequestId>>,
    /// `ReadSettled` requests that take their locks once every effect so far is carried out: an executed request may
    /// not have written yet.
    postponed: VecDeque<RequestId>,
    /// Requests to be executed behind other effects. Those may write first, and what is observed is told only after that.
    executing: VecDeque<(RequestId, UnitList)>,
    /// When a throttled write may pass next.
    throttle_at: Time,
    /// The first write in line waits for room.
    pub(super) wants_room: bool,
    /// Writes go through to the origin until the low mark is reached.
    pub(super) fallback: bool,
    /// The last write that was judged found no room.
    pub(super) full: bool,
}

/// What the limits say of a write.
enum Admission {
    Go(Access),
    Wait,
    /// Waits until there is room.
    Full,
    Refuse(Refusal),
}

/// Slowest rate to which throttling goes, in writes per second, while the origin's rate is unknown.
const THROTTLE_RATE_MIN: f64 = 100.0;
/// Writes that go through may exceed the dirty limit by this share (1/4) before they wait too.
const FALLBACK_EXCESS_DIVISOR: u64 = 4;

impl Requests {
    pub(super) fn is_waiting(&self, request: RequestId) -> bool {
        self.waiting.contains_key(&request)
    }

    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// When a throttled write may pass. Writes that wait for room wait for a completion, not for a time.
    pub(super) fn throttled_until(&self, now: Time) -> Option<Time> {
        (!self.admission.is_empty() && self.throttle_at > now).then_some(self.throttle_at)
    }
}

impl Core {
    pub(super) fn access(&mut self, request: RequestId, intent: Intent, units: &[UnitId]) {
        if self.stopped.is_some() {
            return self.refuse_new(request, Refusal::Stopped, units);
        }
        let mut admitted = None;
        if let Intent::Write { bytes, ack, .. } = intent {
            let admission = if self.requests.admission.is_empty() {
                self.admission(0, u64::from(bytes), ack)
            } else {
                // First come, first served.
                Admission::Wait
            };
            match admission {
                Admission::Go(access) => admitted = Some(access),
                Admission::Wait | Admission::Full => {}
                Admission::Refuse(refusal) => {
                    self.counters.refused += 1;
                    return self.refuse_new(request, refusal, units);
                }
            }
            if admitted.is_none() {
                if self.park_request(request, intent, units, None) {
                    self.requests.admission.push_back(request);
                }
                return;
            }
        }
        if intent != Intent::ReadSettled && self.blocker(intent, units).is_none() {
            self.counters.hits += units.len() as u64;
            return self.execute(request, units, admitted.unwrap_or(Access::Back));
        }
        if !matches!(intent, Intent::Write { fetch: false, .. }) {
            let absent = units.iter().filter(|&&unit| !self.units.is_present(unit)).count();
            self.counters.misses += absent as u64;
        }
        if self.park_request(request, intent, units, admitted) {
            self.advance(request);
        }
    }

    /// Registers a request among the waiting ones, or refuses it if there are too many.
    fn park_request(
        &mut self,
        request: RequestId,
        intent: Intent,
        units: &[UnitId],
        admitted: Option<Access>,
    ) -> bool {
        if self.requests.len() >= self.policy.limits.waiting_max as usize {
            self.refuse_new(request, Refusal::Busy, units);
            return false;
        }
        self.units.add_interest(units);
        let units = UnitList::new(units.iter().copied());
        let waiting = Waiting { intent, units, admitted, ready: 0, settles: None };
        let previous = self.requests.waiting.insert(request, waiting);
        assert!(previous.is_none(), "a request waits once");
        true
    }

    fn refuse_new(&mut self, request: RequestId, refusal: Refusal, units: &[UnitId]) {
        self.effects.push_back(Effect::Refuse { request, refusal });
        for &unit in units {
            self.drop_if_idle(unit);
        }
    }

    /// A unit of a waiting request that another one has locked: until the origin has answered a write of it, or has
    /// decided what a [`Intent::ReadSettled`] waits for.
    pub fn locked_for(&self, request: RequestId) -> Option<UnitId> {
        let waiting = self.requests.waiting.get(&request)?;
        if waiting.settles.is_some() {
            // The locks are its own.
            return None;
        }
        waiting.units.as_slice().iter().copied().find(|&unit| self.units.is_locked(unit))
    }

    /// The requests that wait for this unit before any other.
    pub fn waiting_at(&self, unit: UnitId) -> impl Iterator<Item = RequestId> {
        let requests = self.requests.by_unit.get(&unit).into_iter().flatten().copied();
        requests.filter(|request| self.requests.waiting.contains_key(request))
    }

    /// The first unit that keeps a request from being executed.
    fn blocker(&self, intent: Intent, units: &[UnitId]) -> Option<UnitId> {
        let blind = matches!(intent, Intent::Write { fetch: false, .. });
        units.iter().copied().find(|&unit| {
            if blind { self.units.is_locked(unit) } else { !self.units.is_ready(unit) }
        })
    }

    /// The place of the first unit that keeps a waiting request from being executed.
    fn blocked(&self, intent: Intent, units: &[UnitId]) -> Option<usize> {
        match intent {
            // The lock is this request's own.
            Intent::ReadSettled => units.iter().position(|&unit| !self.units.is_present(unit)),
            _ => {
                let unit = self.blocker(intent, units)?;
                units.iter().position(|&other| other == unit)
            }
        }
    }

    /// Starts a fetch of every unit that is neither present nor on its way.
    fn fetch_absent(&mut self, intent: Intent, units: &[UnitId]) {
        if matches!(intent, Intent::Write { fetch: false, .. }) {
            return;
        }
        for &unit in units {
            if !self.units.is_present(unit) && !self.units.is_fetching(unit) {
                self.fetch(unit);
            }
        }
    }

    fn fetch(&mut self, unit: UnitId) {
        self.units.begin_fetch(unit, self.forgotten);
        self.effects.push_back(Effect::Fetch { unit });
    }

    fn execute(&mut self, request: RequestId, units: &[UnitId], access: Access) {
        if !self.effects.is_empty() {
            let units = UnitList::new(units.iter().copied());
            self.requests.executing.push_back((request, units));
        }
        let observed = self.newest_write(units);
        for &unit in units {
            self.units.touch(unit);
            if access != Access::Back {
                self.units.lock(unit);
            }
            if !self.units.is_present(unit) {
                // A blind write may turn out to write nothing.
                self.units.may_leave(unit);
            }
        }
        self.effects.push_back(Effect::Execute { request, access, observed });
    }

    /// The newest undecided change of the units; zero if they are clean.
    fn newest_write(&self, units: &[UnitId]) -> Lsn {
        units.iter().map(|&unit| self.units.last_write(unit)).max().unwrap_or(Lsn::ZERO)
    }

    /// What a request observes that is executed just now, behind others that may have written.
    pub(super) fn observed_late(&mut self, request: RequestId) -> Lsn {
        if self.requests.executing.front().is_none_or(|&(first, _)| first != request) {
            return Lsn::ZERO;
        }
        let late = self.requests.executing.pop_front();
        late.map_or(Lsn::ZERO, |(_, units)| self.newest_write(units.as_slice()))
    }

    /// Tries to execute an admitted waiting request; otherwise it waits at the unit that keeps it.
    fn advance(&mut self, request: RequestId) {
        let Some(waiting) = self.requests.waiting.get(&request) else { return };
        let (intent, settles, ready) = (waiting.intent, waiting.settles, waiting.ready);
        let units = waiting.units.clone();
        if intent == Intent::ReadSettled && settles.is_none() {
            return self.settle(request, units.as_slice());
        }
        // Where many units are waited for, each that comes is looked at once, not all of them each time.
        let (before, after) = units.as_slice().split_at(ready);
        let blocked = match self.blocked(intent, after) {
            Some(index) => Some(ready + index),
            None => self.blocked(intent, before),
        };
        if let Some(index) = blocked {
            let absent =
                if ready == 0 { units.as_slice() } else { &units.as_slice()[index..=index] };
            self.fetch_absent(intent, absent);
            let unit = units.as_slice()[index];
            self.requests.by_unit.entry(unit).or_default().push(request);
            if let Some(waiting) = self.requests.waiting.get_mut(&request) {
                waiting.ready = index;
            }
            return;
        }
        let waiting = self.requests.waiting.remove(&request).expect("looked up above");
        self.units.drop_interest(units.as_slice());
        self.execute(request, units.as_slice(), waiting.admitted.unwrap_or(Access::Back));
        if intent == Intent::ReadSettled {
            self.release_locks(units.as_slice());
        }
    }

    /// Locks the units of a `ReadSettled`, then waits until their changes are decided and fetches them again.
    ///
    /// Nothing is locked before every effect so far is carried out: a request that is about to be executed may write, and
    /// that write must be decided too.
    fn settle(&mut self, request: RequestId, units: &[UnitId]) {
        if !self.effects.is_empty() {
            self.requests.postponed.push_back(request);
            return;
        }
        if let Some(&unit) = units.iter().find(|&&unit| self.units.is_locked(unit)) {
            self.requests.by_unit.entry(unit).or_default().push(request);
            return;
        }
        for &unit in units {
            self.units.lock(unit);
        }
        self.settle_locked(request, units);
    }

    /// Waits for the newest undecided change of the units; there may be older ones elsewhere that take longer, so this is
    /// asked again each time.
    fn settle_locked(&mut self, request: RequestId, units: &[UnitId]) {
        let target = self.newest_write(units);
        if let Some(waiting) = self.requests.waiting.get_mut(&request) {
            waiting.settles = Some(target);
        }
        if target == Lsn::ZERO {
            return self.refetch(request, units);
        }
        self.requests.settling.entry(target).or_default().push(request);
        for &unit in units {
            self.hurry(self.units.last_write(unit));
        }
    }

    fn refetch(&mut self, request: RequestId, units: &[UnitId]) {
        for &unit in units {
            if self.units.is_fetching(unit) {
                // It may have looked at the origin before the changes were decided.
                self.units.outdate_fetch(unit);
            } else {
                self.units.make_stale(unit);
                self.fetch(unit);
            }
        }
        self.advance(request);
    }

    /// Lets one postponed request go on; false if there is none.
    pub(super) fn resume_postponed(&mut self) -> bool {
        let Some(request) = self.requests.postponed.pop_front() else { return false };
        self.advance(request);
        true
    }

    /// Continues the `ReadSettled` requests that waited for this group.
    pub(super) fn settled_upto(&mut self, lsn: Lsn) {
        for request in self.requests.settling.remove(&lsn).unwrap_or_default() {
            if let Some(waiting) = self.requests.waiting.get(&request) {
                let units = waiting.units.clone();
                self.settle_locked(request, units.as_slice());
            }
        }
    }

    /// Lets everyone who waited for the unit try again, in order.
    pub(super) fn wake(&mut self, unit: UnitId) {
        for request in self.requests.by_unit.remove(&unit).unwrap_or_default() {
            self.advance(request);
        }
    }

    /// A request executed with [`Access::Through`] wrote nothing.
    pub(super) fn release(&mut self, units: &[UnitId]) {
        self.release_locks(units);
        units.iter().for_each(|&unit| self.drop_if_idle(unit));
    }

    /// The driver has written through the origin, without a group.
    pub(super) fn carried(
        &mut self,
        units: &[(UnitId, u32)],
        access: Access,
        result: Result<(), Fault>,
    ) {
        for &(unit, bytes) in units {
            match (access, result) {
                (Access::Through | Access::Back, Ok(())) => self.units.carried(unit, bytes),
                _ if self.units.is_fetching(unit) => self.units.outdate_fetch(unit),
                _ => self.units.make_absent(unit),
            }
            if access != Access::Back {
                self.units.unlock(unit);
            }
        }
        for &(unit, _) in units {
            self.wake(unit);
            self.drop_if_idle(unit);
        }
    }

    pub(super) fn release_locks(&mut self, units: &[UnitId]) {
        for &unit in units {
            self.units.unlock(unit);
        }
        for &unit in units {
            self.wake(unit);
        }
    }

    pub(super) fn fetched(&mut self, unit: UnitId, result: Result<u32, Fault>, identity: u64) {
        assert!(self.units.is_fetching(unit), "only a fetch under way ends");
        let is_outdated = self.units.end_fetch(unit, result.ok(), identity);
        self.forget();
        match result {
            Ok(_) if is_outdated && self.units.is_idle(unit) => self.drop_if_idle(unit),
            Ok(_) if is_outdated && self.stopped.is_none() => self.fetch(unit),
            Ok(_) => self.wake(unit),
            Err(fault) => {
                let refusal = match fault {
                    Fault::Denied | Fault::Rejected => Refusal::Denied,
                    _ => Refusal::Unavailable,
                };
                for request in self.requests.by_unit.remove(&unit).unwrap_or_default() {
                    self.refuse_waiting(request, refusal);
                }
                self.drop_if_idle(unit);
            }
        }
    }

    fn refuse_waiting(&mut self, request: RequestId, refusal: Refusal) {
        if self.forget_waiting(request) {
            self.effects.push_back(Effect::Refuse { request, refusal });
        }
    }

    /// Removes a waiting request and the locks that a `ReadSettled` holds.
    fn forget_waiting(&mut self, request: RequestId) -> bool {
        let Some(waiting) = self.requests.waiting.remove(&request) else { return false };
        let units = waiting.units.as_slice();
        self.units.drop_interest(units);
        if waiting.settles.is_some() {
            self.release_locks(units);
        }
        for &unit in units {
            self.drop_if_idle(unit);
        }
        true
    }

    /// Refuses everyone, because the core has stopped.
    pub(super) fn refuse_all_waiting(&mut self) {
        let mut requests = core::mem::take(&mut self.requests);
        self.requests.executing = core::mem::take(&mut requests.executing);
        let mut waiting: Vec<_> = requests.waiting.into_iter().collect();
        // A hash map's order must not show.
        waiting.sort_unstable_by_key(|&(request, _)| request);
        for (request, waiting) in waiting {
            self.units.drop_interest(waiting.units.as_slice());
            self.effects.push_back(Effect::Refuse { request, refusal: Refusal::Stopped });
        }
    }

    pub(super) fn cancel(&mut self, request: RequestId) {
        self.leave_lines(request);
        self.forget_waiting(request);
        self.gate.cancel(request);
        self.destager.cancel(request);
    }

    pub(super) fn invalidate(&mut self, unit: UnitId) {
        if self.units.has_undecided(unit) {
            return;
        }
        if self.units.is_fetching(unit) {
            return self.units.outdate_fetch(unit);
        }
        self.units.make_absent(unit);
        self.drop_if_idle(unit);
    }

    pub(super) fn reload(&mut self, unit: UnitId) {
        if self.units.has_undecided(unit) {
            self.units.make_stale(unit)
        } else {
            self.invalidate(unit)
        }
    }

    /// Takes a request out of every line it stands in, so that its number may be used again at once.
    fn leave_lines(&mut self, request: RequestId) {
        let Some(waiting) = self.requests.waiting.get(&request) else { return };
        let is_other = |&other: &RequestId| other != request;
        for unit in waiting.units.as_slice() {
            if let Some(line) = self.requests.by_unit.get_mut(unit) {
                line.retain(is_other);
            }
        }
        if let Some(line) = waiting.settles.and_then(|lsn| self.requests.settling.get_mut(&lsn)) {
            line.retain(is_other);
        }
        match waiting.intent {
            Intent::ReadSettled => self.requests.postponed.retain(is_other),
            Intent::Write { .. } if waiting.admitted.is_none() => {
                self.requests.admission.retain(is_other);
            }
            _ => {}
        }
    }

    /// Decides whether a write of `bytes` may proceed, and how; `ahead` counts the bytes that are admitted but not
    /// written yet.
    fn admission(&mut self, ahead: u64, bytes: u64, ack: Ack) -> Admission {
        let policy = &self.policy;
        if self.is_stale() {
            return match policy.at_limit {
                AtLimit::Fail => Admission::Refuse(Refusal::Stale),
                _ => Admission::Wait,
            };
        }
        let through = match policy.acknowledge {
            _ if ack == Ack::OriginInvalidate => Some(Access::Around),
            Acknowledge::Journal if ack == Ack::Origin => Some(Access::Through),
            Acknowledge::Journal => None,
            Acknowledge::Origin => Some(Access::Through),
            Acknowledge::OriginInvalidate => Some(Access::Around),
        };
        let (limits, at_limit) = (policy.limits, policy.at_limit);
        let buffered = self.dirty_bytes() + ahead;
        let dirty = buffered + bytes;
        let journal_bytes = self.groups.journal_bytes;
        // A write larger than the whole limit passes alone, or it would wait for ever.
        let full = buffered > 0 && dirty > limits.dirty_bytes_max
            || journal_bytes >= limits.journal_bytes_max;
        self.leave_fallback();
        self.judged(full);
        if self.requests.fallback {
            let with_excess = |most: u64| most.saturating_add(most / FALLBACK_EXCESS_DIVISOR);
            let is_over = buffered > 0 && dirty > with_excess(limits.dirty_bytes_max)
                || journal_bytes >= with_excess(limits.journal_bytes_max);
            return if is_over {
                Admission::Full
            } else {
                Admission::Go(through.unwrap_or(Access::Through))
            };
        }
        if full {
            return match at_limit {
                AtLimit::Fail => Admission::Refuse(Refusal::Full),
                _ => Admission::Full,
            };
        }
        if at_limit == AtLimit::Throttle && dirty > limits.dirty_bytes_low && !self.throttle(dirty)
        {
            return Admission::Wait;
        }
        Admission::Go(through.unwrap_or(Access::Back))
    }

    /// Ends the fallback once the low mark is reached.
    pub(super) fn leave_fallback(&mut self) {
        if self.gate.lacking().is_some() {
            return;
        }
        if self.dirty_bytes() <= self.policy.limits.dirty_bytes_low
            && self.groups.journal_bytes < self.policy.limits.journal_bytes_max
        {
            self.requests.fallback = false;
            self.requests.full = false;
        }
    }

    /// Spaces writes out between the low and the high mark: at the high mark they pass as fast as the origin takes them,
    /// below it as much faster as there is room. True if a write may pass now.
    fn throttle(&mut self, dirty: u64) -> bool {
        if self.now < self.requests.throttle_at {
            return false;
        }
        let limits = &self.policy.limits;
        let room = (limits.dirty_bytes_max - limits.dirty_bytes_low) as f64;
        let used = ((dirty - limits.dirty_bytes_low) as f64 / room).clamp(0.05, 1.0);
        let rate = self.destager.rate.get().unwrap_or(0.0).max(THROTTLE_RATE_MIN) / used;
        let from = self.requests.throttle_at.max(self.now - Span::from_millis(1));
        self.requests.throttle_at = from + Span((1e9 / rate) as u64);
        true
    }

    /// Lets waiting writes pass as far as the limits allow.
    pub(super) fn admit_waiting(&mut self) {
        let mut admitted_bytes = 0;
        self.requests.wants_room = false;
        while let Some(&request) = self.requests.admission.front() {
            let Some(waiting) = self.requests.waiting.get(&request) else {
                self.requests.admission.pop_front();
                continue;
            };
            let Intent::Write { bytes, ack, .. } = waiting.intent else {
                unreachable!("only writes wait for admission")
            };
            match self.admission(admitted_bytes, u64::from(bytes), ack) {
                Admission::Wait => return,
                Admission::Full => {
                    self.requests.wants_room = true;
                    return;
                }
                Admission::Refuse(refusal) => {
                    self.requests.admission.pop_front();
                    self.counters.refused += 1;
                    self.refuse_waiting(request, refusal);
                }
                Admission::Go(access) => {
                    self.requests.admission.pop_front();
                    admitted_bytes += u64::from(bytes);
                    if let Some(waiting) = self.requests.waiting.get_mut(&request) {
                        waiting.admitted = Some(access);
                    }
                    self.advance(request);
                }
            }
        }
    }

    pub(super) fn stop(&mut self, reason: StopReason) {
        if self.stopped.is_none() {
            self.stopped = Some(reason);
            self.mode = Mode::Stopped;
            self.effects.push_back(Effect::Stop(reason));
            self.refuse_all_waiting();
        }
    }
}
