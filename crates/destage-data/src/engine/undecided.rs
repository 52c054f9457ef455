//! What is known of groups that the origin has not decided, besides their bytes, which are in the overlay.
//!
//! Writes whose clients wait for the origin's word are visible to nobody before they have it; why the origin rejected a
//! group, until it is parked or its client is told; and what a group of an earlier run sets off at the origin.

use super::claims::Claims;
use super::structural::Structural;
use super::txn::{Beside, Staged};
use super::unknown::Unknown;
use crate::origins::OriginError;
use crate::schema::TableId;
use destage_core::{Access, ClientId, Lsn, UnitId};
use std::collections::{BTreeMap, HashMap, HashSet};

/// A write that waits for the origin's word.
#[derive(Debug)]
pub(super) struct WriteThrough {
    pub(super) client: ClientId,
    pub(super) reply: Vec<u8>,
    pub(super) staged: Vec<Staged>,
    pub(super) access: Access,
    /// Tables of which the origin may have changed rows that were not named.
    pub(super) invalidates: Vec<TableId>,
    pub(super) units: Vec<UnitId>,
    /// What it does besides.
    pub(super) beside: Beside,
}

/// What groups may change at the origin beyond what they say.
#[derive(Debug, Default)]
pub(super) struct Cascade {
    /// Tables of which any row may change.
    pub(super) tables: Vec<TableId>,
    /// Rows of the groups' own that triggers may change further.
    pub(super) units: Vec<UnitId>,
}

impl Cascade {
    pub(super) fn of(tables: Vec<TableId>, units: Vec<UnitId>) -> Self {
        Self { tables, units }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.tables.is_empty() && self.units.is_empty()
    }

    /// Adds what another group may change.
    pub(super) fn add(&mut self, mut other: Self) {
        self.tables.append(&mut other.tables);
        self.units.append(&mut other.units);
    }

    /// Adds tables of which any row may change.
    pub(super) fn add_tables(&mut self, tables: &[TableId]) {
        self.tables.extend(tables);
    }

    /// Each table once, in order.
    pub(super) fn sort(&mut self) {
        self.tables.sort_unstable();
        self.tables.dedup();
    }
}

/// Facts about undecided groups.
#[derive(Debug, Default)]
pub(super) struct Undecided {
    through: HashMap<Lsn, WriteThrough>,
    /// Of collections that were fetched beyond one of these: up to where they hold every group.
    fetched_ahead: HashMap<UnitId, Lsn>,
    /// Why single groups were rejected.
    reasons: HashMap<Lsn, OriginError>,
    /// What groups of an earlier run set off.
    cascades: BTreeMap<Lsn, Cascade>,
    structural: Structural,
    claims: Claims,
    /// What raw SQL makes unknown.
    unknown: Unknown,
}

/// Writes whose clients wait for the origin's word.
impl Undecided {
    /// Keeps one until the origin has decided it.
    pub(super) fn begin_through(&mut self, lsn: Lsn, write: WriteThrough) {
        let before = self.through.insert(lsn, write);
        assert!(before.is_none(), "a group has a number of its own");
    }

    /// The origin has decided one; and why, if it has rejected it.
    pub(super) fn end_through(&mut self, lsn: Lsn) -> (WriteThrough, Option<OriginError>) {
        let write = self.through.remove(&lsn);
        let write = write.expect("every write that goes through is kept until it is settled");
        (write, self.reasons.remove(&lsn))
    }

    /// Whether a group's client waits for the origin's word.
    pub(super) fn is_through(&self, lsn: Lsn) -> bool {
        self.through.contains_key(&lsn)
    }

    /// Whether one of them changes this unit.
    pub(super) fn changes_through(&self, unit: UnitId) -> bool {
        self.through.values().any(|write| write.units.contains(&unit))
    }

    /// All units that they change.
    pub(super) fn units_through(&self) -> HashSet<UnitId> {
        self.through.values().flat_map(|write| &write.units).copied().collect()
    }

    /// These rows are fetched again: what was to become of them was made from what is given up now.
    pub(super) fn unstage(&mut self, units: &HashSet<UnitId>) {
        for write in self.through.values_mut() {
            write.staged.retain(|staged| !units.contains(&staged.unit));
        }
    }

    /// A collection was fetched where the origin stood at `watermark`: it may hold groups already whose clients still wait.
    pub(super) fn note_fetched(&mut self, unit: UnitId, watermark: Lsn) {
        if self.through.keys().any(|&lsn| lsn <= watermark) {
            self.fetched_ahead.insert(unit, watermark);
        } else {
            self.fetched_ahead.remove(&unit);
        }
    }

    /// Whether a collection held this group when it was fetched. Added to once more, a score would count twice.
    pub(super) fn is_held_ahead(&self, unit: UnitId, lsn: Lsn) -> bool {
        self.fetched_ahead.get(&unit).is_some_and(|&seen| seen >= lsn)
    }

    /// Once nobody waits any more, nothing was fetched ahead of anybody.
    pub(super) fn forget_ahead(&mut self) {
        if self.through.is_empty() {
            self.fetched_ahead.clear();
        }
    }
}

