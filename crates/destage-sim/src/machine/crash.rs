//! What a crash would lose, looked at without crashing: which acknowledged writes the caches and the origin hold.

use super::report::Crash;
use super::task::{Run, Units};
use super::tier::Tier;
use destage_core::{Lsn, Time, UnitId};
use destage_runtime::units::Interval;
use std::collections::VecDeque;

/// Follows every write from its issue to the origin.
#[derive(Debug)]
pub(super) struct Watch {
    /// When to look, in order.
    at: VecDeque<Time>,
    found: Vec<Crash>,
    /// Writes by number, from the first that the origin does not hold.
    writes: VecDeque<Write>,
    first: u32,
    /// Of each block the newest write at the origin, and the newest in persistent flash or at the origin.
    origin: Vec<u32>,
    safe: Vec<u32>,
    /// How far the log of each tier was followed.
    followed: Vec<Lsn>,
    /// Writes that completed before this were flushed before the writes that are issued now.
    flushed: Time,
}

#[derive(Debug)]
struct Write {
    issued: Time,
    acked: Option<Time>,
    units: Units,
    /// A flush that was answered before its issue covers what completed before this.
    follows: Time,
}

impl Watch {
    pub(super) fn new(at: &[Interval], tiers: usize) -> Self {
        let mut at: Vec<Time> = at.iter().map(|at| Time::ZERO + at.span()).collect();
        at.sort_unstable();
        Self {
            at: at.into(),
            found: Vec::new(),
            writes: VecDeque::new(),
            first: 1,
            origin: Vec::new(),
            safe: Vec::new(),
            followed: vec![Lsn::ZERO; tiers],
            flushed: Time::ZERO,
        }
    }

    /// A write is issued; they are numbered from 1.
    pub(super) fn issued(&mut self, now: Time, version: u32, units: Units) {
        debug_assert_eq!(
            version,
            self.first + self.writes.len() as u32,
            "each write is issued once"
        );
        let most = units.as_slice().iter().map(|unit| unit.0 as usize + 1).max().unwrap_or(0);
        if most > self.origin.len() {
            self.origin.resize(most, 0);
            self.safe.resize(most, 0);
        }
        self.writes.push_back(Write { issued: now, acked: None, units, follows: self.flushed });
        while let Some(write) = self.writes.front() {
            if !holds(&self.origin, &write.units, self.first) {
                break;
            }
            self.writes.pop_front();
            self.first += 1;
        }
    }

    /// A write is acknowledged.
    pub(super) fn acked(&mut self, now: Time, version: u32) {
        let index = version.checked_sub(self.first).map(|index| index as usize);
        if let Some(write) = index.and_then(|index| self.writes.get_mut(index)) {
            write.acked = Some(now);
        }
    }

    /// A flush that was issued at this time is answered.
    pub(super) fn flushed(&mut self, issued: Time) {
        self.flushed = self.flushed.max(issued);
    }

    /// Blocks are at the origin.
    pub(super) fn arrived(&mut self, units: &[UnitId], versions: &[u32]) {
        for (unit, &version) in units.iter().zip(versions) {
            let index = unit.0 as usize;
            self.origin[index] = self.origin[index].max(version);
            self.safe[index] = self.safe[index].max(version);
        }
    }

    /// A tier's medium holds everything up to here.
    pub(super) fn committed(&mut self, index: usize, tier: &Tier, upto: Lsn) {
        let from = self.followed[index].next().max(tier.groups.forgotten().next());
        for lsn in from.0..=upto.0 {
            let group = tier.group(Lsn(lsn));
            for (unit, &version) in group.units.as_slice().iter().zip(&group.versions) {
                let safe = &mut self.safe[unit.0 as usize];
                *safe = (*safe).max(version);
            }
        }
        self.followed[index] = upto;
    }

    /// Notes which writes some runs of a batch carry.
    pub(super) fn fill(&self, runs: &mut [Run], tier: &Tier) {
        for run in runs {
            let units = run.first.0..run.first.0 + run.blocks;
            run.versions = units.map(|unit| tier.version_sent(UnitId(unit))).collect();
        }
    }

    /// Looks at every time asked for that is not after `upto`, before anything happens then.
    pub(super) fn look(&mut self, upto: Time) {
        while let Some(&at) = self.at.front() {
            if at > upto {
                return;
            }
            self.at.pop_front();
            let crash = self.crash(at);
            self.found.push(crash);
        }
    }

    pub(super) fn into_crashes(self) -> Vec<Crash> {
        self.found
    }

    fn crash(&self, at: Time) -> Crash {
        let mut crash = Crash {
            at_seconds: at.0 as f64 / 1e9,
            lost_writes: 0,
            lost_writes_with_cache: 0,
            lost_blocks_with_cache: 0,
            staleness_seconds: 0.0,
            order_violations: 0,
            epoch_violations: 0,
            torn_writes: 0,
        };
        // When the first lost write completed.
        let mut completed = Time(u64::MAX);
        for (version, write) in (self.first..).zip(&self.writes) {
            let units = write.units.as_slice();
            let is_there = |unit: &UnitId| self.origin[unit.0 as usize] == version;
            let is_missing = |unit: &UnitId| self.origin[unit.0 as usize] < version;
            let is_visible = units.iter().any(is_there);
            crash.order_violations += u64::from(is_visible && completed < write.issued);
            crash.epoch_violations += u64::from(is_visible && completed < write.follows);
            crash.torn_writes += u64::from(is_visible && units.iter().any(is_missing));
            let Some(acked) = write.acked.filter(|_| units.iter().any(is_missing)) else {
                continue;
            };
            crash.lost_writes += u64::from(!holds(&self.safe, &write.units, version));
            crash.lost_writes_with_cache += 1;
            crash.lost_blocks_with_cache +=
                units.iter().filter(|unit| is_missing(unit)).count() as u64;
            crash.staleness_seconds =
                crash.staleness_seconds.max(at.since(write.issued).as_secs_f64());
            completed = completed.min(acked);
        }
        crash
    }
}

/// Whether a write, or newer ones of the same blocks, are held.
fn holds(newest: &[u32], units: &Units, version: u32) -> bool {
    units.as_slice().iter().all(|unit| newest[unit.0 as usize] >= version)
}
