//! What changed at the origin without a write of ours: told by DESTAGE INVALIDATE, by the origin itself, or taken for granted
//! after a table's `max_age`.

use super::super::Engine;
use super::super::elements::set_of_table;
use super::super::freshness::Doubt;
use super::super::rows::dedup;
use crate::collection::{Collection, CollectionId};
use crate::resp::ReplyError;
use crate::schema::TableId;
use destage_core::{Lsn, UnitId};

impl Engine {
    /// Drops the rows that have reached their table's greatest age.
    pub(in crate::engine) fn expire_rows(&mut self) {
        for (table, unit) in self.freshness.take_old(self.now) {
            debug_assert!(
                self.rows.is_of(unit, table),
                "what leaves the cache has no age any more"
            );
            self.distrust(unit, Doubt::Age);
        }
    }

    /// Rows of a table have changed at the origin, or may have: all of them, or those of these encoded keys. What is cached of
    /// them, of sets over them and of queries about them is fetched again before it is used, and undecided changes of ours are
    /// overlaid. How many copies were cached.
    pub fn changed_at_origin(&mut self, table: TableId, keys: Option<&[Box<[u8]>]>) -> usize {
        self.note_derived_foreign(table);
        self.watchers.tell_unsure(&[table]);
        match keys {
            None => self.absent.forget(table, Lsn::ZERO),
            Some(keys) => keys.iter().for_each(|key| self.absent.add(table, key)),
        }
        let units = match keys {
            None => self.units_of_table(table),
            Some(keys) => self.units_of_rows(table, keys),
        };
        self.wake_lease_waiters();
        units.iter().for_each(|&unit| self.distrust(unit, Doubt::Reported));
        units.len()
    }

    /// What is cached of a table; those who watch any of it are told.
    fn units_of_table(&mut self, table: TableId) -> Vec<UnitId> {
        let collections = self.schema.table(table).collections.iter();
        let parts = collections.flat_map(|&id| self.schema.collection(id).parts);
        let tables: Vec<TableId> = std::iter::once(table).chain(parts).collect();
        self.watchers.change_tables(&tables);
        self.rows.units_of_tables(&tables)
    }

    /// What is cached of some rows, and of the sets that they are members of; those who watch any of it are told. Pages of a
    /// large set are of no use once the set itself is fetched again.
    fn units_of_rows(&mut self, table: TableId, keys: &[Box<[u8]>]) -> Vec<UnitId> {
        let schema = self.schema.clone();
        let collections: Vec<&Collection> =
            schema.table(table).collections.iter().map(|&id| schema.collection(id)).collect();
        let mut units = Vec::new();
        for key in keys {
            self.watchers.change(&(table, key.clone()));
            units.extend(self.rows.find(table, key));
            for collection in &collections {
                let mut owners = Vec::new();
                collection.split(key, &mut owners);
                units.extend(self.rows.find(collection.whole(), &owners));
                self.watchers.change(&(collection.whole(), owners.into()));
            }
        }
        dedup(&units)
    }

    /// As [`Engine::changed_at_origin`], for the rows of one set's members.
    fn set_changed_at_origin(&mut self, id: CollectionId, owners: &[u8]) -> usize {
        let schema = self.schema.clone();
        let collection = schema.collection(id);
        // Members may have come that are cached nowhere.
        self.absent.forget(collection.table, Lsn::ZERO);
        let is_member = |unit: &UnitId| {
            let mut own = Vec::new();
            collection.split(self.rows.key(*unit), &mut own);
            own == owners
        };
        let rows = self.rows.units_of_tables(&[collection.table]);
        let keys: Vec<Box<[u8]>> = rows
            .iter()
            .filter(|unit| is_member(unit))
            .map(|&unit| self.rows.key(unit).into())
            .collect();
        // Also where none of its members is cached as a row; members that are watched and not cached are not known.
        self.watchers.change_tables(&[collection.table]);
        self.watchers.change(&(collection.whole(), owners.into()));
        let whole = self.rows.find(collection.whole(), owners);
        let is_counted = whole.is_some() && keys.is_empty();
        whole.into_iter().for_each(|unit| self.distrust(unit, Doubt::Reported));
        self.changed_at_origin(collection.table, Some(&keys)) + usize::from(is_counted)
    }

    /// Drops the cached copies of rows, of all rows of a table (`table:*`), of everything (`*`), or the cached results of derived
    /// keys; returns how many there were. Those with undecided changes are fetched again and overlaid.
    ///
    /// # Errors
    /// A key names no row; those behind it have not been dropped.
    pub fn invalidate_named(&mut self, keys: &[&[u8]]) -> Result<i64, ReplyError> {
        let mut dropped = 0;
        for key in keys {
            if let Some(others) = self.invalidate_pattern(key).or_else(|| self.drop_derived(key)) {
                dropped += others?;
                continue;
            }
            let mut cells = Vec::new();
            let table = super::super::key::resolve(&self.schema, key, &mut cells)?.0.id;
            if self.schema.plain == Some(table) {
                // It is no copy of anything.
                continue;
            }
            dropped += match set_of_table(&self.schema, table) {
                Some(id) => self.set_changed_at_origin(id, &cells),
                None => self.changed_at_origin(table, Some(&[cells.into()])),
            } as i64;
        }
        Ok(dropped)
    }

    /// DESTAGE INVALIDATE `*`, `table:*`, `mapped:*` or `derived:*`; `None` for what names single rows. How many cached copies
    /// were dropped.
    fn invalidate_pattern(&mut self, pattern: &[u8]) -> Option<Result<i64, ReplyError>> {
        let tables: Vec<TableId> = match pattern.strip_suffix(b"*")? {
            b"" => {
                (0..self.derived.queries().len()).for_each(|query| self.drop_query(query));
                self.schema.reachable().iter().map(|table| table.id).collect()
            }
            prefix => match self.tables_under(prefix)? {
                Ok(tables) => tables,
                Err(message) => return Some(Err(message)),
            },
        };
        let dropped: usize =
            tables.into_iter().map(|table| self.changed_at_origin(table, None)).sum();
        Some(Ok(dropped as i64))
    }

    /// The tables whose rows are reached by keys that begin so; the results of queries are dropped at once.
    fn tables_under(&mut self, prefix: &[u8]) -> Option<Result<Vec<TableId>, ReplyError>> {
        let mapped = self.schema.mapped_under(prefix);
        if !mapped.is_empty() {
            return Some(Ok(mapped));
        }
        let word = prefix.strip_suffix(b":")?;
        let queries: Vec<usize> = self.derived.queries().of_word(word).collect();
        if !queries.is_empty() {
            queries.into_iter().for_each(|query| self.drop_query(query));
            return Some(Ok(Vec::new()));
        }
        Some(match self.schema.find(&crate::key_text::decode(word)) {
            Some(table) => Ok(vec![table.id]),
            None => Err(super::super::key::unknown_table(&self.schema, word)),
        })
    }

    fn drop_query(&mut self, query: usize) {
        self.derived.versions_mut().query(query);
        self.rows.tracking_mut().results_changed(None);
    }
}
