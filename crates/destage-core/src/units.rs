//! What the core knows about each unit: present, dirty, locked, on its way.

use crate::id::{Lsn, UnitId};
use crate::per_unit::PerUnit;
use crate::replace::{Chosen, Replacement};
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use hashbrown::{HashMap, HashSet};
use serde::{Deserialize, Serialize};

const PRESENT: u8 = 1;
const FETCHING: u8 = 2;
const LOCKED: u8 = 4;
const DIRTY: u8 = 8;
const PARKED: u8 = 16;
/// The fetch under way may bring what is out of date: fetch again.
const OUTDATED: u8 = 32;
/// Looked at for being idle once the effects given so far are carried out.
const LEAVING: u8 = 64;
/// Fetched and not used since: the use that it was fetched for is no further one.
const FRESH: u8 = 128;

/// A unit with undecided or parked changes: pinned.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
struct Dirty {
    last: Lsn,
    pending: u32,
    bytes: u32,
}

/// All units. One byte each besides the replacement's node; what is rare lives in maps.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(crate) struct Units {
    flags: PerUnit<u8>,
    pub(crate) cache: Chosen,
    dirty: HashMap<UnitId, Dirty>,
    /// The parked groups that changed a unit, oldest first.
    parked: HashMap<UnitId, Vec<Lsn>>,
    /// Those of the parked units that stand for many others, see [`crate::Input::Collective`].
    collective: HashSet<UnitId>,
    /// For each fetch under way, the decided mark when it began: later groups must stay available to it.
    pins: HashMap<UnitId, Lsn>,
    pin_counts: BTreeMap<Lsn, u32>,
    /// Requests that wait for something and name the unit, so that it must not be dropped.
    interest: HashMap<UnitId, u32>,
    leaving: VecDeque<UnitId>,
    pub(crate) pinned_bytes: u64,
    aside: Aside,
}

/// Clean units that were to leave while a request waited for them or a write was on its way to the origin: out of the
/// replacement's queues until nothing keeps them, so that no search comes upon them again. Their bytes count all the same.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
struct Aside {
    sizes: HashMap<UnitId, u32>,
    bytes: u64,
}

impl Aside {
    fn insert(&mut self, unit: UnitId, bytes: u32) {
        self.bytes += u64::from(bytes);
        let before = self.sizes.insert(unit, bytes);
        assert!(before.is_none(), "what is set aside is in no queue");
    }

    fn remove(&mut self, unit: UnitId) -> Option<u32> {
        let bytes = self.sizes.remove(&unit)?;
        self.bytes -= u64::from(bytes);
        Some(bytes)
    }
}

impl Units {
    fn flags(&self, unit: UnitId) -> u8 {
        self.flags.get(unit).copied().unwrap_or(0)
    }

    fn set(&mut self, unit: UnitId, flag: u8) {
        *self.flags.reach(unit, 0) |= flag;
    }

    fn clear(&mut self, unit: UnitId, flag: u8) {
        if let Some(flags) = self.flags.get_mut(unit) {
            *flags &= !flag;
        }
    }

    /// Present and not locked: may be executed upon.
    #[inline]
    pub(crate) fn is_ready(&self, unit: UnitId) -> bool {
        self.flags(unit) & (PRESENT | LOCKED) == PRESENT
    }

    pub(crate) fn is_present(&self, unit: UnitId) -> bool {
        self.flags(unit) & PRESENT != 0
    }

    pub(crate) fn is_locked(&self, unit: UnitId) -> bool {
        self.flags(unit) & LOCKED != 0
    }

    pub(crate) fn is_fetching(&self, unit: UnitId) -> bool {
        self.flags(unit) & FETCHING != 0
    }

    pub(crate) fn is_dirty(&self, unit: UnitId) -> bool {
        self.flags(unit) & (DIRTY | PARKED) != 0
    }

    pub(crate) fn has_undecided(&self, unit: UnitId) -> bool {
        self.flags(unit) & DIRTY != 0
    }

    pub(crate) fn lock(&mut self, unit: UnitId) {
        self.set(unit, LOCKED);
    }

