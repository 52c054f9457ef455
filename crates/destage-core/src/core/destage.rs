//! Destaging: batches, their order, failures, rejected groups.
//!
//! # Why a failed batch is repeated as it was
//!
//! After a lost answer nobody knows whether the batch has landed. The origin can tell, because its watermark stands either in
//! front of the batch or at its end. It could not tell of a batch that was cut in another way. A *rejected* batch is cut: halves
//! are tried until the group is alone that the origin does not take. Groups in front of that one may have landed, which the
//! origin finds when they come again. So they must come again, and not be parked for what was decided since.

use super::queue::{Domain, Isolate, Parking, Repeat};
use super::spanning::Spanning;
use super::{Core, is_temporary};
use crate::groups::State;
use crate::id::{BatchId, DomainId, Lsn, RequestId, UnitId};
use crate::io::{Access, Effect, Fault, Outcome, StopReason};
use crate::policy::{Order, Policy, When};
use crate::rate::Average;
use crate::time::{Span, Time};
use alloc::boxed::Box;
use alloc::vec::Vec;
use hashbrown::{HashMap, HashSet};
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Deserialize, Serialize)]
struct Batch {
    domain: DomainId,
    lsns: Vec<Lsn>,
    began: Time,
}

/// All domains and what is under way.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Destager {
    pub(super) domains: Vec<Domain>,
    batches: HashMap<BatchId, Batch>,
    pub(super) parkings: HashMap<Lsn, Parking>,
    next_batch: u64,
    /// Units of what is under way or to be repeated; consulted where groups may overtake one another.
    pub(super) units_in_flight: HashSet<UnitId>,
    /// Groups per second while destaging.
    pub(super) rate: Average,
    pub(super) paused: bool,
    pub(super) draining: bool,
    /// `OnPressure`: between the high and the low mark on the way down.
    pub(super) pressing: bool,
    next_look: Time,
    waits: HashMap<Lsn, Vec<RequestId>>,
    /// Numbers of the groups parked since the start, for late waits; bounded by `parked_max`.
    pub(super) parked: HashSet<Lsn>,
    pub(super) parked_groups: u64,
    /// Paused because too many groups are parked.
    pub(super) overfull: bool,
    /// See [`crate::Input::HoldParked`].
    pub(super) parked_held: bool,
    pub(super) spanning: Spanning,
    /// What undecided groups build on besides the earlier changes of their units. Nearly always empty.
    pub(super) builds_on: HashMap<Lsn, Box<[Lsn]>>,
    /// Most batches and parkings under way at once.
    pub(super) parallel_max: u32,
    /// The domain that may start first, where `parallel_max` keeps some from starting.
    turn: usize,
}

impl Destager {
    pub(super) fn new(now: Time, policy: &Policy) -> Self {
        let mut destager = Self {
            domains: Vec::new(),
            batches: HashMap::new(),
            parkings: HashMap::new(),
            next_batch: 0,
            units_in_flight: HashSet::new(),
            rate: Average::default(),
            paused: false,
            draining: false,
            pressing: false,
            next_look: Time::ZERO,
            waits: HashMap::new(),
            parked: HashSet::new(),
            parked_groups: 0,
            overfull: false,
            parked_held: false,
            spanning: Spanning::default(),
            builds_on: HashMap::new(),
            parallel_max: u32::MAX,
            turn: 0,
        };
        destager.restart_period(now, policy);
        destager
    }

    pub(super) fn restart_period(&mut self, now: Time, policy: &Policy) {
        self.pressing = false;
        self.unblock();
        self.next_look = now
            + match policy.when {
                When::Periodic { every } => every,
                When::Interval { check, .. } => check,
                When::Adaptive => policy.pace(),
                When::Async | When::OnPressure => Span::MAX,
            };
    }

    /// The latest time to look that has passed, if it was not looked at yet. Those missed before it are not caught up on.
    pub(super) fn period_over(&mut self, now: Time, period: Span) -> Option<Time> {
        if now < self.next_look {
            return None;
        }
        let missed = now.since(self.next_look).0 / period.0;
        let passed = self.next_look + Span(period.0 * missed);
        self.next_look = passed + period;
        Some(passed)
    }

    pub(super) fn domain(&mut self, id: DomainId) -> &mut Domain {
        let index = usize::from(id.0);
        while self.domains.len() <= index {
            self.domains.push(Domain::new(DomainId(self.domains.len() as u16)));
        }
        &mut self.domains[index]
    }

    pub(super) fn queue(&mut self, domain: DomainId, lsn: Lsn) {
        self.domain(domain).queue.push_back(lsn);
    }

