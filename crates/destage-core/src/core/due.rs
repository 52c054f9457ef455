//! When to destage: the update policies, the bounds, and whoever waits.

use super::Core;
use super::queue::Domain;
use crate::id::{DomainId, Lsn};
use crate::policy::{AtLimit, When};
use crate::time::{Span, Time};

/// The staleness bound is met with at least this share of it (1/10) to spare.
const STALENESS_RESERVE_DIVISOR: u64 = 10;
/// The adaptive policy yields to reads at the origin until the oldest write has this share (1/2) of `D`.
const YIELD_DIVISOR: u64 = 2;
/// Assumed rate before any was measured, groups per second.
const RATE_ASSUMED: f64 = 1_000.0;

impl Core {
    /// The newest group of a domain that should be on its way now, and which the journal holds.
    pub(super) fn due(&self, domain: &Domain) -> Option<Lsn> {
        let head = domain.head()?;
        let secured = self.gate.secured();
        if head > secured {
            return None;
        }
        let newest = domain.newest_upto(secured);
        if self.destager.draining || self.is_pressed(head) || self.requests.fallback {
            return Some(newest);
        }
        let asked = domain.hurry.min(newest);
        let by_policy = match self.policy.when {
            When::Adaptive => domain.due.min(newest),
            _ if self.policy.read_priority && self.units.is_fetching_any() => Lsn::ZERO,
            When::Async if self.now >= self.linger_until(domain, head, newest) => newest,
            When::Periodic { .. } | When::Interval { .. } => domain.due.min(newest),
            When::OnPressure if self.destager.pressing => newest,
            When::Async | When::OnPressure => Lsn::ZERO,
        };
        let due = asked.max(by_policy);
        (due >= head).then_some(due)
    }

    /// When the domain's next destage becomes due by the passing of time alone.
    pub(super) fn due_at(&self, domain: &Domain) -> Option<Time> {
        let head = domain.head()?;
        if head > self.gate.secured() {
            return None;
        }
        let newest = domain.newest_upto(self.gate.secured());
        let by_policy = match self.policy.when {
            When::Async => Some(self.linger_until(domain, head, newest)),
            When::Periodic { .. } | When::Interval { .. } => None,
            When::Adaptive | When::OnPressure => None,
        };
        let by_time = [by_policy, self.pressed_at(head)].into_iter().flatten();
        // What has passed already waits for something else than time.
        by_time.filter(|&at| at > self.now).min()
    }

    /// Until when a batch waits for company: not at all once it is full.
    fn linger_until(&self, domain: &Domain, head: Lsn, newest: Lsn) -> Time {
        let limits = &self.policy.limits;
        if domain.count_upto(newest) >= limits.batch_groups_max as usize {
            return self.now;
        }
        self.stamp(head) + limits.linger
    }

    fn stamp(&self, lsn: Lsn) -> Time {
        self.groups.get(lsn).map_or(Time::ZERO, |group| group.stamp)
    }

    /// Whether `D` or the memory leaves no time to wait.
    fn is_pressed(&self, head: Lsn) -> bool {
        self.pressed_at(head).is_some_and(|at| self.now >= at) || self.is_short_of_room()
    }

    fn is_short_of_room(&self) -> bool {
        let limits = &self.policy.limits;
        self.requests.wants_room
            || (self.policy.when != When::OnPressure
                && self.dirty_bytes() >= limits.dirty_bytes_low)
            || self.groups.journal_bytes >= limits.journal_bytes_max / 4 * 3
    }

    /// A write was judged, and found room or none. One that is refused for that comes again: it hurries what is dirty, of which
    /// nothing else is due below the low mark.
    pub(super) fn judged(&mut self, full: bool) {
        self.requests.full = full;
        match self.policy.at_limit {
            AtLimit::WriteThrough if full => self.requests.fallback = true,
            AtLimit::Fail if full && self.dirty_bytes() <= self.policy.limits.dirty_bytes_low => {
                self.hurry_all(self.groups.last());
            }
            _ => {}
        }
    }

    /// Whether destaging could go on at once if the journal committed what it holds.
    pub(super) fn awaits_commit(&self) -> bool {
        let is_wanted = self.is_short_of_room()
            || self.requests.fallback
            || (self.policy.when == When::OnPressure && self.destager.pressing);
        is_wanted
            && self.destager.domains.iter().any(|domain| {
                domain.in_flight == 0
                    && domain.head().is_some_and(|head| head > self.gate.secured())
            })
    }

