//! The parked groups that there are, and which of them may leave together.

use crate::change;
use crate::resp::ReplyError;
use destage_core::{Lsn, UnitId};
use std::collections::{BTreeMap, HashSet};
use std::ops::Index;
use std::sync::Arc;

/// The parked groups, in order.
#[derive(Debug, Default)]
pub(in crate::engine) struct KnownGroups(BTreeMap<Lsn, Known>);

/// A parked group: the rows and sets that it changes, and its changes or why they cannot be read.
#[derive(Debug)]
pub(in crate::engine) struct Known {
    pub(super) units: Units,
    /// The groups on which it builds although it changes none of their rows.
    builds_on: Vec<Lsn>,
    pub(super) bytes: Result<Arc<[u8]>, String>,
}

/// What a group changes.
#[derive(Debug, Default)]
pub(super) struct Units {
    pub(super) rows: Vec<UnitId>,
    /// The sets whose members the rows are.
    pub(super) sets: Vec<UnitId>,
}

impl Units {
    pub(super) fn all(&self) -> impl Iterator<Item = UnitId> {
        self.rows.iter().chain(&self.sets).copied()
    }
}

impl Known {
    /// Its changes.
    ///
    /// # Errors
    /// They cannot be read.
    pub(super) fn readable(&self, lsn: Lsn) -> Result<&[u8], ReplyError> {
        let unreadable = |why| ReplyError::err(format!("{why}; EDIT write {} or SKIP it", lsn.0));
        self.bytes.as_deref().map_err(unreadable)
    }
}

impl KnownGroups {
    /// A group is parked.
    pub(super) fn add(&mut self, lsn: Lsn, units: Units, bytes: Result<Arc<[u8]>, String>) {
        let builds_on = bytes.as_deref().map(change::builds_on).unwrap_or_default();
        self.0.insert(lsn, Known { units, builds_on, bytes });
    }

    /// It is parked no longer.
    pub(super) fn remove(&mut self, lsn: Lsn) -> Option<Known> {
        self.0.remove(&lsn)
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (Lsn, &Known)> {
        self.0.iter().map(|(&lsn, known)| (lsn, known))
    }

    /// On what a parked group builds besides the earlier changes of its rows.
    pub(in crate::engine) fn builds_on(&self, lsn: Lsn) -> &[Lsn] {
        self.0.get(&lsn).map_or(&[], |known| &known.builds_on)
    }

    /// A group that somebody asks for by its number.
    pub(super) fn find(&self, lsn: Lsn) -> Result<&Known, ReplyError> {
        self.0.get(&lsn).ok_or_else(|| {
            ReplyError::err(format!("write {} is not parked; see PARKED LIST", lsn.0))
        })
    }

    /// Whether a group may leave before the others.
    pub(super) fn check(&self, root: Lsn, edited: &Units) -> Result<&Known, ReplyError> {
        let known = self.find(root)?;
        let own = known.units.rows.iter().chain(&edited.rows);
        let shares = |other: &Known| own.clone().any(|unit| other.units.rows.contains(unit));
        let is_below =
            |lsn: &Lsn, other: &Known| known.builds_on.binary_search(lsn).is_ok() || shares(other);
        match self.0.range(..root).rev().find(|(lsn, other)| is_below(lsn, other)) {
            Some((before, _)) => Err(ReplyError::err(format!(
                "write {} builds on the rejected write {}: decide on that one first",
                root.0, before.0
            ))),
            None => Ok(known),
        }
    }

    /// A group and all that can follow it: what shares a row with them or has read what they wrote, and has to do with nothing
    /// that stays. And everything that they change. `by_row`: what shares no row with them stays, since the origin takes one
    /// document at a time.
    pub(super) fn with_followers(
        &self,
        root: Lsn,
        edited: &Units,
        by_row: bool,
    ) -> (Vec<Lsn>, HashSet<UnitId>) {
        let mut leaving: HashSet<UnitId> = edited.rows.iter().copied().collect();
        let mut staying: HashSet<UnitId> = HashSet::new();
        let mut sets = edited.sets.clone();
        let mut lsns: Vec<Lsn> = Vec::new();
        for (&lsn, Known { units, builds_on, .. }) in &self.0 {
            let leaves = |other: &Lsn| lsns.binary_search(other).is_ok();
            let stays = |other: &Lsn| self.0.contains_key(other) && !leaves(other);
            let follows = units.rows.iter().any(|unit| leaving.contains(unit))
                || !by_row && builds_on.iter().any(leaves);
            let is_bound =
                units.rows.iter().any(|unit| staying.contains(unit)) || builds_on.iter().any(stays);
            if lsn == root || (lsn > root && follows && !is_bound) {
                lsns.push(lsn);
                leaving.extend(&units.rows);
                sets.extend(&units.sets);
            } else {
                staying.extend(&units.rows);
            }
        }
        leaving.extend(sets);
        (lsns, leaving)
    }

    /// Why the first one that cannot be read is left out when all are asked for.
    pub(super) fn first_unreadable(&self) -> Option<ReplyError> {
        self.0.iter().find_map(|(&lsn, known)| known.readable(lsn).err())
    }

    /// Of all, the next one that may leave.
    pub(super) fn next_of_all(&self, upto: Lsn) -> Option<Lsn> {
        let none = Units::default();
        let may_leave = |lsn: &Lsn| self.check(*lsn, &none).is_ok_and(|known| known.bytes.is_ok());
        self.0.range(upto.next()..).map(|(&lsn, _)| lsn).find(may_leave)
    }
}

impl Index<Lsn> for KnownGroups {
    type Output = Known;

    fn index(&self, lsn: Lsn) -> &Known {
        &self.0[&lsn]
    }
}