    pub(crate) fn unlock(&mut self, unit: UnitId) {
        self.clear(unit, LOCKED);
        self.take_back(unit);
    }

    /// Whether a clean unit has to stay: a request waits for it, or a write on its way to the origin will change it.
    fn is_kept(&self, unit: UnitId) -> bool {
        self.is_locked(unit) || self.interest.contains_key(&unit)
    }

    /// Queues a unit again that was set aside, once nothing keeps it.
    fn take_back(&mut self, unit: UnitId) {
        if self.aside.sizes.is_empty() || self.is_kept(unit) {
            return;
        }
        if let Some(bytes) = self.aside.remove(unit) {
            self.cache.insert(unit, bytes, None);
        }
    }

    /// A clean unit is so no more, or is absent.
    fn unqueue(&mut self, unit: UnitId) {
        if self.aside.remove(unit).is_none() {
            self.cache.remove(unit);
        }
    }

    /// Bytes of clean units.
    pub(crate) fn clean_bytes(&self) -> u64 {
        self.cache.bytes() + self.aside.bytes
    }

    /// How many units are clean.
    pub(crate) fn clean_len(&self) -> usize {
        self.cache.len() + self.aside.sizes.len()
    }

    /// Notes a use. The first one after a fetch is the one that it was fetched for.
    #[inline]
    pub(crate) fn touch(&mut self, unit: UnitId) {
        match self.flags(unit) & FRESH {
            0 => {
                self.cache.touch(unit);
            }
            _ => {
                self.clear(unit, FRESH);
                self.cache.first_use(unit);
            }
        }
    }

    pub(crate) fn dirty_len(&self) -> u64 {
        self.dirty.len() as u64
    }

    /// The newest undecided group that changed the unit.
    #[inline]
    pub(crate) fn last_write(&self, unit: UnitId) -> Lsn {
        if self.flags(unit) & DIRTY == 0 {
            return Lsn::ZERO;
        }
        self.dirty.get(&unit).map_or(Lsn::ZERO, |dirty| dirty.last)
    }

    /// Notes that a group changed the unit, whose size now is `bytes`.
    pub(crate) fn written(&mut self, unit: UnitId, lsn: Lsn, bytes: u32) {
        if let Some(dirty) = self.dirty.get_mut(&unit) {
            self.pinned_bytes = self.pinned_bytes - u64::from(dirty.bytes) + u64::from(bytes);
            *dirty = Dirty { last: lsn, pending: dirty.pending + 1, bytes };
            return;
        }
        self.unqueue(unit);
        self.pinned_bytes += u64::from(bytes);
        self.dirty.insert(unit, Dirty { last: lsn, pending: 1, bytes });
        self.set(unit, DIRTY);
    }

    /// Notes that one group that changed the unit is decided.
    pub(crate) fn decided(&mut self, unit: UnitId) {
        let dirty = self.dirty.get_mut(&unit).expect("a unit of an undecided group is dirty");
        dirty.pending -= 1;
        if dirty.pending > 0 {
            return;
        }
        let bytes = dirty.bytes;
        self.clear(unit, DIRTY);
        self.dirty.remove(&unit);
        self.pinned_bytes -= u64::from(bytes);
        if self.is_present(unit) && !self.is_dirty(unit) {
            self.cache.insert(unit, bytes, None);
        }
    }

    /// Pins the unit until [`Units::unpark`], because a change of it is parked.
    pub(crate) fn park(&mut self, unit: UnitId, lsn: Lsn) {
        self.unqueue(unit);
        self.set(unit, PARKED);
        self.parked.entry(unit).or_default().push(lsn);
    }

    /// Of this unit, which is parked or is about to be, nothing builds on what is parked.
    pub(crate) fn stands_for_many(&mut self, unit: UnitId) {
        self.collective.insert(unit);
    }

