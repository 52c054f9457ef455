//! The core state machine: what it owns, and where each input goes.
//!
//! It survives every fault that the driver reports as such; broken invariants panic, and the journal recovers. It leaves
//! payload, I/O and clocks to the driver.
//!
//! [`Core::handle`] changes the state and queues effects; it never calls the driver. So the driver may tell it of something
//! while an effect is being carried out, and the state that it tells it of is always a whole one.

mod access;
mod batch;
mod commit;
mod destage;
mod due;
mod halt;
mod inputs;
mod level;
mod parked;
mod queue;
mod spanning;

use crate::groups::Groups;
use crate::id::{BatchId, DomainId, Lsn, RequestId, UnitId};
use crate::io::{Effect, Fault, Mode, StopReason};
use crate::policy::{OnReject, Policy};
use crate::replace::{Choice, Chosen};
use crate::status::Status;
use crate::time::{Span, Time};
use crate::units::Units;
use access::Requests;
use alloc::collections::VecDeque;
use commit::Gate;
use destage::Destager;
use level::Level;
use serde::{Deserialize, Serialize};

/// The policy engine of one origin: see the crate's documentation.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Core {
    now: Time,
    policy: Policy,
    effects: VecDeque<Effect>,
    units: Units,
    groups: Groups,
    requests: Requests,
    gate: Gate,
    destager: Destager,
    level: Level,
    forgotten: Lsn,
    mode: Mode,
    stopped: Option<StopReason>,
    /// Dirty units take their part of the room for clean ones. Not of the live front ends, hence in no record.
    #[serde(skip)]
    shares_room: bool,
    /// The units that buffered writes change count against the dirty limits as well.
    counts_units: bool,
    counters: Counters,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
struct Counters {
    hits: u64,
    misses: u64,
    evictions: u64,
    writes: u64,
    syncs: u64,
    batches: u64,
    destaged: u64,
    retries: u64,
    rejected: u64,
    refused: u64,
    staleness_max: Span,
}

impl Core {
    /// A core for an origin that has never been written through it.
    ///
    /// # Panics
    /// If the policy does not pass [`Policy::validate`].
    pub fn new(now: Time, policy: Policy) -> Self {
        Self::resume(now, policy, Lsn::ZERO)
    }

    /// A core for an origin that has decided every group up to `decided`; what the journal holds beyond that is told by
    /// [`Input::Recovered`].
    ///
    /// # Panics
    /// If the policy does not pass [`Policy::validate`].
    pub fn resume(now: Time, policy: Policy, decided: Lsn) -> Self {
        if let Err(error) = policy.validate() {
            panic!("invalid policy: {error}");
        }
        Self {
            now,
            destager: Destager::new(now, &policy),
            policy,
            effects: VecDeque::new(),
            units: Units::default(),
            groups: Groups::new(decided),
            requests: Requests::default(),
            gate: Gate::new(decided),
            level: Level::default(),
            forgotten: decided,
            mode: Mode::Normal,
            stopped: None,
            shares_room: false,
            counts_units: true,
            counters: Counters::default(),
        }
    }

    /// The same with another replacement policy, and where `shares_room` with one room for clean and dirty units together,
    /// [`crate::Limits::cache_bytes_max`]: as a buffer cache has it. To be said before any input.
    #[must_use]
    pub fn with_cache(mut self, choice: Choice, shares_room: bool) -> Self {
        self.units.cache = Chosen::new(choice);
        self.shares_room = shares_room;
        self
    }

    /// The same for a driver that keeps the units elsewhere than the writes, in room that it bounds itself: only the buffered
    /// writes count against the dirty limits. To be said before any input.
    #[must_use]
    pub fn counting_writes_only(mut self) -> Self {
        self.counts_units = false;
        self
    }

    /// The same with at most so many batches and parkings under way at once, over all ordering domains: no more than the driver
    /// carries out at once, so that what waits for its turn goes on growing. To be said before any input.
    #[must_use]
    pub fn with_parallel(mut self, most: u32) -> Self {
        self.destager.parallel_max = most.max(1);
        self
    }

    /// The same with another choice for the rejected writes of one ordering domain than [`Policy::on_reject`]. To be said
    /// before any input.
    #[must_use]
    pub fn with_on_reject(mut self, domain: DomainId, on_reject: OnReject) -> Self {
        self.destager.domain(domain).on_reject = Some(on_reject);
        self
    }

    /// The newest group.
    pub fn last(&self) -> Lsn {
        self.groups.last()
    }

    /// Groups that are not decided, and later ones that are.
    pub fn undecided(&self) -> u64 {
        self.last().0 - self.decided().0
    }

    /// The number that the next group gets.
    pub fn next_lsn(&self) -> Lsn {
        self.groups.last().next()
    }

    /// The level of the next group, for its journal record: groups of a later level reach the origin after all of an
    /// earlier one under [`crate::Order::Epoch`] and [`crate::Order::Strict`]. Starts at 1; never falls.
    pub fn level(&self) -> u64 {
        self.level.next()
    }

    /// The groups of a batch, in the order in which they must take effect.
    ///
    /// # Panics
    /// If the batch is not under way.
    pub fn batch(&self, batch: BatchId) -> &[Lsn] {
        self.destager.batch(batch)
    }

    /// The domains of an undecided group that belongs to several of them, ascending; `None` for all others.
    pub fn domains_spanned(&self, lsn: Lsn) -> Option<&[DomainId]> {
        self.destager.spanned(lsn)
    }

    /// The domain of an undecided group; the one it was written with where it belongs to several.
    pub fn domain_of(&self, lsn: Lsn) -> Option<DomainId> {
        self.groups.get(lsn).map(|group| group.domain)
    }

