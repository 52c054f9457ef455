//! What raw SQL makes unknown: nobody but the origin can tell what it does to the rows and tables that it declares, so
//! whoever reads those waits until the origin has decided it.
//!
//! - When such a group takes its place in the order of all writes, the cached copies of what it covers are dropped, dirty
//!   ones too ([`Input::Reload`]), and fetches that may have looked at the origin before it begin anew.
//! - A fetch of what it covers is held back, and the destage of everything up to the group hurried, with a deadline. What
//!   was written behind it is overlaid as ever.
//! - A row is a unit, and a whole table is a unit as well, in each ordering domain that has rows of it, which the later
//!   writes of these rows name: so what builds on a rejected group is parked behind it, and shares its fate.
//!
//! A group belongs to the domains of all that it declares. What the origin changes along with that is in the same domains,
//! or the partition is one that takes no raw SQL. So the watermark of a row's own domain tells whether the origin has
//! decided what covers the row.
//!
//! *Source:* Ghandeharizadeh and Nguyen, write-back with cache augmented data stores: a miss destages what its mapping names
//! first (Algorithm 1).

use super::asking::PREFETCH_CLIENT;
use super::session::Session;
use super::unknown::{Covers, HeldFetch, Part, Place};
use super::{Engine, Io, overlay};
use crate::cells::{Cell, push_cell};
use crate::dml::Dml;
use crate::origins::{OriginError, Watermarks, decided_of};
use crate::resp::{Code, ReplyError};
use crate::schema::TableId;
use destage_core::{Access, Input, Lsn, UnitId, WaitFor};
use std::collections::{BTreeSet, HashSet};

impl Engine {
    /// What a group's raw SQL covers: what it declares, the tables that the origin changes along with these, as far as the
    /// schema and the settings tell, and the collections over all of them.
    pub(super) fn covered(&self, bytes: &[u8]) -> Covers {
        let mut covers = Covers::default();
        for dml in overlay::statements(&self.schema, bytes) {
            self.rules().add_covered(&dml, self.domains.partition(), &mut covers);
        }
        covers
    }

    /// The units that raw SQL names in the order of writes: its rows, and the tables that it covers.
    pub(super) fn units_of_dml(&mut self, dml: &Dml<'_>) -> Vec<UnitId> {
        let mut covers = Covers::default();
        self.rules().add_covered(dml, self.domains.partition(), &mut covers);
        self.named_units(&covers)
    }

    fn named_units(&mut self, covers: &Covers) -> Vec<UnitId> {
        let mut units = Vec::with_capacity(covers.rows.len() + covers.parts.len());
        for (table, key) in &covers.rows {
            units.push(self.rows.find_or_insert(*table, key));
        }
        for &part in &covers.parts {
            units.push(self.part_unit(part));
        }
        units
    }

    /// The unit that stands for all rows of a part.
    fn part_unit(&mut self, (table, domain): Part) -> UnitId {
        let of_parts = self.undecided.unknown_mut().part_table(|| self.rows.add_table(1));
        let number = [table.0.to_le_bytes(), domain.0.to_le_bytes()].concat();
        let mut key = Vec::new();
        push_cell(&mut key, Cell::Value(&number));
        self.rows.find_or_insert(of_parts, &key)
    }

    /// Whether a unit's table is the one whose rows stand for parts of tables.
    pub(super) fn stands_for_tables(&self, table: TableId) -> bool {
        self.undecided.unknown().is_part_table(table)
    }

    /// How many units stand for parts of tables.
    #[cfg(test)]
    pub(super) fn part_units(&self) -> usize {
        let table = self.undecided.unknown().known_part_table();
        table.map_or(0, |table| self.rows.units_of_tables(&[table]).len())
    }

    /// All units of a group with raw SQL: those that it names, and what is dirty or parked in the tables that it covers, on
    /// which it builds.
    pub(super) fn units_of_covers(&mut self, covers: &Covers) -> Vec<UnitId> {
        let mut units = self.named_units(covers);
        let within = self.units_within(covers);
        units.extend(within.into_iter().filter(|&unit| self.core.is_dirty(unit)));
        units
    }

