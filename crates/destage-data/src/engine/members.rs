//! Sets as a whole: all their members, as this transaction sees them.
//!
//! A set is cached as a whole up to a limit. One that had more members may have lost them since: then a page that reads one
//! more than the limit tells all of them, or that there still are too many. Where no undecided change keeps the set in
//! memory it is fetched as a whole again instead ([`super::Engine::locate`]).

use super::elements::{self, Page, SetState, elements};
use super::perform::Context;
use super::prepared::Trouble;
use super::rows::Kind;
use super::sets::score_of;
use crate::cells::Reader;
use crate::collection::{Collection, CollectionId};
use crate::resp::{Code, ReplyError};
use destage_core::UnitId;
use std::borrow::Cow;
use std::collections::HashSet;

impl Context<'_> {
    /// What is known of a whole set, behind its owner's cells.
    pub(super) fn set_state(&self, collection: &Collection, unit: UnitId) -> (&[u8], SetState<'_>) {
        let row = self.rows.get(unit);
        let mut cells = Reader::new(row.cells);
        let owners = cells.cells(collection.owners.len()).unwrap_or_default();
        (owners, if row.kind == Kind::Row { SetState::read(cells) } else { SetState::Unknown })
    }

    /// All members, with what this transaction has changed; `None` if they are more than are cached. `units`: those of the
    /// command, with a page if the set was large.
    pub(super) fn members(
        &self,
        collection: &Collection,
        unit: UnitId,
        units: &[UnitId],
    ) -> Result<Option<Cow<'_, [u8]>>, Trouble> {
        let (owners, state) = self.set_state(collection, unit);
        let at_least = match state {
            SetState::Full(run) => return Ok(Some(self.with_staged(collection, owners, run))),
            SetState::Large { at_least, .. } => at_least,
            SetState::Unknown => return Err(Trouble::Unknown),
        };
        let members_max = collection.members_max + self.staged_removals(collection, owners);
        if at_least > members_max {
            return Ok(None);
        }
        let Page::Elements { is_complete, elements: run, .. } =
            self.fresh_page(collection, unit, units)?
        else {
            return Err(Trouble::Again);
        };
        let is_more = elements(run, collection.is_sorted()).count() > members_max;
        if is_more {
            Ok(None)
        } else if is_complete {
            Ok(Some(self.with_staged(collection, owners, run)))
        } else {
            Err(Trouble::Again)
        }
    }

    /// The page of a large set among the command's units, if nothing has changed since it was read.
    pub(super) fn fresh_page(
        &self,
        collection: &Collection,
        unit: UnitId,
        units: &[UnitId],
    ) -> Result<Page<'_>, Trouble> {
        let (owners, state) = self.set_state(collection, unit);
        let SetState::Large { loaded, changed, .. } = state else { return Err(Trouble::Again) };
        let is_page = |unit: &UnitId| {
            let table = self.rows.get(*unit).table;
            table == collection.page() && self.rows.key(*unit).starts_with(owners)
        };
        let page = units.iter().copied().find(is_page).ok_or(Trouble::Again)?;
        let row = self.rows.get(page);
        let mut cells = Reader::new(row.cells);
        cells.cells(self.schema.table(row.table).key_len);
        if row.kind != Kind::Row {
            return Err(Trouble::Again);
        }
        let page = Page::read(cells);
        match page {
            Page::Unknown => Err(Trouble::Unknown),
            Page::Count { started, installed, .. } | Page::Elements { started, installed, .. } => {
                let is_fresh = loaded < started && changed < installed;
                is_fresh.then_some(page).ok_or(Trouble::Again)
            }
        }
    }

    /// The rows of this collection's elements that the transaction has changed: the member, and the row as it will be.
    pub(super) fn staged<'s>(
        &'s self,
        collection: &'s Collection,
        owners: &'s [u8],
    ) -> impl Iterator<Item = (UnitId, Vec<u8>, Option<&'s [u8]>)> {
        self.txn.staged.iter().filter_map(move |staged| {
            if self.rows.get(staged.unit).table != collection.table {
                return None;
            }
            let mut own = Vec::new();
            let member = collection.split(self.rows.key(staged.unit), &mut own).to_vec();
            (own == owners).then_some((staged.unit, member, staged.row.as_deref()))
        })
    }

    /// How many members this transaction removes.
    fn staged_removals(&self, collection: &Collection, owners: &[u8]) -> usize {
        self.staged(collection, owners).filter(|(_, _, row)| row.is_none()).count()
    }

    pub(super) fn with_staged<'r>(
        &self,
        collection: &Collection,
        owners: &[u8],
        run: &'r [u8],
    ) -> Cow<'r, [u8]> {
        let mut run = Cow::Borrowed(run);
        for (_, member, row) in self.staged(collection, owners) {
            let score = row.map(|row| score_of(collection, row));
            run = elements::changed(&run, collection.is_sorted(), &member, score).into();
        }
        run
    }

    /// Whether there is such a set: it has members.
    pub(super) fn has_members(
        &self,
        id: CollectionId,
        unit: UnitId,
        units: &[UnitId],
    ) -> Result<bool, Trouble> {
        let collection = self.schema.collection(id);
        let (owners, state) = self.set_state(collection, unit);
        if let SetState::Large { at_least, .. } = state
            && at_least > self.staged_removals(collection, owners)
        {
            return Ok(true);
        }
        Ok(self.members(collection, unit, units)?.is_none_or(|run| !run.is_empty()))
    }

    /// Deletes all members, whose rows are among `rows`; whether there were any.
    pub(super) fn delete_members(
        &mut self,
        id: CollectionId,
        unit: UnitId,
        units: &[UnitId],
        rows: &HashSet<UnitId>,
    ) -> Result<bool, Trouble> {
        let collection = self.schema.collection(id);
        let Some(members) = self.members(collection, unit, units)? else {
            let message = ReplyError::fixed(
                Code::Large,
                "the set has too many members to be deleted at once: SREM or ZREM them in parts",
            );
            return Err(Trouble::Error(message));
        };
        let key_len = self.schema.table(collection.table).key_len;
        let owners = self.set_state(collection, unit).0;
        let mut deleted = Vec::new();
        for element in elements(&members, collection.is_sorted()) {
            let mut key = Vec::new();
            collection.push_element(key_len, owners, element.member, &mut key);
            // Also what this transaction has added before.
            let is_given = |unit: &UnitId| {
                rows.contains(unit) || self.txn.staged.iter().any(|s| s.unit == *unit)
            };
            let found = self.rows.find(collection.table, &key).filter(is_given);
            deleted.push(found.ok_or(Trouble::Again)?);
        }
        let any = !deleted.is_empty();
        deleted.into_iter().for_each(|unit| self.txn.delete(collection.table, unit));
        Ok(any)
    }
}
