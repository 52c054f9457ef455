//! Where each input goes, and what follows from it and from time passing.

use super::Core;
use crate::groups::{Group, State, UnitList};
use crate::id::{DomainId, Lsn, RequestId, UnitId};
use crate::io::{Access, Effect, Input, Mode, WaitFor};
use crate::policy::{AtLimit, Policy};
use crate::replace::Replacement;
use crate::time::Time;

impl Core {
    /// Takes one input. Poll the effects afterwards, all of them, in order.
    ///
    /// `now` must not go back; an earlier time counts as the latest one seen.
    ///
    /// # Panics
    /// If the driver breaks its side of the contract, for instance completes what was never asked.
    pub fn handle(&mut self, now: Time, input: Input<'_>) {
        self.now = self.now.max(now);
        match input {
            Input::Access { request, intent, units } => self.access(request, intent, units),
            Input::Write { domain, units, bytes, journal_bytes, access } => {
                self.write(domain, units, bytes, journal_bytes, access);
            }
            Input::Join { lsn } => self.join(lsn),
            Input::Spans { lsn, domains } => self.spread(lsn, domains),
            Input::BuildsOn { lsn, on } => self.builds_on(lsn, on),
            Input::Through { units, access, result } => self.carried(units, access, result),
            Input::Release { units } => self.release(units),
            Input::Respond { client, lsn, wrote } => self.respond(client, lsn, wrote),
            Input::Wait { request, lsn, until } => self.wait(request, lsn, until),
            Input::Cancel { request } => self.cancel(request),
            Input::Fetched { unit, result, identity } => self.fetched(unit, result, identity),
            Input::Restored { units, bytes } => {
                units.iter().for_each(|&unit| self.units.restored(unit, bytes));
            }
            Input::Evicted { identity } => self.units.cache.evicted(identity),
            Input::Invalidate { unit } => self.invalidate(unit),
            Input::Reload { unit } => self.reload(unit),
            Input::Synced { upto, result } => self.synced(upto, result),
            Input::Destaged { batch, result } => self.destaged(batch, result),
            Input::Parked { lsn, result } => self.parked(lsn, result),
            Input::Recovered { lsn, stamp, domain, level, units, bytes, journal_bytes } => {
                let group = Group {
                    stamp: stamp.min(self.now),
                    units: UnitList::new(units.iter().copied()),
                    bytes,
                    journal_bytes,
                    level,
                    domain,
                    state: State::Queued,
                    access: Access::Back,
                    is_joined: false,
                    is_spanning: false,
                    builds_on: false,
                };
                self.recovered(lsn, group);
            }
            Input::RecoveredParked { lsn, units } => self.recovered_parked(lsn, units),
            Input::RecoveredUpto { lsn } => self.recovered_upto(lsn),
            Input::Collective { units } => {
                units.iter().for_each(|&unit| self.units.stands_for_many(unit));
            }
            Input::Shrunk { lsn, bytes } => self.groups.shrink(lsn, bytes),
            Input::HoldParked { held } => self.destager.hold_parked(held),
            Input::Unparked { lsn, units } => self.unparked(lsn, units),
            Input::Lacking { secured } => self.take_lacking(secured),
            Input::SetPolicy(policy) => self.set_policy(policy),
            Input::Pause => self.destager.pause(),
            Input::Resume => self.destager.resume(),
            Input::ResumeParking => self.destager.resume_parking(),
            Input::Drain => self.destager.draining = true,
            Input::Tick => self.tick(),
        }
    }

    pub(super) fn write(
        &mut self,
        domain: DomainId,
        units: &[(UnitId, u32)],
        bytes: u32,
        journal_bytes: u32,
        access: Access,
    ) {
        let lsn = self.groups.push(Group {
            stamp: self.now,
            units: UnitList::new(units.iter().map(|&(unit, _)| unit)),
            bytes,
            journal_bytes,
            level: self.level.begin(),
            domain,
            state: State::Queued,
            access,
            is_joined: false,
            is_spanning: false,
            builds_on: false,
        });
        for &(unit, size) in units {
            self.units.written(unit, lsn, size);
        }
        self.counters.writes += 1;
        self.gate.appended(self.now, lsn);
        self.destager.queue(domain, lsn);
        if access != Access::Back {
            self.destager.hurry(domain, lsn);
            self.gate.hurry(lsn);
        }
    }

    pub(super) fn join(&mut self, lsn: Lsn) {
        assert!(
            lsn == self.groups.last(),
            "a group is joined to the next one before that is written"
        );
        if let Some(group) = self.groups.get_mut(lsn) {
            group.is_joined = true;
        }
    }