    /// A group that changed the unit is parked no more, and the cached copy holds what may not be so.
    pub(crate) fn unpark(&mut self, unit: UnitId, lsn: Lsn) {
        if let Some(parked) = self.parked.get_mut(&unit) {
            parked.retain(|&other| other != lsn);
            if parked.is_empty() {
                self.parked.remove(&unit);
                self.collective.remove(&unit);
                self.clear(unit, PARKED);
            }
        }
        self.make_stale(unit);
    }

    /// The parked group that the unit's later changes depend on.
    pub(crate) fn parked(&self, unit: UnitId) -> Option<Lsn> {
        if self.flags(unit) & PARKED == 0 || self.collective.contains(&unit) {
            return None;
        }
        self.parked.get(&unit)?.first().copied()
    }

    /// The fetch under way is not good enough any more.
    pub(crate) fn outdate_fetch(&mut self, unit: UnitId) {
        self.set(unit, OUTDATED);
    }

    /// Whether what the fetch under way brings is not good enough.
    pub(crate) fn is_outdated(&self, unit: UnitId) -> bool {
        self.flags(unit) & OUTDATED != 0
    }

    pub(crate) fn begin_fetch(&mut self, unit: UnitId, pin: Lsn) {
        self.set(unit, FETCHING);
        self.pins.insert(unit, pin);
        *self.pin_counts.entry(pin).or_insert(0) += 1;
    }

    /// Ends a fetch; present from now on if it brought something. True if what it brought is out of date.
    pub(crate) fn end_fetch(&mut self, unit: UnitId, fetched: Option<u32>, identity: u64) -> bool {
        let is_outdated = self.flags(unit) & OUTDATED != 0;
        self.clear(unit, FETCHING | OUTDATED);
        if let Some(pin) = self.pins.remove(&unit)
            && let Some(count) = self.pin_counts.get_mut(&pin)
        {
            *count -= 1;
            if *count == 0 {
                self.pin_counts.remove(&pin);
            }
        }
        let Some(bytes) = fetched else { return false };
        // A copy with undecided changes stays: it holds them together with what was fetched.
        if is_outdated && !self.has_undecided(unit) {
            return true;
        }
        self.set(unit, PRESENT);
        if let Some(dirty) = self.dirty.get_mut(&unit) {
            self.pinned_bytes = self.pinned_bytes - u64::from(dirty.bytes) + u64::from(bytes);
            dirty.bytes = bytes;
        } else if !self.is_dirty(unit) {
            self.set(unit, FRESH);
            self.cache.insert(unit, bytes, Some(identity));
        }
        false
    }

    /// A clean copy is left from an earlier run. It was kept to the last, so it does not have to prove itself.
    pub(crate) fn restored(&mut self, unit: UnitId, bytes: u32) {
        assert!(self.flags(unit) == 0, "only what nobody has used yet is restored");
        self.set(unit, PRESENT);
        self.cache.insert(unit, bytes, None);
    }

    /// Whether a fetch is under way.
    pub(crate) fn is_fetching_any(&self) -> bool {
        !self.pins.is_empty()
    }

    /// The origin holds what was written through it: present from now on, unless something newer is known of.
    pub(crate) fn carried(&mut self, unit: UnitId, bytes: u32) {
        if self.is_fetching(unit) {
            // It may have looked at the origin before the write.
            return self.outdate_fetch(unit);
        }
        if !self.is_dirty(unit) {
            self.set(unit, PRESENT);
            self.unqueue(unit);
            self.cache.insert(unit, bytes, None);
        }
    }

    /// The decided mark that the oldest fetch under way started from.
    pub(crate) fn oldest_pin(&self) -> Option<Lsn> {
        self.pin_counts.first_key_value().map(|(&lsn, _)| lsn)
    }

    /// Forgets the cached copy of a unit without undecided changes; what is parked is fetched with the unit.
    pub(crate) fn make_absent(&mut self, unit: UnitId) {
        if !self.has_undecided(unit) {
            self.unqueue(unit);
            self.clear(unit, PRESENT | FRESH);
        }
    }

    /// The same, and what a fetch under way brings is no better: it may have looked at the origin before.
    pub(crate) fn make_doubtful(&mut self, unit: UnitId) {
        if self.is_fetching(unit) {
            self.outdate_fetch(unit);
        }
        self.make_absent(unit);
    }