    /// The rows that are here of the tables that raw SQL covers.
    fn units_within(&self, covers: &Covers) -> Vec<UnitId> {
        if covers.tables.is_empty() {
            return Vec::new();
        }
        let mut units = self.rows.units_of_tables(&covers.tables);
        if !self.domains.partition().is_one() {
            units.retain(|&unit| covers.parts.contains(&self.part_of(unit)));
        }
        units
    }

    fn part_of(&self, unit: UnitId) -> Part {
        let table = self.rows.get(unit).table;
        (table, self.domain_of(table, self.rows.key(unit)))
    }

    /// The units of parts that a change of rows of these parts must name: of those that undecided or parked raw SQL covers.
    pub(super) fn covering_units(&mut self, parts: impl Iterator<Item = Part>) -> Vec<UnitId> {
        if !self.undecided.unknown().covers_tables() {
            return Vec::new();
        }
        let covered: BTreeSet<Part> =
            parts.filter(|&part| self.undecided.unknown().covers_part(part)).collect();
        covered.into_iter().map(|part| self.part_unit(part)).collect()
    }

    /// Names the units of parts among what a group changes.
    pub(super) fn name_tables(&mut self, changed: &mut Vec<(UnitId, u32)>) {
        let parts: Vec<Part> = changed.iter().map(|(unit, _)| self.part_of(*unit)).collect();
        let units = self.covering_units(parts.into_iter());
        self.name(units, changed);
    }

    fn name(&self, units: Vec<UnitId>, changed: &mut Vec<(UnitId, u32)>) {
        let mut named: HashSet<UnitId> = changed.iter().map(|(unit, _)| *unit).collect();
        let new = units.into_iter().filter(|&unit| named.insert(unit));
        changed.extend(new.map(|unit| (unit, self.rows.bytes(unit))));
    }

    /// Adds what raw SQL covers to what its group changes, before the group is appended.
    pub(super) fn cover(
        &mut self,
        covers: &Covers,
        access: Access,
        changed: &mut Vec<(UnitId, u32)>,
    ) {
        // A write that waits for the origin names only what it has locked.
        let units = match access {
            Access::Back => self.units_of_covers(covers),
            Access::Through | Access::Around => self.named_units(covers),
        };
        self.name(units, changed);
        self.note_derived_covers(covers);
    }

    /// What derives from the rows and tables has changed.
    fn note_derived_covers(&mut self, covers: &Covers) {
        if !self.has_derived() {
            return;
        }
        let lsn = self.core.next_lsn();
        let rows = covers.rows.iter().map(|(table, _)| *table);
        let tables: BTreeSet<TableId> = rows.chain(covers.tables.iter().copied()).collect();
        let is_unforeseeable = tables.iter().any(|&table| self.rules().is_unforeseeable(table));
        self.note_derived_tables(tables.into_iter(), lsn, is_unforeseeable);
    }

    /// A group with raw SQL has its place in the order of writes: nothing cached of what it covers is used any more.
    pub(super) fn make_unknown(&mut self, lsn: Lsn, covers: &Covers) {
        self.absent.note_covered(covers, lsn);
        let mut rows: Vec<(UnitId, Part)> = Vec::with_capacity(covers.rows.len());
        for (table, key) in &covers.rows {
            let unit = self.rows.find_or_insert(*table, key);
            rows.push((unit, (*table, self.domain_of(*table, key))));
        }
        self.undecided.unknown_mut().cover(lsn, &rows, &covers.parts);
        let mut stale: Vec<UnitId> = rows.into_iter().map(|(unit, _)| unit).collect();
        if !covers.tables.is_empty() {
            stale.extend(self.units_within(covers));
            self.watchers.change_tables(&covers.tables);
            covers.tables.iter().for_each(|&table| self.note_table_watched(table));
            self.wake_lease_waiters();
        }
        self.drop_copies(&stale);
    }

    /// Drops cached copies, dirty or not. What a fetch under way brings is judged when it comes.
    pub(super) fn drop_copies(&mut self, units: &[UnitId]) {
        for &unit in units {
            if !self.core.is_fetching(unit) {
                self.core.handle(self.now, Input::Reload { unit });
            }
            self.rows.unload(unit);
            self.freshness.unset_deadline(unit);
        }
    }

