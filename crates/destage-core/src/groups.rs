//! The undecided groups, by number.
//!
//! A group leaves when it and everything older is decided. Until then a decided one stays as [`State::Done`], because the
//! watermark is one number: it can only say that everything up to some group is decided.

use crate::id::{DomainId, Lsn, UnitId};
use crate::io::Access;
use crate::ring::Ring;
use crate::time::Time;
use alloc::sync::Arc;
use serde::{Deserialize, Serialize};

/// Units of a group: nearly always one. Cheap to clone, also where there are many.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) enum UnitList {
    One(UnitId),
    Many(Arc<[UnitId]>),
}

impl UnitList {
    pub(crate) fn new(mut units: impl ExactSizeIterator<Item = UnitId>) -> Self {
        match (units.len(), units.next()) {
            (1, Some(unit)) => Self::One(unit),
            (_, first) => Self::Many(first.into_iter().chain(units).collect()),
        }
    }

    pub(crate) fn as_slice(&self) -> &[UnitId] {
        match self {
            Self::One(unit) => core::slice::from_ref(unit),
            Self::Many(units) => units,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub(crate) enum State {
    /// Waits in its domain's queue.
    Queued,
    /// In a batch, or being parked.
    InFlight,
    /// Decided; leaves once everything before it is.
    Done,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Group {
    pub(crate) stamp: Time,
    pub(crate) units: UnitList,
    pub(crate) bytes: u32,
    pub(crate) journal_bytes: u32,
    pub(crate) level: u64,
    pub(crate) domain: DomainId,
    pub(crate) state: State,
    pub(crate) access: Access,
    /// The group after it belongs to the same request.
    pub(crate) is_joined: bool,
    /// It belongs to further domains than `domain`.
    pub(crate) is_spanning: bool,
    /// It builds on groups with which it shares no unit.
    pub(crate) builds_on: bool,
}

/// Groups from the oldest undecided one to the newest.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Groups {
    ring: Ring<Group>,
    /// Sums over the groups that are not `Done`.
    pub(crate) count: u64,
    pub(crate) bytes: u64,
    pub(crate) journal_bytes: u64,
}

impl Groups {
    /// No groups; everything up to `decided` is decided.
    pub(crate) fn new(decided: Lsn) -> Self {
        Self { ring: Ring::new(decided), count: 0, bytes: 0, journal_bytes: 0 }
    }

    /// The number of the newest group.
    pub(crate) fn last(&self) -> Lsn {
        self.ring.last()
    }

    /// Everything up to here is decided.
    pub(crate) fn decided(&self) -> Lsn {
        self.ring.forgotten()
    }

    pub(crate) fn push(&mut self, group: Group) -> Lsn {
        self.count += 1;
        self.bytes += u64::from(group.bytes);
        self.journal_bytes += u64::from(group.journal_bytes);
        let lsn = self.ring.next();
        self.ring.push(lsn, group);
        lsn
    }

    /// Adds a group that an earlier run wrote. Stamps never fall from one group to the next: where the clock was set back
    /// between two writes, the earlier one counts as old as the later one, so that no age is ever understated.
    pub(crate) fn push_recovered(&mut self, group: Group) -> Lsn {
        for older in self.ring.values_mut().rev().take_while(|older| older.stamp > group.stamp) {
            older.stamp = group.stamp;
        }
        self.push(group)
    }

    /// Numbers up to `lsn` that were used by groups decided long ago.
    pub(crate) fn skip_to(&mut self, lsn: Lsn) {
        self.ring.skip_to(lsn, |newest| Group {
            stamp: newest.stamp,
            units: UnitList::Many(Arc::new([])),
            bytes: 0,
            journal_bytes: 0,
            level: 0,
            domain: DomainId(0),
            state: State::Done,
            access: Access::Back,
            is_joined: false,
            is_spanning: false,
            builds_on: false,
        });
    }

    /// An undecided or recently decided group.
    pub(crate) fn get(&self, lsn: Lsn) -> Option<&Group> {
        self.ring.get(lsn)
    }

    pub(crate) fn get_mut(&mut self, lsn: Lsn) -> Option<&mut Group> {
        self.ring.get_mut(lsn)
    }

    /// The groups that are not decided, oldest first.
    pub(crate) fn undecided(&self) -> impl Iterator<Item = (Lsn, &Group)> {
        self.ring.iter().filter(|(_, group)| group.state != State::Done)
    }

    /// Whether the group is decided.
    pub(crate) fn is_done(&self, lsn: Lsn) -> bool {
        lsn <= self.decided() || self.get(lsn).is_some_and(|group| group.state == State::Done)
    }

    /// Marks a group as decided and returns it for its units; `forget_done` drops it later.
    pub(crate) fn done(&mut self, lsn: Lsn) -> &Group {
        let group = self.ring.get_mut(lsn).expect("an undecided group is kept");
        assert!(group.state == State::InFlight, "only a group in flight is decided");
        group.state = State::Done;
        self.count -= 1;
        self.bytes -= u64::from(group.bytes);
        self.journal_bytes -= u64::from(group.journal_bytes);
        group
    }

    /// So many bytes of a group need no room any more.
    pub(crate) fn shrink(&mut self, lsn: Lsn, bytes: u32) {
        let undecided = self.ring.get_mut(lsn).filter(|group| group.state != State::Done);
        if let Some(group) = undecided {
            let gone = bytes.min(group.bytes);
            group.bytes -= gone;
            self.bytes -= u64::from(gone);
        }
    }

    /// Drops decided groups from the front.
    pub(crate) fn forget_done(&mut self) {
        self.ring.forget_while(|_, group| group.state == State::Done);
    }

    /// When the oldest undecided group was written.
    pub(crate) fn oldest_stamp(&self) -> Option<Time> {
        self.ring.front().map(|group| group.stamp)
    }
}
