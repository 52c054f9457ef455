//! What changed at the origin without a write of ours: told by DESTAGE INVALIDATE, by the origin itself, or taken for granted
//! after a table's `max_age`.

use super::super::Engine;
use crate::schema::TableId;
use destage_core::{Lsn, Span, Time, UnitId};
use std::collections::VecDeque;

/// Rows of the tables whose cached rows have a greatest age.
#[derive(Debug, Default)]
pub(in crate::engine) struct Ages {
    tables: Vec<Aging>,
}

#[derive(Debug)]
struct Aging {
    table: TableId,
    age_max: Span,
    /// When rows were fetched, oldest first.
    fetched: VecDeque<(Time, UnitId)>,
}

/// Rows are dropped together that were fetched within this part (1/64) of the greatest age; none of them too late.
const GRAIN_DIVISOR: u64 = 64;

impl Ages {
    /// Nothing is fetched yet.
    pub(in crate::engine) fn new(ages: impl Iterator<Item = (TableId, Span)>) -> Self {
        let aging = |(table, age_max)| Aging { table, age_max, fetched: VecDeque::new() };
        Self { tables: ages.map(aging).collect() }
    }

    /// A row was fetched.
    pub(in crate::engine) fn note(&mut self, now: Time, table: TableId, unit: UnitId) {
        let Some(aging) = self.tables.iter_mut().find(|aging| aging.table == table) else { return };
        let grain = (aging.age_max.0 / GRAIN_DIVISOR).max(1);
        aging.fetched.push_back((Time(now.0 / grain * grain), unit));
    }

    /// When the next row is too old.
    pub(in crate::engine) fn next_timeout(&self) -> Option<Time> {
        let next = |aging: &Aging| aging.fetched.front().map(|&(at, _)| at + aging.age_max);
        self.tables.iter().filter_map(next).min()
    }

    /// The rows that are too old now.
    fn take_old(&mut self, now: Time) -> Vec<(TableId, UnitId)> {
        let mut old = Vec::new();
        for aging in &mut self.tables {
            while let Some((_, unit)) =
                aging.fetched.pop_front_if(|(at, _)| *at + aging.age_max <= now)
            {
                old.push((aging.table, unit));
            }
        }
        old
    }
}

impl Engine {
    /// Drops the rows that have reached their table's greatest age.
    pub(in crate::engine) fn expire_rows(&mut self) {
        if self.ages.next_timeout().is_none_or(|at| at > self.now) {
            return;
        }
        for (table, unit) in self.ages.take_old(self.now) {
            // The number may stand for another row by now; that one is fetched again too early.
            if !self.rows.is_of(unit, table) {
                continue;
            }
            self.invalidate(unit);
            if self.core.is_present(unit) {
                // Undecided changes keep it; it is looked at again.
                self.ages.note(self.now, table, unit);
            }
        }
    }

    /// Rows of a table have changed at the origin, or may have: all of them, or those of these encoded keys. How many cached
    /// rows were dropped; those with undecided changes stay.
    pub fn changed_at_origin(&mut self, table: TableId, keys: Option<&[Box<[u8]>]>) -> usize {
        self.note_derived_foreign(table);
        self.tell_unsure(&[table]);
        let units: Vec<UnitId> = match keys {
            None => {
                self.watched.change_tables(&[table]);
                self.rows.units_of_tables(&[table])
            }
            Some(keys) => {
                for key in keys {
                    self.watched.change(&(table, key.clone()));
                }
                keys.iter().filter_map(|key| self.rows.find(table, key)).collect()
            }
        };
        self.wake_lease_waiters();
        units.iter().for_each(|&unit| self.invalidate(unit));
        units.len()
    }

    /// A row of a table has changed at the origin: what is derived from the table may be old.
    pub(in crate::engine) fn note_derived_foreign(&mut self, table: TableId) {
        if self.derived.is_on() {
            self.derived.versions.table(table, Lsn::ZERO);
        }
        self.note_table_watched(table);
    }

    /// Tells those who watch a key derived from a table that it changes.
    pub(in crate::engine) fn note_table_watched(&mut self, table: TableId) {
        if self.derived.is_on() && !self.watched.is_empty() {
            self.watched.change(&(table, Box::default()));
        }
    }

    /// DESTAGE INVALIDATE `*`, `table:*` or `derived:*`; `None` for what names single rows. How many cached copies were
    /// dropped.
    pub(in crate::engine) fn invalidate_pattern(
        &mut self,
        pattern: &[u8],
    ) -> Option<Result<i64, String>> {
        let tables: Vec<TableId> = match pattern.strip_suffix(b"*")? {
            b"" => {
                (0..self.derived.queries.len()).for_each(|query| self.drop_query(query));
                let plain = self.schema.plain;
                let tables = self.schema.tables.iter().map(|table| table.id);
                tables.filter(|table| Some(*table) != plain).collect()
            }
            prefix => {
                let word = prefix.strip_suffix(b":")?;
                let queries: Vec<usize> = self.derived.queries.of_word(word).collect();
                if !queries.is_empty() {
                    queries.into_iter().for_each(|query| self.drop_query(query));
                    return Some(Ok(0));
                }
                match self.schema.find(&super::super::key::decode(word)) {
                    Some(table) => vec![table.id],
                    None => return Some(Err(super::super::key::unknown_table(&self.schema, word))),
                }
            }
        };
        let dropped: usize =
            tables.into_iter().map(|table| self.changed_at_origin(table, None)).sum();
        Some(Ok(dropped as i64))
    }

    fn drop_query(&mut self, query: usize) {
        self.derived.versions.query(query);
    }
}