    /// The latest time to begin so that everything dirty now arrives within `D`: D minus backlog over measured rate.
    fn pressed_at(&self, head: Lsn) -> Option<Time> {
        self.pressed_from(self.stamp(head))
    }

    /// The same for a group written at `stamp`.
    pub(super) fn pressed_from(&self, stamp: Time) -> Option<Time> {
        let bound = self.policy.staleness;
        if bound == Span::MAX {
            return None;
        }
        let rate = self.destager.rate.get().unwrap_or(RATE_ASSUMED).max(1.0);
        let transfer = Span((self.groups.count as f64 / rate * 1.5e9) as u64);
        let reserve = Span(bound.0 / STALENESS_RESERVE_DIVISOR);
        let lead = Span(transfer.0.saturating_add(reserve.0));
        Some(stamp + bound.saturating_sub(lead))
    }

    /// Moves the marks of the periodic policies when their time has come.
    pub(super) fn look_at_ages(&mut self) {
        let now = self.now;
        match self.policy.when {
            When::Periodic { every } => {
                if let Some(passed) = self.destager.period_over(now, every) {
                    self.mark_due(passed);
                }
            }
            When::Interval { age, check } => {
                // Before the clock has run for that long, nothing is so old.
                if let Some(passed) = self.destager.period_over(now, check)
                    && passed >= Time::ZERO + age
                {
                    self.mark_due(passed - age);
                }
            }
            When::Adaptive => {
                if self.destager.period_over(now, self.policy.pace()).is_some() {
                    self.keep_pace();
                }
            }
            When::Async => {}
            When::OnPressure => {
                let (dirty, limits) = (self.dirty_bytes(), &self.policy.limits);
                let is_full = self.requests.wants_room || self.requests.full;
                if dirty >= limits.dirty_bytes_max || is_full {
                    self.destager.pressing = true;
                } else if dirty <= limits.dirty_bytes_low {
                    self.destager.pressing = false;
                }
            }
        }
    }

    /// Marks as due what the adaptive policy sends in one period: of what is dirty, the part that the period is of the time
    /// left until it must be on its way at full speed.
    fn keep_pace(&mut self) {
        let (now, pace) = (self.now, self.policy.pace());
        let yields_until = Span(self.policy.staleness.0 / YIELD_DIVISOR);
        for index in 0..self.destager.domains.len() {
            let domain = &self.destager.domains[index];
            let marked = domain.count_upto(domain.due);
            let Some(&oldest) = domain.queue.get(marked) else { continue };
            let stamp = self.stamp(oldest);
            if self.units.is_fetching_any() && now.since(stamp) < yields_until {
                continue;
            }
            let start = self.pressed_from(stamp).unwrap_or(now);
            let left = start.since(now).max(pace);
            let backlog = (domain.queue.len() - marked) as f64;
            let credit = domain.credit + backlog * (pace.0 as f64 / left.0 as f64);
            let count = (credit as usize).min(domain.queue.len() - marked);
            let due = match count.checked_sub(1) {
                Some(last) => domain.queue[marked + last],
                None => domain.due,
            };
            let domain = &mut self.destager.domains[index];
            domain.credit = credit - count as f64;
            domain.due = due;
            self.gate.hurry(due);
        }
    }

    /// Everything written up to `written_by` is due. A journal that commits at intervals is asked to commit first, since
    /// only what it holds is destaged.
    fn mark_due(&mut self, written_by: Time) {
        let groups = &self.groups;
        for domain in &mut self.destager.domains {
            let due = domain
                .newest_where(|lsn| groups.get(lsn).is_some_and(|group| group.stamp <= written_by));
            domain.due = due.max(domain.due);
            self.gate.hurry(domain.due);
        }
    }

    /// Everything up to this group is due, and committed first.
    pub(super) fn hurry_all(&mut self, lsn: Lsn) {
        for index in 0..self.destager.domains.len() {
            self.destager.hurry(DomainId(index as u16), lsn);
        }
        self.gate.hurry(lsn);
    }

    /// Someone waits for this group: destage up to it, and commit it first.
    pub(super) fn hurry(&mut self, lsn: Lsn) {
        if let Some(group) = self.groups.get(lsn) {
            let domain = group.domain;
            self.destager.hurry(domain, lsn);
            self.destager.hurry_spanned(lsn);
            self.gate.hurry(lsn);
        }
    }
}