/// Reasons, cascades.
impl Undecided {
    /// The origin has rejected a group.
    pub(super) fn rejected(&mut self, lsn: Lsn, reason: OriginError) {
        self.reasons.insert(lsn, reason);
    }

    /// Why it has, if it was that group alone.
    pub(super) fn reason(&self, lsn: Lsn) -> Option<&OriginError> {
        self.reasons.get(&lsn)
    }

    /// What a domain halted at has been applied after all.
    pub(super) fn forget_reasons(&mut self, lsns: &[Lsn]) {
        if !self.reasons.is_empty() {
            lsns.iter().for_each(|lsn| drop(self.reasons.remove(lsn)));
        }
    }

    /// A group is parked: it sets nothing off, and its reason is kept with it. False if its client waits, and will be told.
    pub(super) fn parked(&mut self, lsn: Lsn) -> bool {
        if self.is_through(lsn) {
            return false;
        }
        self.reasons.remove(&lsn);
        self.cascades.remove(&lsn);
        true
    }

    /// Remembers what a group sets off that an earlier run left.
    pub(super) fn note_cascade(&mut self, lsn: Lsn, cascade: Cascade) {
        if !cascade.is_empty() {
            self.cascades.insert(lsn, cascade);
        }
    }

    /// What groups have set off that the origin has applied.
    pub(super) fn take_cascades(&mut self, lsns: &[Lsn]) -> Cascade {
        let mut all = Cascade::default();
        if self.cascades.is_empty() && self.through.is_empty() {
            return all;
        }
        for lsn in lsns {
            if let Some(cascade) = self.cascades.remove(lsn) {
                all.add(cascade);
            }
            if let Some(write) = self.through.get(lsn) {
                all.add_tables(&write.invalidates);
            }
        }
        all.sort();
        all
    }

    /// Values of unique columns.
    pub(super) fn claims(&self) -> &Claims {
        &self.claims
    }

    /// The same, to be changed.
    pub(super) fn claims_mut(&mut self) -> &mut Claims {
        &mut self.claims
    }

    /// Inserts and deletes.
    pub(super) fn structural(&self) -> &Structural {
        &self.structural
    }

    /// The same, to be changed.
    pub(super) fn structural_mut(&mut self) -> &mut Structural {
        &mut self.structural
    }

    /// What raw SQL makes unknown.
    pub(super) fn unknown(&self) -> &Unknown {
        &self.unknown
    }

    /// The same, to be changed.
    pub(super) fn unknown_mut(&mut self) -> &mut Unknown {
        &mut self.unknown
    }

    /// Nothing is left, as it must be once everything is decided.
    #[cfg(test)]
    pub(super) fn assert_decided(&self) {
        assert!(self.through.is_empty() && self.fetched_ahead.is_empty());
        assert!(self.reasons.is_empty());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use destage_core::Fault;

    fn write(units: &[u32], table: u16) -> WriteThrough {
        WriteThrough {
            client: ClientId(0),
            reply: Vec::new(),
            staged: Vec::new(),
            access: Access::Through,
            invalidates: vec![TableId(table)],
            units: units.iter().copied().map(UnitId).collect(),
            beside: Beside::default(),
        }
    }

    #[test]
    fn a_collection_that_was_fetched_behind_a_write_holds_it_until_nobody_waits() {
        let (mut undecided, set) = (Undecided::default(), UnitId(7));
        undecided.note_fetched(set, Lsn(9));
        assert!(!undecided.is_held_ahead(set, Lsn(5)), "nobody waits");
        undecided.begin_through(Lsn(5), write(&[1], 0));
        undecided.note_fetched(set, Lsn(4));
        assert!(!undecided.is_held_ahead(set, Lsn(5)), "fetched before it");
        undecided.note_fetched(set, Lsn(5));
        assert!(undecided.is_held_ahead(set, Lsn(5)) && !undecided.is_held_ahead(set, Lsn(6)));
        undecided.forget_ahead();
        assert!(undecided.is_held_ahead(set, Lsn(5)));
        undecided.end_through(Lsn(5));
        undecided.forget_ahead();
        undecided.assert_decided();
    }

    #[test]
    fn what_a_group_sets_off_is_told_once_and_not_of_one_that_is_parked() {
        let mut undecided = Undecided::default();
        let cascade = |table| Cascade::of(vec![TableId(table)], Vec::new());
        undecided.note_cascade(Lsn(1), cascade(3));
        undecided.note_cascade(Lsn(2), cascade(4));
        undecided.rejected(Lsn(2), OriginError::new(Fault::Rejected, "no"));
        undecided.begin_through(Lsn(3), write(&[], 3));
        assert!(undecided.parked(Lsn(2)) && !undecided.parked(Lsn(3)));
        assert!(undecided.reason(Lsn(2)).is_none());
        let all = undecided.take_cascades(&[Lsn(1), Lsn(2), Lsn(3)]);
        assert_eq!(all.tables, [TableId(3)]);
        undecided.end_through(Lsn(3));
        assert!(undecided.take_cascades(&[Lsn(1)]).is_empty());
    }
}