    pub(super) fn recovered(&mut self, lsn: Lsn, group: Group) {
        self.groups.skip_to(Lsn(lsn.0 - 1));
        self.level.recovered(group.level);
        let (domain, units) = (group.domain, group.units.clone());
        let pushed = self.groups.push_recovered(group);
        assert!(pushed == lsn, "recovered groups come in order, each once");
        for &unit in units.as_slice() {
            self.units.written(unit, lsn, 0);
        }
        self.gate.recovered(lsn);
        self.destager.queue(domain, lsn);
        self.groups.forget_done();
    }

    pub(super) fn recovered_parked(&mut self, lsn: Lsn, units: &[UnitId]) {
        for &unit in units {
            self.units.park(unit, lsn);
        }
        self.destager.note_parked(lsn);
    }

    pub(super) fn recovered_upto(&mut self, lsn: Lsn) {
        self.groups.skip_to(lsn);
        self.gate.recovered(self.groups.last());
        self.groups.forget_done();
    }

    pub(super) fn set_policy(&mut self, policy: &Policy) {
        if let Err(error) = policy.validate() {
            panic!("invalid policy: {error}");
        }
        self.policy = policy.clone();
        self.destager.restart_period(self.now, policy);
        self.destager.stop_less(policy);
        self.requests.fallback = self.gate.lacking().is_some();
        // Who was promised durability still gets it, without waiting for an interval that was not agreed.
        self.hurry_held();
    }

    pub(super) fn wait(&mut self, request: RequestId, lsn: Lsn, until: WaitFor) {
        match until {
            WaitFor::Committed => self.wait_committed(request, lsn),
            WaitFor::Decided => self.wait_decided(request, lsn),
            WaitFor::AllDecided => self.wait_all_decided(request, lsn),
        }
    }

    pub(super) fn tick(&mut self) {
        if self.stopped.is_some() {
            return;
        }
        self.counters.staleness_max = self.counters.staleness_max.max(self.staleness());
        self.leave_fallback();
        self.admit_waiting();
        self.release_held();
        self.start_sync();
        self.start_destage();
        self.update_mode();
    }

    /// The next thing for the driver to do.
    #[inline]
    pub fn poll_effect(&mut self) -> Option<Effect> {
        match self.effects.pop_front() {
            Some(Effect::Execute { request, access, observed }) => {
                let observed = observed.max(self.observed_late(request));
                Some(Effect::Execute { request, access, observed })
            }
            None => self.poll_idle(),
            effect => effect,
        }
    }

    /// What is decided only once every effect so far is carried out, because those may write: which units leave, and
    /// when a `ReadSettled` takes its locks.
    pub(super) fn poll_idle(&mut self) -> Option<Effect> {
        while self.effects.is_empty() && self.resume_postponed() {}
        if let Some(effect) = self.effects.pop_front() {
            return Some(effect);
        }
        if let Some(unit) = self.units.next_idle() {
            return Some(Effect::Evict { unit });
        }
        let taken = if self.shares_room { self.units.pinned_bytes } else { 0 };
        let bytes_max = self.policy.limits.cache_bytes_max.saturating_sub(taken);
        if self.units.clean_bytes() <= bytes_max {
            return None;
        }
        let unit = self.units.evict(bytes_max)?;
        self.counters.evictions += 1;
        Some(Effect::Evict { unit })
    }

    /// When to send [`Input::Tick`] next, if nothing else happens before.
    pub fn next_timeout(&self) -> Option<Time> {
        if self.stopped.is_some() {
            return None;
        }
        let throttled = self.requests.throttled_until(self.now);
        [self.sync_at(), self.destage_at(), throttled, self.stale_at()].into_iter().flatten().min()
    }

    pub(super) fn update_mode(&mut self) {
        self.leave_fallback();
        let dirty = self.dirty_bytes();
        let limits = &self.policy.limits;
        let full = self.requests.full
            || dirty >= limits.dirty_bytes_max
            || self.groups.journal_bytes >= limits.journal_bytes_max;
        let mode = if self.stopped.is_some() {
            Mode::Stopped
        } else if self.is_stale() {
            Mode::StalenessExceeded
        } else if self.requests.fallback {
            Mode::Fallback
        } else if full {
            Mode::Full
        } else if self.policy.at_limit == AtLimit::Throttle && dirty > limits.dirty_bytes_low {
            Mode::Throttled
        } else {
            Mode::Normal
        };
        if mode != self.mode {
            self.mode = mode;
            self.effects.push_back(Effect::Mode(mode));
        }
    }
}