    /// The policy in force.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Age of the oldest undecided write; zero if there is none.
    pub fn staleness(&self) -> Span {
        self.groups.oldest_stamp().map_or(Span::ZERO, |stamp| self.now.since(stamp))
    }

    /// Whether the unit's cached copy may be used, as far as the core knows.
    pub fn is_present(&self, unit: UnitId) -> bool {
        self.units.is_present(unit)
    }

    /// The same, and nobody waits for the origin's word on it.
    pub fn is_ready(&self, unit: UnitId) -> bool {
        self.units.is_ready(unit)
    }

    /// Whether undecided changes pin the unit.
    pub fn has_undecided(&self, unit: UnitId) -> bool {
        self.units.has_undecided(unit)
    }

    /// Whether the unit has undecided or parked changes.
    pub fn is_dirty(&self, unit: UnitId) -> bool {
        self.units.is_dirty(unit)
    }

    /// Whether a group is undecided or parked: what builds on it may yet be parked behind it.
    pub fn is_open(&self, lsn: Lsn) -> bool {
        self.is_undecided(lsn) || self.is_parked(lsn)
    }

    /// Whether a group has not been decided yet.
    pub fn is_undecided(&self, lsn: Lsn) -> bool {
        !self.groups.is_done(lsn)
    }

    /// Whether a group is parked.
    pub fn is_parked(&self, lsn: Lsn) -> bool {
        self.destager.parked.contains(&lsn)
    }

    /// The newest undecided group that changed the unit; zero if there is none.
    pub fn last_write(&self, unit: UnitId) -> Lsn {
        self.units.last_write(unit)
    }

    /// Whether the unit is being fetched.
    pub fn is_fetching(&self, unit: UnitId) -> bool {
        self.units.is_fetching(unit)
    }

    /// Whether what the fetch under way brings is out of date. It is repeated, unless the unit has undecided changes by then: the
    /// driver, who has to overlay these, repeats it in that case.
    pub fn is_outdated(&self, unit: UnitId) -> bool {
        self.units.is_outdated(unit)
    }

    /// Whether a request waits that has named the unit, and no other one that has waits.
    pub fn waits_alone(&self, request: RequestId, unit: UnitId) -> bool {
        self.requests.is_waiting(request) && self.units.interest(unit) == 1
    }

    /// Whether groups are on their way to the parked ones.
    pub fn is_parking(&self) -> bool {
        self.destager.is_parking()
    }

    /// Whether groups are to be sent to the parked ones again, which they are not before [`Input::Resume`].
    pub fn is_parking_paused(&self) -> bool {
        self.destager.is_parking_paused()
    }

    /// The same where the origin denied it when it was asked last, too: it is asked again, but someone has to mend
    /// something first.
    pub fn is_parking_denied(&self) -> bool {
        self.destager.is_parking_denied()
    }

    /// Everything up to here is decided.
    pub fn decided(&self) -> Lsn {
        self.groups.decided()
    }

    /// The journal is durable up to here.
    pub fn committed(&self) -> Lsn {
        self.gate.committed
    }

    /// Up to here groups may be destaged: see [`crate::Input::Lacking`].
    pub fn secured(&self) -> Lsn {
        self.gate.secured()
    }

    /// What [`crate::Input::Lacking`] said last.
    pub fn lacking(&self) -> Option<Lsn> {
        self.gate.lacking()
    }

    /// A snapshot of what the core knows.
    pub fn status(&self) -> Status {
        let counters = &self.counters;
        Status {
            mode: self.mode,
            last: self.groups.last(),
            committed: self.gate.committed,
            decided: self.groups.decided(),
            staleness: self.staleness(),
            staleness_max: counters.staleness_max.max(self.staleness()),
            uncommitted_age: self.gate.uncommitted_age(self.now),
            dirty_groups: self.groups.count,
            dirty_units: self.units.dirty_len(),
            dirty_bytes: self.groups.bytes,
            pinned_bytes: self.units.pinned_bytes,
            limited_bytes: self.dirty_bytes(),
            journal_bytes: self.groups.journal_bytes,
            cache_bytes: self.units.clean_bytes(),
            cache_units: self.units.clean_len() as u64,
            parked_groups: self.destager.parked_groups,
            waiting: self.requests.len() as u64,
            hits: counters.hits,
            misses: counters.misses,
            evictions: counters.evictions,
            writes: counters.writes,
            syncs: counters.syncs,
            batches: counters.batches,
            destaged: counters.destaged,
            retries: counters.retries,
            rejected: counters.rejected,
            refused: counters.refused,
            destage_rate: self.destager.rate.get().unwrap_or(0.0),
            paused: self.destager.paused,
            origin_down: self.destager.is_origin_down(),
        }
    }

    /// Gives a handle back to the driver if nothing keeps it.
    fn drop_if_idle(&mut self, unit: UnitId) {
        if self.units.is_idle(unit) {
            self.units.may_leave(unit);
        }
    }

    /// Buffered writes and the units that they pin, as far as these count.
    fn dirty_bytes(&self) -> u64 {
        self.groups.bytes + if self.counts_units { self.units.pinned_bytes } else { 0 }
    }

    fn is_stale(&self) -> bool {
        self.policy.staleness != Span::MAX && self.staleness() >= self.policy.staleness
    }

    /// When the alarm is due that the origin is further behind than allowed.
    fn stale_at(&self) -> Option<Time> {
        if self.policy.staleness == Span::MAX || self.mode == Mode::StalenessExceeded {
            return None;
        }
        self.groups.oldest_stamp().map(|stamp| stamp + self.policy.staleness)
    }
}

/// Whether a fault means that the origin may answer later.
fn is_temporary(fault: Fault) -> bool {
    matches!(fault, Fault::Unavailable | Fault::Denied)
}

#[cfg(test)]
mod tests;