    /// The groups that cover a row, if anyone is to wait for them.
    fn covering(&self, unit: UnitId, table: TableId) -> impl Iterator<Item = Place> + use<'_> {
        let is_on = !self.undecided.unknown().is_nothing_covered()
            && !self.config.unsafe_flags.in_force().no_opaque_wait;
        let part = is_on.then(|| (table, self.domain_of(table, self.rows.key(unit))));
        part.into_iter().flat_map(move |part| self.undecided.unknown().covering(unit, part))
    }

    pub(super) fn has_decided(&self, (domain, lsn): Place) -> bool {
        lsn <= self.domains.watermark(domain)
    }

    /// The group that the origin has to decide before a row is fetched.
    pub(super) fn raw_sql_before(&self, unit: UnitId, table: TableId) -> Option<Place> {
        self.covering(unit, table).find(|&place| !self.has_decided(place))
    }

    /// The group that a row lacks which was fetched where the origin stood as `seen` says; or that it shows before anyone has
    /// been told of it.
    pub(super) fn raw_sql_behind(
        &self,
        unit: UnitId,
        table: TableId,
        seen: &Watermarks,
    ) -> Option<Place> {
        self.covering(unit, table).find(|&(domain, lsn)| {
            lsn > decided_of(seen, domain) || !self.has_decided((domain, lsn))
        })
    }

    /// Asks the origin for a page of keys, once it has decided what its table depends on.
    pub(super) fn ask_for_page(&mut self, request: u64, table: TableId, page: Io) {
        let mut open = None;
        if !self.undecided.unknown().is_nothing_covered() {
            let homes = self.partition().homes(table).into_iter();
            let newest =
                homes.filter_map(|domain| self.undecided.unknown().newest_in((table, domain)));
            open = newest.into_iter().find(|&place| !self.has_decided(place));
        }
        match open {
            None => self.jobs.push(page),
            Some(place) => self.hold(place, HeldFetch::Page(request, table, page)),
        }
    }

    pub(super) fn hold(&mut self, place: Place, fetch: HeldFetch) {
        self.undecided.unknown_mut().hold(place, self.now + self.config.client_wait, fetch);
        let request = self.asking.request_id(PREFETCH_CLIENT);
        let until = WaitFor::Decided;
        self.core.handle(self.now, Input::Wait { request, lsn: place.1, until });
    }

    pub(super) fn held_in_vain(&mut self, unit: UnitId, error: &OriginError) {
        self.decisions.fetch_failed(unit);
        let row = self.rows.get(unit);
        self.measured.read_failed(self.now, &self.schema.table(row.table).name, error);
        let identity = self.rows.identity(row.table, self.rows.key(unit));
        let result = Err(error.fault);
        self.core.handle(self.now, Input::Fetched { unit, result, identity });
        self.pump();
    }

    /// Whether another session holds an X lease on what raw SQL covers.
    pub(super) fn is_covered_by_lease(&self, session: &Session, dml: &Dml<'_>) -> bool {
        if self.watchers.is_empty() {
            return false;
        }
        dml.declared().any(|(table, row)| match row {
            Some(key) => self.watchers.is_leased_away(&(table, key.into()), session.watch),
            None => self.watchers.is_table_leased_away(table, session.watch),
        })
    }

    /// Whether what a client sends as raw SQL can be taken: it is whole, and this origin takes any.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(super) fn check_dml(&self, bytes: &[u8]) -> Result<(), ReplyError> {
        let dml = Dml::decode(bytes)
            .ok_or(ReplyError::fixed(Code::Err, "that is no raw SQL of the library's"))?;
        dml.statement().map_err(|why| ReplyError::err(why.to_string()))?;
        if self.domains.partition().reaches_across() {
            return Err(ReplyError::fixed(
                Code::Err,
                "raw SQL is not taken where cascades or triggers reach into other ordering domains: put the \
                        tables that they connect into one [[domain]]",
            ));
        }
        let reachable = self.schema.reachable().len();
        if dml.declared().any(|(table, _)| usize::from(table.0) >= reachable) {
            return Err(ReplyError::fixed(Code::Err, "raw SQL declares a table that is not there"));
        }
        Ok(())
    }
}