    pub(super) fn hurry(&mut self, domain: DomainId, lsn: Lsn) {
        let domain = self.domain(domain);
        domain.hurry = domain.hurry.max(lsn);
    }

    pub(super) fn batch(&self, batch: BatchId) -> &[Lsn] {
        &self.batches[&batch].lsns
    }

    /// Notes a parked group for late waits.
    pub(super) fn note_parked(&mut self, lsn: Lsn) {
        self.parked_groups += 1;
        self.parked.insert(lsn);
    }

    /// What was under way is over: other groups may start.
    pub(super) fn free(&mut self, units: &[UnitId]) {
        for unit in units {
            self.units_in_flight.remove(unit);
        }
        self.unblock();
    }

    pub(super) fn unblock(&mut self) {
        for domain in &mut self.domains {
            domain.blocked = Lsn::ZERO;
        }
    }

    pub(super) fn is_origin_down(&self) -> bool {
        self.domains.iter().any(|domain| domain.failing)
    }

    pub(super) fn pause(&mut self) {
        self.paused = true;
        self.overfull = false;
    }

    pub(super) fn unpause(&mut self) {
        self.paused = false;
        self.overfull = false;
    }

    pub(super) fn resume(&mut self) {
        self.unpause();
        for domain in &mut self.domains {
            domain.retry_at = Time::ZERO;
            domain.go_on();
        }
        self.unblock();
    }

    pub(super) fn cancel(&mut self, request: RequestId) {
        for requests in self.waits.values_mut() {
            requests.retain(|&waiting| waiting != request);
        }
        self.spanning.cancel(request);
    }

    /// The groups under way, and those that are to be repeated.
    pub(super) fn away(&self) -> impl Iterator<Item = Lsn> {
        let sent = self.batches.values().flat_map(|batch| batch.lsns.iter().copied());
        let repeats = self.domains.iter().flat_map(|domain| &domain.repeats);
        let again = repeats.flat_map(|repeat| match repeat {
            Repeat::Batch(lsns) => &lsns[..],
            Repeat::Park(parking) => core::slice::from_ref(&parking.lsn),
        });
        sent.chain(self.parkings.keys().copied()).chain(again.copied())
    }

    fn has_room(&self) -> bool {
        self.batches.len() + self.parkings.len() < self.parallel_max as usize
    }
}

impl Core {
    pub(super) fn wait_decided(&mut self, request: RequestId, lsn: Lsn) {
        if !self.groups.is_done(lsn) {
            self.destager.waits.entry(lsn).or_default().push(request);
            return self.hurry(lsn);
        }
        let outcome =
            if self.destager.parked.contains(&lsn) { Outcome::Parked } else { Outcome::Done };
        self.effects.push_back(Effect::Waited { request, outcome });
    }

    /// When destaging becomes due by the passing of time alone.
    pub(super) fn destage_at(&self) -> Option<Time> {
        if self.destager.paused || !self.destager.has_room() {
            return None;
        }
        let looks = !matches!(self.policy.when, When::Async | When::OnPressure);
        let next_look = (looks && self.groups.count > 0).then_some(self.destager.next_look);
        let by_domain = self.destager.domains.iter().filter_map(|domain| {
            if !self.may_start(domain) {
                return None;
            }
            let may_pick = self.due(domain).is_some_and(|due| due > domain.blocked);
            let at = if may_pick || !domain.repeats.is_empty() {
                self.now
            } else {
                self.due_at(domain)?
            };
            Some(at.max(domain.retry_at))
        });
        next_look.into_iter().chain(by_domain).min()
    }

    pub(super) fn may_start(&self, domain: &Domain) -> bool {
        if domain.halt.is_some() || self.waits_for_decision(domain) {
            return false;
        }
        let batches_max = match self.policy.order {
            Order::Unit { batches_max } => batches_max,
            Order::Domain | Order::Any | Order::Epoch | Order::Strict => 1,
        };
        // While a failure is being narrowed down, one batch at a time.
        let is_careful = domain.failing || domain.isolate.is_some() || !domain.repeats.is_empty();
        domain.in_flight == 0 || (domain.in_flight < batches_max && !is_careful)
    }

    pub(super) fn start_destage(&mut self) {
        if self.destager.paused {
            return;
        }
        self.look_at_ages();
        let count = self.destager.domains.len();
        let first = self.destager.turn;
        for index in (0..count).map(|step| (first + step) % count) {
            while self.destager.has_room() && self.start_next(index) {
                let is_bounded = self.destager.parallel_max < u32::MAX;
                self.destager.turn = if is_bounded { (index + 1) % count } else { 0 };
            }
        }
    }

