//! The undecided groups, by number.

use crate::id::{DomainId, Lsn, UnitId};
use crate::io::Access;
use crate::time::Time;
use alloc::collections::VecDeque;
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
    pub(crate) is_across: bool,
    /// It builds on groups with which it shares no unit.
    pub(crate) builds_on: bool,
}

/// Groups from the oldest undecided one to the newest.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Groups {
    base: Lsn,
    list: VecDeque<Group>,
    /// Sums over the groups that are not `Done`.
    pub(crate) count: u64,
    pub(crate) bytes: u64,
    pub(crate) journal_bytes: u64,
}

impl Groups {
    /// No groups; everything up to `decided` is decided.
    pub(crate) fn new(decided: Lsn) -> Self {
        Self { base: decided.next(), list: VecDeque::new(), count: 0, bytes: 0, journal_bytes: 0 }
    }

    /// The number of the newest group.
    pub(crate) fn last(&self) -> Lsn {
        Lsn(self.base.0 + self.list.len() as u64 - 1)
    }

    /// Everything up to here is decided.
    pub(crate) fn decided(&self) -> Lsn {
        Lsn(self.base.0 - 1)
    }

    pub(crate) fn push(&mut self, group: Group) -> Lsn {
        self.count += 1;
        self.bytes += u64::from(group.bytes);
        self.journal_bytes += u64::from(group.journal_bytes);
        self.list.push_back(group);
        self.last()
    }

    /// Adds a group that an earlier run wrote. Stamps never fall from one group to the next: where the clock was set back
    /// between two writes, the earlier one counts as old as the later one, so that no age is ever understated.
    pub(crate) fn push_recovered(&mut self, group: Group) -> Lsn {
        for older in self.list.iter_mut().rev().take_while(|older| older.stamp > group.stamp) {
            older.stamp = group.stamp;
        }
        self.push(group)
    }

    /// Numbers up to `lsn` that were used by groups decided long ago.
    pub(crate) fn skip_to(&mut self, lsn: Lsn) {
        if self.list.is_empty() {
            self.base = self.base.max(lsn.next());
            return;
        }
        while self.last() < lsn {
            self.list.push_back(Group {
                stamp: self.list.back().map_or(Time::ZERO, |group| group.stamp),
                units: UnitList::Many(Arc::new([])),
                bytes: 0,
                journal_bytes: 0,
                level: 0,
                domain: DomainId(0),
                state: State::Done,
                access: Access::Back,
                is_joined: false,
                is_across: false,
                builds_on: false,
            });
        }
    }

    /// An undecided or recently decided group.
    pub(crate) fn get(&self, lsn: Lsn) -> Option<&Group> {
        self.list.get(usize::try_from(lsn.0.checked_sub(self.base.0)?).ok()?)
    }

    pub(crate) fn get_mut(&mut self, lsn: Lsn) -> Option<&mut Group> {
        self.list.get_mut(usize::try_from(lsn.0.checked_sub(self.base.0)?).ok()?)
    }

    /// The groups that are not decided, oldest first.
    pub(crate) fn undecided(&self) -> impl Iterator<Item = (Lsn, &Group)> {
        let numbered = (self.base.0..).map(Lsn).zip(&self.list);
        numbered.filter(|(_, group)| group.state != State::Done)
    }

    /// Whether the group is decided.
    pub(crate) fn is_done(&self, lsn: Lsn) -> bool {
        lsn < self.base || self.get(lsn).is_some_and(|group| group.state == State::Done)
    }

    /// Marks a group as decided and returns it for its units; `forget_done` drops it later.
    pub(crate) fn done(&mut self, lsn: Lsn) -> &Group {
        let index = (lsn.0 - self.base.0) as usize;
        let group = &mut self.list[index];
        assert!(group.state == State::InFlight, "only a group in flight is decided");
        group.state = State::Done;
        self.count -= 1;
        self.bytes -= u64::from(group.bytes);
        self.journal_bytes -= u64::from(group.journal_bytes);
        group
    }

    /// Drops decided groups from the front.
    pub(crate) fn forget_done(&mut self) {
        while self.list.front().is_some_and(|group| group.state == State::Done) {
            self.list.pop_front();
            self.base = self.base.next();
        }
    }

    /// When the oldest undecided group was written.
    pub(crate) fn oldest_stamp(&self) -> Option<Time> {
        self.list.front().map(|group| group.stamp)
    }
}