    /// Forgets a unit's cached copy even though it is dirty: its changes are overlaid again by the next fetch.
    pub(crate) fn make_stale(&mut self, unit: UnitId) {
        self.unqueue(unit);
        self.clear(unit, PRESENT | FRESH);
    }

    /// How many waiting requests name the unit.
    pub(crate) fn interest(&self, unit: UnitId) -> u32 {
        self.interest.get(&unit).copied().unwrap_or(0)
    }

    pub(crate) fn add_interest(&mut self, units: &[UnitId]) {
        for &unit in units {
            *self.interest.entry(unit).or_insert(0) += 1;
        }
    }

    pub(crate) fn drop_interest(&mut self, units: &[UnitId]) {
        for unit in units {
            if let Some(count) = self.interest.get_mut(unit) {
                *count -= 1;
                if *count == 0 {
                    self.interest.remove(unit);
                    self.take_back(*unit);
                }
            }
        }
    }

    /// Whether nothing keeps the unit: its handle may be reused.
    pub(crate) fn is_idle(&self, unit: UnitId) -> bool {
        self.flags(unit) & !LEAVING == 0 && !self.interest.contains_key(&unit)
    }

    /// Puts the unit on the list of those that may be idle by the time the driver asks for more.
    pub(crate) fn may_leave(&mut self, unit: UnitId) {
        if self.flags(unit) & LEAVING == 0 {
            self.set(unit, LEAVING);
            self.leaving.push_back(unit);
        }
    }

    /// The next unit of that list which is idle indeed.
    pub(crate) fn next_idle(&mut self) -> Option<UnitId> {
        while let Some(unit) = self.leaving.pop_front() {
            self.clear(unit, LEAVING);
            if self.is_idle(unit) {
                return Some(unit);
            }
        }
        None
    }

    /// Chooses a clean unit to leave; `None` if something keeps every one. Those that have to stay are set aside on the way.
    pub(crate) fn evict(&mut self, bytes_max: u64) -> Option<UnitId> {
        loop {
            let before = self.cache.bytes();
            let unit = self.cache.evict(bytes_max)?;
            if !self.is_kept(unit) {
                self.clear(unit, PRESENT | FRESH);
                return Some(unit);
            }
            self.aside.insert(unit, (before - self.cache.bytes()) as u32);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What something keeps is looked at once, however often room is asked for, and leaves once nothing keeps it.
    #[test]
    fn what_is_kept_is_set_aside_and_comes_back() {
        let mut units = Units::default();
        for unit in (0..4).map(UnitId) {
            units.begin_fetch(unit, Lsn::ZERO);
            assert!(!units.end_fetch(unit, Some(10), u64::from(unit.0)));
        }
        units.lock(UnitId(0));
        units.add_interest(&[UnitId(0), UnitId(1)]);
        assert_eq!(units.evict(0), Some(UnitId(2)));
        assert_eq!(units.evict(0), Some(UnitId(3)));
        assert_eq!((units.evict(0), units.cache.len()), (None, 0), "no search comes upon it again");
        assert_eq!((units.clean_len(), units.clean_bytes()), (2, 20), "it takes room all the same");
        units.unlock(UnitId(0));
        assert_eq!(units.evict(0), None, "a request still waits for it");
        units.drop_interest(&[UnitId(0), UnitId(1)]);
        assert_eq!(units.evict(0), Some(UnitId(0)));
        units.written(UnitId(1), Lsn(1), 10);
        assert_eq!((units.evict(0), units.clean_bytes()), (None, 0));
    }

    #[test]
    fn what_is_set_aside_and_forgotten_takes_no_room() {
        let mut units = Units::default();
        units.restored(UnitId(0), 10);
        units.lock(UnitId(0));
        assert_eq!(units.evict(0), None);
        units.make_stale(UnitId(0));
        units.unlock(UnitId(0));
        assert_eq!((units.clean_len(), units.clean_bytes(), units.evict(0)), (0, 0, None));
    }
}