    /// Starts what comes next in a domain; false if nothing can start now.
    fn start_next(&mut self, index: usize) -> bool {
        let domain = &self.destager.domains[index];
        if self.now < domain.retry_at || !self.may_start(domain) {
            return false;
        }
        if domain.repeats.is_empty() {
            let Some(due) = self.due(domain).filter(|&due| due > domain.blocked) else {
                return false;
            };
            let started = self.start_batch(index, due);
            if !started {
                self.destager.domains[index].blocked = due;
            }
            return started;
        }
        if let Some(repeat) = self.destager.domains[index].repeats.pop_front() {
            self.repeat(index, repeat);
        }
        true
    }

    pub(super) fn send_batch(&mut self, index: usize, lsns: Vec<Lsn>) {
        let id = BatchId(self.destager.next_batch);
        self.destager.next_batch += 1;
        let domain = &mut self.destager.domains[index];
        domain.in_flight += 1;
        let domain = domain.id;
        self.destager.batches.insert(id, Batch { domain, lsns, began: self.now });
        self.effects.push_back(Effect::Destage { batch: id, domain });
    }

    fn repeat(&mut self, index: usize, repeat: Repeat) {
        match repeat {
            Repeat::Batch(lsns) => self.send_batch(index, lsns),
            Repeat::Park(parking) => self.send_parking(parking),
        }
    }

    pub(super) fn park(&mut self, parking: Parking) {
        let group = self.groups.get_mut(parking.lsn).expect("queued groups are undecided");
        group.state = State::InFlight;
        self.destager.units_in_flight.extend(group.units.as_slice());
        let lead = group.domain;
        self.destager.hold_others(parking.lsn, lead);
        self.send_parking(parking);
    }

    fn send_parking(&mut self, parking: Parking) {
        let Parking { lsn, depends_on, keep } = parking;
        let domain = self.groups.get(lsn).expect("groups in flight are undecided").domain;
        self.destager.parkings.insert(lsn, parking);
        self.destager.domain(domain).in_flight += 1;
        self.effects.push_back(Effect::Park { lsn, domain, depends_on, keep });
    }

    pub(super) fn destaged(&mut self, id: BatchId, result: Result<(), Fault>) {
        let batch = self.destager.batches.remove(&id).expect("only a batch under way ends");
        let domain = self.destager.domain(batch.domain);
        domain.in_flight -= 1;
        match result {
            Ok(()) => self.applied(&batch),
            Err(Fault::Rejected) => self.batch_rejected(batch),
            Err(fault) => self.failed(batch.domain, Repeat::Batch(batch.lsns), fault),
        }
    }

    fn applied(&mut self, batch: &Batch) {
        let count = batch.lsns.len();
        let seconds = self.now.since(batch.began).as_secs_f64().max(1e-6);
        self.destager.rate.add(count as f64 / seconds);
        self.counters.batches += 1;
        self.counters.destaged += count as u64;
        let last = *batch.lsns.last().expect("batches hold groups");
        self.destager.release_others(batch.lsns[0], batch.domain);
        for id in self.destager.domains_of(batch.lsns[0], batch.domain).iter().copied() {
            let domain = self.destager.domain(id);
            domain.answered();
            domain.grow(last);
        }
        self.free_units(&batch.lsns);
        for &lsn in &batch.lsns {
            self.decided_one(lsn, true);
        }
        self.forget();
    }

    /// One group is parked; of several, half is tried, so that the bad one is found in a few steps.
    fn batch_rejected(&mut self, batch: Batch) {
        let count = batch.lsns.len();
        self.destager.domain(batch.domain).answered();
        self.destager.release_others(batch.lsns[0], batch.domain);
        if count == 1 {
            let lsn = batch.lsns[0];
            let through = self.groups.get(lsn).is_some_and(|g| g.access != Access::Back);
            if !through && self.stops_at(lsn, batch.domain) {
                return self.halt_at(lsn, batch.domain);
            }
            return self.park(Parking { lsn, depends_on: None, keep: !through });
        }
        // One of several domains is one transaction, of which nothing has landed.
        let may_have_landed = self.destager.spanned(batch.lsns[0]).is_none();
        for &lsn in &batch.lsns {
            let group = self.groups.get_mut(lsn).expect("groups in flight are undecided");
            group.state = State::Queued;
            if may_have_landed {
                self.forget_other_domains(lsn, batch.domain);
            }
        }
        self.free_units(&batch.lsns);
        let last = *batch.lsns.last().expect("batches hold groups");
        for id in self.destager.domains_of(batch.lsns[0], batch.domain).iter().copied() {
            let lsns: Vec<Lsn> =
                batch.lsns.iter().copied().filter(|&l| self.is_in(l, id)).collect();
            let domain = self.destager.domain(id);
            domain.put_back(&lsns);
            let until = domain.isolate.map_or(Lsn::ZERO, |isolate| isolate.until);
            domain.isolate = Some(Isolate { size: count / 2, until: until.max(last) });
        }
    }

