//! What the core wants loaded or dropped.

use super::rows::{Kind, RowKey};
use super::unknown::{HeldFetch, Place};
use super::{Engine, FetchJob};
use crate::schema::TableId;
use destage_core::{Input, Lsn, UnitId};

impl Engine {
    pub(super) fn fetch(&mut self, unit: UnitId) {
        let table = self.rows.get(unit).table;
        if self.derived.is_result(table) {
            return self.fetch_derived(unit);
        }
        if self.schema.plain == Some(table) {
            return self.fetch_plain(unit);
        }
        if self.stands_for_tables(table) {
            let key: Box<[u8]> = self.rows.key(unit).into();
            return self.fetched_nothing(unit, table, &key);
        }
        if let Some(place) = self.raw_sql_before(unit, table) {
            return self.fetch_behind(unit, place);
        }
        self.rows.unload(unit);
        self.begin_page(unit);
        let key: Box<[u8]> = self.rows.key(unit).into();
        let confirmed = self.domains.watermark(self.domain_of(table, &key));
        let row = (table, key);
        // What is known not to be there need not be looked for, unless undecided changes are to be overlaid.
        if !self.overlay.is_chained(unit) && self.is_known_absent(unit, &row) {
            return self.fetched_nothing(unit, table, &row.1);
        }
        self.jobs.fetch(FetchJob { unit, table, key: row.1, confirmed });
    }

    /// Whether the origin does not have a row, as the session says for which it is fetched, or as its keys tell.
    fn is_known_absent(&mut self, unit: UnitId, row: &RowKey) -> bool {
        if self.is_assumed_absent(unit, row) {
            return true;
        }
        let is_absent = self.absent.is_absent(row.0, &row.1);
        if is_absent {
            self.absent.note_answered();
        }
        is_absent
    }

    /// As if the origin had been asked for a row and had said that there is none.
    pub(super) fn fetched_nothing(&mut self, unit: UnitId, table: TableId, key: &[u8]) {
        let none = self.overlay.overlay(&self.schema, unit, table, key, None, Lsn(u64::MAX));
        self.rows.set(unit, none.as_deref());
        self.freshness.fetched(self.now, table, unit);
        let identity = self.rows.identity(table, key);
        let result = Ok(self.rows.bytes(unit));
        self.core.handle(self.now, Input::Fetched { unit, result, identity });
    }

    /// Drops a unit and gives up its number.
    pub(super) fn evict(&mut self, unit: UnitId) {
        let row = self.rows.get(unit);
        let (table, kind) = (row.table, row.kind);
        if self.schema.plain == Some(table) && kind == Kind::Row {
            self.plain_changed(unit);
        }
        self.freshness.left(table, unit);
        self.watchers.assumed_mut().leave(unit);
        let identity = self.rows.remove(unit);
        self.overlay.unchain(unit);
        self.core.handle(self.now, Input::Evicted { identity });
    }

    /// Fetches a row once the origin has decided a group.
    pub(super) fn fetch_behind(&mut self, unit: UnitId, place: Place) {
        if self.has_decided(place) {
            self.fetch(unit);
        } else {
            self.hold(place, HeldFetch::Row(unit));
        }
    }

    /// The origin has decided more than before: what was held back for that goes on.
    pub(super) fn raw_sql_decided(&mut self) {
        let domains = &self.domains;
        let decided = self
            .undecided
            .unknown_mut()
            .take_decided(|(domain, lsn)| lsn <= domains.watermark(domain));
        for fetch in decided {
            match fetch {
                HeldFetch::Row(unit) => self.fetch(unit),
                HeldFetch::Page(request, table, page) => self.ask_for_page(request, table, page),
            }
        }
    }
}