    /// Nobody knows whether it landed: it is repeated as it was.
    fn failed(&mut self, id: DomainId, work: Repeat, fault: Fault) {
        if !is_temporary(fault) {
            return self.stop(match fault {
                Fault::Fenced => StopReason::Fenced,
                Fault::JournalDamaged => StopReason::JournalFailed,
                _ => StopReason::OriginChanged,
            });
        }
        self.counters.retries += 1;
        let domain = self.destager.domain(id);
        domain.repeats.push_back(work);
        domain.back_off(fault, self.now, &self.policy.limits);
    }

    pub(super) fn parked(&mut self, lsn: Lsn, result: Result<(), Fault>) {
        let parking = self.destager.parkings.remove(&lsn).expect("only a parking under way ends");
        let group = self.groups.get(lsn).expect("groups in flight are undecided");
        let (id, through) = (group.domain, group.access != Access::Back);
        let units = group.units.clone();
        let domain = self.destager.domain(id);
        domain.in_flight -= 1;
        if let Err(fault) = result {
            return self.failed(id, Repeat::Park(parking), fault);
        }
        domain.answered();
        self.destager.release_others(lsn, id);
        for id in self.destager.domains_of(lsn, id).iter().copied() {
            self.destager.domain(id).grow(lsn);
        }
        self.destager.free(units.as_slice());
        self.counters.rejected += 1;
        if !through {
            self.destager.note_parked(lsn);
            units.as_slice().iter().for_each(|&unit| self.units.park(unit, lsn));
            self.pause_if_overfull();
            self.halt_if_parked_fast(lsn, id);
        }
        self.decided_one(lsn, false);
        self.forget();
    }

    /// A group is at the origin, or rejected by it.
    fn decided_one(&mut self, lsn: Lsn, applied: bool) {
        let group = self.groups.done(lsn);
        let (access, units) = (group.access, group.units.clone());
        for &unit in units.as_slice() {
            self.units.decided(unit);
        }
        if access != Access::Back {
            self.effects.push_back(Effect::Settled { lsn, applied });
            if access == Access::Around || !applied {
                // What was rejected tells that the cached copy may be wrong.
                units.as_slice().iter().for_each(|&unit| self.units.make_doubtful(unit));
            }
            self.release_locks(units.as_slice());
        }
        for &unit in units.as_slice() {
            self.drop_if_idle(unit);
        }
        let outcome =
            if applied || access != Access::Back { Outcome::Done } else { Outcome::Parked };
        for request in self.destager.waits.remove(&lsn).unwrap_or_default() {
            self.effects.push_back(Effect::Waited { request, outcome });
        }
        self.destager.spanning.decided(lsn);
        self.destager.builds_on.remove(&lsn);
        self.settled_upto(lsn);
    }

    /// Starts one batch of a domain, or parks its head if that depends on a parked group.
    pub(super) fn start_batch(&mut self, index: usize, due: Lsn) -> bool {
        let head = self.destager.domains[index].head().expect("something is due");
        if !self.heads_meet(head) {
            return false;
        }
        if let Some(parked) = self.depends_on(head)
            && !self.overtakes(head)
        {
            self.destager.take_head(index, head);
            // A client that waits for the origin's word is told of the rejection instead.
            let keep = self.groups.get(head).is_some_and(|group| group.access == Access::Back);
            self.park(Parking { lsn: head, depends_on: Some(parked), keep });
            return true;
        }
        let lsns = match self.policy.order {
            Order::Unit { .. } => self.pick_free(index, due),
            _ if self.destager.spanned(head).is_some() => self.pick_spanning(head, due),
            Order::Domain | Order::Any | Order::Epoch | Order::Strict => {
                self.pick_prefix(index, due)
            }
        };
        if lsns.is_empty() {
            return false;
        }
        for &lsn in &lsns {
            let group = self.groups.get_mut(lsn).expect("queued groups are undecided");
            group.state = State::InFlight;
            self.destager.units_in_flight.extend(group.units.as_slice());
        }
        self.destager.hold_others(lsns[0], DomainId(index as u16));
        self.send_batch(index, lsns);
        true
    }
}
